"""Text form of faults, on the command line and in topology files.

Example: ``link gpu3:nvl5 down at 2ms``.

=================================  =====================================================================
``link LINK down``                 both directions stop; ``A->B.k`` is one direction only
``lanes LINK 1/2``                 the remaining part of the rate
``plane SWITCH down``              all links of a switch stop
``node NODE down``                 all links of any graph node stop
``errors LINK 1e-7``               bit error rate for the full run; packets with an error are sent again
``rank N slow x1.3``               CTAs and kernels of a rank (a number or a name) take longer
``nic NIC flap``                   all links of a NIC stop and recover, ``for`` a time
=================================  =====================================================================

All but ``errors`` may end in ``at TIME`` (default 0) and ``for TIME`` (default: for ever). A link is ``A-B.k``
(number k of the parallel links, from 0; without k, all of them), or ``NODE:nvl5``, the fifth NVLink of a graph node,
from 1 (without a number, all of them); ``pcie``, ``c2c``, ``xgmi`` and ``net`` work in the same way.

Where faults of a wire or rank overlap in time, the worst counts until it ends. `Broken` joins the faults of the
topology file and the faults requested for the run.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np

from clusim.base.errors import InputError, UnitError, suggest
from clusim.base.records import dataclass
from clusim.base.units import parse_time
from clusim.lowering.faults import Fault, describe_faults, known_at_start
from clusim.topology.arrays import FabricArrays, arrays_of
from clusim.topology.model import Fabric

FORMS = {
    "link": ("LINK down", "down"),
    "lanes": ("LINK 1/2", None),
    "plane": ("SWITCH down", "down"),
    "node": ("NODE down", "down"),
    "errors": ("LINK 1e-7", None),
    "rank": ("RANK slow x1.3", "slow"),
    "nic": ("NIC flap for TIME", "flap"),
}
"""Kind -> form of its arguments, and the last word if it is fixed."""

MAX_TEXT = 400
"""Characters of a fault; two names of nodes, a class and two times have less."""

_MEANT = {
    **dict.fromkeys(("gpu", "host", "machine", "rail"), "node"),
    **dict.fromkeys(("switch", "nvswitch", "nvs"), "plane"),
    **dict.fromkeys(("wire", "cable", "nvlink", "port"), "link"),
    **dict.fromkeys(("slow", "straggler"), "rank"),
    **{"lane": "lanes", "ber": "errors", "hca": "nic", "adapter": "nic"},
}
"""Words at the start of users' texts, and the intended kinds."""

_TAIL = re.compile(
    r"^(?P<body>.*?)(?:\s+at\s+(?P<at>\S+(?:\s*[a-z]+)?))?(?:\s+for\s+(?P<for>.+))?$"
)
_NETWORK = frozenset({"infiniband", "roce", "ethernet", "slingshot", "efa"})
_SHORT = {"nvl": "nvlink", "ib": "infiniband", "eth": "ethernet"}
_NUMBERS = {
    "errors": (
        "a bit error rate such as 1e-7",
        "1e-18",
        "0.01",
        "bit error rate {}: must be from 1e-18 to 0.01",
    ),
    "lanes": (
        "a part such as 1/2",
        "0",
        "1",
        "{} of the lanes: must be from 0 to 1; 1/2 leaves half",
    ),
    "rank": (
        "a factor such as x1.3",
        "1/1024",
        "1000000",
        "factor {}: must be from x0.001 to x1000000; x2 is twice as long",
    ),
}
"""Kind -> example of its number, least, most, and the error beyond these."""


@dataclass(frozen=True, slots=True)
class _Span:
    """A faulty wire or rank from `start_ps` until `end_ps` (None: for ever)."""

    start_ps: int
    end_ps: int | None
    factor: Fraction
    text: str
    wire: int | None = None
    rank: int | None = None
    bit_errors: float = 0.0

    def covers(self, time_ps: int) -> bool:
        """Return True if the span includes a time."""
        return self.start_ps <= time_ps and (
            self.end_ps is None or time_ps < self.end_ps
        )


def parse_faults(fabric: Fabric, texts: Iterable[str]) -> list[Fault]:
    """Return the faults of several texts; of overlapping faults, the worst counts.

    Raises
    ------
    InputError
        A text is not a fault of this topology; the message has the correct form.
    """
    return _parse_faults(arrays_of(fabric), texts)


def _parse_faults(arrays: FabricArrays, texts: Iterable[str]) -> list[Fault]:
    return _changes([span for text in texts for span in _spans(arrays, text)])


def _changes(spans: Sequence[_Span]) -> list[Fault]:
    """Return the changes of wires and ranks, with times and factors."""
    result = [
        Fault(
            0,
            span.factor,
            wire=span.wire,
            bit_errors=span.bit_errors,
            text=span.text,
        )
        for span in spans
        if span.bit_errors
    ]
    subjects: dict[tuple[int | None, int | None], list[_Span]] = {}
    for span in spans:
        if not span.bit_errors:
            subjects.setdefault((span.wire, span.rank), []).append(span)
    for (wire, rank), affected in subjects.items():
        before: Fraction | None = None
        worst = min if rank is None else max
        ends = {span.end_ps for span in affected if span.end_ps is not None}
        for time_ps in sorted({span.start_ps for span in affected} | ends):
            active = [span for span in affected if span.covers(time_ps)]
            if active:
                span = worst(active, key=lambda one: one.factor)
                factor = span.factor
            else:
                span = next(span for span in affected if span.end_ps == time_ps)
                factor = Fraction(1)
            if factor != before:
                result.append(
                    Fault(time_ps, factor, wire=wire, rank=rank, text=span.text)
                )
            before = factor
    return result


def _meant(kind: str) -> str:
    """Return the intended kind; ``gpu3`` is a node."""
    return suggest(kind.rstrip("0123456789:.->"), FORMS, _MEANT)


def _spans(arrays: FabricArrays, text: str) -> list[_Span]:
    words = " ".join(text.split())
    if len(words) > MAX_TEXT:
        raise InputError(
            f"fault {words[:40] + '...'!r} has {len(words)} characters; {MAX_TEXT} are the limit"
        )
    match = _TAIL.match(words)
    assert match is not None
    kind, _, arguments = match["body"].partition(" ")
    if kind not in FORMS:
        raise InputError(f"fault {words!r}: unknown kind {kind!r}{_meant(kind)}")
    shape, word = FORMS[kind]
    parts = arguments.rsplit(" ", 2 if kind == "rank" else 1)
    expected = f"fault {words!r}: write '{kind} {shape} [at TIME] [for TIME]'"
    if kind == "nic" and len(parts) == 2 and parts[1] == "down":
        word = "down"
    if len(parts) != (3 if kind == "rank" else 2) or (
        word is not None and parts[1] != word
    ):
        raise InputError(expected)
    reader = _Reader(arrays, words)
    start_ps, length_ps = reader.time(match["at"]), reader.time(match["for"])
    if kind == "errors":
        if match["at"] or match["for"]:
            raise reader.error(
                "errors last for the complete run; leave out 'at' and 'for'"
            )
        wires, rate = reader.link(parts[0]), float(reader.number(kind, parts[1]))
        return [
            _Span(0, None, Fraction(1), words, wire, bit_errors=rate)
            for wire in wires
        ]
    if kind == "nic" and word == "flap" and not length_ps:
        raise reader.error(
            f"for how long? write 'nic {parts[0]} flap at 1ms for 500us'"
        )
    if match["for"] and not length_ps:
        raise reader.error("a duration must be longer than 0")
    end_ps = start_ps + length_ps if length_ps else None
    if kind == "rank":
        rank, factor = reader.rank(parts[0]), reader.number(kind, parts[2])
        return [_Span(start_ps, end_ps, factor, words, rank=rank)]
    part = reader.number(kind, parts[1]) if kind == "lanes" else Fraction(0)
    return [
        _Span(start_ps, end_ps, part, words, wire)
        for wire in reader.wires(kind, parts[0])
    ]


class _Reader:
    """Parser of one fault text on a topology."""

    def __init__(self, arrays: FabricArrays, text: str) -> None:
        self.arrays, self.fabric, self.text = arrays, arrays.fabric, text

    def error(self, problem: str) -> InputError:
        """Return the error of this text."""
        return InputError(f"fault {self.text!r}: {problem}")

    def time(self, text: str | None) -> int:
        """Return a time [ps]; 0 without `text`."""
        if text is None:
            return 0
        try:
            return parse_time(text)
        except UnitError as error:
            raise self.error(str(error)) from None

    def number(self, kind: str, text: str) -> Fraction:
        """Return the number of a fault of `kind`."""
        example, low, high, bounds = _NUMBERS[kind]
        digits = text.removeprefix("x") if kind == "rank" else text
        try:
            value = Fraction(digits) if len(digits) <= 40 else None
            if value is None or not math.isfinite(float(value)):
                raise ValueError
        except (ValueError, ZeroDivisionError, OverflowError):
            raise self.error(f"{digits[:40]!r} is not {example}") from None
        if not Fraction(low) <= value <= Fraction(high):
            raise self.error(bounds.format(text))
        return value

    def rank(self, text: str) -> int:
        """Return a rank by number or name."""
        ranks = self.fabric.ranks
        if text in ranks:
            return ranks.index(text)
        if not text.isdecimal() or len(text) > 9:
            raise self.error(f"no rank {text!r}{suggest(text, ranks)}")
        if int(text) >= len(ranks):
            raise self.error(
                f"no rank {text}; {self.fabric.name} has 0..{len(ranks) - 1}"
            )
        return int(text)

    def wires(self, kind: str, name: str) -> list[int]:
        """Return the wires a fault of `kind` stops or narrows."""
        if kind in ("link", "lanes"):
            return self.link(name)
        node = self.node(name)
        result = self.fabric.nodes[node].kind
        if kind == "plane" and result != "switch":
            raise self.error(
                f"{name} is a {result}, a plane is a switch; write 'node {name} down'"
            )
        if kind == "nic" and result != "nic":
            names = [item.name for item in self.fabric.nodes if item.kind == "nic"]
            raise self.error(
                f"{name} is a {result} and no NIC{suggest(name, names)}"
            )
        wires = self.arrays.wires
        touching: list[int] = np.flatnonzero(
            (wires["src"] == node) | (wires["dst"] == node)
        ).tolist()
        return touching

    def node(self, name: str) -> int:
        """Return the index of a node."""
        if name not in self.fabric.node_index:
            raise self.error(
                f"no node {name!r}{suggest(name, self.fabric.node_index)}"
            )
        return self.fabric.node_index[name]

    def link(self, name: str) -> list[int]:
        """Return the wires of a link: of both directions, or of the one that is named."""
        if "->" in name:
            return self._between(name, "->")
        port = re.fullmatch(r"(.+):([a-z0-9]*[a-z])(\d{1,5})?", name)
        wires = (
            self._between(name, "-")
            if port is None
            else self._of_node(*port.groups())
        )
        return sorted(
            {*wires, *(int(self.arrays.wires["reverse"][wire]) for wire in wires)}
        )

    def _split_number(
        self, name: str, arrow: str
    ) -> tuple[tuple[str, str], int | None]:
        """Return the two graph nodes of ``A-B.k`` and k; names may contain ``-`` and ``.``."""
        forms: list[tuple[str, int | None]] = [(name, None)]
        head, _, tail = name.rpartition(".")
        if head and tail.isdecimal() and len(tail) < 6:
            forms.append((head, int(tail)))
        index = self.fabric.node_index
        for text, number in forms:
            at = text.find(arrow)
            while at >= 0:
                ends = text[:at].strip(), text[at + len(arrow) :].strip()
                if ends[0] in index and ends[1] in index:
                    return ends, number
                at = text.find(arrow, at + 1)
        one, _, two = forms[-1][0].partition(arrow)
        missing = next(
            (end for end in (one.strip(), two.strip()) if end not in index), ""
        )
        if missing:
            raise self.error(
                f"link {name!r}: no node {missing!r}{suggest(missing, index)}"
            )
        raise self.error(
            f"{name!r} is not a link; write A-B, A-B.0, A->B.0 or NODE:nvl1"
        )

    def _between(self, name: str, arrow: str) -> list[int]:
        (a, b), number = self._split_number(name, arrow)
        parallel = self.arrays.parallel_wires(a, b)
        if not parallel:
            leaving = self.arrays.wires_from(self.fabric.node_index[a])
            ends = dict.fromkeys(self.arrays.wires["dst"][leaving].tolist())
            names = [self.fabric.nodes[end].name for end in ends]
            raise self.error(
                f"no link from {a} to {b}; {a} is linked to {', '.join(names[:8]) or 'nothing'}"
            )
        if number is None:
            return parallel
        if number >= len(parallel):
            raise self.error(
                f"link {name!r}: {a} and {b} have {len(parallel)} links, numbers 0..{len(parallel) - 1}"
            )
        return [parallel[number]]

    def _of_node(self, name: str, short: str, number: str | None) -> list[int]:
        """Return the wires from a node of a class, all or one numbered from 1."""
        outgoing = self.arrays.wires_from(self.node(name)).tolist()
        classes = {wire: self.arrays.wire_class[wire] for wire in outgoing}
        link_class = _SHORT.get(short, short)
        result = [
            wire
            for wire in outgoing
            if classes[wire].startswith(link_class)
            or (short == "net" and classes[wire] in _NETWORK)
        ]
        if not result:
            listing = ", ".join(sorted(set(classes.values()))) or "no links"
            raise self.error(f"{name} has no {short} links; it has {listing}")
        if number is None:
            return result
        if not 1 <= int(number) <= len(result):
            last = f" to {short}{len(result)}" if len(result) > 1 else ""
            plural = "s" if len(result) > 1 else ""
            raise self.error(
                f"{name} has {len(result)} {short} link{plural}, {short}1{last}"
            )
        return [result[int(number) - 1]]


@dataclass(frozen=True)
class Broken:
    """All faults of a run on a topology.

    Attributes
    ----------
    own : sequence
        Faults in addition to the topology's faults: texts, or `Fault`.
    """

    arrays: FabricArrays
    own: Sequence[Any] = ()

    @cached_property
    def _texts(self) -> list[str]:
        return [
            *self.arrays.fabric.faults,
            *(item for item in self.own if isinstance(item, str)),
        ]

    @cached_property
    def faults(self) -> list[Fault]:
        """Faults by wire and rank; raises `InputError` for an invalid text."""
        return [
            *_parse_faults(self.arrays, self._texts),
            *(item for item in self.own if not isinstance(item, str)),
        ]

    @cached_property
    def planning_fabric(self) -> Fabric:
        """Topology that planning sees; unchanged if all links are up at the start."""
        return known_at_start(self.arrays, self.faults)

    @cached_property
    def lines(self) -> tuple[str, ...]:
        """Line for every fault, with the remaining rates."""
        return describe_faults(self.arrays, self.faults, self._texts)
