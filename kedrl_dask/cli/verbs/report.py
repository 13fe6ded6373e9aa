"""``kedrl report``: one HTML page with the answers, and how far to trust them."""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

from kedrl_dask import report
from kedrl_dask.cli import options as shared
from kedrl_dask.cli.common import SUCCESS, Verb, option, show
from kedrl_dask.engine.storage.directories import attributes_at
from kedrl_dask.estimator.fitted.findings import CODES
from kedrl_dask.report.traffic_lights import checks, overall

NOTE = f"""\
examples:
  kedrl report results.zarr                        a comparison
  kedrl report run --output page.html              a run
  kedrl report model.zarr --accept coverage mass   a model, despite findings

findings that --accept takes:
{chr(10).join(f"  {code:<14} {meaning}" for code, meaning in CODES.items())}

"""


def _run(options: argparse.Namespace) -> int:
    output = options.output or _default_output(options.path)
    content = report.read(options.path, options.accept)
    report.write(content, output)
    found = checks(content)
    counts = Counter(check.light for check in found)
    summary = {
        "output": str(output),
        "overall": overall(found),
        "answered": content.dataset is not None,
        "checks": [vars(check) for check in found],
    }
    lines = [f"{check.policy}: {check.code}: {check.sentence}" for check in found if check.light == "red"]
    if content.dataset is None:
        lines.append("The answers are refused; --accept overrides that.")
    lights = ", ".join(f"{counts[light]} {light}" for light in ("red", "amber", "green"))
    show(options, summary, "\n".join([*lines, f"{lights}. Written to {output}"]))
    return SUCCESS


def _default_output(path: Path) -> Path:
    is_store = attributes_at(path) is not None
    return path.resolve().with_suffix(".html") if is_store else path / "report.html"


VERB = Verb(
    "Write one HTML page, which needs no network: the question, the answers, the data, the policies,\n"
    "diagnostics in words, settings, versions and timings.",
    {
        "path": option(
            "results (compare(...).to_zarr), a saved model, or a directory with a saved model in 'model', as "
            "a demo writes it",
            type=Path,
            metavar="PATH",
        ),
        "--output": option(
            "the page (default: report.html in a directory, beside a store its name with .html); an existing "
            "report is replaced, nothing else is",
            type=Path,
            metavar="FILE",
        ),
        "--accept": option(
            "give the answers of a model despite these findings, which the page records",
            (),
            nargs="+",
            metavar="CODE",
            choices=tuple(CODES),
        ),
        "--json": shared.JSON,
    },
    _run,
    NOTE,
)
