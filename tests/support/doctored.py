"""Traces and topologies in which every name is an attack on the page that shows it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import h5py
import numpy as np

EVIL = (
    '"\'><img src=x onerror="window.hit=1"><svg onload="window.hit=1"></svg></script></title></pre></style>'
    '<script>window.hit=1</script><!--{{data}}${window.hit=1}`</text><a href="javascript:window.hit=1">\u2028]]>'
)
"""Leaves every place a text can be in - element, attribute, script, comment - and then sets `window.hit`."""


SHORT = '"\'></title><svg onload="window.hit=1"><img src=x onerror="window.hit=1"><script>window.hit=1</script>'
SHORTEST = '"\'><svg onload="window.hit=1">'
"""The same for names that may not be long."""


ABOUT = ("units", "long_name", "_Encoding")
"""Attributes of every column of texts."""


def texts(path: Path) -> list[tuple[str, str]]:
    """Return the place of every text of a trace: object and attribute, which is empty for a column."""
    found: list[tuple[str, str]] = []

    def visit(name: str, item: h5py.Group | h5py.Dataset) -> None:
        if isinstance(item, h5py.Dataset) and item.dtype.kind == "S" and len(item):
            found.append((name, ""))
        found.extend((name, key) for key, value in item.attrs.items() if isinstance(value, bytes))

    with h5py.File(path) as file:
        visit("/", file)
        file.visititems(visit)
    dull = ("CLASS", "NAME", *ABOUT)
    # Wires are named after their nodes: both change together.
    return [(name, key) for name, key in found if key not in dull and name != "wires/wire"]


def doctor(path: Path, name: str, key: str) -> None:
    """Put the attack in front of the texts of one place of a trace; of nodes in the names of wires, too."""
    evil = EVIL.encode() + b" "
    with h5py.File(path, "r+") as file:
        if key:
            value = evil + bytes(file[name].attrs[key])
            file[name].attrs[key] = np.array(value, h5py.string_dtype("utf-8", len(value)))
            return
        _put(file, name, [evil + bytes(text) for text in file[name][:]])
        if name == "fabric/node":
            ends = (bytes(text).split(b"->", 1) for text in file["wires/wire"][:])
            _put(file, "wires/wire", [evil + here + b"->" + evil + there for here, there in ends])


def _put(file: h5py.File, name: str, values: list[bytes]) -> None:
    """Write texts in the place of a column, as wide as they need."""
    attributes = {k: v for k, v in file[name].attrs.items() if k in ABOUT}
    del file[name]
    file[name] = np.array(values, h5py.string_dtype("utf-8", max(map(len, values))))
    file[name].attrs.update(attributes)


def doctored(path: Path, target: Path, opens: Callable[[Path], object]) -> list[tuple[str, str]]:
    """Write a trace in which all texts are doctored that can be, such that it still `opens`; return their places."""
    shutil.copy(path, target)
    trial = target.with_suffix(".trial")

    def put(places: list[tuple[str, str]]) -> list[tuple[str, str]]:
        shutil.copy(target, trial)
        for name, key in places:
            doctor(trial, name, key)
        try:
            opens(trial)
        except Exception:
            # Whoever must understand one of these texts refuses it: that is for other tests.
            half = len(places) // 2
            return [*put(places[:half]), *put(places[half:])] if half else []
        shutil.copy(trial, target)
        return places

    kept = put(texts(path))
    trial.unlink()
    return kept


def topology() -> str:
    """Return a topology file in which everything that has a free name has an evil one."""
    evil, shortest = ("'" + text.replace("'", "''") + "'" for text in (SHORT, SHORTEST))
    return f"""
name: {evil}
description: {evil}
architecture: hopper
sources: {{{evil}: {evil}}}
chips:
  {evil}: {{base: h100-sxm5}}
switches:
  {evil}: {{base: nvswitch3}}
nodes:
  gpu0..3: {{kind: gpu, chip: {evil}}}
  sw: {{kind: switch, switch: {evil}}}
links:
  - {{from: gpu0..3, to: sw, count: 2, type: nvlink4, class: {shortest}}}
  - {{from: gpu0, to: gpu1, type: nvlink4, class: {shortest.replace("svg", "svg ")}}}
"""


def lines_of(places: list[tuple[str, str]]) -> Iterator[str]:
    """Yield places as one text each."""
    return (f"{name} {key}".strip() for name, key in places)
