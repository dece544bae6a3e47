"""Schedules of a wire's classes: strict priority, and deficit round robin inside a priority (section 4)."""

from __future__ import annotations

from typing import NamedTuple

from clusim.engine.reference.specs import ClassSchedule


class Eligible(NamedTuple):
    """An eligible candidate: its class, rank and number, and the wire bytes of its next packet."""

    vc: int
    rank: int
    candidate: int
    wire_bytes: int


class Classes:
    """The classes of one wire with a schedule."""

    def __init__(self, spec: ClassSchedule, nvc: int) -> None:
        self._spec = spec
        self._deficit, self._last = [0] * nvc, [-1] * nvc
        levels: dict[int, list[int]] = {}
        for vc in range(nvc):
            levels.setdefault(spec.priority[vc], []).append(vc)
        self._levels = levels
        self._turn = {priority: classes[0] for priority, classes in levels.items()}

    def first(self, eligible: list[Eligible]) -> dict[int, Eligible]:
        """Return the first candidate of each class."""
        heads: dict[int, Eligible] = {}
        for one in sorted(eligible, key=self._order):
            heads.setdefault(one.vc, one)
        return heads

    def take(self, one: Eligible) -> int:
        """Grant a candidate chosen by a policy; return its index."""
        self._last[one.vc] = one.candidate
        return one.candidate

    def choose(self, eligible: list[Eligible]) -> int:
        """Return the index of the candidate that is granted now."""
        heads = self.first(eligible)
        priority = min(self._spec.priority[vc] for vc in heads)
        classes, deficit = self._levels[priority], self._deficit
        while True:
            vc = self._turn[priority]
            if vc in heads and heads[vc].wire_bytes <= deficit[vc]:
                deficit[vc] -= heads[vc].wire_bytes
                self._last[vc] = heads[vc].candidate
                return heads[vc].candidate
            if vc not in heads:
                deficit[vc] = 0
            following = classes[(classes.index(vc) + 1) % len(classes)]
            self._turn[priority] = following
            if following in heads:
                deficit[following] += self._spec.quantum[following]

    def _order(self, one: Eligible) -> tuple[int, bool, int]:
        return one.rank, one.candidate <= self._last[one.vc], one.candidate
