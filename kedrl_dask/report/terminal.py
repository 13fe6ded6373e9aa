"""A fit in numbers: as JSON for machines, as tables for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from sklearn.utils.validation import check_is_fitted

from kedrl_dask.estimator.fitted.findings import Severity, fit_evidence, judge, objections
from kedrl_dask.estimator.fitted.persistence import finite
from kedrl_dask.estimator.kedrl import KEDRL
from kedrl_dask.numerics.kernels.matern import Matern
from kedrl_dask.numerics.solvers import by_name
from kedrl_dask.utils.arrays import Record, Vector

Row = tuple[str, str | Text]

STYLES: dict[Severity, str] = {"refuse": "red", "warn": "yellow", "note": "italic", "good": ""}

#: Parameters that a summary shows.
SETTINGS = (
    "discount", "construction", "continuation", "reward_trend", "conditioning", "solver", "negative_penalty",
    "random_state",
)  # fmt: skip
#: What readers must not take the numbers for.
CAUTION = (
    "The coefficients are signed: they are not probabilities. The Bellman risk says how well the fitted map "
    "satisfies the projected Bellman equation: it is neither a policy value nor a bound on a Wasserstein "
    "distance."
)


def summary(model: KEDRL) -> Record:
    """The settings, findings and diagnostics of a fitted model, as JSON can hold them.

    Numbers that are not finite become None, which is what JSON has for them.
    """
    return finite(_facts(model))


def _facts(model: KEDRL) -> Record:
    check_is_fitted(model)
    settings = {name: getattr(model, name) for name in SETTINGS}
    settings["solver"] = type(by_name(model.solver)).__name__.lower()
    if not isinstance(model.conditioning, str):
        settings["conditioning"] = "given"
    found = [finding.to_dict() for finding in objections(fit_evidence(model.fitted_))]
    converged = model.solution_.result.ok
    return {"settings": settings, "converged": converged, "findings": found, **model.diagnostics_}


def errors_summary(errors: Mapping[str, Vector]) -> Record:
    """Errors by point and their means over the points, as JSON can hold them."""
    by_point = {name: np.asarray(values).tolist() for name, values in errors.items()}
    return finite({"mean": {name: float(np.mean(v)) for name, v in by_point.items()}, "by_point": by_point})


def render(
    model: KEDRL,
    errors: Mapping[str, Vector] | None = None,
    console: Console | None = None,
    paper_rmse: float | None = None,
) -> None:
    """Print the diagnostics of a fitted model as tables, on standard output unless a console is given.

    Where the truth is known, ``errors`` has ``bias``, ``rmse`` and ``mae`` at each point, and the paper's
    mean RMSE is shown beside ours.
    """
    console = console or Console()
    facts = _facts(model)
    sections = {
        "Data and sizes": _size_rows(facts),
        "Settings": _setting_rows(model, facts),
        "Solver": _solver_rows(facts),
        "How far to trust it": _judged_rows(model),
        "Errors and sums": _measured_rows(facts),
        "Seconds": ((name, f"{seconds:.1f}") for name, seconds in facts["seconds"].items()),
    }
    table = Table(title="Fit", title_justify="left", show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for title, rows in sections.items():
        table.add_row(f"[cyan]{title}[/cyan]", "")
        for name, value in rows:
            table.add_row(Padding(name, (0, 0, 0, 2)), value)
        table.add_section()
    console.print(table)
    console.print(CAUTION, style="italic")
    if errors is not None:
        console.print()
        console.print(_error_table(errors, model.return_kernel_, paper_rmse))


def _size_rows(facts: Record) -> Iterator[Row]:
    sizes = facts["sizes"]
    yield "transitions", "{transitions:,} in {episodes:,} episodes; {terminal:,} terminal".format(**sizes)
    yield "dimensions", "state {state_dim}, action {action_dim}, reward {reward_dim}".format(**sizes)
    yield "return atoms m", f"{sizes['atoms']:,}"
    yield "basis points L", f"{sizes['basis']:,}"
    yield "landmarks s", f"{sizes['landmarks']:,}, of rank {sizes['rank']:,}"
    yield "frequencies Q", f"{sizes['features']:,}"
    yield "conditioning points M", f"{sizes['conditioning']:,}, {facts['settings']['conditioning']}"


def _setting_rows(model: KEDRL, facts: Record) -> Iterator[Row]:
    settings = facts["settings"]
    yield "discount γ", f"{settings['discount']:g}"
    how = " (automatic)" if model.construction == "auto" else ""
    yield "construction", f"{model.construction_}{how}, continuation {settings['continuation']}"
    for name in ("input_kernel", "return_kernel"):
        yield name.replace("_", " "), _kernel(facts[name]) + _how(getattr(model, name))
    yield "ridge λ_Γ", f"{facts['ridge_gamma']:.3g}{_how(model.ridge_gamma)}"
    if settings["reward_trend"] != "none":
        yield from _trend_rows(model, facts)
    yield "ridge λ_B", f"{facts['ridge_b']:.3g}{_how(model.ridge_b)}"
    yield "mass penalty λ_mass", f"{facts['mass_penalty']:g}{_how(model.mass_penalty)}"
    yield "negative penalty λ_neg", f"{settings['negative_penalty']:g}"


def _trend_rows(model: KEDRL, facts: Record) -> Iterator[Row]:
    found, how = facts["reward_trend"], _how(model.reward_trend)
    if found is None:
        yield "reward trend", f"none{how}"
        return
    shares = ", ".join(f"{share:.1%}" for share in found["explained"])
    yield "reward trend", f"linear, explains {shares} of the reward's variance{how}"
    yield "ridge of its residual", f"{facts['ridge_reward']:.3g}{_how(model.ridge_gamma)}"


def _how(given: object) -> str:
    return " (automatic)" if isinstance(given, str) else " (given)"


def _kernel(kernel: Record) -> str:
    given = np.atleast_1d(kernel["length_scale"])
    turned = given.ndim == 2
    found = Matern.from_dict(kernel).lengths(len(given))
    lengths = ", ".join(f"{length:.3g}" for length in found) + (" (along other directions)" if turned else "")
    return f"Matérn ν={kernel['nu']:g}, σ={kernel['sigma']:g}, ℓ={lengths}"


def _solver_rows(facts: Record) -> Iterator[Row]:
    solver = facts["solver"]
    colour = "green" if facts["converged"] else "yellow"
    yield "result", f"[{colour}]{solver['result']}[/{colour}]: {solver['meaning']}"
    yield "method", f"{facts['settings']['solver']}, {solver['iterations']:,} iterations"
    yield "passes over the points", f"{solver['products']:,}"
    yield "criterion", f"{solver['criterion']:.3g}"
    yield "certificate", f"{solver['certificate']:.3g}, relative norm of the gradient"


def _judged_rows(model: KEDRL) -> Iterator[Row]:
    for found in judge(fit_evidence(model.fitted_)):
        yield found.code, Text(found.text, STYLES[found.severity])


def _measured_rows(facts: Record) -> Iterator[Row]:
    grid, held_out, ratio = facts["grid"], facts["held_out"], facts["ratio"]
    shares = "median {median:.3f}, 90 % {p90:.3f}, 99 % {p99:.3f}; 0 is best, 1 worst"
    yield "grid, projection residual", shares.format(**grid)
    yield "Nyström residual", f"{facts['nystrom_residual']:.3g} of the input kernel's trace"
    yield "feature error", f"{facts['feature_error']:.3g} σ², against the exact return kernel"
    yield "mass of Γ", f"{_spread(facts['gamma_mass'])}; 1 is ideal"
    if ratio is not None:
        yield "ratio", f"{_spread(ratio)}; λ {ratio['ridge']:.3g}, {ratio['centers']:,} centres"
    yield "negative mass", _spread(held_out["negative_mass"])
    risk = "{bellman_risk:.3g}, mean over {inputs:,} inputs".format(**held_out)
    yield "Bellman risk, held out", risk


def _spread(values: Record) -> str:
    return f"mean {values['mean']:.3f}, from {values['min']:z.3f} to {values['max']:.3f}"


def _error_table(errors: Mapping[str, Vector], kernel: Matern, paper_rmse: float | None) -> Table:
    """Errors over the evaluation grid of each point, and their means."""
    table = Table(
        title="Error of the embedding against the closed-form truth",
        title_justify="left",
        caption=f"Over each point's evaluation grid; an embedding is at most σ² = {kernel.sigma**2:.3g}.",
        caption_justify="left",
    )
    names = list(errors)
    table.add_column("point", justify="right")
    for name in names:
        table.add_column(name if name == "bias" else name.upper(), justify="right")
    for point, values in enumerate(zip(*errors.values(), strict=True), start=1):
        table.add_row(str(point), *(f"{value:z.4f}" for value in values))
    table.add_section()
    table.add_row("mean", *(f"{np.mean(values):z.4f}" for values in errors.values()), style="bold")
    if paper_rmse is not None:
        table.add_row("paper", *(f"{paper_rmse:.4f}" if name == "rmse" else "" for name in names))
    return table
