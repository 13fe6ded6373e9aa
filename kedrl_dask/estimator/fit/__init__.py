"""The stages of a fit, one module each.

``settings`` → ``planning`` → ``pilot`` → ``design`` → ``construction`` → ``streaming`` → ``regression`` →
``conditioning`` → ``problem`` → ``separated`` or ``paired``; ``pipeline`` runs them.
Imports ``engine``, ``numerics`` and ``utils``.
"""
