"""Start of an unmodified program on a simulated system."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from clusim.base.errors import EnvironmentFailure, InputError
from clusim.shim.server import Server
from clusim.shim.world import World
from clusim.simulation.setup import Setup

LIBRARY = "libnccl.so.2"
NAMES = ("libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0")
"""Names under which programs look for the CUDA runtime, which is in the same library."""

FOLDER = "CLUSIM_SHIM"
"""Variable with the folder of the library; by default the installation's."""


def library_folder() -> Path:
    """Return the folder of the library: the given one, the installation's, or ``build/shim`` of a source tree.

    Raises
    ------
    EnvironmentFailure
        The library is missing.
    """
    override = os.environ.get(FOLDER)
    if override:
        if not (Path(override) / LIBRARY).is_file():
            raise EnvironmentFailure(
                f"{FOLDER}={override}: not a folder with {LIBRARY}; set it to the folder of the library, or unset it"
            )
        return Path(override).resolve()
    engine = find_spec("clusim._engine")
    assert engine is not None
    assert engine.origin is not None
    installed = Path(engine.origin).parent / "shim"
    source = Path(__file__).resolve().parents[3] / "build" / "shim"
    for folder in (installed, source):
        if (folder / LIBRARY).is_file():
            return folder.resolve()
    raise EnvironmentFailure(
        f"{installed / LIBRARY}: not found; install clusim again, or run `make shim` in its source tree, or set"
        f" {FOLDER} to the folder of the library"
    )


def environment(folder: Path, server: Path) -> Mapping[str, str]:
    """Return the environment of a program that finds the library before NVIDIA's, by all its names in a folder."""
    result = dict(os.environ)

    def before(name: str, entry: Path) -> None:
        result[name] = os.pathsep.join(filter(None, (str(entry), result.get(name))))

    before("LD_LIBRARY_PATH", folder)
    before("LD_PRELOAD", folder / LIBRARY)
    result["CLUSIM_SERVER"] = str(server)
    return result


def run_program(setup: Setup, command: Sequence[str]) -> int:
    """Run a program and all of its processes on a system, and return its exit code.

    Raises
    ------
    InputError
        The program does not exist.
    EnvironmentFailure
        The library is missing.
    """
    folder = library_folder()
    program = shutil.which(command[0])
    if program is None:
        raise InputError(f"{command[0]}: not a program")
    world = World(setup)
    with tempfile.TemporaryDirectory(prefix="clusim-") as place:
        path = Path(place) / "server"
        for name in (LIBRARY, *NAMES):
            (Path(place) / name).symlink_to(folder / LIBRARY)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
            listener.listen(128)
            with subprocess.Popen(
                [program, *command[1:]], env=environment(Path(place), path)
            ) as process:
                try:
                    Server(world).serve(listener, lambda: process.poll() is None)
                finally:
                    process.kill()
                code = process.wait()
    return code if code >= 0 else 128 - code
