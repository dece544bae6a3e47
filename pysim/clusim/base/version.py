"""Version of clusim, which is defined in ``pyproject.toml`` only."""

from __future__ import annotations

from pathlib import Path
from subprocess import CalledProcessError, run


def version() -> str:
    """Return the version of the installed package, or of the checkout it is imported from."""
    project = Path(__file__).resolve().parents[3] / "pyproject.toml"
    if project.is_file():
        for line in project.read_text(encoding="utf-8").splitlines():
            if line.startswith("version = "):
                return line.split('"')[1]
    from importlib import metadata

    return metadata.version("clusim-net")


def commit() -> str:
    """Return the commit of the checkout that contains clusim, with a plus if files are changed; empty without one."""
    folder = Path(__file__).parent
    try:
        done = [
            run(
                ["git", "-C", folder, *words],
                capture_output=True,
                text=True,
                check=True,
            ).stdout
            for words in (
                ("rev-parse", "--short=8", "HEAD"),
                ("status", "--porcelain", "-uno"),
            )
        ]
    except (OSError, CalledProcessError):
        return ""
    return done[0].strip() + "+" * bool(done[1].strip())
