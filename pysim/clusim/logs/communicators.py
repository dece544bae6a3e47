"""Communicators out of the handles ranks spoke of: which handles are one communicator, and who is in it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from clusim.logs.columns import NONE
from clusim.logs.facts import Facts, Member
from clusim.logs.tables import Run

__all__ = ["Communicator", "find_communicators", "rings_of"]

_SIGNATURE = 64
_HEX = re.compile(r"[0-9a-fA-F]{1,16}").fullmatch


@dataclass(slots=True)
class Communicator:
    """A communicator; `members` has the handle of each rank that logged, `assumed` what was concluded and not read."""

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

    def __init__(self, calls: dict[str, NDArray[np.integer]]) -> None:
        self._calls = calls
        self._order = np.argsort(calls["member"], kind="stable")
        self._sorted = calls["member"][self._order]
        self._known: dict[int, dict[int, tuple[int, int, int]]] = {}

    def of(self, member: int) -> dict[int, tuple[int, int, int]]:
        found = self._known.get(member)
        if found is None:
            low = int(np.searchsorted(self._sorted, member))
            high = int(np.searchsorted(self._sorted, member, "right"))
            rows = self._order[low : min(high, low + _SIGNATURE)]
            calls = self._calls
            found = {}
            for op, name, count, kind in zip(
                *(calls[c][rows].tolist() for c in ("op_count", "name", "count", "type")),
                strict=True,
            ):
                found.setdefault(op, (name, count, kind))
            self._known[member] = found
        return found

    def agree(self, one: int, other: int, ranked: bool) -> bool:
        first, second = self.of(one), self.of(other)
        shared = first.keys() & second.keys()
        if not shared:
            return ranked or not first or not second
        return all(first[op] == second[op] for op in shared)


def find_communicators(
    facts: Facts, calls: dict[str, NDArray[np.integer]], runs: Sequence[Run]
) -> list[Communicator]:
    """Return the communicators, in the order their first handle was spoken of."""
    devices = _devices(runs)
    sizes = _sizes(facts, runs)
    used = _used(facts, calls)
    signatures = _Signatures(calls)
    found: list[Communicator] = []
    by_key: dict[tuple[object, ...], Communicator] = {}
    open_ones: dict[tuple[int, int], list[Communicator]] = {}
    of_member: dict[int, Communicator] = {}
    for number in sorted(range(len(facts.members)), key=lambda i: facts.members[i].line):
        member = facts.members[number]
        if member.pointer == 0 and number not in used and not member.orders:
            continue
        process = facts.processes[member.process]
        if member.rank == NONE:
            member.rank = devices.get((member.run, process.host, process.pid, member.device), NONE)
        n_ranks = member.n_ranks if member.n_ranks != NONE else sizes(member)
        key = _key(member, n_ranks, of_member, process.pid)
        if key is not None:
            communicator = by_key.get(key)
            if communicator is None:
                communicator = by_key[key] = _new(found, member, n_ranks)
        else:
            candidates = open_ones.setdefault((member.run, n_ranks), [])
            communicator = _choose(facts, candidates, number, signatures)
            if communicator is None:
                communicator = _new(found, member, n_ranks)
                candidates.append(communicator)
        parent = of_member.get(member.parent)
        if parent is not None:
            communicator.parent, communicator.color = parent.number, member.color
        communicator.n_ranks = max(communicator.n_ranks, n_ranks)
        if member.rank == NONE or member.rank in communicator.members:
            communicator.unplaced.append(number)
        else:
            communicator.members[member.rank] = number
        of_member[number] = communicator
    for communicator in found:
        _place_by_labels(facts, communicator)
        _describe(facts, communicator, runs)
    return found


def _new(found: list[Communicator], member: Member, n_ranks: int) -> Communicator:
    communicator = Communicator(len(found), member.run, n_ranks, member.comm_id)
    found.append(communicator)
    return communicator


def _key(
    member: Member, n_ranks: int, of_member: dict[int, Communicator], pid: int
) -> tuple[object, ...] | None:
    """Return what a handle shares only with handles of its own communicator, if the log says it."""
    if member.comm_id:
        return ("id", member.comm_id, n_ranks)
    parent = of_member.get(member.parent)
    if parent is not None:
        return ("split", parent.number, member.split, member.color, n_ranks)
    if pid < NONE:  # lines without headers, all below one heading
        return ("bare", pid)
    return None


def _choose(
    facts: Facts, candidates: Iterable[Communicator], number: int, signatures: _Signatures
) -> Communicator | None:
    """Return the communicator that lacks this rank and did the same calls, on this host if there is a choice."""
    member = facts.members[number]
    place = (member.process, member.device)
    fitting = []
    for candidate in candidates:
        if candidate.n_logged >= candidate.n_ranks > 0 or member.rank in candidate.members:
            continue
        handles = candidate.handles
        if any((facts.members[h].process, facts.members[h].device) == place for h in handles):
            continue
        ranked = member.rank != NONE and not candidate.unplaced
        if signatures.agree(handles[0], number, ranked):
            fitting.append(candidate)
    if not fitting:
        return None
    host = facts.processes[member.process].host

    def near(candidate: Communicator) -> int:
        hosts = (
            facts.processes[facts.members[handle].process].host for handle in candidate.handles
        )
        return sum(other == host for other in hosts)

    return max(fitting, key=near)


def _devices(runs: Sequence[Run]) -> dict[tuple[int, str, int, int], int]:
    return {
        (run.number, device.host, device.pid, device.device): device.rank
        for run in runs
        for device in run.devices
    }


class _sizes:  # noqa: N801 - used as a function with a memory
    """Number of ranks of a handle that does not say it itself."""

    def __init__(self, facts: Facts, runs: Sequence[Run]) -> None:
        self._runs = {run.number: run.n_ranks for run in runs if run.n_ranks}
        self._facts = facts
        self._highest: dict[tuple[bool, int], int] = {}
        silent = np.array([member.n_ranks == NONE for member in facts.members] or [False])
        for table in (facts.links, facts.trees, facts.connections):
            columns = dict(table.columns())
            ends = [
                n for n in columns if n in ("before", "rank", "after", "up", "source", "target")
            ]
            rows = np.flatnonzero(silent[columns["member"].astype(np.int64)])
            if len(rows) == 0:
                continue
            high = np.max([columns[name][rows].astype(np.int64) for name in ends], axis=0) + 1
            highest = np.zeros(len(silent), np.int64)
            np.maximum.at(highest, columns["member"][rows].astype(np.int64), high)
            for number in np.flatnonzero(highest).tolist():
                place = self._place(facts, facts.members[number])
                self._highest[place] = max(self._highest.get(place, 0), int(highest[number]))

    @staticmethod
    def _place(facts: Facts, member: Member) -> tuple[bool, int]:
        bare = facts.processes[member.process].pid < NONE
        return (bare, member.process if bare else member.run)

    def __call__(self, member: Member) -> int:
        if member.orders:
            return max(max(order, default=0) for order in member.orders.values()) + 1
        place = self._place(self._facts, member)
        printed = NONE if place[0] else self._runs.get(member.run, NONE)
        return max(printed, self._highest.get(place, NONE))


def _used(facts: Facts, calls: dict[str, NDArray[np.integer]]) -> set[int]:
    """Return the handles something is known about."""
    used = set(np.unique(calls["member"]).tolist())
    for rows in (facts.connections, facts.links, facts.trees, facts.nvls_trees):
        used |= set(np.unique(rows.columns()["member"]).tolist())
    for number, member in enumerate(facts.members):
        if member.counts or member.patterns or member.system or member.costs or member.timings:
            used.add(number)
    return used


def _place_by_labels(facts: Facts, communicator: Communicator) -> None:
    """Give handles without rank the rank their launcher tagged them with, if that is possible for all."""
    labels = [facts.processes[facts.members[h].process].label for h in communicator.unplaced]
    free = all(
        0 <= label < communicator.n_ranks and label not in communicator.members for label in labels
    )
    if labels and len(set(labels)) == len(labels) and free:
        for handle, label in zip(communicator.unplaced, labels, strict=True):
            facts.members[handle].rank = label
            communicator.members[label] = handle
        communicator.unplaced = []
        communicator.assumed.append("ranks are the numbers the launcher put in front of the lines")


def _describe(facts: Facts, communicator: Communicator, runs: Sequence[Run]) -> None:
    """Note hosts, bus addresses and names of the GPUs, and what had to be assumed."""
    run = next((r for r in runs if r.number == communicator.run), None)
    whole = run is not None and run.n_ranks == communicator.n_ranks
    if whole and run is not None:
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
            names = [d.name for d in run.devices if (d.host, d.device) == (host, member.device)]
            communicator.gpu_of[rank] = names[0] if names else ""
    _from_system(facts, communicator)
    missing = communicator.n_ranks > sum(
        0 <= r < communicator.n_ranks for r in communicator.members
    )
    unplaced_hosts = [facts.processes[facts.members[h].process].host for h in communicator.unplaced]
    per_node = max((facts.members[h].local_ranks for h in communicator.handles), default=NONE)
    if missing and not communicator.unplaced:
        logged = sorted(communicator.members)
        communicator.assumed.append(
            f"only {_ranks(logged)} of {communicator.n_ranks} logged; the others are assumed to do the same"
        )
    elif missing:
        communicator.assumed.append(
            f"the log does not say which ranks {communicator.n_logged} of {communicator.n_ranks} are"
        )
    seen = [communicator.host_of[rank] for rank in sorted(communicator.host_of)]
    communicator.hosts = list(dict.fromkeys([*seen, *(h for h in unplaced_hosts if h)]))
    nodes = max((facts.members[h].n_nodes for h in communicator.handles), default=NONE)
    if nodes > len(communicator.hosts) > 0:
        communicator.assumed.append(
            f"{nodes} machines take part, {len(communicator.hosts)} of them logged"
            + (f"; {per_node} ranks on each" if per_node > 0 else "")
        )


_MACHINE_RANKS = 1 << 10
"""GPUs of one machine at most."""


def _from_system(facts: Facts, communicator: Communicator) -> None:
    """Note the ranks that the topology print of a machine names, also if they did not log."""
    for handle in communicator.handles:
        member = facts.members[handle]
        host = facts.processes[member.process].host
        for node in member.system:
            if node.name.startswith("GPU/") and node.note.isdigit() and host:
                rank = int(node.note)
                if rank < communicator.n_ranks:
                    communicator.host_of.setdefault(rank, host)
                    bus = node.name[4:].rpartition("-")[2]
                    communicator.bus_of.setdefault(rank, int(bus, 16) if _HEX(bus) else 0)
        if member.n_nodes == 1 and host:
            # More GPUs than a machine can have are a number that somebody wrote into the log.
            for rank in range(min(communicator.n_ranks, _MACHINE_RANKS)):
                communicator.host_of.setdefault(rank, host)


def _ranks(ranks: Sequence[int]) -> str:
    """Write ranks as ranges."""
    parts: list[str] = []
    for i, rank in enumerate(ranks):
        if i and ranks[i - 1] == rank - 1:
            first = parts.pop().partition("-")[0]
            parts.append(f"{first}-{rank}")
        else:
            parts.append(str(rank))
    shown = ",".join(parts[:12]) + (",..." if len(parts) > 12 else "")
    return ("rank " if len(ranks) == 1 else "ranks ") + shown


def rings_of(
    facts: Facts, communicator: Communicator, links: Iterable[tuple[int, ...]]
) -> dict[int, list[int]]:
    """Return the rings by channel: as rank 0 printed them, else put together from each rank's neighbours.

    `links` has channel, the rank before, the rank, and the rank behind it.
    """
    rings: dict[int, list[int]] = {}
    cut: set[int] = set()
    for handle in communicator.handles:
        member = facts.members[handle]
        rings |= {c: order for c, order in member.orders.items() if c not in member.cut_orders}
        cut |= member.cut_orders
    after: dict[int, dict[int, int]] = {}
    for channel, before, rank, behind in links:
        after.setdefault(channel, {})[rank] = behind
        after[channel].setdefault(before, rank)
    for channel, steps in after.items():
        if channel in rings:
            continue
        ring, rank = [0], steps.get(0, NONE)
        while rank not in (0, NONE) and len(ring) <= len(steps):
            ring.append(rank)
            rank = steps.get(rank, NONE)
        if rank == 0 and len(ring) == communicator.n_ranks:
            rings[channel] = ring
    return dict(sorted(rings.items()))
