"""Write the C source of ``clusim._engine``; CMake runs this at build time.

The declarations are cut out of ``clusim.h`` between two markers, so that the header is the only place
where the interface is written down; in cffi's API mode the C compiler checks each of them.
"""

from __future__ import annotations

import sys
from pathlib import Path

from cffi import FFI

HEADER = Path(__file__).resolve().parents[1] / "include" / "clusim.h"


def declarations() -> str:
    """Return the part of the header that Python sees."""
    _, _, rest = HEADER.read_text(encoding="utf-8").partition("/* cdef: begin */")
    body, end, _ = rest.partition("/* cdef: end */")
    if not end:
        raise SystemExit(f"{HEADER}: no `cdef: begin` and `cdef: end` markers")
    return body.replace("CLUSIM_CHECKED ", "")


def main(target: str) -> None:
    """Write the extension's source to `target`."""
    ffibuilder = FFI()
    ffibuilder.cdef(declarations())
    ffibuilder.set_source("clusim._engine", '#include "clusim.h"')
    ffibuilder.emit_c_code(target)


if __name__ == "__main__":
    main(sys.argv[1])
