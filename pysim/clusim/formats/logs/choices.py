"""What the tuner chose for calls: its n-th line for a thread, name and size belongs to the n-th call of these."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from clusim.formats.logs.columns import NONE, ordinals, row_hash
from clusim.formats.logs.raw_log import RawLog
from clusim.formats.logs.repeating import RepeatingPart

Numbers = NDArray[np.integer]


def find_choices(facts: RawLog, *sizes: list[NDArray[np.int64]]) -> list[Numbers]:
    """Return the tuner's choice for each call, NONE where it was not printed by the same thread.

    The device in front of a tuner's line need not be that of the call: a thread that drives GPUs prints one line
    for the calls of all, on whatever device it is then. So what no line of the same device fits is matched without it.

    Parameters
    ----------
    sizes : lists of ndarray
        By part of the calls: the size of each kind of call [B]; the first ones in which a line is found count.

    Returns
    -------
    list of ndarray
        By part of the calls: the number of the choice of each call.
    """
    parts = facts.calls.parts()
    tunings = facts.tunings.columns()
    if len(tunings["choice"]) == 0:
        return [np.broadcast_to(np.full(1, NONE, np.int8), len(part.which)) for part in parts]
    narrow = np.min_scalar_type(-len(facts.choices) - 1)
    chosen: list[Numbers] = [np.full(len(part.which), NONE, narrow) for part in parts]
    matching = _Matching(facts, parts, chosen, np.ones(len(tunings["choice"]), np.bool_))
    for speaker in (np.arange(max(len(facts.threads), 1)), _without_device(facts)):
        for each in sizes:
            for named in (True, False):
                matching.attach(speaker, each, named=named)
    return chosen


def _without_device(facts: RawLog) -> NDArray[np.int64]:
    """Return a number for each thread that is the same for all devices it drives."""
    known: dict[tuple[int, int], int] = {}
    threads = [known.setdefault((t.process, t.tid), len(known)) for t in facts.threads]
    return np.array(threads or [0], np.int64)


@dataclass
class _Matching:
    """Calls by part, what was chosen for them, and which lines of the tuner no call has yet."""

    facts: RawLog
    parts: list[RepeatingPart]
    chosen: list[Numbers]
    free: NDArray[np.bool_]

    def attach(
        self, speaker: NDArray[np.int64], sizes: list[NDArray[np.int64]], *, named: bool
    ) -> None:
        """Give calls without a choice that of a free line of their speaker with their size, and name if it has one."""
        lines, key, numbers = self._lines(speaker, named=named)
        if len(lines) == 0:
            return
        keys, begin, count = np.unique(key, return_index=True, return_counts=True)
        slots = [
            self._slots(part, speaker, size, keys, named=named)
            for part, size in zip(self.parts, sizes, strict=True)
        ]
        handles = len(self.facts.members)
        pairs = [
            slot * handles + p.kinds["member"] for slot, p in zip(slots, self.parts, strict=True)
        ]
        known = np.unique(
            np.concatenate([own[s >= 0] for own, s in zip(pairs, slots, strict=True)])
        )
        if len(known) == 0:
            return
        seen = np.zeros(len(known), np.int64)
        for part, slot, pair, chosen in zip(self.parts, slots, pairs, self.chosen, strict=True):
            if not (slot >= 0).any():
                continue
            rows = np.flatnonzero((slot[part.which] >= 0) & (chosen == NONE))
            counter = np.searchsorted(known, pair)[part.which[rows]]
            place = seen[counter] + ordinals(counter)
            seen += np.bincount(counter, minlength=len(seen))
            of_line = slot[part.which[rows]]
            fits = place < count[of_line]
            hit = (begin[of_line] + place)[fits]
            chosen[rows[fits]] = numbers[hit]
            self.free[lines[hit]] = False

    def _lines(
        self, speaker: NDArray[np.int64], *, named: bool
    ) -> tuple[NDArray[np.int64], NDArray[np.uint64], NDArray[np.int64]]:
        """Return the free lines with or without a name, in the order of what they say, that, and their choices."""
        facts, tunings = self.facts, self.facts.tunings.columns()
        has_name = np.array([bool(choice[0]) for choice in facts.choices])
        lines = np.flatnonzero(self.free)
        lines = lines[has_name[tunings["choice"][lines]] == named]
        numbers = tunings["choice"][lines].astype(np.int64)
        names = {name: i for i, name in enumerate(facts.names)}
        name = np.array([names.get(choice[0], NONE) for choice in facts.choices], np.int64)
        size = np.array([choice[1] for choice in facts.choices], np.int64)
        spoken = speaker[tunings["thread"][lines].astype(np.int64)]
        key = row_hash(
            spoken, size[numbers], name[numbers] if named else np.full_like(spoken, NONE)
        )
        order = np.argsort(key, kind="stable")
        return lines[order], key[order], numbers[order]

    @staticmethod
    def _slots(
        part: RepeatingPart,
        speaker: NDArray[np.int64],
        sizes: NDArray[np.int64],
        keys: NDArray[np.uint64],
        *,
        named: bool,
    ) -> NDArray[np.int64]:
        """Return for each kind of call which key it has, NONE if it is none of them."""
        name = part.kinds["name"].astype(np.int64)
        spoken = speaker[part.kinds["thread"].astype(np.int64)]
        key = row_hash(spoken, sizes, name if named else np.full_like(name, NONE))
        at = np.minimum(np.searchsorted(keys, key), len(keys) - 1)
        return np.where(keys[at] == key, at, NONE)
