"""``python -m tests.mutation``: change the package in small ways, and count which changes the tests notice.

It needs a coverage database that knows which test ran which line, and the durations of the same run::

    python -m pytest --cov=kedrl_dask --cov-branch --cov-context=test --cov-report= --junitxml=junit.xml
    python -m tests.mutation --junit junit.xml --out mutants.json

The same mutants can be given to another suite, in another checkout with a database of its own::

    python -m tests.mutation --from mutants.json --only survived uncovered --out again.json \\
        --root CHECKOUT --data DATABASE --junit XML

Mutants are drawn from lines of functions that some test runs in its own process.
"""

from __future__ import annotations

import argparse
import ast
import functools
import json
import os
import queue
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import accumulate, zip_longest
from pathlib import Path

PACKAGE = "kedrl_dask"
#: Which modules are changed: patterns for the end of a path, so that a module may move to another folder.
MODULES = (
    # Mathematics
    "numerics/*/*", "estimator/*", "estimator/fit/regression", "estimator/fitted/model",
    # Storage and execution
    "engine/storage/*", "engine/data/*", "engine/execute/*", "engine/plan/partition", "engine/passes/*",
    "estimator/run", "estimator/fitted/persistence",
)  # fmt: skip
#: Folders of the package that are left out, whatever their modules are called.
LEFT_OUT = {"cli", "datasets", "plots", "report", "studies"}
OPERATORS = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
COMPARISONS = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
OPPOSITES = {"min": "max", "minimum": "maximum", "argmin": "argmax", "floor": "ceil", "any": "all"}
OPPOSITES |= {opposite: name for name, opposite in OPPOSITES.items()}
#: Functions whose result only people read, and objects that only tell people something.
WORDS = {"__repr__", "__str__", "_repr_html_"}
TALKERS = {"logger", "logging", "print"}
#: Bytes of address space of a test process: a mutant may ask for any amount of memory.
MOST_MEMORY = 16 * 2**30
#: A mutant no test runs is ``uncovered``; ``error``: the tests fail without it too.
OUTCOMES = ("killed", "timeout", "survived", "uncovered", "error")


@dataclass
class Mutant:
    """A change of one expression or statement, and what the tests said to it."""

    file: str
    line: int
    column: int
    kind: str
    before: str
    after: str
    code: str  # the whole first line, to find the place again where lines have moved
    outcome: str = "untested"
    test: str | None = None

    def __str__(self):
        before, after = (" ".join(text.split()) for text in (self.before, self.after))
        return f"{self.file}:{self.line} {self.kind}: {before:.60} -> {after:.60}"


def changes(node):
    """Triples (kind, node, changed node) of what this node itself offers."""
    match node:
        case ast.BinOp(op=operator) if type(operator) in OPERATORS and not _has_text(node):
            yield "arithmetic", node, _with(node, op=OPERATORS[type(operator)]())
        case ast.Compare(ops=[comparison]):
            yield "comparison", node, _with(node, ops=[COMPARISONS[type(comparison)]()])
        case ast.BoolOp(op=operator):
            yield "and/or", node, _with(node, op=ast.Or() if isinstance(operator, ast.And) else ast.And())
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield "not", node, operand
        case ast.Constant(value=bool(value)):
            yield "constant", node, ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield from (("constant", node, ast.Constant(value + step)) for step in (1, -1))
        case ast.Constant(value=float(value)):
            yield "constant", node, ast.Constant(1.1 * value if value else 1.0)
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            yield "return", node, ast.Return(ast.Constant(None))
        case ast.AugAssign() | ast.Expr(value=ast.Call() | ast.Await()):
            yield "statement", node, ast.Pass()
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test) | ast.comprehension(ifs=[test]):
            if not isinstance(test, (ast.Compare, ast.UnaryOp)):  # which have their own kinds of change
                yield "condition", test, ast.UnaryOp(ast.Not(), test)
        case ast.Call():
            yield from _changes_of_call(node)


def _changes_of_call(node):
    match node.func:
        case ast.Name(id=name) if name in OPPOSITES:
            yield "opposite", node, _with(node, func=ast.Name(OPPOSITES[name]))
        case ast.Attribute(attr=name) if name in OPPOSITES:
            yield "opposite", node, _with(node, func=_with(node.func, attr=OPPOSITES[name]))
    for keyword in node.keywords:
        if keyword.arg is not None:
            others = [other for other in node.keywords if other is not keyword]
            yield "keyword", node, _with(node, keywords=others)


def _with(node, **fields):
    return type(node)(**(vars(node) | fields))


def _has_text(node):
    """Whether an operator joins strings or paths: any other one would be an error at once."""
    sides = (node.left, node.right)
    return any(isinstance(x, ast.JoinedStr) or isinstance(getattr(x, "value", None), str) for x in sides)


def mutants_of(source, file):
    """All mutants of the function bodies in a module's source."""
    content = source.encode()  # columns of ``ast`` count bytes
    lines = content.splitlines(keepends=True)
    starts = [0, *accumulate(map(len, lines))]
    for kind, node, changed in _offers(ast.parse(source)):
        after = ast.unparse(changed)
        if isinstance(changed, ast.expr) and not isinstance(changed, (ast.Call, ast.Constant)):
            after = f"({after})"
        start = starts[node.lineno - 1] + node.col_offset
        before = content[start : starts[node.end_lineno - 1] + node.end_col_offset].decode()
        code = lines[node.lineno - 1].decode().rstrip()
        yield Mutant(file, node.lineno, node.col_offset, kind, before, after, code)


def _offers(node, is_inside=False):
    """Changes of everything inside functions, but for what is only said to people."""
    if isinstance(node, (ast.Raise, ast.JoinedStr)) or getattr(node, "name", None) in WORDS or _is_talk(node):
        return
    if is_inside:
        yield from changes(node)
    is_function = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    for child in node.body if is_function else ast.iter_child_nodes(node):
        if child is not getattr(node, "annotation", None):
            yield from _offers(child, is_inside or is_function)


def _is_talk(node):
    is_call = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    return is_call and ast.unparse(node.value.func).partition(".")[0] in TALKERS


def located(mutant, root):
    """The mutant at its place in a checkout, in which files and lines may have moved; None if it has none."""
    path = root / mutant.file
    paths = [path] if path.exists() else [*(root / PACKAGE).rglob(path.name)]
    if len(paths) != 1:
        return None
    content, file = paths[0].read_bytes(), str(paths[0].relative_to(root))
    same = [i for i, line in enumerate(content.splitlines(), 1) if line.decode().rstrip() == mutant.code]
    nearest_first = sorted(same, key=lambda i: abs(i - mutant.line))
    places = (replace(mutant, file=file, line=line) for line in nearest_first)
    return next((place for place in places if mutated(place, content)), None)


def mutated(mutant, content):
    """A file's content with the change in it; None if what it changes is not there."""
    start = sum(map(len, content.splitlines(keepends=True)[: mutant.line - 1])) + mutant.column
    before = mutant.before.encode()
    end = start + len(before)
    return content[:start] + mutant.after.encode() + content[end:] if content[start:end] == before else None


class Suite:
    """Which tests of a checkout run a line, and how long they take."""

    def __init__(self, data, junit, budget, most_tests):
        from coverage import CoverageData  # of pytest-cov, which only this script needs

        self.data = CoverageData(str(data))
        self.data.read()
        self.durations = read_durations(junit)
        self.budget, self.most_tests = budget, most_tests
        self._tests_by_line = functools.cache(self._read)

    def tests(self, mutant):
        """All tests that ran the line of a mutant, and passed."""
        return self._tests_by_line(mutant.file)[mutant.line]

    def _read(self, file):
        tests = defaultdict(set)
        for measured in self.data.measured_files():
            if measured.endswith(f"/{file}"):
                for line, contexts in self.data.contexts_by_lineno(measured).items():
                    names = {context.rpartition("|")[0] for context in contexts}  # without |setup, |run
                    tests[line] |= names & self.durations.keys()
        return tests

    def chosen(self, mutant):
        """Tests within the budget, those of a file together for its fixtures; and their seconds."""
        fastest_first = sorted(self.tests(mutant), key=lambda test: (self.durations[test], test))
        by_file, count, seconds = defaultdict(list), 0, 0.0
        for test in by_turns(fastest_first, group=lambda test: test.partition("[")[0]):
            is_affordable = seconds + self.durations[test] <= self.budget and count < self.most_tests
            if is_affordable or not count:
                by_file[test.partition("::")[0]].append(test)
                count, seconds = count + 1, seconds + self.durations[test]
        files = sorted(by_file.values(), key=lambda tests: sum(map(self.durations.get, tests)))
        return [test for tests in files for test in tests], seconds


def by_turns(items, group):
    """The first item of every group, then the second of each, and so on."""
    groups = defaultdict(list)
    for item in items:
        groups[group(item)].append(item)
    return [item for turn in zip_longest(*groups.values()) for item in turn if item is not None]


def read_durations(junit):
    """Seconds of every test that passed."""
    return {
        f"{case.get('classname').replace('.', '/')}.py::{case.get('name')}": float(case.get("time"))
        for case in ET.parse(junit).iter("testcase")
        if not any(child.tag in ("failure", "error", "skipped") for child in case)
    }


def draw(root, suite, patterns, count, seed):
    """Mutants of covered lines: equally many of each module, and of each kind as far as there are any."""
    covered = []
    for path in sorted((root / PACKAGE).rglob("*.py")):
        file = path.relative_to(root)
        if file.parts[1] not in LEFT_OUT and any(file.match(f"{pattern}.py") for pattern in patterns):
            covered += [mutant for mutant in mutants_of(path.read_text(), str(file)) if suite.tests(mutant)]
    random.Random(seed).shuffle(covered)
    mixed = by_turns(covered, group=lambda mutant: (mutant.file, mutant.kind))
    return by_turns(mixed, group=lambda mutant: mutant.file)[:count]


class Bench:
    """A copy of the checkout in which one mutant after another is tested."""

    def __init__(self, root, folder):
        self.copy, self.scratch = folder / "copy", folder / "tmp"
        self.scratch.mkdir(parents=True)
        unwanted = (".git", ".*_cache", ".hypothesis", "__pycache__", "*.egg-info", "*-logs", "*-space")
        shutil.copytree(root, self.copy, ignore=shutil.ignore_patterns(*unwanted))
        # Compiled files that are checked by content: time stamps are too coarse for changes this quick.
        compiling = ["-m", "compileall", "-q", "--invalidation-mode", "checked-hash", PACKAGE]
        subprocess.run([sys.executable, *compiling], cwd=self.copy, check=True)

    def pytest(self, tests, timeout):
        """The exit code of tests in the copy, or None after the timeout, and what they printed."""
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider"]
        command += ["--hypothesis-seed=0", f"--basetemp={self.scratch / 'base'}", *tests]
        paths = {"PYTHONPATH": str(self.copy), "TMPDIR": str(self.scratch)}
        environment = os.environ | paths | {"PYTHONDONTWRITEBYTECODE": "1"}
        shutil.rmtree(self.copy / ".hypothesis", ignore_errors=True)  # failures of the mutant before
        output = self.scratch / "output"
        with output.open("wb") as file:  # no pipe: what a test leaves running would keep it open
            streams = {"stdout": file, "stderr": file, "start_new_session": True}
            process = subprocess.Popen(command, cwd=self.copy, env=environment, **streams)
            try:
                code = process.wait(timeout)
            except subprocess.TimeoutExpired:
                code = None
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # with all that the tests have started
            process.wait()
        return code, output.read_text(errors="replace")

    def ask(self, tests, timeout):
        """Outcome of some tests, and the one that failed."""
        code, output = self.pytest(tests, timeout)
        if not code:
            return "timeout" if code is None else "survived", None
        lines = [f"{line} " for line in output.splitlines() if line.startswith(("FAILED", "ERROR"))]
        failed = [test for test in tests if any(f" {test} " in line for line in lines)]
        return "killed", failed[0] if failed else None

    def judge(self, mutant, tests, timeout, sound):
        """Outcome of a mutant and the test that killed it, which passes without it, as those in ``sound``."""
        path = self.copy / mutant.file
        content = path.read_bytes()
        while tests:
            path.write_bytes(mutated(mutant, content))
            outcome, test = self.ask(tests, timeout)
            path.write_bytes(content)
            witnesses = [test] if test else tests
            if outcome == "survived" or test in sound or self.ask(witnesses, timeout)[0] == "survived":
                sound.update({test} - {None})
                return outcome, test
            tests = [other for other in tests if other not in witnesses]
        return "error", None


def run(mutants, suite, root, jobs):
    """Test all mutants, each of which comes back with its outcome."""
    benches, sound = queue.SimpleQueue(), set()

    def judge(mutant):
        tests, seconds = suite.chosen(mutant)
        if not tests:
            return replace(mutant, outcome="uncovered")
        bench = benches.get()
        outcome, test = bench.judge(mutant, tests, 3 * seconds + 60, sound)
        benches.put(bench)
        return replace(mutant, outcome=outcome, test=test)

    with tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as folder:
        for number in range(jobs):
            benches.put(Bench(root, Path(folder) / str(number)))
        with ThreadPoolExecutor(jobs) as pool:
            yield from pool.map(judge, mutants)


def table(mutants):
    """Outcomes by module, and the rate of those that the tests noticed."""
    by_file = defaultdict(Counter)
    for mutant in sorted(mutants, key=lambda mutant: mutant.file):
        by_file[mutant.file][mutant.outcome] += 1
    by_file["total"] = sum(by_file.values(), Counter())
    yield f"{'':36}" + "".join(f"{outcome:>10}" for outcome in (*OUTCOMES, "rate"))
    for file, counts in by_file.items():
        noticed = counts["killed"] + counts["timeout"]
        known = noticed + counts["survived"] + counts["uncovered"]
        rate = f"{noticed / known:10.0%}" if known else ""
        yield f"{file:36}" + "".join(f"{counts[outcome] or '-':>10}" for outcome in OUTCOMES) + rate


def main():
    """Draw mutants, or read them from a file; test them, and print what became of them."""
    options = _options()
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))
    suite = Suite(options.data, options.junit, options.seconds, options.tests)
    if options.source:
        mutants = read_mutants(options.source, options.only, options.root)
    else:
        mutants = draw(options.root, suite, options.modules, options.mutants, options.seed)
    for number, mutant in enumerate(run(mutants, suite, options.root, options.jobs)):
        mutants[number] = mutant
        options.out.write_text(json.dumps([*map(asdict, mutants)], indent=1, ensure_ascii=False))
        print(f"{number + 1}/{len(mutants)} {mutant.outcome} {mutant} {mutant.test or ''}", flush=True)
    print("", *table(mutants), sep="\n")


def read_mutants(path, outcomes, root):
    """Mutants of an earlier run with some outcomes, as far as a checkout has the code that they change."""
    records = [Mutant(**fields) for fields in json.loads(path.read_text())]
    wanted = [mutant for mutant in records if not outcomes or mutant.outcome in outcomes]
    mutants = [place for mutant in wanted if (place := located(mutant, root))]
    print(f"{len(wanted)} mutants, of which {len(wanted) - len(mutants)} have no place in this checkout")
    return [replace(mutant, outcome="untested", test=None) for mutant in mutants]


def _options():
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--root", type=Path, default=Path(), help="checkout whose tests are run (default: this folder)")
    add("--data", type=Path, default=Path(".coverage"), help="its coverage database (default: %(default)s)")
    add("--junit", type=Path, default=Path("junit.xml"), help="its durations (default: %(default)s)")
    add("--out", type=Path, default=Path("mutants.json"), help="file to write (default: %(default)s)")
    add("--mutants", type=int, default=300, help="how many to draw (default: %(default)s)")
    add("--seed", type=int, default=0, help="of the draw (default: %(default)s)")
    add("--modules", nargs="+", default=MODULES, metavar="PATTERN", help="ends of paths, without .py")
    add("--from", dest="source", type=Path, metavar="FILE", help="take the mutants of an earlier run")
    add("--only", nargs="+", choices=["untested", *OUTCOMES], help="of these, by outcome (default: all)")
    add("--seconds", type=float, default=30.0, help="of tests for a mutant (default: %(default)s)")
    add("--tests", type=int, default=60, help="most tests for a mutant (default: %(default)s)")
    add("--jobs", type=int, default=2, help="mutants at the same time (default: %(default)s)")
    options = parser.parse_args()
    if options.source == options.out:
        parser.error(f"--out would overwrite {options.out}, which --from reads; name another file")
    return options


if __name__ == "__main__":
    main()
