"""Install the optional requirements of the tests, where they can be had, and print one line for each that cannot.

``python tests/support/optional.py LOCKED`` installs ``requirements/optional.txt`` (LOCKED is ``yes``) or the newest
versions, and provides Chromium as ``build/browser/chromium``: the system's, Debian's signed packages unpacked below
``build/browser``, or playwright's download. Nothing outside the environment and ``build/`` is changed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from support.browser import HOME, system_chromium  # noqa: E402
from support.lock import blocks, wanted  # noqa: E402

LOG = ROOT / "build" / "optional.log"
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
PIP_S, BROWSER_S = 300, 180

WRAPPER = """#!/bin/sh
root='{root}'
export LD_LIBRARY_PATH="$(printf '%s:' "$root"/usr/lib/*-linux-gnu "$root"/usr/lib/*-linux-gnu/pulseaudio)"
export XDG_DATA_HOME="$root/usr/share"
exec "$root/usr/lib/chromium/chromium" "$@"
"""


def done(words: list[str], seconds: int, env: dict[str, str] | None = None) -> bool:
    """Run a command, its output to the log, and return True if it succeeded in time."""
    with LOG.open("a", encoding="utf-8") as log:
        log.write(f"$ {' '.join(words)}\n")
        log.flush()
        try:
            run = subprocess.run(
                words, stdout=log, stderr=log, timeout=seconds, env={**os.environ, **(env or {})}
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            log.write(f"{error}\n")
            return False
    return run.returncode == 0


def install_packages(locked: bool) -> bool:
    """Install the optional packages into this environment."""
    pip = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check"]
    if locked:
        words = ["--no-deps", "--require-hashes", "-r", str(ROOT / "requirements" / "optional.txt")]
    else:
        words = wanted()["optional"]
    return done([*pip, *words], PIP_S)


def install_torch() -> bool:
    """Install a CPU build of PyTorch, for tests of programs.

    Only PyTorch's own index is asked, and its libraries come from the usual one: with two indices, a package of the
    same name in the other could be installed. The hash is of the wheel of one Python and processor; others install
    the same version, of which PyPI has none.
    """
    pip = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--no-deps"]
    folder = ROOT / "requirements"
    locked = ["--require-hashes", "-r"]
    if not done([*pip, *locked, str(folder / "torch-libraries.txt")], PIP_S):
        return False
    index = [*pip, "--retries", "0", "--index-url", TORCH_INDEX]
    return done([*index, *locked, str(folder / "torch.txt")], PIP_S) or done(
        [*index, *blocks((folder / "torch.txt").read_text(encoding="utf-8"))], PIP_S
    )


def playwright_browser() -> bool:
    """Download the Chromium of playwright's locked version, which has no signature."""
    env = {"PLAYWRIGHT_BROWSERS_PATH": str(HOME)}
    words = [sys.executable, "-m", "playwright", "install", "--only-shell", "chromium"]
    if not done(words, BROWSER_S, env):
        return False
    program = next((path for path in HOME.glob("*/*/*headless*shell") if path.is_file()), None)
    if program:
        (HOME / "chromium").symlink_to(program)
    return program is not None


def debian_browser() -> bool:
    """Download Debian's Chromium and the libraries that the system lacks, with apt's signatures, and unpack them."""
    if not shutil.which("apt-get") or not shutil.which("dpkg"):
        return False
    for name in ("lists/partial", "cache/archives/partial", "root"):
        (HOME / name).mkdir(parents=True, exist_ok=True)
    apt = [
        "apt-get",
        "-qq",
        "-o",
        f"Dir::State::lists={HOME}/lists",
        "-o",
        f"Dir::Cache={HOME}/cache",
    ]
    apt += ["-o", "Debug::NoLocking=1", "-o", "APT::Sandbox::User="]
    packages = ["--no-install-recommends", "--download-only", "-y", "chromium", "fonts-liberation"]
    if not done([*apt, "update"], BROWSER_S) or not done([*apt, "install", *packages], BROWSER_S):
        return False
    for package in sorted((HOME / "cache" / "archives").glob("*.deb")):
        if not done(["dpkg", "-x", str(package), str(HOME / "root")], BROWSER_S):
            return False
    wrapper = HOME / "chromium"
    wrapper.write_text(WRAPPER.format(root=HOME / "root"), encoding="utf-8")
    wrapper.chmod(0o755)
    shutil.rmtree(HOME / "cache")
    return done([str(wrapper), "--version"], BROWSER_S)


def install_browser() -> bool:
    """Provide Chromium, unless the system has one."""
    if system_chromium():
        return True
    shutil.rmtree(HOME, ignore_errors=True)
    HOME.mkdir(parents=True)
    if debian_browser() or playwright_browser():
        return True
    shutil.rmtree(HOME)
    return False


def main(locked: bool) -> None:
    """Install everything, and print what is missing."""
    LOG.parent.mkdir(exist_ok=True)
    LOG.write_text("", encoding="utf-8")
    where = LOG.relative_to(ROOT)
    if not install_packages(locked):
        print(
            f"no Dask, MPI, Parquet or playwright: their tests are skipped ({where} has the errors)"
        )
    if not install_torch():
        print(f"no PyTorch: tests of its programs are skipped ({where} has the errors)")
    if not install_browser():
        print(f"no Chromium: tests in a browser are skipped ({where} has the errors)")


if __name__ == "__main__":
    main(sys.argv[1:] == ["yes"])
