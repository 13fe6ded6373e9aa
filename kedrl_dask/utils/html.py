"""Tables for notebooks."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape


def html_table(caption: str, rows: Iterable[tuple[str, str]]) -> str:
    """Return a table of names and descriptions."""
    left = "style='text-align:left'"
    cells = "".join(
        f"<tr><th {left}>{escape(name)}</th><td {left}>{escape(text)}</td></tr>" for name, text in rows
    )
    return f"<table><caption>{escape(caption)}</caption>{cells}</table>"
