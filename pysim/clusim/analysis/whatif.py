"""Faster hardware: changes of resources by name, and of the image of a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import field
from fnmatch import fnmatchcase
from fractions import Fraction
from typing import Any

import numpy as np

from clusim.analysis.network import Network
from clusim.base.arrays import Array
from clusim.base.errors import InputError
from clusim.base.records import dataclass
from clusim.engine.abi import NONE, FaultKind

THINGS = {
    "hbm": "memory bandwidth",
    "cta": "time of a CTA per byte, with crowding and rounds",
    "step": "time of a CTA per slice, with its waits for the host",
    "proxy": "time of host threads per message",
    "latency": "latencies of wires, nodes, memory and flags",
    "launch": "start of CTAs and pauses of the schedule",
    "compute": "kernels",
    "unit": "reduction units of switches",
    "window": "bytes that reads may have in flight",
    "timeout": "timeouts of retransmission",
    "slots": "CTA slots of a GPU",
}
"""Resources that can be scaled besides wires (by class, ``nvlink``, or name, ``gpu0->*``)."""


_SCALED: dict[str, dict[str, tuple[str, ...]]] = {
    "hbm": {"endpoints": ("mem_cost16",)},
    "cta": {"costs": ("op_cost16",)},
    "step": {"costs": ("fixed_ps",)},
    "proxy": {"costs": ("fixed_ps", "after_ps", "op_cost16")},
    "launch": {"instances": ("start_ps",), "tasks": ("delay_ps",)},
    "compute": {"tasks": ("compute_ps",)},
    "unit": {"units": ("cost16",)},
    "latency": {
        "wires": ("latency_ps",),
        "nodes": ("latency_ps",),
        "endpoints": ("write_latency_ps", "read_latency_ps", "response_latency_ps"),
        "units": ("latency_ps",),
        "conns": ("tail_ps", "head_ps"),
    },
    "wire latency": {"wires": ("latency_ps",)},
    "switches": {"nodes": ("latency_ps",), "units": ("latency_ps",)},
    "memory latency": {
        "endpoints": ("write_latency_ps", "read_latency_ps", "response_latency_ps")
    },
    "flags": {"conns": ("tail_ps", "head_ps")},
    "window": {"conns": ("window_bytes",)},
    "timeout": {"spreads": ("timeout_ps",)},
    "slots": {"endpoints": ("cta_slots",)},
}
"""Resource -> tables of the image with the columns that its factor divides, of `_MOST` multiplies.

Parts of ``latency`` are figures of `clusim.analysis.sensitivity` only; ``wire latency`` needs a set of wires.
"""


_MOST = {"window_bytes": 2**31 - 1, "cta_slots": 256}
"""Columns that a factor multiplies -> their largest value."""


REPAIRS = ("repaired", "straggler", "without", "uncontrolled")
"""Changes that remove a cause, instead of scaling a resource."""


@dataclass(frozen=True, slots=True)
class Change:
    """Change that makes a resource `factor` times as fast.

    Attributes
    ----------
    what : str
        A key of `THINGS`, or with `wires` any name. ``repaired`` removes faults from wires and sets the best rate of
        their class, ``straggler`` sets `endpoints` to nominal speed, ``without`` removes the traffic of `tasks`,
        ``uncontrolled`` the rate control of all flows.
    wires, endpoints, tasks : frozenset of int
        Affected elements; empty for `THINGS`.
    like : tuple of (int, int)
        For ``repaired``: each wire, and the wire of its class with the highest rate.
    """

    what: str
    factor: Fraction
    wires: frozenset[int] = field(default_factory=frozenset)
    endpoints: frozenset[int] = field(default_factory=frozenset)
    tasks: frozenset[int] = field(default_factory=frozenset)
    like: tuple[tuple[int, int], ...] = ()

    def scale(self, resource: str, index: int) -> float:
        """Return the factor of a cause; see `clusim.analysis.charge.Scale`."""
        mine = index in self.wires if resource == "wire" else resource == self.what
        return float(self.factor) if mine else 1.0


def factor_of(whole: str, factor: str) -> Fraction:
    """Return the factor of a text like ``x2``; `whole` is the text quoted in errors."""
    try:
        value = Fraction(factor.lower().removeprefix("x").removesuffix("x"))
    except (ValueError, ZeroDivisionError):
        raise InputError(
            f"what-if {whole}: write the factor as x2, x0.5 or 3/2"
        ) from None
    if not Fraction(1, 1000) <= value <= 1000:
        raise InputError(
            f"what-if {whole}: the factor must be between 0.001 and 1000"
        )
    return value


def parse_change(pattern: str, factor: str, network: Network) -> Change:
    """Return the change that words such as ``nvlink`` and ``x2`` mean on a network."""
    value = factor_of(f"{pattern} {factor}", factor)
    if pattern in THINGS:
        return Change(pattern, value)
    wires = frozenset(
        wire
        for wire, (name, kind) in enumerate(
            zip(network.names, network.classes, strict=True)
        )
        if kind == pattern
        or kind.split(" ")[0] == pattern
        or fnmatchcase(name, pattern)
        or network.link(wire) == pattern
    )
    if not wires:
        classes = ", ".join(sorted({name.split(" ")[0] for name in network.classes}))
        raise InputError(
            f"what-if {pattern}: no such wires or thing; use {', '.join(THINGS)}, a class of wires ({classes}),"
            f" or names such as '{network.names[0] if network.names else 'a->b'}' with * for any text"
        )
    return Change(pattern, value, wires)


def repair_change(
    wires: Array, classes: Sequence[str], chosen: Iterable[int]
) -> Change:
    """Return the change of wires, in both directions, to the highest rate of their class.

    Parameters
    ----------
    wires : ndarray
        The image's.
    """
    both = set(chosen)
    both |= {
        int(wires["reverse"][w])
        for w in both
        if int(wires["reverse"][w]) < len(wires)
    }
    rates = wires["rate_num"] / np.maximum(1, wires["rate_den"])
    names = np.array(classes, object)
    like = []
    for wire in sorted(both):
        alike = np.flatnonzero(names == classes[wire])
        like.append((wire, int(alike[np.argmax(rates[alike])])))
    return Change("repaired", Fraction(1), frozenset(both), like=tuple(like))


def _faster(rows: Array, names: tuple[str, ...], factor: Fraction) -> None:
    """Divide times or costs by `factor`, or multiply columns in `_MOST`, rounded; at least 1 remains."""
    for name in names:
        old = rows[name].astype(object)
        if name in _MOST:
            rows[name] = np.minimum(
                np.where(old > 0, np.maximum(1, old * factor // 1), 0), _MOST[name]
            )
            continue
        new = (old * factor.denominator * 2 + factor.numerator) // (
            2 * factor.numerator
        )
        rows[name] = np.where(rows[name] > 0, np.maximum(new, 1), 0)


def _costs(image: Mapping[str, Array], *, threads: bool) -> Array:
    """Return the mask of slice costs: of slices on proxy threads, or of the others."""
    instances = image["instances"]
    mine = np.zeros(len(image["costs"]), bool)
    mine[np.unique(instances["cost"][instances["thread"] != NONE])] = True
    return np.asarray(mine == threads)


def _repair(image: dict[str, Array], change: Change) -> None:
    """Remove faults, slow rates, rate control or competing traffic from an image."""
    faults = image["faults"]
    gone = np.zeros(len(faults), bool)
    if change.what == "repaired":
        gone = (faults["kind"] == FaultKind.RATE) & np.isin(
            faults["index"], list(change.wires)
        )
        for wire, best in change.like:
            for name in ("rate_num", "rate_den"):
                image["wires"][name][wire] = image["wires"][name][best]
    elif change.what == "uncontrolled":
        for table in ("conns", "sources"):
            image[table]["control"] = NONE
    elif change.what == "straggler":
        endpoints = list(change.endpoints)
        image["endpoints"]["slow_1024"][endpoints] = 1024
        gone = (faults["kind"] == FaultKind.SLOW) & np.isin(
            faults["index"], endpoints
        )
    else:
        quiet = np.isin(image["instances"]["task"], list(change.tasks))
        image["instances"]["length"][quiet] = 0
        image["instances"]["start_ps"][quiet] = 0
    image["faults"] = faults[~gone]


def changed_image(image: Mapping[str, Array], change: Change) -> dict[str, Array]:
    """Return a copy of an image in which something is faster."""
    new = {name: np.array(values) for name, values in image.items()}
    factor = change.factor
    if change.what in REPAIRS:
        _repair(new, change)
        return new
    paced = frozenset[int]() if change.what == "wire latency" else change.wires
    _scale_line_rates(new, paced, factor)
    for wire in paced:
        row = new["wires"][wire]
        rate = Fraction(int(row["rate_num"]), int(row["rate_den"])) * factor
        row["rate_num"], row["rate_den"] = rate.numerator, rate.denominator
    for fault in new["faults"]:
        if (
            fault["kind"] == FaultKind.RATE
            and int(fault["index"]) in paced
            and fault["num"]
        ):
            rate = Fraction(int(fault["num"]), int(fault["den"])) * factor
            fault["num"], fault["den"] = rate.numerator, rate.denominator
    for table, columns in _SCALED.get(change.what, {}).items():
        rows = _rows(new, table, change)
        chosen = new[table][rows]
        _faster(chosen, columns, factor)
        new[table][rows] = chosen
    return new


def _scale_line_rates(
    image: dict[str, Array], paced: Set[int], factor: Fraction
) -> None:
    """Multiply the line rates of rate controls whose wires, those of this rate, all get faster."""
    wires, controls = image["wires"], image["controls"]
    # In bytes per 2^30 ps, as `clusim.lowering.links.control_row` rounds them.
    rates = np.rint(wires["rate_num"] * 2.0**30 / wires["rate_den"]).astype(
        np.uint64
    )
    faster = np.isin(np.arange(len(wires)), list(paced))
    for control in controls:
        of_line = rates == control["line_rate"]
        if of_line.any() and faster[of_line].all():
            control["line_rate"] = max(1, round(int(control["line_rate"]) * factor))
            control["min_rate"] = min(control["min_rate"], control["line_rate"])


def _rows(image: Mapping[str, Array], table: str, change: Change) -> Any:
    """Return the rows of a table that a change affects."""
    if table == "costs":
        return _costs(image, threads=change.what == "proxy")
    return sorted(change.wires) if change.what == "wire latency" else slice(None)


def is_in_image(image: Mapping[str, Array], change: Change) -> bool:
    """Return True if an image contains a nonzero value that a change scales."""
    return bool(change.what == "wires" and change.wires) or any(
        image[table][_rows(image, table, change)][name].any()
        for table, names in _SCALED.get(change.what, {}).items()
        for name in names
    )
