"""Notebooks run from top to bottom, define nothing, and carry no outputs."""

from __future__ import annotations

import ast
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))


def test_notebooks__exist():
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook__is_clean(path):
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "code":
            assert not cell.outputs
            assert cell.execution_count is None
            nodes = ast.walk(ast.parse(cell.source))
            assert not any(isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Lambda) for node in nodes)


@pytest.fixture
def run(tmp_path):
    """A function that runs a notebook in a directory of its own."""

    def execute(notebook):
        resources = {"metadata": {"path": str(tmp_path)}}
        # Outputs can come late where cores are busy.
        NotebookClient(notebook, timeout=300, iopub_timeout=60, resources=resources).execute()
        return notebook

    return execute


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
def test_notebook__runs(path, run):
    outputs = [
        output for cell in run(nbformat.read(path, as_version=4)).cells for output in cell.get("outputs", [])
    ]
    kinds = {kind for output in outputs for kind in output.get("data", {})}
    assert "image/png" in kinds  # a figure
    results = [output["data"] for output in outputs if output.output_type == "execute_result"]
    assert any("text/html" in result for result in results)  # something that shows itself, beside the bars
