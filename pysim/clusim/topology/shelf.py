"""Cached topologies of the command line, by name: presets, generators and clusters that clusim ships.

Reading and validating a description needs libraries and catalogues that most commands do not need otherwise. The
cache is that of `clusim.base.kept`: valid for one installation, with checksums, and ignored if it cannot be read or
written. Files of users are never cached, nor are topologies while `VARIABLES` name further files. Results of NCCL's
graph search are cached by all inputs of the search.
"""

from __future__ import annotations

import io
import os
import pickle
import re
from base64 import b64decode, b64encode
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from clusim.base.files import note_input
from clusim.base.kept import PACKAGE, SampleCache

if TYPE_CHECKING:
    from clusim.topology.model import Fabric

T = TypeVar("T")

VARIABLES = ("CLUSIM_TOPOLOGIES", "CLUSIM_GPUS")
"""Environment variables with directories of the user."""

MOST_BYTES = 4 << 20
"""Largest cached answer [bytes]: a topology of some 40 nodes."""

PARTS = {
    "clusim.base.units": ("Rate",),
    "clusim.nccl.constants": ("Path", "Pattern"),
    "clusim.nccl.graph": ("Graph",),
    "clusim.topology.arrays": ("FabricArrays",),
    "clusim.topology.model": ("Fabric", "Forwarding", "Link", "PinnedPath"),
    "clusim.topology.node": (
        "Endpoint",
        "HostTraits",
        "NicTraits",
        "Node",
        "RateControl",
        "Unit",
    ),
    "clusim.topology.packets": ("Format", "Protocol"),
    "clusim.topology.routing_tables": ("Machines",),
    "clusim.topology.rows": ("WireClasses", "WireNames"),
    "numpy": ("dtype", "ndarray"),
    "numpy._core.multiarray": ("_reconstruct",),
}
"""Classes by module that answers consist of; a file with another name is refused before any import."""

_NAME = re.compile(r"[a-z0-9][a-z0-9_.:=,/x-]{0,199}")


def fabric(name: str, nodes: int | None, build: Callable[[], Fabric]) -> Fabric:
    """Return a topology, built and cached if it is not in the cache."""
    if not _is_shipped(name):
        return build()
    # A topology names its files, which another installation of the same version has elsewhere.
    built: list[Fabric] = []

    def build_and_keep() -> Fabric:
        built.append(build())
        return built[0]

    result = cached_answer(("topology", name, nodes, str(PACKAGE)), build_and_keep)
    for path in () if built else result.source_files:
        note_input(path)
    return result


def cached_answer(question: tuple[Any, ...], build: Callable[[], T]) -> T:
    """Return the answer to a question, which consists of `PARTS` and plain values."""
    cache = SampleCache()
    try:
        result: T = restore_object(b64decode(cache.get(question)))
    except Exception:
        result = build()
        with suppress(OverflowError):
            file = _Bounded()
            pickle.dump(result, file)
            cache.put(question, b64encode(file.getvalue()).decode())
    return result


def restore_object(pickled: bytes) -> Any:
    """Return an object of `PARTS`, or raise any exception."""
    return _Reader(io.BytesIO(pickled)).load()


def rows(read: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the rows of all presets, read and cached if they are not in the cache."""
    if any(map(os.environ.get, VARIABLES)):
        return read()
    cache = SampleCache()
    presets: dict[str, Any] | None = cache.get("presets")
    if presets is None:
        presets = read()
        cache.put("presets", presets)
    return presets


def _is_shipped(name: str) -> bool:
    """Return True if a name can only mean a shipped topology, with its own figures."""
    from clusim.hardware.figures import any_scaled

    plain = _NAME.fullmatch(name) is not None and not name.endswith(
        (".yaml", ".yml", ".xml")
    )
    return plain and not (
        os.path.exists(name) or any(map(os.environ.get, VARIABLES)) or any_scaled()
    )


class _Bounded(io.BytesIO):
    """File of at most `MOST_BYTES`; a longer one raises OverflowError."""

    def write(self, part: Any) -> int:
        """Append a part."""
        if self.tell() + len(part) > MOST_BYTES:
            raise OverflowError
        return super().write(part)


class _Reader(pickle.Unpickler):
    """Reader that imports and creates `PARTS` only."""

    def find_class(self, module: str, name: str) -> Any:
        """Return one of `PARTS`; the name is checked before its module is imported."""
        if name not in PARTS.get(module, ()):
            raise pickle.UnpicklingError(f"{module}.{name}: not part of a topology")
        return super().find_class(module, name)
