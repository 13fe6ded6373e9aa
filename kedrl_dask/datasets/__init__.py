"""Datasets with a known truth, and adapters to public ones."""
