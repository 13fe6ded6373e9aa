"""The changes that ``python -m tests.mutation`` makes, and how it finds their places again."""

import ast
from types import SimpleNamespace

import pytest

from tests.mutation import Suite, by_turns, located, mutants_of, mutated, read_durations, table


def changed(body, parameters="x, y"):
    """All mutants of a function's body, as pairs of a kind and the new body."""
    source = f"def f({parameters}):\n    {body}\n"
    for mutant in mutants_of(source, "f.py"):
        yield mutant.kind, mutated(mutant, source.encode()).decode().splitlines()[1].strip()


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("z = x + y", [("arithmetic", "z = (x - y)")]),
        ("z = -x ** y", [("arithmetic", "z = -(x * y)")]),
        ("z = (x - y) * y", [("arithmetic", "z = ((x - y) / y)"), ("arithmetic", "z = ((x + y)) * y")]),
        ("z = x < y", [("comparison", "z = (x <= y)")]),
        ("z = x is not y", [("comparison", "z = (x is y)")]),
        ("z = x and y", [("and/or", "z = (x or y)")]),
        ("z = not x", [("not", "z = (x)")]),
        ("z = 1", [("constant", "z = 2"), ("constant", "z = 0")]),
        ("z = 2.0", [("constant", "z = 2.2")]),
        ("z = True", [("constant", "z = False")]),
        ("return x", [("return", "return None")]),
        ("x.close()", [("statement", "pass")]),
        ("x += y", [("statement", "pass")]),
        ("z = x if y else 'é'", [("condition", "z = x if (not y) else 'é'")]),
        ("z = 'é', x.min()", [("opposite", "z = 'é', x.max()")]),
        ("z = max(x, y)", [("opposite", "z = min(x, y)")]),
        ("z = x(y, a=y, **y)", [("keyword", "z = x(y, **y)")]),
    ],
)
def test_changes__of_each_kind(body, expected):
    assert list(changed(body)) == expected


@pytest.mark.parametrize(
    "body",
    [
        '"""One: 1 + 1."""', "raise ValueError(f'{x + 1}')", "z = f'{x + 1:.3f}'", "logger.info('%s', x + 1)",
        "z: Literal[1] = x", "z = x / 'name'", "return", "return None",
    ],
)  # fmt: skip
def test_changes__leave_words_alone(body):
    assert not list(changed(body))


def test_changes__only_in_bodies_of_functions():
    source = (
        "A = 1\n@cached(1)\ndef f(x=1):\n  pass\nclass B:\n  c = 1\n  def __repr__(self):\n    return 1 + 1\n"
    )
    assert not list(mutants_of(source, "f.py"))


def test_mutants__of_several_lines__are_python_and_differ():
    source = "def f(x):\n  if not (x <\n    1):  # why\n    x = g(x,\n      a=2)\n  return x\n"
    versions = [mutated(mutant, source.encode()) for mutant in mutants_of(source, "f.py")]
    assert len({ast.dump(ast.parse(version)) for version in [source, *versions]}) == len(versions) + 1 == 9


def test_located__in_a_file_that_has_moved_and_grown(tmp_path):
    source = "def f(x):\n    return x + 1\n"
    mutant = next(mutants_of(source, "kedrl_dask/f.py"))
    assert located(mutant, tmp_path) is None
    path = tmp_path / "kedrl_dask" / "room" / "f.py"
    path.parent.mkdir(parents=True)
    path.write_text("# New.\n\n" + source)
    place = located(mutant, tmp_path)
    assert (place.file, place.line) == ("kedrl_dask/room/f.py", 4)
    path.write_text(source.replace("x + 1", "x + 2"))
    assert located(mutant, tmp_path) is None


def suite_of(durations, budget=30.0, most_tests=60):
    """A suite whose tests all run every line."""
    suite = object.__new__(Suite)
    suite.durations, suite.budget, suite.most_tests = durations, budget, most_tests
    suite.tests = lambda mutant: set(durations)
    return suite


def test_chosen__every_function_before_a_second_parameter():
    durations = {"a.py::f[1]": 1.0, "a.py::f[2]": 1.1, "b.py::g": 9.0, "a.py::h": 4.0, "c.py::i": 99.0}
    assert suite_of(durations).chosen(None) == (["a.py::f[1]", "a.py::h", "a.py::f[2]", "b.py::g"], 15.1)
    assert suite_of(durations, most_tests=3).chosen(None)[0] == ["a.py::f[1]", "a.py::h", "b.py::g"]
    assert suite_of({"c.py::i": 99.0}).chosen(None) == (["c.py::i"], 99.0)


def test_by_turns():
    assert by_turns(["a1", "a2", "a3", "b1", "c1", "c2"], group=lambda item: item[0]) == [
        "a1", "b1", "c1", "a2", "c2", "a3",
    ]  # fmt: skip


def test_read_durations__of_tests_that_passed(tmp_path):
    path = tmp_path / "junit.xml"
    path.write_text(
        '<testsuites><testsuite><testcase classname="tests.test_a" name="test_b[1-x.y]" time="0.5"/>'
        '<testcase classname="tests.test_a" name="test_c" time="1"><failure/></testcase>'
        "</testsuite></testsuites>"
    )
    assert read_durations(path) == {"tests/test_a.py::test_b[1-x.y]": 0.5}


def test_table__counts_a_timeout_as_noticed_and_an_uncovered_mutant_as_not():
    outcomes = ["killed", "timeout", "survived", "uncovered", "error"]
    mutants = [SimpleNamespace(file="f.py", outcome=outcome) for outcome in outcomes]
    *_, total = table(mutants)
    assert total.split() == ["total", "1", "1", "1", "1", "1", "50%"]
