"""Install a wheel into fresh environments of several Pythons, and compare what it computes with the checkout.

``python tests/support/wheels.py WHEEL [PYTHON ...]``: without a PYTHON all of 3.11 to 3.14 that are found. Needs an
index for the libraries.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import clusim

__all__ = ["check", "found"]

ROOT = Path(__file__).resolve().parents[2]
VERSIONS = ("3.11", "3.12", "3.13", "3.14")

PROGRAM = """
import sys, clusim, clusim._engine as engine
assert engine.__file__.endswith(".abi3.so"), engine.__file__
assert "site-packages" in clusim.__file__, clusim.__file__
print(f"{clusim.collective('dgx-h100', 'allreduce', '1MiB', verify=True).fingerprint:016x}")
"""


def found() -> dict[str, str]:
    """Return the interpreters that there are, by version."""
    here: dict[str, str] = {}
    for version in VERSIONS:
        program = shutil.which(f"python{version}")
        if program and not subprocess.run([program, "-c", ""], capture_output=True).returncode:
            here[version] = program
    return here


def formats_wheel() -> Path:
    """Return the wheel of `clusim-formats` that ``make wheel`` builds."""
    return next((ROOT / "build" / "wheels").glob("clusim_formats-*.whl"))


def check(wheel: Path, program: str, expected: str) -> str:
    """Install a wheel and that of rare formats for an interpreter, run it, and return its size and time.

    Raises `CalledProcessError` if a command fails.
    """
    began_s = time.monotonic()
    with TemporaryDirectory() as folder:
        subprocess.run([program, "-m", "venv", folder], check=True)
        own = Path(folder) / "bin"
        install = [own / "pip", "install", "--quiet", "--disable-pip-version-check", wheel]
        subprocess.run(install, check=True, cwd=folder)
        ran = subprocess.run(
            [own / "python", "-W", "error", "-c", PROGRAM],
            check=True,
            cwd=folder,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert ran.stdout.strip() == expected, f"{program}: {ran.stdout.strip()}, not {expected}"
        for words in (
            ["topo", "show", "dgx-1v"],
            ["run", "dgx-1v", "--size", "64KiB"],
            ["log", "summary", "nccl-8xh100"],
            ["exec", "dgx-1v", "true"],
        ):
            subprocess.run(
                [own / "clusim", *words], check=True, cwd=folder, stdout=subprocess.DEVNULL
            )
        rare = [own / "clusim", "replay", "ring-4.goal", "--topology", "dgx-1v"]
        alone = subprocess.run(rare, cwd=folder, capture_output=True, text=True)
        assert "needs clusim-formats" in alone.stderr, alone.stderr
        subprocess.run([*install[:-1], "--no-deps", formats_wheel()], check=True, cwd=folder)
        subprocess.run(rare, check=True, cwd=folder, stdout=subprocess.DEVNULL)
        size = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
    return f"{size / 1e6:.0f} MB, {time.monotonic() - began_s:.0f} s"


def main() -> None:
    """Check a wheel for every interpreter."""
    wheel = Path(sys.argv[1]).resolve()
    programs = {name: name for name in sys.argv[2:]} or found()
    result = clusim.collective("dgx-h100", "allreduce", "1MiB", verify=True)
    for name, program in programs.items():
        print(f"{name}: {check(wheel, program, f'{result.fingerprint:016x}')}", flush=True)
    for version in VERSIONS:
        if not sys.argv[2:] and version not in programs:
            print(f"{version}: not found here, not tested")


if __name__ == "__main__":
    main()
