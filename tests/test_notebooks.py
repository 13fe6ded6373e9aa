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


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_progress__bars_come_to_their_end_in_a_notebook():
    lines = [
        "from kedrl_dask.progress import Reporter",
        'with Reporter().stage("streaming pass", 3) as advance:',
    ]
    cell = nbformat.v4.new_code_cell("\n".join([*lines, "    advance(3)"]))
    notebook = nbformat.v4.new_notebook(cells=[cell])
    NotebookClient(notebook, timeout=300).execute()
    assert "widget-view+json" in json.dumps(cell.outputs)
    shown = json.dumps(notebook.metadata["widgets"])
    assert "streaming pass" in shown
    assert "3/3" in shown


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the kernel's own machinery
def test_notebook__runs(path, tmp_path):
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    kinds = {
        kind for c in notebook.cells for output in c.get("outputs", []) for kind in output.get("data", {})
    }
    assert {"image/png", "text/html"} <= kinds  # a figure, and something that shows itself
