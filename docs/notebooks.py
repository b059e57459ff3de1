"""Runs the notebooks of the examples and stores their outputs in them, for display on code hosts.

    python docs/notebooks.py    # needs the extra docs

Times, and what goes to the standard error, are left out, so that a run on another day changes nothing.
"""

from __future__ import annotations

from pathlib import Path

import nbformat
from nbclient import NotebookClient

EXAMPLES = Path(__file__).parents[1] / "examples"


def main() -> None:
    """Run each notebook from its first cell, and write it with its outputs."""
    for path in sorted(EXAMPLES.glob("*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        about = dict(notebook.metadata)
        NotebookClient(notebook, timeout=600, record_timing=False, resources={"metadata": {"path": EXAMPLES}}).execute()
        notebook.metadata = about
        for cell in notebook.cells:
            if cell.cell_type == "code":
                cell.outputs = [one for one in cell.outputs if one.get("name") != "stderr"]
        nbformat.write(notebook, path)
        print(f"{path.name}: {path.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
