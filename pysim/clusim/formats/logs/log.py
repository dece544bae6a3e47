"""Logs as objects: communicators, operations and anomalies of one or more files.

Ranks write into each other's lines. A process with a torn host name is recognised by its number, and its few lines are
assigned to the right process. Handles only in torn lines are dropped: incomplete handles, handles of torn communicator
ids or numbers of ranks, and second handles of a rank that a process with more lines has. Other logs are not modified.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from clusim.base.errors import InputError
from clusim.base.limits import pause_collector
from clusim.formats.logs.columns import NONE, OwnedRows, Repeating
from clusim.formats.logs.communicators import LoggedCommunicator, find_communicators
from clusim.formats.logs.infer_collective import LoggedRoute
from clusim.formats.logs.line_reader import LineReader
from clusim.formats.logs.operations import Columns, find_operations
from clusim.formats.logs.raw_log import Member, RawLog
from clusim.formats.logs.source import STDIN, Dressing, blocks
from clusim.formats.logs.tables import TableReader, TableRun

_FEW, _MANY, _RECENT = 3, 10, 256

_SHARE = 4
"""A process with this factor fewer lines than is usual in its log may be a torn name."""

_MOST_MEMBERS = 1 << 14
"""Maximum number of handles that are compared; larger jobs do not write all handles into one file."""


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
            is_rare = hosts[process.host] <= _FEW and process.pid != NONE
            if is_rare and facts.processes[best].lines >= _MANY * max(
                process.lines, 1
            ):
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
        for rows in (
            facts.connections,
            facts.links,
            facts.trees,
            facts.nvls_trees,
            facts.calls,
        ):
            rows.replace("member", members)


def _move_members(facts: RawLog, moved: dict[int, int]) -> dict[int, int]:
    """Move handles of torn processes to the right processes; return the handles to be merged."""
    replaced: dict[int, int] = {}
    for old, new in moved.items():
        handles = facts.processes[new].members
        for number in facts.processes[old].members:
            lost = facts.members[number]
            lost.process = new
            same = [
                m
                for m in handles[-_RECENT:]
                if facts.members[m].run == lost.run
                and (lost.rank == NONE or facts.members[m].rank in (NONE, lost.rank))
                and lost.pointer in (0, facts.members[m].pointer)
            ]
            if same:
                replaced[number] = same[-1]
                target = facts.members[same[-1]]
                target.comm_id = target.comm_id or lost.comm_id
                target.pointer = target.pointer or lost.pointer
            else:
                handles.append(number)
    return replaced


def drop_torn_handles(facts: RawLog) -> None:
    """Mark the handles of lines torn by other ranks, in runs with intact handles."""
    torn = facts.spliced or facts.cut_calls or facts.rejoined
    if not torn or len(facts.members) > _MOST_MEMBERS:
        return
    lines = sorted(process.lines for process in facts.processes if process.lines)
    usual = lines[len(lines) * 3 // 4] if lines else 0
    rare = {
        n
        for n, process in enumerate(facts.processes)
        if process.lines * _SHARE <= usual
    }
    sizes: dict[tuple[int, int], Counter[int]] = {}
    for member in facts.members:
        if member.comm_id and member.pointer:
            sizes.setdefault((member.run, member.comm_id), Counter())[
                member.n_ranks
            ] += 1
    logged = {
        _rank_of(member) for member in facts.members if member.process not in rare
    }
    fragments = {ident for ident in sizes if _is_fragment(ident, sizes)}
    intact = {
        number
        for number, member in enumerate(facts.members)
        if (ident := (member.run, member.comm_id)) in sizes.keys() - fragments
        and number not in facts.torn_handles
        and member.pointer
        and facts.processes[member.process].pid >= 0
        and member.n_ranks == sizes[ident].most_common(1)[0][0]
        and (member.process not in rare or _rank_of(member) not in logged)
    }
    runs = {facts.members[number].run for number in intact}
    intact_handles = intact | facts.torn_handles
    dropped = {
        n
        for n, m in enumerate(facts.members)
        if m.run in runs and n not in intact_handles
    }
    facts.torn_handles |= dropped
    facts.lost_handles += len(dropped)
    for number in rare:
        process = facts.processes[number]
        if process.members and facts.torn_handles.issuperset(process.members):
            process.lines = 0


def _rank_of(member: Member) -> tuple[int, int, int]:
    return member.run, member.comm_id, member.rank


def _is_fragment(
    ident: tuple[int, int], sizes: dict[tuple[int, int], Counter[int]]
) -> bool:
    """Return True if a communicator's id is the start or the end of a more frequent id of its run."""
    run, text, times = ident[0], f"{ident[1]:x}", sizes[ident].total()
    return any(
        run == other and count.total() > times and f"{comm_id:x}" != text
        and (f"{comm_id:x}".startswith(text) or f"{comm_id:x}".endswith(text))
        for (other, comm_id), count in sizes.items()
    )  # fmt: skip


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
        return [self.facts.members[handle] for handle in communicator.handles]

    def rings(self, communicator: LoggedCommunicator) -> dict[int, list[int]]:
        """Return the rings of a communicator, as orders of ranks by channel."""
        result = self._rings.get(communicator.number)
        if result is None:
            names = ("channel", "before", "rank", "after")
            links = self._links.rows(communicator.number, names)
            result = rings_of(
                self.members(communicator), communicator.n_ranks, links
            )
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
        return OwnedRows(
            owners, table | {"times": np.diff(first, append=len(order))}
        )

    def run_of(self, communicator: LoggedCommunicator) -> TableRun | None:
        """Return the nccl-tests run of a communicator."""
        return next(
            (run for run in self.runs if run.number == communicator.run), None
        )

    @property
    def hosts(self) -> dict[str, list[str]]:
        """Hosts, and the names of their GPUs if they were printed."""
        result: dict[str, dict[str, str]] = {}
        for process in self.facts.processes:
            if process.host and process.lines:
                result.setdefault(process.host, {})
        for run in self.runs:
            for device in run.devices:
                result.setdefault(device.host, {})[
                    f"{device.device} {device.bus}"
                ] = device.name
        return {host: list(gpus.values()) for host, gpus in result.items()}


_CONNECTION = ("channel", "index", "source", "target", "route")


class _LogReader:
    """Reader of any number of logs in sequence; `facts` and `tables` have their content."""

    def __init__(self) -> None:
        """Start empty."""
        self.facts = RawLog()
        self.tables: list[TableReader] = []

    def read(self, names: Iterable[str]) -> None:
        """Read these logs; ``-`` is standard input."""
        for name in names:
            self._file(name)

    def _file(self, name: str) -> None:
        facts = self.facts
        base, nulls, empty = facts.lines, 0, True
        tables, dressing = TableReader(name), Dressing()
        lines = LineReader(facts, tables)

        def report(text: str) -> None:
            facts.problems.append((name, text))

        for block in blocks(name, report):
            if empty:
                self._begin(name, base, tables)
                empty = False
            facts.bytes += len(block)
            nulls += block.count(0)
            lines.block(dressing.off(block))
        if empty:
            report("is empty")
            self._begin(name, base, tables)
        if nulls:
            wide = (
                ""
                if 3 * nulls < facts.bytes
                else "; if it is UTF-16, convert it with iconv -f UTF-16 -t UTF-8"
            )
            report(f"has {nulls} zero bytes; the text around them may be lost{wide}")
        if dressing.repeats:
            text = f"Ray dropped {dressing.repeats} similar lines: set RAY_DEDUP_LOGS=0 to keep all"
            report(text)
        lines.close()

    def _begin(self, name: str, base: int, tables: TableReader) -> None:
        self.facts.files.append(name)
        self.facts.file_lines.append(base)
        self.tables.append(tables)


def _require_something(facts: RawLog, tables: list[TableReader]) -> None:
    """Refuse files without lines of NCCL or nccl-tests."""
    if (
        facts.members
        or facts.tunings
        or facts.versions
        or any(t.runs for t in tables)
    ):
        return
    contents = (
        facts.notes,
        facts.warnings,
        facts.timeouts,
        facts.environment,
        facts.clean_hosts,
    )
    if any(contents) or facts.spliced or facts.unread:
        return
    names = ["standard input" if name == STDIN else name for name in facts.files[:3]]
    listing = ", ".join(names) + (", ..." if len(facts.files) > 3 else "")
    why = "".join(f" ({text})" for _, text in facts.problems[:1])
    raise InputError(
        f"{listing}: no line of NCCL, RCCL or nccl-tests in {facts.lines} lines{why}; use the output"
        " of a job with NCCL_DEBUG=INFO, or set another format with `clusim replay --kind`"
    )


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
    reader = _LogReader()
    with pause_collector():
        reader.read(names)
    facts = reader.facts
    _require_something(facts, reader.tables)
    merge_torn_names(facts)
    drop_torn_handles(facts)
    runs = [run for tables in reader.tables for run in tables.runs]
    for run in runs:
        if run.library.isdigit():
            number = int(run.library)
            name = f"{number // 10000}.{number // 100 % 100}.{number % 100}"
            if not any(version.split("+")[0] == name for version in facts.versions):
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


def rings_of(
    members: Iterable[Member], n_ranks: int, links: Iterable[tuple[int, ...]]
) -> dict[int, list[int]]:
    """Return the rings by channel, as rank 0 printed them or from all ranks' neighbours.

    `links` has channel, previous rank, rank, and next rank.
    """
    rings: dict[int, list[int]] = {}
    cut: set[int] = set()
    for member in members:
        rings |= {
            c: order
            for c, order in member.orders.items()
            if c not in member.cut_orders
        }
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
        if rank == 0 and len(ring) == n_ranks:
            rings[channel] = ring
    return dict(sorted(rings.items()))
