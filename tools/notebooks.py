"""Runs the notebooks of examples/notebooks in a kernel of their own.

`python tools/notebooks.py` runs them anew and writes their outputs into them.
"""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).resolve().parent.parent / "examples" / "notebooks"
SECONDS = 240
"""That a cell may take."""


def run(path: Path, folder: Path) -> Any:
    """The notebook with the outputs of its cells, run in ``folder`` from the first to the last."""
    notebook = nbformat.read(path, as_version=nbformat.NO_CONVERT)
    metadata = copy.deepcopy(notebook.metadata)
    resources = {"metadata": {"path": str(folder)}}
    NotebookClient(
        notebook, timeout=SECONDS, resources=resources, record_timing=False, coalesce_streams=True
    ).execute()
    notebook.metadata = metadata  # nothing of this machine's Python
    return notebook


def main() -> None:
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        with tempfile.TemporaryDirectory() as folder:
            nbformat.write(run(path, Path(folder)), path)
        print(path)


if __name__ == "__main__":
    main()
