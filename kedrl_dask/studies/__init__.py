"""The paper's studies: many fits, each compared with the truth.

Imports everything but ``cli``.
"""
