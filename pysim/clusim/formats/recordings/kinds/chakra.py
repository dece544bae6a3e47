"""Chakra execution traces, as protobuf or JSON."""

from __future__ import annotations

from clusim.formats.recordings.chakra_json import JSON_GRAPH, JSON_NODE
from clusim.formats.recordings.kind import RecordingKind


def _is_chakra(name: str, data: bytes) -> bool:
    """Return True for a Chakra trace: messages after their lengths, first the metadata."""
    if name.endswith(".et"):
        return True
    if data.lstrip()[:1] in (b"{", b"["):
        return False
    size, shift = 0, 0
    for at in range(min(4, len(data))):
        size |= (data[at] & 0x7F) << shift
        shift += 7
        if data[at] < 0x80:
            # The metadata are a version in field 1, and attributes in field 2.
            return (
                at + 1 + size < len(data)
                and size > 2
                and data[at + 1] == 0x0A
                and b"\0" not in data[at + 2 : at + 8]
            )
    return False


KIND = RecordingKind(
    "Chakra execution traces, one .et or .json per rank",
    begins=(
        (1, JSON_NODE),
        (1, JSON_GRAPH),
        (1, rb'\A\s*\{\s*"schema"\s*:\s*"\d+\.\d+\.\d+(?:-chakra[\d.]*)?"\s*,\s*"pid"'),
    ),
    looks_so=_is_chakra,
    read_by="clusim.formats.recordings.chakra",
)
