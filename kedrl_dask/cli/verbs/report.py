"""``kedrl report``: one HTML page with the answers, and how far to trust them."""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

from kedrl_dask import report
from kedrl_dask.cli.common import JSON, SUCCESS, Verbs, add_verb, as_json, print_out
from kedrl_dask.engine.storage.directories import attributes_at
from kedrl_dask.estimator.fitted.findings import CODES
from kedrl_dask.report.traffic_lights import checks, overall

__all__ = ["add"]

NOTE = f"""\
examples:
  kedrl report results.zarr                        of a comparison
  kedrl report run --output page.html              of a run
  kedrl report model.zarr --accept coverage mass   in spite of findings

findings that --accept takes:
{chr(10).join(f"  {code:<14} {meaning}" for code, meaning in CODES.items())}

"""


def add(verbs: Verbs) -> None:
    """Add the verb."""
    parser = add_verb(
        verbs,
        "report",
        _run,
        description="Write one HTML page, which needs no network: the question, the answers, the data, the "
        "policies, diagnostics in words, settings, versions and timings.",
        note=NOTE,
    )
    parser.add_argument(
        "path",
        type=Path,
        metavar="PATH",
        help="results (compare(...).to_zarr), a saved model, or a directory with a saved model in 'model', "
        "as a demo leaves it",
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="the page (default: report.html in a directory, beside a store its name with .html); an earlier "
        "report is replaced, nothing else",
    )
    parser.add_argument(
        "--accept",
        nargs="+",
        default=(),
        metavar="CODE",
        choices=tuple(CODES),
        help="give the answers of a model in spite of these findings, which the page records",
    )
    parser.add_argument("--json", **JSON)


def _run(options: argparse.Namespace) -> int:
    output = options.output or _default_output(options.path)
    content = report.read(options.path, options.accept)
    report.write(content, output)
    found = checks(content)
    counts = Counter(check.light for check in found)
    if options.json:
        summary = {
            "output": str(output),
            "overall": overall(found),
            "answered": content.dataset is not None,
            "checks": [vars(check) for check in found],
        }
        print_out(as_json(summary))
        return SUCCESS
    lines = [f"{check.policy}: {check.code}: {check.sentence}" for check in found if check.light == "red"]
    if content.dataset is None:
        lines.append("The answers are refused; --accept gives them all the same.")
    lights = ", ".join(f"{counts[light]} {light}" for light in ("red", "amber", "green"))
    print_out("\n".join([*lines, f"{lights}. Written to {output}"]))
    return SUCCESS


def _default_output(path: Path) -> Path:
    is_store = attributes_at(path) is not None
    return path.resolve().with_suffix(".html") if is_store else path / "report.html"
