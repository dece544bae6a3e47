"""What the C files of the engine include, call and touch, read from their text."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

CSRC = Path(__file__).resolve().parents[2] / "csrc"
PARTS = {path.stem for path in (CSRC / "parts").glob("*.h")}
UNITS = sorted({path.stem for path in CSRC.glob("*.[ch]")})
"""Files by name without ending: a header, its source or both."""

_WORDS = r"/\*.*?\*/|//[^\n]*|\"(?:[^\"\\]|\\.)*\""
_ACCESSORS = {
    "wire": "wires",
    "info": "wires",
    "packet": "packets",
    "buffer": "packets",
    "xfer": "xfers",
    "conn": "programs",
    "inst": "programs",
    "endpoint": "endpoints",
    "task": "tasks",
    "source": "sources",
    "unit": "units",
    "vertex": "units",
    "flow": "congestion",
    "sender": "senders",
}
_HEADER_OF = {"buffers": "packets", "trees": "units"}


@cache
def text(name: str) -> str:
    """Return a file's text; empty if there is none."""
    path = CSRC / name
    return path.read_text(encoding="utf-8") if path.exists() else ""


@cache
def code(name: str) -> str:
    """Return a file's text without comments, strings and includes."""
    bare = re.sub(_WORDS, " ", text(name), flags=re.S)
    return re.sub(r"^#include.*$", "", bare, flags=re.M)


def included(name: str) -> set[str]:
    """Return the headers of ours that a file includes, as ``parts/wires`` or ``wire``."""
    return set(re.findall(r'^#include "([\w/]+)\.h"', text(name), re.M))


@cache
def declared(unit: str) -> set[str]:
    """Return the functions and macros with parameters that a header offers."""
    found = re.findall(r"^\w[\w ]*?[ *]+(\w+)\(", code(f"{unit}.h"), re.M)
    return set(found) | set(re.findall(r"^#define (\w+)\(", code(f"{unit}.h"), re.M))


def called(name: str) -> set[str]:
    """Return the units other than its own whose functions a file calls."""
    words = set(re.findall(r"\b(\w+)\(", code(name)))
    own = Path(name).stem
    return {unit for unit in UNITS if unit != own and declared(unit) & words}


def touched(name: str) -> set[str]:
    """Return the parts of a sim that a file reads or writes."""
    body = code(name)
    found = {_HEADER_OF.get(part, part) for part in re.findall(r"\b(?:s|sim)->(\w+)\b", body)}
    for accessor, part in _ACCESSORS.items():
        if re.search(rf"\b{accessor}_at\(|\b{accessor}_of\(s, w\)", body):
            found.add(part)
    return found & PARTS
