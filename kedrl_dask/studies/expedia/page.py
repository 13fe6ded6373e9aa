"""The page of the Expedia evaluation: one self-contained file that reads like the paper's section."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from datetime import datetime
from importlib.resources import files
from io import BytesIO

from jinja2 import Environment, StrictUndefined

from kedrl_dask._version import __version__
from kedrl_dask.plots.style import Figure
from kedrl_dask.studies.expedia.tables import PROFILE_NAMES, SYNTHETIC, tables
from kedrl_dask.studies.output import TextTable
from kedrl_dask.utils.arrays import Record


def page(summary: Record, figures: Mapping[str, Figure]) -> str:
    """The page as text, from the summary of the study and its figures: "actions", and those of the laws."""
    made = tables(summary)

    def named(part: str) -> list[TextTable]:
        return [table for table in made if part in table.title]

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    template = files("kedrl_dask.studies.expedia").joinpath("page.html").read_text(encoding="utf-8")
    sizes = {profile: own["rev"]["sizes"] for profile, own in summary["fits"].items()}
    return environment.from_string(template).render(
        generator=f"kedrl {__version__}",
        written=datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
        synthetic=SYNTHETIC if summary["data"]["is_simulated"] else "",
        data=summary["data"],
        selected=summary["selected"],
        raw=_raw,
        sizes=sizes,
        nystrom=summary["fits"]["paper"]["rev"]["nystrom_residual"],
        findings=[(PROFILE_NAMES[profile], found) for profile, found in summary["findings"].items()],
        figures={
            "actions": _source(figures["actions"]) if "actions" in figures else "",
            "laws": [(name, _source(figure)) for name, figure in figures.items() if name != "actions"],
        },
        tables={
            "data": named("tab:expedia_data_desc")[0],
            "actions": named("tab:expedia_policy_action_summary")[0],
            "risks": named("tab:expedia_policy_eval_risks")[0],
            "overlap": named("Density ratio")[0],
            "marginals": named("tab:expedia_recovered_marginals"),
            "optimisation": next(iter(named("AdamW")), None),
            "seconds": named("Seconds")[0],
        },
    )


def _raw(action: Sequence[float]) -> str:
    price, promotions, spread = action
    return f"{price:.1f}, {promotions:.0f}, {spread:.1f}"


def _source(figure: Figure) -> str:
    """The picture inside the page."""
    picture = BytesIO()
    figure.savefig(picture, format="png", dpi=110)
    return f"data:image/png;base64,{b64encode(picture.getvalue()).decode()}"
