"""Documents are true: links lead somewhere, modules that they name exist, commands parse, examples run."""

from __future__ import annotations

import ast
import re
import shlex
from contextlib import suppress
from functools import cache
from importlib import import_module

import numpy as np
import pandas as pd
import pytest

from kedrl_dask import Matern
from kedrl_dask.cli import make_parser
from kedrl_dask.cli.common import Parser
from kedrl_dask.datasets import simulation
from tests.test_architecture import PACKAGE, SOURCES

ROOT = PACKAGE.parent
FOLDERS = (".", ".github", "deploy", "deploy/*", "notebooks", "kedrl_dask", "tests/*")
DOCUMENTS = sorted(path for folder in FOLDERS for path in ROOT.glob(f"{folder}/*.md"))
DESIGN = PACKAGE / "DESIGN.md"
PAIR = simulation.PAIRS["uniform-gaussian"]

every_document = pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))


def prose(path):
    """The document without its blocks of code."""
    return re.sub(r"^```.*?^```", "", path.read_text(), flags=re.M | re.S)


def blocks(path, language):
    return re.findall(rf"^```{language}\n(.*?)^```", path.read_text(), flags=re.M | re.S)


def code_spans(path):
    return re.findall(r"`([^`]+)`", prose(path))


def anchors(path):
    """Anchors of a document's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", prose(path), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@every_document
def test_links__lead_somewhere(path):
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(path)):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        file = (path.parent / name).resolve() if name else path
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), target


@every_document
def test_modules__that_are_named_exist(path):
    for name in re.findall(r"\bkedrl_dask(?:\.\w+)+", path.read_text()):
        if name not in ("kedrl_dask.execute", "kedrl_dask.store", "kedrl_dask.tables"):  # names of 0.1.0
            resolve(name)


def resolve(name):
    """The module or attribute of a dotted name."""
    found = import_module("kedrl_dask")
    for n, part in enumerate(parts := name.split(".")):
        if n and not hasattr(found, part):
            found = import_module(".".join(parts[: n + 1]))
        elif n:
            found = getattr(found, part)
    return found


@every_document
def test_paths__that_are_named_exist(path):
    for span in code_spans(path):
        if re.fullmatch(r"(?:kedrl_dask|tests|deploy|notebooks|\.ci|\.github)/[\w./-]+", span):
            assert (ROOT / span).exists(), span


@cache
def stems():
    return {path.stem for path in SOURCES} | {path.parent.name for path in SOURCES}


def test_design__names_modules_that_exist():
    """`folder/module` or `folder/module.name`, and bare names of modules or of what is in them."""
    walk = DESIGN.read_text().partition("## One transition")[2].partition("\n## ")[0]
    spans = re.findall(r"`([^`]+)`", walk)
    assert len(spans) > 40
    for span in spans:
        if "/" in span:
            resolve("kedrl_dask." + span.removesuffix("/").replace("/", "."))
        elif re.fullmatch(r"[a-z_]+", span):
            assert span in stems(), span


def test_design__has_every_folder():
    table = DESIGN.read_text().partition("## One transition")[0]
    named = set(re.findall(r"`([a-z_]+)/?`", table))
    folders = {path.parent.relative_to(PACKAGE).parts[:2] for path in SOURCES if path.parent != PACKAGE}
    assert {name for folder in folders for name in folder} <= named | {"expedia", "verbs", "studies"}


def commands():
    for path in DOCUMENTS:
        lines = [line for block in blocks(path, r"\w*") for line in block.splitlines()]
        for text in [*code_spans(path), *lines]:
            if re.match(r"kedrl [a-z]+", text):
                yield pytest.param(text, id=f"{path.relative_to(ROOT)}: {text}")


@pytest.mark.parametrize("text", [*commands()])
def test_command__can_be_given(text, monkeypatch):
    """Verbs and options exist; commands in prose may leave out their arguments."""

    def fail(parser, message):
        assert message.startswith("the following arguments are required"), message
        parser.exit(2)

    monkeypatch.setattr(Parser, "error", fail)
    words = shlex.split(text, comments=True)[1:]
    with suppress(SystemExit):
        make_parser(words[0]).parse_args(words)


@every_document
def test_python__can_be_read(path):
    for block in blocks(path, "python"):
        ast.parse(block)


@pytest.fixture
def given():
    """What the examples take for granted."""
    state0, action0 = simulation.TEST_POINTS_UNIFORM_GAUSSIAN
    rows, more = simulation.simulate(PAIR, n_episodes=100), simulation.simulate(PAIR, n_episodes=5, seed=1)
    more["episode"] += 100
    return {
        **rows,
        **{name: getattr(PAIR.target, name) for name in ("weights", "bias", "scale")},
        **{"state0": state0[:2], "action0": action0[:2], "more": more},
    }


@pytest.mark.slow
def test_readme__the_example_runs(given, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (example,) = blocks(ROOT / "README.md", "python")
    given |= simulation.simulate(PAIR, n_episodes=400)
    exec(example, given)
    assert given["law"].mean().shape == (2, 3)


@pytest.mark.slow
def test_tour__its_examples_run(given, tmp_path, monkeypatch):
    """In their order, at reduced sizes."""
    monkeypatch.chdir(tmp_path)
    z = np.zeros((4, 3))
    given |= {"np": np, "z": z, "t": z[:, 0], "at": z[:, :2], "low": -np.ones(3), "high": np.ones(3)}
    given["pieces"] = [{key: given[key] for key in ("state", "action", "reward", "episode", "step")}]
    columns = {name: np.arange(6.0) for name in ("date", "age", "dose", "effect", "harm")}
    visits = pd.DataFrame({"patient": [1, 1, 1, 2, 2, 2], "town": list("ababab"), **columns})
    visits.to_parquet("visits.parquet")
    sizes = "n_atoms=60, n_basis=80, n_landmarks=120, n_features=64, n_conditioning=500, n_blocks=8"
    given["kernel"] = Matern(5.5, 4.5)
    for block in blocks(ROOT / "notebooks" / "README.md", "python"):
        text = block.replace("KEDRL(discount=0.9)", f"KEDRL(discount=0.7, input_kernel=kernel, {sizes})")
        text = text.replace("n_replicates=100", "n_replicates=4")
        exec(text.replace("at=(state0, action0), ", "at=(state0, action0), n_replicates=4, "), given)
        if "policy" in given:
            given |= {"policy1": given["policy"], "policy2": given["policy"], "other_model": given["model"]}
    assert given["found"].table.shape[0] > 0
    assert given["answer"].value.shape == (2,)
    assert given["table"].n_episodes == 2
    assert given["grown"].n_episodes == 105
