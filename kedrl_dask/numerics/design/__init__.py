"""Where a fit puts its points: landmarks, basis, atoms of the return grid, and how many of each.

Gives points and sizes. Imports ``kernels`` and ``utils``.
"""
