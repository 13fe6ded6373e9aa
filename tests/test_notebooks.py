"""Notebooks run from top to bottom, define nothing, and carry the outputs of an execution.

``python -m tests.notebooks`` executes them and stores their outputs.
"""

from __future__ import annotations

import ast
import base64
import re
from io import BytesIO

import nbformat
import pytest
from PIL import Image

from tests.notebooks import FOLDER, NOTEBOOKS, clean, execute

#: What differs between runs or machines: directories, addresses, ports, progress bars, times.
NOISE = re.compile(r"/tmp/|/home/|/root/|[A-Z]:\\|\bat 0x[0-9a-f]+|://[\w.]+:\d+|━|>seconds<")
MOST_BYTES = 2_000_000


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def kinds(notebook):
    """Kinds of the outputs of each cell."""
    return [[sorted(output.data) for output in cell.outputs] for cell in code_cells(notebook)]


def texts(notebook):
    """What readers see as text."""
    for cell in code_cells(notebook):
        for output in cell.outputs:
            yield from (value for kind, value in output.data.items() if kind.startswith("text/"))


def test_notebooks__exist_and_stay_small():
    assert NOTEBOOKS
    assert sum(path.stat().st_size for path in FOLDER.iterdir() if path.is_file()) < MOST_BYTES


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook__imports_the_package_and_defines_nothing(path):
    for cell in code_cells(nbformat.read(path, as_version=4)):
        nodes = ast.walk(ast.parse(cell.source))
        assert not any(isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Lambda) for node in nodes)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook__can_be_read_without_running(path):
    """Executed in order, without errors, with figures that are pictures and text that is no noise."""
    notebook = nbformat.read(path, as_version=4)
    cells = code_cells(notebook)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert {output.output_type for output in outputs} == {"execute_result"}
    figures = [output.data["image/png"] for output in outputs if "image/png" in output.data]
    assert figures
    assert any("text/html" in output.data for output in outputs)  # something that shows itself as a table
    for figure in figures:
        assert min(Image.open(BytesIO(base64.b64decode(figure))).size) > 200
    assert not [found.group() for text in texts(notebook) if (found := NOISE.search(text))]
    assert notebook.metadata["language_info"] == {"name": "python"}
    assert not any("execution" in cell.metadata for cell in notebook.cells)


@pytest.fixture
def run(tmp_path):
    """A function that runs a notebook in a directory of its own."""
    return lambda notebook: execute(notebook, tmp_path)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_progress__bars_come_to_their_end_in_a_notebook(run):
    """As an output that is drawn again: answers of widgets make nbclient miss the end of a cell."""
    lines = [
        "import time",
        "from kedrl_dask.utils.progress import NOTEBOOK_INTERVAL, Reporter",
        "reporter = Reporter()",
        'with reporter.stage("streaming pass", 3) as advance:',
        "    advance(2)",
        "    time.sleep(4 * NOTEBOOK_INTERVAL)",
        "    advance(1)",
        "try:",
        '    with reporter.stage("solver", 9) as advance:',
        '        advance(4, "going well")',
        "        1 / 0",
        "except ZeroDivisionError:",
        "    pass",
    ]
    cell = nbformat.v4.new_code_cell("\n".join(lines))
    notebook = run(nbformat.v4.new_notebook(cells=[cell]))
    assert "widgets" not in notebook.metadata
    finished, failed = (output["data"]["text/html"] for output in cell.outputs)
    assert "streaming pass" in finished
    assert "3/3" in finished
    assert "solver" in failed
    assert "4/9" in failed
    assert "going well" in failed


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the kernel's own machinery
def test_notebook__runs_and_gives_the_stored_kinds_of_outputs(path, run):
    stored = kinds(nbformat.read(path, as_version=4))
    assert kinds(clean(run(nbformat.read(path, as_version=4)))) == stored
