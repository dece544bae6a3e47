"""The header is the only place where enums and layouts are written down: what does not fit it is not imported."""

from __future__ import annotations

import re
from enum import IntEnum
from pathlib import Path

import numpy as np
import pytest
from cffi import FFI

from clusim.base.errors import InternalError
from clusim.engine import abi

HEADERS = sorted((Path(__file__).resolve().parents[2] / "csrc" / "include").glob("*.h"))


def test_every_enum_of_the_header_has_a_class_of_the_same_name() -> None:
    text = "".join(
        header.read_text(encoding="utf-8") for header in HEADERS if "channels" not in header.name
    )
    written = set(re.findall(r"^enum clusim_(\w+) \{", text, re.M))
    classes = {
        name
        for name, kind in vars(abi).items()
        if isinstance(kind, type) and issubclass(kind, IntEnum)
    }
    words = {re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower() for name in classes - {"IntEnum"}}
    assert words == written - {"status", "size"}  # of these two single values are used


def test_a_class_that_lacks_a_member_is_refused_by_its_name() -> None:
    with pytest.raises(InternalError, match=r"^CLUSIM_MODE_BLOCKED = 1: only in clusim\.h$"):

        @abi._all_of("clusim_mode")
        class Mode(IntEnum):
            INTERLEAVED = 0


def test_a_class_with_a_member_too_many_is_refused_by_its_name() -> None:
    with pytest.raises(
        InternalError, match=r"^CLUSIM_MODE_WOVEN = 2: only in clusim\.engine\.abi\.Mode$"
    ):

        @abi._all_of("clusim_mode")
        class Mode(IntEnum):
            INTERLEAVED = 0
            BLOCKED = 1
            WOVEN = 2


def layout(members: str) -> np.dtype[np.void]:
    ffi = FFI()
    ffi.cdef(f"typedef struct {{ {members} }} row;")
    return abi._layout(ffi.typeof("row"))


def test_layouts_are_those_of_the_compiler() -> None:
    assert layout("int64_t a; uint16_t b[3]; uint8_t c; uint8_t d;") == np.dtype(
        [("a", "<i8"), ("b", "<u2", (3,)), ("c", "u1"), ("d", "u1")]
    )


@pytest.mark.parametrize(
    ("members", "where"),
    [
        ("uint32_t a; uint64_t b;", "row.b: "),
        ("uint64_t a; uint32_t b;", "row: padding after"),
        ("uint32_t *a;", "row.a: "),
    ],
)
def test_a_struct_that_numpy_could_not_keep_is_refused_by_its_field(
    members: str, where: str
) -> None:
    with pytest.raises(InternalError, match=f"^{where}"):
        layout(members)
