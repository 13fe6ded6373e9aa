"""Fits that are killed and damaged on purpose, and must come out right: ``python -m tests.chaos``."""
