"""The conditional weights Γ as a ridge regression on Nyström features, and its parts.

Gives cross-validation of kernels and ridges, the reward's trend, the density ratio, and the conditional
operators, in features or by the kernels themselves. Imports ``kernels``, ``design`` and the chunks of
``criterion``.
"""
