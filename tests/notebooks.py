"""Execute the notebooks and keep their outputs, without what differs from run to run.

Run as ``python -m tests.notebooks [NAME ...]``; without names, every notebook is executed.
"""

from __future__ import annotations

import base64
import re
import sys
import tempfile
from io import BytesIO
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from PIL import Image

FOLDER = Path(__file__).parent.parent / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
#: The row of a fitted model's table that gives the time of each stage.
SECONDS = re.compile(r"<tr><th [^>]*>seconds</th>.*?</tr>")
#: The directory that ``tempfile.mkdtemp`` made; notebooks call it ``folder``.
TEMPORARY = re.compile(re.escape(tempfile.gettempdir()) + r"/tmp\w{8}")
#: Colours of a stored figure.
N_COLOURS = 64


def execute(notebook: nbformat.NotebookNode, folder: Path) -> nbformat.NotebookNode:
    """Run a notebook from top to bottom in a folder."""
    resources = {"metadata": {"path": str(folder)}}
    # Outputs can arrive late on a busy machine.
    NotebookClient(notebook, timeout=300, iopub_timeout=60, resources=resources).execute()
    return notebook


def clean(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Drop log lines, progress bars, times and temporary paths, and compress figures."""
    notebook.metadata["language_info"] = {"name": "python"}
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if not _is_noise(output)]
            for output in cell.outputs:
                output.data = {kind: _cleaned(kind, value) for kind, value in output.get("data", {}).items()}
    return notebook


def _is_noise(output: nbformat.NotebookNode) -> bool:
    return output.get("name") == "stderr" or "━" in str(output.get("data"))


def _cleaned(kind: str, value: str) -> str:
    if kind == "image/png":
        return _compressed(value)
    return TEMPORARY.sub("folder", SECONDS.sub("", value))


def _compressed(png: str) -> str:
    """The figure with a palette, and without metadata."""
    written = BytesIO()
    figure = Image.open(BytesIO(base64.b64decode(png))).convert("RGB")
    figure.quantize(N_COLOURS, dither=Image.Dither.NONE).save(written, "png", optimize=True)
    return base64.b64encode(written.getvalue()).decode()


def main(names: list[str]) -> None:
    """Execute the notebooks of these names and write them."""
    for path in [FOLDER / f"{name}.ipynb" for name in names] or NOTEBOOKS:
        with tempfile.TemporaryDirectory() as folder:
            notebook = execute(nbformat.read(path, as_version=4), Path(folder))
        nbformat.write(clean(notebook), path)
        print(f"{path.name}: {path.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main(sys.argv[1:])
