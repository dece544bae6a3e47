"""Logs that are read and understood: the object everything else works with."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from clusim.logs.columns import NONE
from clusim.logs.communicators import Communicator, find_communicators, rings_of
from clusim.logs.facts import Facts, Member
from clusim.logs.operations import Columns, find_operations
from clusim.logs.reader import Reader, require_something
from clusim.logs.routes import Route
from clusim.logs.tables import Run

__all__ = ["Log", "Tree", "read_logs"]

Tree = dict[int, tuple[int, tuple[int, ...]]]
"""A tree by rank: its parent, -1 for none, and its children."""


@dataclass(frozen=True)
class Log:
    """What one or more logs of a job say.

    `calls` has a row for every line of a call, `operations` one for every collective of a communicator (see
    `find_operations`), `connections`, `links` and `trees` one for each line; `runs` are the tables of nccl-tests.
    """

    facts: Facts
    runs: list[Run]
    communicators: list[Communicator]
    calls: Columns
    operations: Columns
    connections: Columns
    links: dict[str, NDArray[np.int64]]
    trees: dict[str, NDArray[np.int64]]

    def members(self, communicator: Communicator) -> list[Member]:
        """Return the handles of a communicator, by rank where it is known."""
        return [self.facts.members[handle] for handle in communicator.handles]

    def rings(self, communicator: Communicator) -> dict[int, list[int]]:
        """Return the rings of a communicator, as orders of ranks by channel."""
        return rings_of(self.facts, communicator, self.links)

    def trees_of(self, communicator: Communicator) -> dict[int, Tree]:
        """Return the trees of a communicator by channel, with the ranks that logged."""
        found: dict[int, Tree] = {}
        rows = np.flatnonzero(np.isin(self.trees["member"], communicator.handles))
        names = ("channel", "rank", "up", "down0", "down1", "down2")
        for channel, rank, up, *down in zip(
            *(self.trees[name][rows].tolist() for name in names), strict=True
        ):
            children = tuple(child for child in down if child != NONE)
            found.setdefault(channel, {})[rank] = (up, children)
        return dict(sorted(found.items()))

    def connections_of(
        self, communicator: Communicator
    ) -> list[tuple[int, int, int, int, Route, int]]:
        """Return the connections of a communicator: channel, index, source, target, route, number of lines.

        Both ends of a network connection print a line, so `number` is 2 where both logged.
        """
        rows = np.flatnonzero(np.isin(self.connections["member"], communicator.handles))
        names = ("channel", "index", "source", "target", "route")
        table = np.stack([self.connections[name][rows].astype(np.int64) for name in names], 1)
        unique, times = np.unique(table, axis=0, return_counts=True)
        return [
            (*row[:4], self.facts.routes[row[4]], n)
            for row, n in zip(unique.tolist(), times.tolist(), strict=True)
        ]

    def run_of(self, communicator: Communicator) -> Run | None:
        """Return the run of nccl-tests a communicator was in."""
        return next((run for run in self.runs if run.number == communicator.run), None)

    @property
    def hosts(self) -> dict[str, list[str]]:
        """The hosts and the names of their GPUs as far as they were printed."""
        found: dict[str, dict[str, str]] = {}
        for process in self.facts.processes:
            if process.host and process.lines:
                found.setdefault(process.host, {})
        for run in self.runs:
            for device in run.devices:
                found.setdefault(device.host, {})[f"{device.device} {device.bus}"] = device.name
        return {host: list(gpus.values()) for host, gpus in found.items()}


def read_logs(names: Iterable[str]) -> Log:
    """Read logs of one job and understand them.

    Parameters
    ----------
    names : iterable of str
        Paths (plain, gzip, bzip2 or xz), or ``-`` for standard input.

    Raises
    ------
    InputError
        If a file cannot be opened, or there is nothing of NCCL, RCCL or nccl-tests in any.
    """
    reader = Reader()
    reader.read(names)
    facts = reader.facts
    require_something(facts, reader.tables)
    facts.settle()
    runs = [run for tables in reader.tables for run in tables.runs]
    for run in runs:
        if run.library.isdigit():
            number = int(run.library)
            name = f"{number // 10000}.{number // 100 % 100}.{number % 100}"
            if not any(known.split("+")[0] == name for known in facts.versions):
                facts.versions[name] += 1
    calls = facts.calls.columns()
    communicators = find_communicators(facts, calls, runs)
    operations = find_operations(facts, calls, communicators)
    _name_runs(facts, runs, communicators, operations)
    return Log(
        facts, runs, communicators, calls, operations,
        dict(facts.connections.columns()), facts.links.columns(), facts.trees.columns(),
    )  # fmt: skip


def _name_runs(
    facts: Facts, runs: list[Run], communicators: list[Communicator], operations: Columns
) -> None:
    """Name what a run measured after its calls, if they are all of one kind and nothing else tells it."""
    for run in runs:
        if run.collective():
            continue
        own = [c.number for c in communicators if c.run == run.number]
        names = np.unique(operations["name"][np.isin(operations["communicator"], own)]).tolist()
        if len(names) == 1 and names[0] >= 0:
            run.test = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", facts.names[names[0]]).lower()
