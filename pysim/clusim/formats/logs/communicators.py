"""Communicators from the handles in a log: grouping of handles, and assignment of ranks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from clusim.base.limits import MOST_RANKS
from clusim.base.match import turns
from clusim.base.units import format_ranges
from clusim.formats.logs.columns import NONE, OwnedRows, Repeating
from clusim.formats.logs.raw_log import MOST_COMMUNICATORS, Member, RawLog
from clusim.formats.logs.tables import TableRun

_SIGNATURE = 64
_COMPARED = ("line", "op_count", "name", "count", "type")
_MACHINE_RANKS = 1 << 10
"""Maximum number of GPUs of a node."""

_MOST_PLACES = 1 << 19
"""Maximum total number of ranks for which hosts in other ranks' lines are noted."""

_MOST_LOOKS = 1_000_000
"""Comparisons of handles with communicators, before handles are compared with the `_LAST`."""

_LAST = 16
_FEW_LOOKS = f"too many communicators without ids to compare all: only the last {_LAST} are compared"
_FEW_PLACES = (
    "the log names too many ranks that did not log: their hosts are not noted"
)
_HEX = re.compile(r"[0-9a-fA-F]{1,16}").fullmatch


@dataclass(slots=True)
class LoggedCommunicator:
    """A communicator; `members` has the handles by logged rank, `assumed` the inferred facts."""

    number: int
    run: int
    n_ranks: int
    comm_id: int = 0
    members: dict[int, int] = field(default_factory=dict)
    unplaced: list[int] = field(default_factory=list)
    parent: int = NONE
    color: int = NONE
    hosts: list[str] = field(default_factory=list)
    host_of: dict[int, str] = field(default_factory=dict)
    bus_of: dict[int, int] = field(default_factory=dict)
    gpu_of: dict[int, str] = field(default_factory=dict)
    assumed: list[str] = field(default_factory=list)

    @property
    def handles(self) -> list[int]:
        """All handles, by rank where it is known."""
        return [self.members[rank] for rank in sorted(self.members)] + self.unplaced

    @property
    def n_logged(self) -> int:
        """Number of ranks that wrote lines about it."""
        return len(self.members) + len(self.unplaced)


class _Signatures:
    """The first calls of a handle: two handles of one communicator agree in those they share."""

    def __init__(self, calls: Repeating) -> None:
        self._calls = calls
        self._known: dict[int, dict[int, tuple[int, int, int]]] = {}

    @cached_property
    def _first(self) -> OwnedRows:
        """The first `_SIGNATURE` calls of each handle."""
        calls = self._calls
        member = calls.column("member").astype(np.int64)
        rows = np.flatnonzero(turns(member) < _SIGNATURE)
        return OwnedRows(
            member[rows], {name: calls.column(name, rows) for name in _COMPARED}
        )

    def of(self, member: int) -> dict[int, tuple[int, int, int]]:
        result = self._known.get(member)
        if result is None:
            result = self._known[member] = {}
            for op, name, count, kind in self._first.rows(member, _COMPARED[1:]):
                result.setdefault(op, (name, count, kind))
        return result

    def alternate(self, one: int, other: int) -> bool:
        """Return True if calls of the two handles alternate: one thread drives both GPUs."""
        lines = [
            [line for (line,) in self._first.rows(member, ("line",))]
            for member in (one, other)
        ]
        first, second = sorted(lines)
        pairs = zip(first, second, strict=False)
        after = [*first[1:], 1 << 62]
        return 0 <= len(first) - len(second) <= 1 and all(
            a < b < following
            for (a, b), following in zip(pairs, after, strict=False)
        )

    def agree(self, one: int, other: int, ranked: bool) -> bool:
        first, second = self.of(one), self.of(other)
        shared = first.keys() & second.keys()
        if not shared:
            return ranked or not first or not second
        return all(first[op] == second[op] for op in shared)


def find_communicators(
    facts: RawLog, runs: Sequence[TableRun]
) -> list[LoggedCommunicator]:
    """Return the communicators, in the order of their handles' first lines."""
    devices = _devices(runs)
    sizes = _SilentSizes(facts, runs)
    used = _described_handles(facts)
    signatures = _Signatures(facts.calls)
    result: list[LoggedCommunicator] = []
    by_key: dict[tuple[object, ...], LoggedCommunicator] = {}
    open_ones: dict[tuple[int, int], _Open] = {}
    looks = _Looks()
    of_member: dict[int, LoggedCommunicator] = {}
    for number in sorted(
        range(len(facts.members)), key=lambda i: facts.members[i].line
    ):
        member = facts.members[number]
        if member.pointer == 0 and number not in used and not member.orders:
            continue
        if number == facts.lost_handle or number in facts.torn_handles:
            continue
        process = facts.processes[member.process]
        if member.rank == NONE:
            member.rank = devices.get(
                (member.run, process.host, process.pid, member.device), NONE
            )
        n_ranks = member.n_ranks if member.n_ranks != NONE else sizes(member)
        key = _key(member, n_ranks, of_member, process.pid)
        candidates = open_ones.setdefault(
            (member.run, n_ranks), _Open(facts, signatures)
        )
        existing = (
            by_key.get(key) if key is not None else candidates.choose(number, looks)
        )
        if existing is None and len(result) >= MOST_COMMUNICATORS:
            facts.left_out += 1
            continue
        communicator = existing or _new(result, member, n_ranks)
        if existing is None and key is not None:
            by_key[key] = communicator
        elif existing is None:
            candidates.add(communicator, number)
            if looks.left <= 0:
                communicator.assumed.append(_FEW_LOOKS)
        parent = of_member.get(member.parent)
        if parent is not None:
            communicator.parent, communicator.color = parent.number, member.color
        communicator.n_ranks = max(communicator.n_ranks, n_ranks)
        if member.rank == NONE or member.rank in communicator.members:
            communicator.unplaced.append(number)
        else:
            communicator.members[member.rank] = number
        of_member[number] = communicator
    described = _Described(facts, runs)
    for communicator in result:
        _place_by_labels(facts, communicator)
        described.add(communicator)
    return result


def _new(
    communicators: list[LoggedCommunicator], member: Member, n_ranks: int
) -> LoggedCommunicator:
    communicator = LoggedCommunicator(
        len(communicators), member.run, n_ranks, member.comm_id
    )
    communicators.append(communicator)
    return communicator


def _key(
    member: Member, n_ranks: int, of_member: dict[int, LoggedCommunicator], pid: int
) -> tuple[object, ...] | None:
    """Return a key that handles of one communicator share, None if it is not in the log."""
    if member.comm_id:
        return ("id", member.comm_id, n_ranks)
    parent = of_member.get(member.parent)
    if parent is not None:
        return ("split", parent.number, member.split, member.color, n_ranks)
    if pid < NONE:  # lines without headers, all below one heading
        return ("bare", pid)
    return None


@dataclass(slots=True, eq=False)
class _Candidate:
    """A communicator that may lack ranks, with its lowest handle and its handles' places."""

    communicator: LoggedCommunicator
    lowest: int
    lowest_rank: int = MOST_RANKS
    places: set[tuple[int, int]] = field(default_factory=set)
    hosts: Counter[str] = field(default_factory=Counter)

    def lacks(self, rank: int) -> bool:
        communicator = self.communicator
        full = communicator.n_logged >= communicator.n_ranks > 0
        return not full and rank not in communicator.members


class _Open:
    """Communicators of one run and size with handles that the log does not connect by a key."""

    def __init__(self, facts: RawLog, signatures: _Signatures) -> None:
        self._facts, self._signatures = facts, signatures
        self._all: list[_Candidate] = []
        self._lacking: dict[int, tuple[list[_Candidate], int]] = {}

    def choose(self, number: int, looks: _Looks) -> LoggedCommunicator | None:
        """Return a communicator without this rank and with equal calls, preferably on this host."""
        member = self._facts.members[number]
        host = self._facts.processes[member.process].host
        best: _Candidate | None = None
        for candidate in self._of_rank(member.rank, looks):
            if (member.process, member.device) in candidate.places and not (
                member.rank == NONE
                and self._signatures.alternate(candidate.lowest, number)
            ):
                continue
            ranked = member.rank != NONE and not candidate.communicator.unplaced
            if not self._signatures.agree(candidate.lowest, number, ranked):
                continue
            if best is None or candidate.hosts[host] > best.hosts[host]:
                best = candidate
        if best is None:
            return None
        self._join(best, number)
        return best.communicator

    def add(self, communicator: LoggedCommunicator, number: int) -> None:
        """Store a communicator with its first handle."""
        self._all.append(_Candidate(communicator, number))
        self._join(self._all[-1], number)

    def _of_rank(self, rank: int, looks: _Looks) -> list[_Candidate]:
        """Return the candidates without a rank, in order; only the last above the search limit."""
        if looks.left <= 0:
            return [c for c in self._all[-_LAST:] if c.lacks(rank)]
        candidates, position = self._lacking.get(rank, ([], 0))
        candidates = [
            c for c in (*candidates, *self._all[position:]) if c.lacks(rank)
        ]
        looks.left -= len(candidates) + len(self._all) - position
        self._lacking[rank] = (candidates, len(self._all))
        return candidates

    def _join(self, candidate: _Candidate, number: int) -> None:
        member = self._facts.members[number]
        candidate.places.add((member.process, member.device))
        candidate.hosts[self._facts.processes[member.process].host] += 1
        if member.rank != NONE and member.rank < candidate.lowest_rank:
            candidate.lowest, candidate.lowest_rank = number, member.rank


class _Looks:
    """Remaining comparisons of communicators with handles, before only the last are compared."""

    def __init__(self) -> None:
        self.left = _MOST_LOOKS


def _devices(runs: Sequence[TableRun]) -> dict[tuple[int, str, int, int], int]:
    return {
        (run.number, device.host, device.pid, device.device): device.rank
        for run in runs
        for device in run.devices
    }


class _SilentSizes:
    """Numbers of ranks of handles that do not contain them, by their highest rank in other lines."""

    def __init__(self, facts: RawLog, runs: Sequence[TableRun]) -> None:
        self._runs = {run.number: run.n_ranks for run in runs if run.n_ranks}
        self._facts = facts
        self._highest: dict[tuple[bool, int], int] = {}
        silent = np.array(
            [member.n_ranks == NONE for member in facts.members] or [False]
        )
        for table in (facts.links, facts.trees, facts.connections):
            columns = dict(table.columns())
            ends = [
                n
                for n in columns
                if n in ("before", "rank", "after", "up", "source", "target")
            ]
            rows = np.flatnonzero(silent[columns["member"].astype(np.int64)])
            if len(rows) == 0:
                continue
            high = (
                np.max(
                    [columns[name][rows].astype(np.int64) for name in ends], axis=0
                )
                + 1
            )
            highest = np.zeros(len(silent), np.int64)
            np.maximum.at(highest, columns["member"][rows].astype(np.int64), high)
            for number in np.flatnonzero(highest).tolist():
                place = self._place(facts, facts.members[number])
                self._highest[place] = max(
                    self._highest.get(place, 0), int(highest[number])
                )

    @staticmethod
    def _place(facts: RawLog, member: Member) -> tuple[bool, int]:
        bare = facts.processes[member.process].pid < NONE
        return (bare, member.process if bare else member.run)

    def __call__(self, member: Member) -> int:
        if member.orders:
            return max(max(order, default=0) for order in member.orders.values()) + 1
        place = self._place(self._facts, member)
        printed = NONE if place[0] else self._runs.get(member.run, NONE)
        return max(printed, self._highest.get(place, NONE))


def _described_handles(facts: RawLog) -> set[int]:
    """Return the handles with any known property."""
    used = set(facts.calls.tally("member")[:, 0].tolist())
    for rows in (facts.connections, facts.links, facts.trees, facts.nvls_trees):
        used |= set(np.unique(rows.columns()["member"]).tolist())
    for number, member in enumerate(facts.members):
        if (
            member.counts
            or member.patterns
            or member.system
            or member.costs
            or member.timings
        ):
            used.add(number)
    return used


def _place_by_labels(facts: RawLog, communicator: LoggedCommunicator) -> None:
    """Set missing ranks of handles to their launcher's labels, if this is possible for all."""
    labels = [
        facts.processes[facts.members[h].process].label
        for h in communicator.unplaced
    ]
    free = all(
        0 <= label < communicator.n_ranks and label not in communicator.members
        for label in labels
    )
    if labels and len(set(labels)) == len(labels) and free:
        for handle, label in zip(communicator.unplaced, labels, strict=True):
            facts.members[handle].rank = label
            communicator.members[label] = handle
        communicator.unplaced = []
        communicator.assumed.append(
            "ranks are the numbers the launcher put in front of the lines"
        )


class _Described:
    """Recorder of hosts, bus addresses and names of communicators' GPUs, and of assumptions.

    Ranks that logged are described by their lines. Descriptions of other ranks, from one line or a run's
    device list, are limited in total: otherwise a small file could fill the memory with repeated names.
    """

    def __init__(self, facts: RawLog, runs: Sequence[TableRun]) -> None:
        self._facts = facts
        self._runs: dict[int, tuple[TableRun, int]] = {}
        self._names: dict[tuple[int, str, int], str] = {}
        for run in runs:
            self._runs.setdefault(run.number, (run, run.n_ranks))
            for device in run.devices:
                self._names.setdefault(
                    (run.number, device.host, device.device), device.name
                )
        self._left = _MOST_PLACES

    def add(self, communicator: LoggedCommunicator) -> None:
        """Describe one."""
        facts = self._facts
        run, n_ranks = self._runs.get(communicator.run, (None, NONE))
        is_same_size = n_ranks == communicator.n_ranks
        if run is not None and is_same_size and self._may(len(run.devices)):
            for device in run.devices:
                communicator.host_of[device.rank] = device.host
                communicator.gpu_of[device.rank] = device.name
        for rank, handle in communicator.members.items():
            member = facts.members[handle]
            host = facts.processes[member.process].host
            if host:
                communicator.host_of[rank] = host
            if member.bus != NONE:
                communicator.bus_of[rank] = member.bus
            if run is not None and not communicator.gpu_of.get(rank):
                place = (run.number, host, member.device)
                communicator.gpu_of[rank] = self._names.get(place, "")
        self._from_system(communicator)
        if self._left < 0:
            communicator.assumed.append(_FEW_PLACES)
        _assume(facts, communicator)

    def _may(self, ranks: int) -> bool:
        self._left -= ranks
        return self._left >= 0

    def _from_system(self, communicator: LoggedCommunicator) -> None:
        """Note the ranks in a node's topology print, also if they did not log."""
        facts = self._facts
        for handle in communicator.handles:
            member = facts.members[handle]
            host = facts.processes[member.process].host
            for node in member.system:
                if node.name.startswith("GPU/") and node.note.isdigit() and host:
                    rank = int(node.note)
                    if rank < communicator.n_ranks:
                        communicator.host_of.setdefault(rank, host)
                        bus = node.name[4:].rpartition("-")[2]
                        communicator.bus_of.setdefault(
                            rank, int(bus, 16) if _HEX(bus) else 0
                        )
            missing = communicator.n_ranks - len(communicator.host_of)
            if member.n_nodes == 1 and host and missing > 0:
                # More GPUs than a node can have: the number in the log is wrong.
                ranks = min(communicator.n_ranks, _MACHINE_RANKS)
                if not self._may(min(ranks, missing)):
                    break
                for rank in range(ranks):
                    communicator.host_of.setdefault(rank, host)


def _assume(facts: RawLog, communicator: LoggedCommunicator) -> None:
    """Note the hosts of a communicator, and the facts that the log does not contain."""
    missing = communicator.n_ranks > sum(
        0 <= r < communicator.n_ranks for r in communicator.members
    )
    unplaced_hosts = [
        facts.processes[facts.members[h].process].host for h in communicator.unplaced
    ]
    per_node = max(
        (facts.members[h].local_ranks for h in communicator.handles), default=NONE
    )
    if missing and not communicator.unplaced:
        logged = sorted(communicator.members)
        communicator.assumed.append(
            f"only {_ranks(logged)} of {communicator.n_ranks} logged; the others are assumed to do the same"
        )
    elif missing:
        communicator.assumed.append(
            f"the log does not contain the ranks of {communicator.n_logged} of {communicator.n_ranks} GPUs"
        )
    hosts = [communicator.host_of[rank] for rank in sorted(communicator.host_of)]
    communicator.hosts = list(
        dict.fromkeys([*hosts, *(h for h in unplaced_hosts if h)])
    )
    nodes = max(
        (facts.members[h].n_nodes for h in communicator.handles), default=NONE
    )
    if nodes > len(communicator.hosts) > 0:
        communicator.assumed.append(
            f"{nodes} nodes, {len(communicator.hosts)} of them logged"
            + (f"; {per_node} ranks on each" if per_node > 0 else "")
        )


def _ranks(ranks: Sequence[int]) -> str:
    parts = format_ranges(ranks).split(",")
    listing = ",".join(parts[:12]) + (",..." if len(parts) > 12 else "")
    return ("rank " if len(ranks) == 1 else "ranks ") + listing
