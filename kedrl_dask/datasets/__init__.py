"""Datasets with a known truth, and adapters to public ones.

Imports ``engine``, ``numerics`` and the reference estimator.
"""
