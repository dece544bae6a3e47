"""Detection of recording formats by content, and the reader of each format.

Formats are found in the modules of this package: each has `KINDS`, descriptions of formats with the patterns at the
start of their files and their readers. Other distributions add formats by entry points of the group
``clusim.recordings``, to modules of the same form.
"""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable
from dataclasses import replace
from glob import escape
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Final

from clusim.base.errors import InputError
from clusim.base.extensions import Extension, find_extension, further_extensions
from clusim.base.limits import natural
from clusim.base.resources import or_shipped
from clusim.formats.recordings.model import LAST, Recording, RecordingKind
from clusim.formats.recordings.source import HEAD_BYTES, head, streams

__all__ = ["KINDS", "LOGS", "PLANS", "all_kinds", "kind_of", "reader"]

LOGS: Final = {
    "nccl-log": "output of NCCL_DEBUG=INFO, from NCCL or RCCL",
    "nccl-tests": "output of nccl-tests, as measurements",
}
"""Kinds that `clusim.formats.logs` reads -> description."""

_MODULES: Final = tuple(
    f"{__name__}.{module.name}" for module in iter_modules(__path__)
)

_KINDS: Final[dict[str, RecordingKind]] = {
    kind.name: replace(kind, read_by=kind.read_by or module)
    for module in _MODULES
    for kind in import_module(module).KINDS
}

KINDS: Final = {name: kind.what for name, kind in _KINDS.items()}
"""Kinds of recordings that clusim reads -> description; `all_kinds` includes those of extensions."""

PLANS: Final = {
    "msccl": "MSCCL algorithm, XML",
    "mscclpp": "MSCCL++ execution plan, JSON",
}
"""Kinds of algorithm files, not recordings -> description.

`clusim.formats.algorithms` reads them.
"""

_OTHERS: Final[tuple[tuple[int, str, bytes], ...]] = (
    (0, "msccl", rb"\A(?:<\?xml[^>]*>)?(?>\s+|<!--.*?-->)*+<algo\s"),
    (4, "mscclpp", rb'\A\s*\{(?=.*"(?:protocol|collective)"\s*:)(?=.*"(?:gpus|colltype|num_threads_per_block)"\s*:)'),
    (LAST + 1, "nccl-log", rb"NCCL (?:INFO|WARN|CALL)|NCCL version|RCCL version"),
    (LAST + 1, "nccl-tests", rb"out-of-place|algbw|nThread \d+ nGpus \d+"),
)  # fmt: skip

_PATTERNS: Final = sorted(
    [
        *_OTHERS,
        *(
            (place, name, pattern)
            for name, kind in _KINDS.items()
            for place, pattern in kind.begins
        ),
    ]
)
"""Place, kind and pattern of the start of its files, in the order of matching."""


def kind_of(path: str) -> str:
    """Return the kind of a file, or of the files in a directory.

    Text of unknown kind is assumed to be a log.

    Raises
    ------
    InputError
        The file does not exist, is empty, or is JSON or binary data of unknown kind.
    """
    if path == "-":
        return "nccl-log"
    path = or_shipped(path)
    if not Path(path).exists() and any(
        Path(path).parent.glob(f"{escape(Path(path).name)}*.et")
    ):
        return "chakra"
    data, name = _beginning(path)
    data = data.removeprefix(BOM_UTF8)
    if not data:
        raise InputError(f"{path}: is empty")
    for _, kind_name, pattern in _PATTERNS:
        if re.search(pattern, data, re.DOTALL):
            return kind_name
    if claimed := _claiming_kind(_KINDS.values(), name, data):
        return claimed
    if claimed := _by_extension(name, data):
        return claimed
    if b"\0" in data[:4096]:
        raise InputError(
            f"{path}: binary data of no known kind; --kind is one of {_names()}"
        )
    if data.lstrip()[:1] in (b"{", b"[") and name.lower().endswith(
        (".json", ".json.gz")
    ):
        raise InputError(
            f"{path}: JSON of no known kind; --kind is one of {_names()}"
        )
    return "nccl-log"


def _claiming_kind(kinds: Iterable[RecordingKind], name: str, data: bytes) -> str:
    """Return the first kind whose test accepts a file; empty if there is none."""
    for kind in kinds:
        if kind.looks_so is not None and kind.looks_so(name, data):
            return kind.name
    return ""


def _by_extension(name: str, data: bytes) -> str:
    """Return the kind of an extension that recognises a file; empty if there is none."""
    kinds = [_description(extension) for extension in _extensions().values()]
    patterns = [
        (place, kind.name, pattern)
        for kind in kinds
        for place, pattern in kind.begins
    ]
    for _, kind_name, pattern in sorted(patterns):
        if re.search(pattern, data, re.DOTALL):
            return kind_name
    return _claiming_kind(kinds, name, data)


def _extensions() -> dict[str, Extension]:
    """Return the extensions that add a kind."""
    return further_extensions("clusim.recordings", {*_KINDS, *LOGS, *PLANS})


def _description(extension: Extension) -> RecordingKind:
    """Return the description of the kind that has the name of an extension."""
    for kind in extension.attribute("KINDS", tuple):
        if isinstance(kind, RecordingKind) and kind.name == extension.name:
            return kind
    raise extension.failure(
        f"{extension.target}.KINDS has no RecordingKind of this name"
    )


def all_kinds() -> dict[str, str]:
    """Return the kinds of recordings, those of extensions included -> description."""
    added = {
        name: _description(extension).what
        for name, extension in _extensions().items()
    }
    return KINDS | added


def reader(kind: str, where: str = "") -> Callable[..., Recording]:
    """Return the reader of a kind of `all_kinds`; an error names the file `where`."""
    if kind not in _KINDS:
        return _extensions()[kind].function("read")
    if _KINDS[kind].separate:
        subject = f"{where or kind}: {_KINDS[kind].what}"
        return find_extension("clusim.recordings", kind, subject).function("read")
    read: Callable[..., Recording] = import_module(_KINDS[kind].read_by).read
    return read


def _names() -> str:
    return ", ".join(sorted({*LOGS, *all_kinds(), *PLANS}))


def _beginning(path: str) -> tuple[bytes, str]:
    """Return first bytes and name of a file, or of the first in a directory or archive."""
    if Path(path).is_dir():
        inside = sorted(
            (
                str(p)
                for p in Path(path).iterdir()
                if p.is_file() and p.name[0] != "."
            ),
            key=natural,
        )
        if not inside:
            raise InputError(f"{path}: is a directory without files")
        first_name = next(
            (name for name in inside if name.endswith(".et")), inside[0]
        )
        return head(first_name), first_name
    data = head(path)
    if data[257:262] == b"ustar":
        inside_of = streams(path, lambda name: True)
        first = next(inside_of)
        beginning = first.head(HEAD_BYTES)
        trace = next((file for file in inside_of if file.name.endswith(".et")), None)
        return (
            (beginning, first.name)
            if trace is None
            else (trace.head(HEAD_BYTES), trace.name)
        )
    return data, path
