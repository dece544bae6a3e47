"""Build another commit of clusim for comparison: ``python benchmarks/older.py d0828a3``.

Prints the folder for ``benchmarks/run.py --against``. All files are created in build/older/.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def build(commit: str) -> Path:
    """Return a folder with the package `clusim` of `commit`, compiled like this one."""
    at = ROOT / "build" / "older" / commit
    source, site = at / "source", at / "site"
    if site.exists():
        return site
    source.mkdir(parents=True, exist_ok=True)
    files = subprocess.run(
        ["git", "-C", str(ROOT), "archive", commit], check=True, capture_output=True
    ).stdout
    subprocess.run(["tar", "-x", "-C", str(source)], input=files, check=True)
    tools = Path(sys.prefix) / "bin"
    configure = [
        str(tools / "cmake"),
        "-S",
        str(source),
        "-B",
        str(at / "made"),
        "-G",
        "Ninja",
        "-DCLUSIM_PYTHON=ON",
        "-DCMAKE_BUILD_TYPE=Release",
        f"-DCMAKE_MAKE_PROGRAM={tools / 'ninja'}",
        f"-DPython_ROOT_DIR={sys.prefix}",
        f"-DPython_EXECUTABLE={sys.executable}",
    ]
    subprocess.run(configure, check=True, stdout=subprocess.DEVNULL)
    subprocess.run(
        [str(tools / "cmake"), "--build", str(at / "made"), "--target", "_engine"],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    (engine,) = (at / "made" / "clusim").glob("_engine*.so")
    site.mkdir()
    (site / "clusim").symlink_to(source / "pysim" / "clusim")
    (source / "pysim" / "clusim" / engine.name).symlink_to(engine)
    (source / "pysim" / "clusim" / "topologies").symlink_to(source / "topologies")
    return site


if __name__ == "__main__":
    print(build(sys.argv[1]))
