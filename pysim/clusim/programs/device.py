"""Simulated CUDA device of PyTorch: a small library that is compiled against the installed PyTorch.

A CPU build of PyTorch lacks the guard of CUDA devices, so that autograd and distributed code fail on tensors with a
CUDA device. ``device.cpp`` registers one that counts the simulated GPUs and keeps the current device and stream of each
thread; it does not execute anything.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import hashlib
import os
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from clusim.base.errors import ClusimError, InputError
from clusim.base.kept import is_private, user_folder

SOURCE = Path(__file__).with_name("device.cpp")


def torch_folder() -> Path:
    """Return the folder of the installed PyTorch, without importing it."""
    module = find_spec("torch")
    if module is None or module.origin is None:
        raise InputError(
            "PyTorch is not installed; install a CPU build (https://pytorch.org/get-started/locally)"
        )
    folder = Path(module.origin).parent
    if "cuda: Optional[str] = None" not in (folder / "version.py").read_text(
        encoding="utf-8"
    ):
        raise InputError(
            "the installed PyTorch is a CUDA build, which has CUDA devices; install a CPU build"
        )
    return folder


@cache
def library() -> ctypes.CDLL:
    """Compile the library once per version of PyTorch, and load it; must precede ``import torch``.

    Raises
    ------
    InputError
        No PyTorch, or no C++ compiler.
    ClusimError
        The compiler failed.
    """
    folder = torch_folder()
    text = (
        SOURCE.read_bytes()
        + (folder / "version.py").read_bytes()
        + str(folder).encode()
    )
    path = _library_folder() / f"device-{hashlib.sha256(text).hexdigest()[:16]}.so"
    if not _is_own(path):
        path.parent.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        with _alone(path.parent):
            if not _is_own(path):
                _compile(folder, path)
    return ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)


def _is_own(path: Path) -> bool:
    """Return True for an existing file of this user."""
    return path.is_file() and path.stat().st_uid == os.geteuid()


def _library_folder() -> Path:
    """Return the folder of compiled libraries: a temporary one if others may write the cache."""
    result = user_folder() / "torch"
    if is_private(result.parent) and is_private(result):
        return result
    folder = Path(tempfile.mkdtemp(prefix="clusim-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Wait for other processes in this context, so that jobs that start together compile once."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _compile(folder: Path, path: Path) -> None:
    compiler = (
        os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    )
    if compiler is None:
        raise InputError("no C++ compiler; install g++ or set CXX")
    part = path.with_suffix(f".{os.getpid()}")
    include = folder / "include"
    command = [
        compiler,
        "-O1",
        "-std=c++20",
        "-shared",
        "-fPIC",
        str(SOURCE),
        "-o",
        str(part),
        f"-I{include}",
        f"-I{include / 'torch/csrc/api/include'}",
        f"-L{folder / 'lib'}",
        "-lc10",
        "-ltorch_cpu",
        f"-Wl,-rpath,{folder / 'lib'}",
        f"-I{sysconfig.get_paths()['include']}",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        first = next(
            (line for line in done.stderr.splitlines() if "error" in line),
            done.stderr,
        )
        raise ClusimError(
            f"{SOURCE.name} was not compiled by {compiler}: {first.strip()[:300]}"
        )
    part.replace(path)
