"""The stages of a fit, one module each.

``parameters`` → ``settings`` → ``planning`` → ``policy_check`` → ``design`` → ``streaming`` →
``regression`` → ``conditioning`` → ``problem`` → ``separated`` or ``paired``; ``pipeline`` runs them.
Imports ``engine``, ``numerics`` and ``utils``.
"""
