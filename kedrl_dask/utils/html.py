"""How fitted models and comparisons show themselves in notebooks."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Any

__all__ = ["ShownInNotebooks", "html_table"]


def html_table(caption: str, rows: Iterable[tuple[str, str]]) -> str:
    """A table of names and what they are."""
    left = "style='text-align:left'"
    cells = "".join(
        f"<tr><th {left}>{escape(name)}</th><td {left}>{escape(text)}</td></tr>" for name, text in rows
    )
    return f"<table><caption>{escape(caption)}</caption>{cells}</table>"


class ShownInNotebooks:
    """An estimator shows, once it is fitted, what the fit found; before, scikit-learn shows its settings."""

    def _repr_html_(self) -> str:
        facts: dict[str, Any] | None = getattr(self, "diagnostics_", None)
        if facts is None:
            return super()._repr_html_()  # type: ignore[misc]
        sizes, solver, held_out = facts["sizes"], facts["solver"], facts["held_out"]
        mass = held_out["coefficient_mass"]
        rows = [
            ("policy", facts["policy"]),
            ("transitions", f"{sizes['transitions']:,} in {sizes['episodes']:,} episodes"),
            ("atoms, basis, features", f"{sizes['atoms']}, {sizes['basis']}, {sizes['features']}"),
            ("solver", f"{solver['meaning']} ({solver['iterations']:,} iterations)"),
            ("Bellman risk", f"{held_out['bellman_risk']:.3g} at {held_out['inputs']:,} held-out inputs"),
            ("sum of coefficients there", f"{mass['min']:.3f} to {mass['max']:.3f}; 1 is right"),
            ("construction asked for", str(facts["separation"]["recommends"])),
            ("seconds", ", ".join(f"{name} {s:.1f}" for name, s in facts.get("seconds", {}).items())),
        ]
        return html_table(f"{type(self).__name__}, fitted", rows)

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return {"text/plain": repr(self), "text/html": self._repr_html_()}
