"""Notebooks run from top to bottom, define nothing, and carry no outputs."""

from __future__ import annotations

import ast
import json
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


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_progress__bars_come_to_their_end_in_a_notebook(run):
    lines = [
        "from kedrl_dask.utils.progress import Reporter",
        'with Reporter().stage("streaming pass", 3) as advance:',
    ]
    cell = nbformat.v4.new_code_cell("\n".join([*lines, "    advance(3)"]))
    notebook = run(nbformat.v4.new_notebook(cells=[cell]))
    assert "widget-view+json" in json.dumps(cell.outputs)
    shown = json.dumps(notebook.metadata["widgets"])
    assert "streaming pass" in shown
    assert "3/3" in shown


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
