"""The stages of a fit, one module each.

``settings`` → ``planning`` → ``policy_check`` → ``design`` → ``streaming`` → ``regression`` →
``conditioning`` → ``separated`` or ``paired``; ``pipeline`` runs them. Imports ``engine``, ``numerics`` and
``utils``.
"""
