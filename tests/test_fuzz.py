"""Files that the package did not write, and settings that nobody can mean: its own errors, nothing else."""

from __future__ import annotations

import json
import os
import shutil
from itertools import count

import numpy as np
import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kedrl_dask import KEDRL, Matern, TransitionStore, policies
from kedrl_dask.engine.storage.array_store import ArrayStore
from kedrl_dask.engine.storage.untrusted import checked_path, unpacked_bytes
from kedrl_dask.estimator.fit.settings import Settings
from kedrl_dask.utils.checks import has_control_characters, printable, shown
from tests.conftest import make_episodes

QUICK = settings(
    max_examples=20,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
#: No reading of a damaged file may take more.
MOST_BYTES = 2**28
#: Of damaged copies.
NUMBERS = count()

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
    | st.sampled_from(["Matern", "PCG", "auto", "float64", "object", "bytes", "zstd", "../..", "\x1b[2J"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """A store and a model, both written by the package."""
    base = tmp_path_factory.mktemp("sound")
    store = TransitionStore.from_arrays(base / "store", **make_episodes(n_terminated=3), chunk_rows=32)
    model = KEDRL(
        0.9, n_atoms=4, n_basis=5, n_landmarks=6, n_features=8, n_blocks=2, ridge_gamma=1e-3,
        input_kernel=Matern(2.5, 1.5), return_kernel=Matern(2.5, 1.5),
    )  # fmt: skip
    model.fit(store, policies.Gaussian([0.1, 0.2]), progress="none").save(base / "model")
    return base


def use_store(path):
    """What a fit reads first, and the check of everything."""
    store = TransitionStore.open(path)
    repr(store)
    store.sample(5, np.random.default_rng(0))
    store.block_edges(3)
    store.verify()


def use_model(path):
    """A model that loads also answers, with finite numbers."""
    model = KEDRL.load(path)
    answer = model.embed(np.zeros((2, 2)), np.zeros((2, 1)), at=model.grid_[:2])
    assert np.isfinite(answer).all()
    assert np.isfinite(model.bellman_risk(np.zeros((2, 2)), np.zeros((2, 1)))).all()


USES = {"store": use_store, "model": use_model}


def check_words(error, named=""):
    """One line that a terminal shows as it is."""
    text = str(error).replace(str(named), "") if named else str(error)
    assert text
    assert not has_control_characters(text), repr(text)


def attempt(kind, path):
    """Use a damaged copy: it may work, or fail as the package fails, in one line and in little memory."""
    before = psutil.Process().memory_info().rss
    try:
        USES[kind](path)
    except (ValueError, OSError) as error:
        check_words(error, path)
    assert psutil.Process().memory_info().rss - before < MOST_BYTES


def damaged(sound, kind, tmp_path):
    path = tmp_path / f"{kind}{next(NUMBERS)}"
    shutil.copytree(sound / kind, path)
    return path


def files(path):
    return sorted(file for file in path.rglob("*") if file.is_file())


@pytest.mark.slow
@pytest.mark.parametrize("kind", USES)
@given(data=st.data())
@QUICK
def test_load__any_file_replaced_by_random_bytes(sound, tmp_path, kind, data):
    path = damaged(sound, kind, tmp_path)
    file = data.draw(st.sampled_from(files(path)))
    file.write_bytes(data.draw(st.binary(max_size=200)))
    attempt(kind, path)
    shutil.rmtree(path)


@pytest.mark.parametrize("kind", USES)
@given(data=st.data())
@QUICK
def test_load__any_file_with_bytes_changed_or_cut(sound, tmp_path, kind, data):
    path = damaged(sound, kind, tmp_path)
    file = data.draw(st.sampled_from(files(path)))
    content = bytearray(file.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    file.write_bytes(
        content[: data.draw(st.integers(0, len(content)))] if data.draw(st.booleans()) else content
    )
    attempt(kind, path)
    shutil.rmtree(path)


def places(value, trail=()):
    """Every place in nested JSON."""
    yield trail
    if isinstance(value, dict):
        for key in value:
            yield from places(value[key], (*trail, key))
    elif isinstance(value, list):
        for i in range(min(len(value), 3)):
            yield from places(value[i], (*trail, i))


@pytest.mark.parametrize("kind", USES)
@given(data=st.data())
@settings(parent=QUICK, max_examples=30)
def test_load__any_place_of_the_metadata_replaced(sound, tmp_path, kind, data):
    path = damaged(sound, kind, tmp_path)
    file = path / "zarr.json"
    metadata = json.loads(file.read_text())
    trail = data.draw(st.sampled_from(list(places(metadata))[1:]))
    target = metadata
    for key in trail[:-1]:
        target = target[key]
    if isinstance(target, dict) and data.draw(st.booleans()):
        del target[trail[-1]]
    else:
        target[trail[-1]] = data.draw(JSON)
    file.write_text(json.dumps(metadata))
    attempt(kind, path)
    shutil.rmtree(path)


@pytest.mark.parametrize("kind", USES)
def test_load__any_file_or_folder_missing(sound, tmp_path, kind):
    for entry in sorted((sound / kind).rglob("*"))[::3]:
        path = damaged(sound, kind, tmp_path)
        lost = path / entry.relative_to(sound / kind)
        shutil.rmtree(lost) if lost.is_dir() else lost.unlink()
        attempt(kind, path)


@pytest.mark.parametrize("depth", [10, 10_000, 1_000_000])
def test_open__nested_attributes(sound, tmp_path, depth):
    path = damaged(sound, "model", tmp_path)
    text = (path / "zarr.json").read_text()
    (path / "zarr.json").write_text(
        text.replace('"complete": true', f'"complete": {"[" * depth}{"]" * depth}')
    )
    with pytest.raises(ValueError, match=r"model is incomplete|not a Zarr v3 group|damaged"):
        KEDRL.load(path)


@given(text=st.text(max_size=40))
@QUICK
def test_printable__is_one_line_for_any_text(text):
    assert not has_control_characters(printable(text))
    assert not has_control_characters(shown(text))
    if not has_control_characters(text) and text:
        assert os.fspath(checked_path(text)) == os.fspath(type(checked_path(text))(text))


@given(content=st.binary(max_size=40), magic=st.booleans())
@QUICK
def test_unpacked_bytes__any_header(content, magic):
    size = unpacked_bytes((b"\x28\xb5\x2f\xfd" if magic else b"") + content)
    assert size is None or 0 <= size < 2**64


DEFAULTS = KEDRL(0.9).get_params(deep=False)
VALUES = (
    JSON
    | st.floats()
    | st.sampled_from(
        [np.zeros(2), np.array("a"), np.nan, b"x", object(), Matern, Matern(), 1j, {1, 2}, range(3)]
    )
)


@given(name=st.sampled_from(sorted(DEFAULTS)), value=VALUES)
@settings(parent=QUICK, max_examples=300)
def test_settings__any_value(name, value):
    try:
        found = Settings(**(DEFAULTS | {name: value}))
        found.check_data(2, 1, 2, 100)
        found.ranges(100)
    except ValueError as error:
        check_words(error)


FAMILIES = st.sampled_from(["gaussian", "uniform", "logistic"]) | JSON


@given(values=st.fixed_dictionaries({"family": FAMILIES}, optional={
    "weights": JSON, "bias": JSON, "scale": JSON, "half_width": JSON, "scale_weights": JSON, "evil": JSON,
}) | JSON)  # fmt: skip
@QUICK
def test_policy__from_any_json(values):
    try:
        policy = policies.from_dict(values)
    except ValueError as error:
        check_words(error)
    else:
        assert policies.from_dict(policy.to_dict()) == policy


@given(nu=VALUES, length_scale=VALUES, sigma=VALUES)
@QUICK
def test_kernel__of_any_parameters(nu, length_scale, sigma):
    try:
        kernel = Matern(nu, length_scale, sigma)
    except ValueError as error:
        check_words(error)
    else:
        dim = np.size(kernel.length_scale)
        assert np.isfinite(kernel(np.zeros((1, dim)), np.ones((2, dim)))).all()


def test_sound__files_are_accepted(sound):
    for kind, use in USES.items():
        use(sound / kind)
    assert ArrayStore.open(sound / "model", "kedrl model").names
