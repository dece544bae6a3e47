"""Plain values out of pickles, without running anything in them: dicts, lists, tuples, numbers, texts and nothing else.

The instructions are looked at before any is carried out. One that names a class or calls something is refused, but for
the four functions with which PyTorch writes lists of one type, which are lists here; so are memo numbers, lengths and
copies of lists that the data do not have room for.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from typing import Any

from clusim.base.errors import InputError, one_line

MOST_BYTES = 1 << 27
"""Largest pickle that is read [bytes]."""

_PLAIN = frozenset({
    "PROTO", "FRAME", "STOP", "MARK", "POP", "POP_MARK", "DUP", "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1",
    "LONG4", "STRING", "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "NONE", "NEWTRUE",
    "NEWFALSE", "UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "FLOAT", "BINFLOAT", "EMPTY_LIST", "APPEND",
    "APPENDS", "LIST", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "EMPTY_DICT", "DICT", "SETITEM",
    "SETITEMS", "GET", "BINGET", "LONG_BINGET", "PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE", "GLOBAL", "REDUCE",
    "STACK_GLOBAL",
})  # fmt: skip
_PUTS = frozenset(("PUT", "BINPUT", "LONG_BINPUT"))
_LISTS = frozenset(
    ("torch.jit._pickle", f"build_{kind}list") for kind in ("int", "double", "bool", "tensor")
)


class _Plain(pickle.Unpickler):
    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data))
        # Values that lists are built from have at least a byte each, unless one is copied again and again.
        self._room = len(data)

    def _list(self, values: Any = ()) -> list[Any]:
        self._room -= len(values)
        if self._room < 0:
            raise pickle.UnpicklingError("lists of more values than it has bytes")
        return list(values)

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _LISTS:
            return self._list
        raise pickle.UnpicklingError(f"names {module[:40]}.{name[:40]}, which is not run")

    def persistent_load(self, pid: Any) -> Any:
        raise pickle.UnpicklingError("refers to other files")


def unpickled(data: bytes, where: str) -> Any:
    """Return the value of a pickle.

    Raises
    ------
    InputError
        It is damaged, too large, or more than plain values.
    """
    if len(data) > MOST_BYTES:
        raise InputError(f"{where}: a pickle of more than {MOST_BYTES >> 20} MiB")
    try:
        for code, argument, at in pickletools.genops(data):
            if code.name not in _PLAIN:
                raise InputError(
                    f"{where}: byte {at}: {code.name} in a pickle of plain values; it is not read"
                )
            if code.name in _PUTS and int(argument or 0) > len(data):
                raise InputError(f"{where}: byte {at}: a memo number of {argument}")
        return _Plain(data).load()
    except InputError:
        raise
    except Exception as error:  # pickle raises anything for damaged data
        text = one_line(" ".join(str(error).split())[:120])
        raise InputError(f"{where}: is no pickle that can be read: {text}") from None
