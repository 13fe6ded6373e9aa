"""What the return depends on."""

from __future__ import annotations

import numpy as np

from kedrl_dask.estimator.kedrl import KEDRL
from kedrl_dask.plots.style import COLOURS, Figure

#: Most columns that are drawn.
MOST_COLUMNS = 25


def relevance(model: KEDRL) -> Figure:
    """Plot how sensitive the mean return is to each column of state and action.

    A bar is the root mean square of the derivative of the mean return of the target policy, in standard
    deviations of the mean return and of the column: at once and through everything that follows. A column
    without influence has nearly none, however persistent it is. The columns of an ingested table have their
    names.

    Parameters
    ----------
    model : KEDRL
        Fitted with ``centring="auto"``.

    Examples
    --------
    >>> from kedrl_dask import plots
    >>> figure = plots.relevance(model)
    >>> figure.axes[0].get_title(), [label.get_text() for label in figure.axes[0].get_yticklabels()]
    ('What the mean return depends on', ['action 1', 'state 1'])
    """
    found = model.diagnostics_.get("relevance")
    if found is None:
        raise ValueError("relevance: the fit simulated no returns; fit with centring='auto'")
    sensitivity = np.array(found)
    names, rewards = _names(model, len(sensitivity))
    order = np.argsort(-sensitivity.max(axis=1), kind="stable")
    shown = order[:MOST_COLUMNS][::-1]  # the first bar is at the bottom
    n_rewards = sensitivity.shape[1]
    figure = Figure(figsize=(7.5, 1.2 + 0.22 * len(shown) * max(1.0, 0.6 * n_rewards)), layout="constrained")
    axes, height = figure.subplots(), 0.8 / n_rewards
    for number, name in enumerate(rewards):
        place = np.arange(len(shown)) + 0.4 - (number + 0.5) * height
        colour = COLOURS[number % len(COLOURS)]
        axes.barh(place, sensitivity[shown, number], height, color=colour, label=name)
    axes.set_yticks(np.arange(len(shown)), [names[i] for i in shown])
    left_out = len(order) - len(shown)
    rest = f"; {left_out} columns with less are left out" if left_out else ""
    axes.set(title="What the mean return depends on", ylim=(-0.6, len(shown) - 0.4))
    axes.set_xlabel(f"change of the mean return with the column, both in standard deviations{rest}")
    axes.grid(axis="x", alpha=0.25)
    if n_rewards > 1:
        axes.legend(frameon=False, loc="lower right")
    return figure


def _names(model: KEDRL, n_columns: int) -> tuple[list[str], list[str]]:
    """Names of the columns of state and action, and of the rewards."""
    encoding, sizes = model.encoding_, model.diagnostics_["sizes"]
    if encoding is not None:
        return [*encoding.names("state"), *encoding.names("action")], list(encoding.names("reward"))
    p = sizes["state_dim"]
    inputs = [f"state {i + 1}" for i in range(p)] + [f"action {i + 1}" for i in range(n_columns - p)]
    return inputs, [f"return {i + 1}" for i in range(sizes["reward_dim"])]
