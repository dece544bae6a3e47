"""Create a virtual environment with pip: ``python tests/support/environment.py FOLDER``, for the Makefile.

``python -m venv`` spends five seconds on byte code of pip that is hardly used. Here pip installs itself without it,
from the wheel of `ensurepip`, as it installs everything afterwards; Python compiles modules when they are imported.
"""

from __future__ import annotations

import ensurepip
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path


def bundled_pip() -> Path | None:
    """Return the wheel of pip that this Python brings; None if it is stored elsewhere."""
    own = sysconfig.get_config_var("WHEEL_PKG_DIR")  # of Linux distributions
    folders = [*([Path(own)] if own else []), Path(ensurepip.__file__).parent / "_bundled"]
    return next((wheel for folder in folders for wheel in folder.glob("pip-*.whl")), None)


def create(folder: Path) -> None:
    """Create the environment."""
    wheel = bundled_pip()
    venv.create(folder, symlinks=True, with_pip=wheel is None)
    if wheel is not None:
        words = ["--quiet", "--no-compile", "--no-index", "--no-deps", str(wheel)]
        python = folder / "bin" / "python"
        subprocess.run([str(python), str(wheel / "pip"), "install", *words], check=True)


if __name__ == "__main__":
    create(Path(sys.argv[1]))
