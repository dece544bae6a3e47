"""Version of clusim, which is defined in ``pyproject.toml`` only."""

from __future__ import annotations

from pathlib import Path


def version() -> str:
    """Return the version of the installed package, or of the checkout it is imported from."""
    project = Path(__file__).resolve().parents[3] / "pyproject.toml"
    if project.is_file():
        for line in project.read_text(encoding="utf-8").splitlines():
            if line.startswith("version = "):
                return line.split('"')[1]
    from importlib import metadata

    return metadata.version("clusim-net")
