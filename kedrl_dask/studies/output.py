"""What a study leaves: a summary, tables and figures in its directory, and tables on the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from kedrl_dask.engine.storage.atomic import write_atomic
from kedrl_dask.engine.storage.manifest import write_json
from kedrl_dask.plots.style import Figure
from kedrl_dask.utils.arrays import Record

#: A row that separates sections of a table.
SECTION: tuple[str, ...] = ()


class TextTable(NamedTuple):
    """A table in words, for terminals and pages; terminals read Rich's markup in its cells."""

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


def print_tables(tables: Iterable[TextTable], console: Console) -> None:
    """Print tables, with their notes below."""
    for content in tables:
        table = Table(
            title=content.title, title_justify="left", caption=content.note, caption_justify="left",
            box=SIMPLE_HEAD, pad_edge=False, show_edge=False,
        )  # fmt: skip
        table.add_column(content.heads[0], no_wrap=True)
        for head in content.heads[1:]:
            table.add_column(head, justify="right")
        for row in content.rows:
            if row == SECTION:
                table.add_section()
            else:
                table.add_row(*row)
        console.print(table, "")


def write_results(
    output: Path,
    summary: Record,
    tables: Mapping[str, pd.DataFrame] | None = None,
    figures: Mapping[str, Figure] | None = None,
) -> None:
    """Write ``summary.json``, tables as CSV, and figures as PNG into ``plots``, by name."""
    for name, table in (tables or {}).items():
        write_atomic(output / f"{name}.csv", table.to_csv(index=False))
    write_json(output / "summary.json", summary)
    for name, figure in (figures or {}).items():
        (output / "plots").mkdir(exist_ok=True)
        figure.savefig(output / "plots" / f"{name}.png", dpi=150)
