"""Competing methods of distributional off-policy evaluation on the systems of the benchmark."""
