"""The page: one file with everything in it, which fetches nothing from the network."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from importlib.resources import files
from pathlib import Path

import xarray as xr
from bokeh.resources import Resources
from jinja2 import Environment, StrictUndefined

from kedrl_dask._version import __version__
from kedrl_dask.engine.storage.atomic import write_atomic
from kedrl_dask.numerics.laws.recovery import SECOND
from kedrl_dask.report import sentences
from kedrl_dask.report.charts import chart_data, chart_items
from kedrl_dask.report.content import Content
from kedrl_dask.report.traffic_lights import checks, overall
from kedrl_dask.utils.arrays import Record

GENERATOR = f"kedrl {__version__}"


def write(content: Content, output: str | Path) -> Path:
    """Write the page; only an earlier report is replaced."""
    output = Path(output)
    if output.exists() and not _is_report(output):
        raise FileExistsError(
            f"{output} exists and is not a report of kedrl; choose another path with --output"
        )
    if not output.parent.is_dir():
        raise FileNotFoundError(f"{output.parent} is not a directory; create it, or choose another path")
    write_atomic(output, render(content))
    return output


def _is_report(path: Path) -> bool:
    return path.is_file() and b'<meta name="generator" content="kedrl ' in path.read_bytes()[:2_000]


def render(content: Content) -> str:
    """The page as HTML."""
    found, folder = checks(content), files("kedrl_dask.report")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    facts = next(iter(content.diagnostics.values()))
    counts = Counter(check.light for check in found)
    return environment.from_string(folder.joinpath("page.html").read_text(encoding="utf-8")).render(
        content=content,
        dataset=content.dataset,
        generator=GENERATOR,
        written=datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
        question=sentences.question(content),
        overall=overall(found),
        counts={light: counts[light] for light in ("red", "amber", "green")},
        checks=found,
        overridden=list(dict.fromkeys(check.code for check in found if check.is_accepted)),
        sizes=content.sizes,
        fingerprint=facts["data"],
        columns=list(_columns(facts)),
        overlap=None if content.dataset is None else _overlap(content.dataset),
        tables=list(_tables(content)),
        script=folder.joinpath("page.js").read_text(encoding="utf-8"),
        **({} if content.dataset is None else _answers(content.dataset)),
    )


def _answers(dataset: xr.Dataset) -> Record:
    """The variables of the part with the answers."""
    data = chart_data(dataset)
    pairs = sentences.pairs(dataset)
    payload = json.dumps({"data": data, "items": chart_items(data)}, allow_nan=False)
    return {
        "answers": sentences.answers(dataset),
        "data": data,
        "n_coordinates": dataset.sizes["coordinate"],
        "n_inputs": dataset.sizes["input"],
        "inputs": list(_inputs(dataset, len(data["inputs"]))),
        "has_intervals": "mean_low" in dataset,
        "interval": f"{dataset.attrs.get('interval', 0):.0%}",
        "heads": sentences.headings(dataset),
        "summaries": sentences.summaries_at(dataset),
        "differences": sentences.differences_at(dataset),
        "pairs": pairs,
        "distances": list(_distances(dataset, pairs)),
        "caution": dataset.attrs["caution"],
        "second_specification": dataset.attrs.get("second_specification", SECOND),
        "bokeh": Resources(mode="inline", components=["bokeh"]).render_js(),
        # Inside a script element only "<" could end it.
        "payload": payload.replace("<", "\\u003c"),
    }


def _inputs(dataset: xr.Dataset, n: int) -> Iterator[str]:
    """The state and action of each input in words."""
    if "input_state" not in dataset or "averaged" in dataset.dims:
        return
    for i in range(n):
        text = f"State {_vector(dataset['input_state'][i])}"
        if "input_action" in dataset:
            actions = [_vector(action) for action in dataset["input_action"][:, i]]
            same = len(set(actions)) == 1
            text += f", action {actions[0]}" if same else f", actions {'; '.join(actions)}"
        yield f"{text}."


def _vector(values: xr.DataArray) -> str:
    return f"({', '.join(f'{float(value):.3g}' for value in values)})"


def _distances(dataset: xr.Dataset, pairs: list[str]) -> Iterator[str]:
    for pair, values in zip(pairs, dataset["mmd"].values if "mmd" in dataset else (), strict=False):
        yield f"{pair} {values.min():.2g} to {values.max():.2g}"


def _columns(facts: Record) -> Iterator[tuple[str, list[str]]]:
    for kind, ranges in facts.get("columns", {}).items():
        for i, numbers in enumerate(zip(*(ranges[key] for key in ("mean", "sd", "min", "max")), strict=True)):
            yield f"{kind} {i + 1}", [f"{number:.4g}" for number in numbers]


def _overlap(dataset: xr.Dataset) -> list[list[str]] | None:
    if "shift" not in dataset:
        return None
    return [
        [
            ", ".join(f"{value:.2f}" for value in own["shift"].values),
            ", ".join(f"{value:.1%}" for value in own["outside"].values),
            f"{float(own['distance']):.2f} ({float(own['logged_distance']):.2f})",
        ]
        for own in (dataset.isel(policy=p) for p in range(dataset.sizes["policy"]))
    ]


def _tables(content: Content) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Settings, what was chosen for them, versions and timings."""
    yield "Settings", [(name, _text(value)) for name, value in content.settings.items()]
    for name, facts in content.diagnostics.items():
        chosen = ("input_kernel", "return_kernel", "ridge_gamma", "ridge_b", "mass_penalty", "precision")
        rows = [(key, _text(facts[key])) for key in chosen]
        yield f"What the fit of {name} used", rows + [(key, f"{n:,}") for key, n in facts["sizes"].items()]
    if content.dataset is not None:
        recovery = json.loads(content.dataset.attrs["recovery"])
        yield "Recovery of laws", [(name, _text(value)) for name, value in recovery.items()]
    yield "Versions", list(content.versions.items())
    seconds = [
        (f"{name}: {stage}", f"{value:.1f} s")
        for name, facts in content.diagnostics.items()
        for stage, value in facts["seconds"].items()
    ]
    yield "Timings", seconds + [(stage, f"{value:.1f} s") for stage, value in content.seconds.items()]


def _text(value: object) -> str:
    """A setting in words; long arrays are truncated."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 400 else f"{text[:400]} … ({len(text):,} characters)"
