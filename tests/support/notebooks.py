"""Notebooks of docs/: run them, write what comes out into them, and tell whether they still say what comes out.

``python tests/support/notebooks.py`` runs all and writes them anew; `make docs` does.
"""

from __future__ import annotations

import re
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import nbformat

__all__ = ["NEEDS", "NOTEBOOKS", "execute", "said"]

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))

NEEDS = {"own-program": "torch"}
"""Optional libraries of notebooks."""

CELL_S = 120
"""Longest time of a cell [s]."""

_OWN = re.compile(r"<[A-Z]\w+ .*>")
"""What objects of clusim say in a line."""


def execute(path: Path) -> Any:
    """Return a notebook as it is after a run in a fresh kernel; raises `CellExecutionError` where a cell fails."""
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=CELL_S,
        kernel_name="python3",
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(path.parent)}},
    )
    client.execute()
    notebook.metadata.pop("language_info", None)  # the release of Python
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            # Widgets and styles of other libraries differ between their releases, as do these.
            output.get("metadata", {}).clear()
    return notebook


def said(notebook: Any) -> list[str]:
    """Return what cells print and what objects of clusim say: all that no other library lays out."""
    found = []
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if output["output_type"] == "stream":
                found.append(output["text"])
            elif _OWN.fullmatch(text := output.get("data", {}).get("text/plain", "")):
                found.append(text)
    return found


def main() -> None:
    """Run the notebooks that are named, or all, and write them anew."""
    for path in [Path(name) for name in sys.argv[1:]] or NOTEBOOKS:
        needed = NEEDS.get(path.stem)
        if needed is not None and find_spec(needed) is None:
            print(f"{path.name}: unchanged, as {needed} is not installed")
            continue
        nbformat.write(execute(path), path)


if __name__ == "__main__":
    main()
