"""The fitted model, its diagnostics, findings, answers, results and file.

Imports ``fit``, ``engine``, ``numerics`` and ``utils``.
"""
