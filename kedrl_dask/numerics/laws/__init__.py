"""Laws of the return: probability laws recovered from embeddings, and their summaries.

Gives recovery with its certificate, the solver on the simplex behind it, laws tilted from simulated returns,
mixtures, summaries, and functionals that need no recovery. Imports ``kernels`` and ``utils``.
"""
