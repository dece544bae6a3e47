"""Logs as objects: communicators, operations and anomalies of one or more files.

Logs with lines that ranks wrote into each other are repaired. Hosts, processes, ids and addresses of
communicators and numbers of ranks are known from many intact lines. A fragment of such a value (an id
without its last digits, a process number without its first) is replaced by the complete value if only
one fits; otherwise it is dropped and counted. A process with a torn host name is recognised by its
number, and its few deviating names are corrected. Logs without torn lines are not modified.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from clusim.base.limits import uncollected
from clusim.formats.logs.columns import NONE, OwnedRows, Repeating
from clusim.formats.logs.communicators import LoggedCommunicator, find_communicators, rings_of
from clusim.formats.logs.infer_collective import LoggedRoute
from clusim.formats.logs.operations import Columns, find_operations
from clusim.formats.logs.raw_log import Member, Process, RawLog
from clusim.formats.logs.reader import LogReader, require_something
from clusim.formats.logs.tables import TableRun

_FEW, _MANY, _RECENT = 3, 10, 256


def merge_torn_names(facts: RawLog) -> None:
    """Assign the lines of processes with torn host names to the right processes."""
    hosts: dict[str, int] = {}
    by_pid: dict[int, list[int]] = {}
    for number, process in enumerate(facts.processes):
        hosts[process.host] = hosts.get(process.host, 0) + process.lines
        by_pid.setdefault(process.pid, []).append(number)
    moved: dict[int, int] = {}
    for numbers in by_pid.values():
        best = max(numbers, key=lambda number: facts.processes[number].lines)
        for number in numbers:
            process = facts.processes[number]
            few = hosts[process.host] <= _FEW and process.pid != NONE
            if few and facts.processes[best].lines >= _MANY * max(process.lines, 1):
                moved[number] = best
    if not moved:
        return
    members = _move_members(facts, moved)
    for thread in facts.threads:
        thread.process = moved.get(thread.process, thread.process)
    for old, new in moved.items():
        facts.processes[new].lines += facts.processes[old].lines
        facts.processes[old].members = []
        facts.processes[old].lines = 0
    facts.torn_handles |= members.keys()
    if members:
        for rows in (facts.connections, facts.links, facts.trees, facts.nvls_trees, facts.calls):
            rows.replace("member", members)


def _move_members(facts: RawLog, moved: dict[int, int]) -> dict[int, int]:
    """Move handles of torn processes to the right processes; return the handles to be merged."""
    replaced: dict[int, int] = {}
    for old, new in moved.items():
        own = facts.processes[new].members
        for number in facts.processes[old].members:
            lost = facts.members[number]
            lost.process = new
            same = [
                m
                for m in own[-_RECENT:]
                if facts.members[m].run == lost.run
                and (lost.rank == NONE or facts.members[m].rank in (NONE, lost.rank))
                and lost.pointer in (0, facts.members[m].pointer)
            ]
            if same:
                replaced[number] = same[-1]
            else:
                own.append(number)
    return replaced


_SHARE = 4
"""A process with this factor fewer lines than is usual in its log may be a torn name."""

_MOST_MEMBERS = 1 << 14
"""Maximum number of handles to repair; larger jobs do not write all handles into one file."""


def settle_torn(facts: RawLog) -> None:
    """Assign the content of torn lines to the right handles; drop ambiguous content."""
    torn = facts.spliced or facts.cut_calls or facts.rejoined
    if not torn or len(facts.members) > _MOST_MEMBERS:
        return
    lost = _processes(facts)
    _numbers(facts)
    moved: dict[int, int] = {}
    for process in facts.processes:
        for run in {facts.members[number].run for number in process.members}:
            own = [n for n in process.members if facts.members[n].run == run and n not in lost]
            moved |= _handles(facts, own, lost)
    moved |= _headless(facts, lost)
    _without_ids(facts, lost | moved.keys())
    for old, new in moved.items():
        _take_over(facts.members[new], facts.members[old])
    if moved:
        for rows in (facts.connections, facts.links, facts.trees, facts.nvls_trees, facts.calls):
            rows.replace("member", moved)
    facts.torn_handles |= lost | moved.keys()
    facts.lost_handles += len(lost)


def _part_of(part: str, whole: str) -> bool:
    """Return True if a text is a fragment of another: its start or its end."""
    return part != whole and len(part) > 0 and (whole.startswith(part) or whole.endswith(part))


def _processes(facts: RawLog) -> set[int]:
    """Move handles of torn processes to intact processes; return handles without a process."""
    lines = sorted(process.lines for process in facts.processes if process.lines)
    usual = lines[len(lines) * 3 // 4] if lines else 0
    whole = [p for p in facts.processes if p.lines and p.lines * _SHARE > usual]
    lost: set[int] = set()
    for number, process in enumerate(facts.processes):
        if not process.members or process.lines * _SHARE > usual or process.pid < 0:
            continue
        fitting = [
            other
            for other in whole
            if (
                process.host == other.host
                or _part_of(process.host, other.host)
                or _part_of(other.host, process.host)
            )
            and (process.pid == other.pid or _part_of(str(process.pid), str(other.pid)))
        ]
        alone = process.host not in {other.host for other in whole} and not any(
            _part_of(process.host, other.host) or _part_of(other.host, process.host)
            for other in whole
        )
        if alone or (not fitting and _missed(facts, process, whole)):
            continue  # intact, but with few lines
        if len(fitting) == 1:
            new = facts.processes.index(fitting[0])
            for handle in process.members:
                facts.members[handle].process = new
            fitting[0].members += process.members
            fitting[0].lines += process.lines
        else:
            lost.update(process.members)
        for thread in facts.threads:
            if thread.process == number and len(fitting) == 1:
                thread.process = facts.processes.index(fitting[0])
        process.members, process.lines = [], 0
    return lost


def _missed(facts: RawLog, process: Process, whole: list[Process]) -> bool:
    """Return True if a process with few lines is a missing rank of a known communicator."""
    if process.host not in {other.host for other in whole}:
        return False
    own = {
        (m.comm_id, m.n_ranks, m.rank) for n in process.members if (m := facts.members[n]).comm_id
    }
    others = [facts.members[n] for other in whole for n in other.members if other is not process]
    ranks = {(m.comm_id, m.n_ranks, m.rank) for m in others}
    known = {(m.comm_id, m.n_ranks) for m in others}
    return bool(own) and all(key[:2] in known and key[2] != NONE for key in own) and not own & ranks


def _numbers(facts: RawLog) -> None:
    """Repair incomplete ids, and rare numbers of ranks among the handles of an id."""
    ids = Counter(member.comm_id for member in facts.members if member.comm_id)
    for torn, times in ids.items():
        whole = [
            other
            for other, often in ids.items()
            if often > times and _part_of(f"{torn:x}", f"{other:x}")
        ]
        if len(whole) == 1:
            for member in facts.members:
                if member.comm_id == torn:
                    member.comm_id = whole[0]
    sizes: dict[int, Counter[int]] = {}
    for member in facts.members:
        if member.comm_id and member.n_ranks != NONE:
            sizes.setdefault(member.comm_id, Counter())[member.n_ranks] += 1
    for member in facts.members:
        if member.comm_id in sizes:
            member.n_ranks = sizes[member.comm_id].most_common(1)[0][0]
            member.rank = member.rank if member.rank < member.n_ranks else NONE


def _handles(facts: RawLog, own: list[int], lost: set[int]) -> dict[int, int]:
    """Return the complete handle of each fragment; add ambiguous fragments to `lost`."""
    whole = [n for n in own if facts.members[n].comm_id and facts.members[n].pointer]
    moved: dict[int, int] = {}
    known: dict[tuple[int, int], int] = {}
    for (
        number
    ) in whole:  # two complete handles of one rank of a communicator: one has a torn address
        member = facts.members[number]
        first = known.setdefault((member.comm_id, member.rank), number)
        if first != number and member.rank != NONE:
            moved[number] = first
    for number in own:
        member = facts.members[number]
        if number in whole or member.comm_id:
            continue
        fitting = [n for n in dict.fromkeys(known.values()) if _same(member, facts.members[n])]
        if len(fitting) == 1:
            moved[number] = fitting[0]
        elif known:
            lost.add(number)
    return moved


def _headless(facts: RawLog, lost: set[int]) -> dict[int, int]:
    """Return the matching handle, by address, of handles without a header in any line."""
    of: dict[tuple[int, int], list[int]] = {}
    headless = []
    for process in facts.processes:
        for number in process.members:
            member = facts.members[number]
            if process.pid < 0 and not member.comm_id:
                headless.append(number)
            elif member.comm_id and member.pointer:
                of.setdefault((member.run, member.pointer), []).append(number)
    result = {n: of.get((facts.members[n].run, facts.members[n].pointer), []) for n in headless}
    known = {run for run, _ in of}
    lost.update(n for n, same in result.items() if len(same) != 1 and facts.members[n].run in known)
    return {number: same[0] for number, same in result.items() if len(same) == 1}


def _without_ids(facts: RawLog, done: set[int]) -> None:
    """Set missing ids of handles if only one incomplete communicator lacks their process."""
    handles = [n for n in range(len(facts.members)) if n not in done]
    of: dict[tuple[int, int, int], list[int]] = {}
    for number in handles:
        member = facts.members[number]
        if member.comm_id:
            of.setdefault((member.run, member.comm_id, member.n_ranks), []).append(number)
    for number in handles:
        member = facts.members[number]
        if member.comm_id or not member.pointer or facts.processes[member.process].pid < 0:
            continue
        fitting = [
            key
            for key, own in of.items()
            if key[0] == member.run
            and key[2] == member.n_ranks > len(own)
            and member.process not in {facts.members[n].process for n in own}
        ]
        if len(fitting) == 1:
            member.comm_id = fitting[0][1]
            of[fitting[0]].append(number)
        elif any(key[0] == member.run for key in of):
            facts.torn_handles.add(number)
            facts.lost_handles += 1


def _same(part: Member, whole: Member) -> bool:
    """Return True if a handle without an id may be the same as one with an id."""
    if part.pointer and not _part_of(f"{part.pointer:x}", f"{whole.pointer:x}"):
        return False
    return part.rank in (NONE, whole.rank) or whole.rank == NONE


def _take_over(new: Member, old: Member) -> None:
    """Add the values of a fragment to the complete handle."""
    new.orders = old.orders | new.orders
    new.counts = new.counts or old.counts
    new.system = new.system or old.system
    new.patterns = new.patterns or old.patterns
    new.costs = new.costs or old.costs
    new.paths = old.paths | new.paths
    new.complete |= old.complete
    for name in ("rank", "bus", "nvml", "n_nodes", "local_rank", "local_ranks"):
        if getattr(new, name) == NONE:
            setattr(new, name, getattr(old, name))


Tree = dict[int, tuple[int, tuple[int, ...]]]
"""A tree by rank: its parent (-1 for the root) and its children."""


@dataclass(frozen=True)
class Log:
    """Content of one or more logs of a job.

    `calls` has a row for every line of a call, `operations` one for every collective of a communicator (see
    `find_operations`), `connections`, `links` and `trees` one for each line; `runs` are the tables of nccl-tests.
    """

    facts: RawLog
    runs: list[TableRun]
    communicators: list[LoggedCommunicator]
    calls: Repeating
    operations: Repeating
    connections: Columns
    links: Columns
    trees: Columns

    def members(self, communicator: LoggedCommunicator) -> list[Member]:
        """Return the handles of a communicator, by rank where it is known."""
        result = self._members.get(communicator.number)
        if result is None:
            result = [self.facts.members[handle] for handle in communicator.handles]
            self._members[communicator.number] = result
        return result

    def rings(self, communicator: LoggedCommunicator) -> dict[int, list[int]]:
        """Return the rings of a communicator, as orders of ranks by channel."""
        result = self._rings.get(communicator.number)
        if result is None:
            names = ("channel", "before", "rank", "after")
            links = self._links.rows(communicator.number, names)
            result = rings_of(self.members(communicator), communicator.n_ranks, links)
            self._rings[communicator.number] = result
        return result

    def trees_of(self, communicator: LoggedCommunicator) -> dict[int, Tree]:
        """Return the trees of a communicator by channel, with the ranks that logged."""
        result: dict[int, Tree] = {}
        names = ("channel", "rank", "up", "down0", "down1", "down2")
        for channel, rank, up, *down in self._trees.rows(communicator.number, names):
            children = tuple(child for child in down if child != NONE)
            result.setdefault(channel, {})[rank] = (up, children)
        return dict(sorted(result.items()))

    def connections_of(
        self, communicator: LoggedCommunicator
    ) -> list[tuple[int, int, int, int, LoggedRoute, int]]:
        """Return a communicator's connections: channel, index, source, target, route, lines.

        Both ends of a network connection print a line, so the number of lines is 2 if both logged.
        """
        rows = self._connections.rows(communicator.number, (*_CONNECTION, "times"))
        routes = self.facts.routes
        return [(*ends, routes[route], times) for *ends, route, times in rows]  # type: ignore[misc]

    @cached_property
    def _members(self) -> dict[int, list[Member]]:
        """Cache of the handles by communicator."""
        return {}

    @cached_property
    def _rings(self) -> dict[int, dict[int, list[int]]]:
        """Cache of the rings by communicator."""
        return {}

    @cached_property
    def _owners(self) -> NDArray[np.int64]:
        """Communicator of each handle, NONE for handles without a communicator."""
        owners = np.full(max(len(self.facts.members), 1), NONE, np.int64)
        for communicator in self.communicators:
            owners[communicator.handles] = communicator.number
        return owners

    @cached_property
    def _links(self) -> OwnedRows:
        return OwnedRows(self._owners[self.links["member"]], self.links)

    @cached_property
    def _trees(self) -> OwnedRows:
        return OwnedRows(self._owners[self.trees["member"]], self.trees)

    @cached_property
    def _connections(self) -> OwnedRows:
        columns: list[NDArray[np.integer]] = [
            self._owners[self.connections["member"].astype(np.int64)],
            *(self.connections[name] for name in _CONNECTION),
        ]
        order = np.lexsort(columns[::-1])
        columns = [column[order] for column in columns]
        new = np.zeros(len(order), np.bool_)
        new[:1] = True
        for column in columns:
            new[1:] |= column[1:] != column[:-1]
        first = np.flatnonzero(new)
        owners, *unique = (column[first] for column in columns)
        table: Columns = dict(zip(_CONNECTION, unique, strict=True))
        return OwnedRows(owners, table | {"times": np.diff(first, append=len(order))})

    def run_of(self, communicator: LoggedCommunicator) -> TableRun | None:
        """Return the nccl-tests run of a communicator."""
        return next((run for run in self.runs if run.number == communicator.run), None)

    @property
    def hosts(self) -> dict[str, list[str]]:
        """Hosts, and the names of their GPUs if they were printed."""
        result: dict[str, dict[str, str]] = {}
        for process in self.facts.processes:
            if process.host and process.lines:
                result.setdefault(process.host, {})
        for run in self.runs:
            for device in run.devices:
                result.setdefault(device.host, {})[f"{device.device} {device.bus}"] = device.name
        return {host: list(gpus.values()) for host, gpus in result.items()}


_CONNECTION = ("channel", "index", "source", "target", "route")


def read_logs(names: Iterable[str]) -> Log:
    """Read logs of one job and understand them.

    Parameters
    ----------
    names : iterable of str
        Paths (plain, gzip, bzip2 or xz), or ``-`` for standard input.

    Raises
    ------
    InputError
        If a file cannot be opened, or no file contains lines of NCCL, RCCL or nccl-tests.
    """
    reader = LogReader()
    with uncollected():
        reader.read(names)
    facts = reader.facts
    require_something(facts, reader.tables)
    merge_torn_names(facts)
    settle_torn(facts)
    runs = [run for tables in reader.tables for run in tables.runs]
    for run in runs:
        if run.library.isdigit():
            number = int(run.library)
            name = f"{number // 10000}.{number // 100 % 100}.{number % 100}"
            if not any(known.split("+")[0] == name for known in facts.versions):
                facts.versions[name] += 1
    communicators = find_communicators(facts, runs)
    operations = find_operations(facts, communicators)
    _name_runs(facts, runs, communicators, operations)
    return Log(
        facts, runs, communicators, facts.calls, operations,
        facts.connections.columns(), facts.links.columns(), facts.trees.columns(),
    )  # fmt: skip


def _name_runs(
    facts: RawLog,
    runs: list[TableRun],
    communicators: list[LoggedCommunicator],
    operations: Repeating,
) -> None:
    """Name the test of a run without a name after its calls, if all are of one kind."""
    run_of = np.array(
        [c.run for c in communicators] + [NONE], np.int64
    )  # the last is for calls without a communicator
    names: dict[int, set[int]] = {}
    for communicator, name, _ in operations.tally("communicator", "name").tolist():
        names.setdefault(int(run_of[communicator]), set()).add(name)
    for run in runs:
        result = names.get(run.number, set())
        name = max(result, default=NONE)
        if len(result) == 1 and name >= 0 and not run.collective():
            run.test = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", facts.names[name]).lower()
