"""The examples in docstrings give what they show."""

from __future__ import annotations

import doctest
import math
import re
from importlib import import_module
from pathlib import Path

import pytest

import kedrl_dask
from kedrl_dask import KEDRL, compare, plots
from kedrl_dask.comparison.comparison import Comparison

PACKAGE = Path(kedrl_dask.__file__).parent
MODULES = sorted(
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
    for path in PACKAGE.rglob("*.py")
    if ">>>" in path.read_text()
)
#: Modules whose examples continue those of ``KEDRL`` and ``compare``.
CONTINUED = ("kedrl_dask.plots.", "kedrl_dask.comparison.comparison")

NUMBER = re.compile(r"-?\b\d+(?:\.(\d*))?(?:e([-+]?\d+))?")


class Figures(doctest.OutputChecker):
    """Numbers with decimals may differ by one unit of the last decimal shown.

    Processors round differently: 0.04999 and 0.05001 are 0.0 and 0.1, and a tiny negative number is ``-0.``.
    """

    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        shown, found = NUMBER.finditer(want), NUMBER.finditer(got)
        words = [re.sub(r"\s", "", NUMBER.sub("#", text)) for text in (want, got)]
        return super().check_output(want, got, optionflags) or (
            words[0] == words[1] and all(self._near(a, b) for a, b in zip(shown, found, strict=True))
        )

    @staticmethod
    def _near(shown: re.Match[str], found: re.Match[str]) -> bool:
        if shown[1] is None and found[1] is None:
            return shown[0] == found[0]
        unit = 10.0 ** (int(shown[2] or 0) - max(len(shown[1] or ""), 1))
        return math.isclose(float(shown[0]), float(found[0]), rel_tol=0.0, abs_tol=1.001 * unit)


def run(example: doctest.DocTest) -> doctest.TestResults:
    runner = doctest.DocTestRunner(Figures(), optionflags=doctest.NORMALIZE_WHITESPACE)
    return runner.run(example, clear_globs=False)


@pytest.fixture(scope="module")
def names(tmp_path_factory):
    """A directory with the store of ``KEDRL``'s example, and the names of its and ``compare``'s example."""
    defined: dict[str, object] = {}
    for subject in (compare, KEDRL):
        directory = tmp_path_factory.mktemp("names")
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(directory)
            for example in doctest.DocTestFinder(recurse=False).find(subject, globs={}):
                assert run(example).failed == 0
                defined |= example.globs
    return directory, defined


@pytest.mark.parametrize("name", MODULES)
def test_example__gives_what_it_shows(name, tmp_path, monkeypatch, request):
    continues = name.startswith(CONTINUED)
    directory, given = request.getfixturevalue("names") if continues else (tmp_path, {})
    monkeypatch.chdir(directory)
    outcomes = [
        run(example)
        for example in doctest.DocTestFinder().find(import_module(name), extraglobs=dict(given))
        if example.examples
    ]
    assert outcomes
    assert not any(outcome.failed for outcome in outcomes)


@pytest.mark.parametrize(
    ("want", "got", "same"),
    [
        ("array([[0.8, 0. ]])", "array([[ 0.8, -0. ]])", True),
        ("0.11", "0.12", True),
        ("0.11", "0.13", False),
        ("{'n': 3}", "{'n': 4}", False),
        ("[0.1, 0.2]", "[0.1]", False),
        ("a 0.5", "b 0.5", False),
        ("1e-05", "1e-03", False),
        ("1.5e-05", "1.6e-05", True),
        ("1.5e-05", "1.5e-04", False),
    ],
)
def test_figures__may_differ_in_the_last_decimal(want, got, same):
    assert Figures().check_output(want, got, 0) is same


PUBLIC = [getattr(plots, name) for name in plots.__all__]
PUBLIC += [member for name, member in vars(Comparison).items() if not name.startswith("_") and member.__doc__]


@pytest.mark.parametrize("member", PUBLIC, ids=lambda member: getattr(member, "__name__", None))
def test_example__is_there_for_every_plot_and_table(member):
    assert ">>>" in member.__doc__
