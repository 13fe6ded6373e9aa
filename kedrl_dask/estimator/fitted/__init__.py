"""What a fitted model gives: predictions, diagnostics, findings, answers, results, and its file.

Imports ``engine``, ``numerics`` and ``utils``, and of ``fit`` the settings.
"""
