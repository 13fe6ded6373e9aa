"""The density ratio η̂ of a fit, and how far it reduces the effective sample size."""

from __future__ import annotations

import numpy as np

from kedrl_dask.engine.data.transition_store import TransitionStore
from kedrl_dask.estimator.fitted.rules import SMALL_ESS
from kedrl_dask.estimator.kedrl import KEDRL
from kedrl_dask.plots.style import BLUE, GREY, ORANGE, Figure

#: Most transitions whose ratios are drawn.
N_RATIOS = 20_000


def density_ratio(model: KEDRL, store: TransitionStore) -> Figure:
    """Plot the ratios η̂ at logged successors, and the share of their sum held by the largest ones.

    Parameters
    ----------
    model : KEDRL
        Fitted with ``continuation="ratio"``.
    store : TransitionStore
        The transitions used in the fit; a sample of at most 20,000 is drawn.

    Examples
    --------
    >>> from kedrl_dask import plots
    >>> from sklearn.base import clone
    >>> weighted = clone(model).set_params(continuation="ratio").fit(store, policy, progress="none")
    >>> figure = plots.density_ratio(weighted, store)
    >>> [axes.get_title() for axes in figure.axes]
    ['Ratios', 'Concentration']
    """
    if model.ratio_ is None:
        raise ValueError(
            f"density_ratio: the fit used continuation={model.continuation!r}, which has no ratio"
        )
    sample = store.sample(N_RATIOS, np.random.default_rng([model.random_state, 18]))
    sample = sample.select(~sample.terminal)
    ratios = model.ratio_(np.hstack([sample.next_state, sample.next_action]))
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.hist(ratios, bins=60, color=BLUE)
    left.axvline(1.0, color=ORANGE, linestyle="--", label="expected mean")
    left.set(title="Ratios", xlabel="η̂ at a logged successor", ylabel="transitions", xlim=(0, None))
    left.legend(frameon=False)
    share = np.arange(1, len(ratios) + 1) / len(ratios)
    right.plot(share, np.cumsum(np.sort(ratios)[::-1]) / ratios.sum(), color=BLUE, label="η̂")
    right.plot([0, 1], [0, 1], color=GREY, linestyle=":", label="equal ratios")
    ess = model.diagnostics_["ratio"]["effective_sample_size"]
    right.axvline(ess, color=ORANGE, linestyle="--", label=f"effective sample size {ess:.1%}")
    right.set(title="Concentration", xlim=(0, 1), ylim=(0, 1.02))
    right.set(xlabel="share of transitions, largest ratios first", ylabel="share of the sum of η̂")
    right.legend(frameon=False, loc="lower right")
    right.grid(alpha=0.25)
    low = " — too few to trust" if ess < SMALL_ESS else ""
    figure.suptitle(f"Effective sample size: {ess:.1%} of the transitions{low}", fontsize=11)
    return figure
