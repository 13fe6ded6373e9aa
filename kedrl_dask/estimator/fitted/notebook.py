"""How a fitted model shows itself in a notebook."""

from __future__ import annotations

from kedrl_dask.estimator.fitted.findings import fit_evidence, judge
from kedrl_dask.estimator.fitted.model import FittedModel
from kedrl_dask.utils.html import html_table


def fit_html(model: FittedModel) -> str:
    """What the fit found, as a table."""
    facts, found = model.diagnostics, judge(fit_evidence(model))
    sizes, held_out = facts["sizes"], facts["held_out"]
    rows = [
        ("policy", facts["policy"]),
        ("transitions", f"{sizes['transitions']:,} in {sizes['episodes']:,} episodes"),
        ("atoms, basis, features", f"{sizes['atoms']}, {sizes['basis']}, {sizes['features']}"),
        ("Bellman risk", f"{held_out['bellman_risk']:.3g} at {held_out['inputs']:,} held-out inputs"),
        *(("⚠ " * (f.severity in ("refuse", "warn")) + f.code, f.text) for f in found),
        ("seconds", ", ".join(f"{name} {s:.1f}" for name, s in facts.get("seconds", {}).items())),
    ]
    return html_table("KEDRL, fitted", rows)
