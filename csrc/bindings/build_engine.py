"""Write the C source of ``clusim._engine``; CMake runs this at build time.

The declarations are cut out of the headers between two markers, so that the headers are the only place where the
interface is written down; in cffi's API mode the C compiler checks each of them.
"""

from __future__ import annotations

import sys
from pathlib import Path

from cffi import FFI

INCLUDE = Path(__file__).resolve().parents[1] / "include"
HEADERS = tuple(
    INCLUDE / name for name in ("clusim_image.h", "clusim.h", "clusim_channels.h")
)


def _between_markers(header: Path) -> str:
    _, _, rest = header.read_text(encoding="utf-8").partition("/* cdef: begin */")
    body, end, _ = rest.partition("/* cdef: end */")
    if not end:
        raise SystemExit(f"{header}: no `cdef: begin` and `cdef: end` markers")
    return body.replace("CLUSIM_CHECKED ", "")


def declarations() -> str:
    """Return the part of the headers that Python sees."""
    return "".join(map(_between_markers, HEADERS))


def main(target: str) -> None:
    """Write the extension's source to `target`."""
    ffibuilder = FFI()
    ffibuilder.cdef(declarations())
    ffibuilder.set_source(
        "clusim._engine", '#include "clusim.h"\n#include "clusim_channels.h"'
    )
    ffibuilder.emit_c_code(target)


if __name__ == "__main__":
    main(sys.argv[1])
