"""The examples in docstrings give what they show."""

from __future__ import annotations

import doctest
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


@pytest.fixture(scope="module")
def names(tmp_path_factory):
    """A directory with the store of ``KEDRL``'s example, and the names of its and ``compare``'s example."""
    defined: dict[str, object] = {}
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    for subject in (compare, KEDRL):
        directory = tmp_path_factory.mktemp("names")
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(directory)
            for example in doctest.DocTestFinder(recurse=False).find(subject, globs={}):
                assert runner.run(example, clear_globs=False).failed == 0
                defined |= example.globs
    return directory, defined


@pytest.mark.parametrize("name", MODULES)
def test_example__gives_what_it_shows(name, tmp_path, monkeypatch, request):
    continues = name.startswith(CONTINUED)
    directory, given = request.getfixturevalue("names") if continues else (tmp_path, {})
    monkeypatch.chdir(directory)
    outcome = doctest.testmod(
        import_module(name), extraglobs=dict(given), optionflags=doctest.NORMALIZE_WHITESPACE
    )
    assert outcome.attempted > 0
    assert outcome.failed == 0


PUBLIC = [getattr(plots, name) for name in plots.__all__]
PUBLIC += [member for name, member in vars(Comparison).items() if not name.startswith("_") and member.__doc__]


@pytest.mark.parametrize("member", PUBLIC, ids=lambda member: getattr(member, "__name__", None))
def test_example__is_there_for_every_plot_and_table(member):
    assert ">>>" in member.__doc__
