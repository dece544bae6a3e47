"""Summary of a log as one JSON object; its JSON Schema is generated from these types."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from clusim.base.json_schema import JsonObject
from clusim.base.terms.dtypes import REDUCTIONS
from clusim.formats.logs.anomalies import find_anomalies
from clusim.formats.logs.columns import NONE
from clusim.formats.logs.communicators import LoggedCommunicator
from clusim.formats.logs.log import Log
from clusim.formats.logs.operations import DATATYPES, alike
from clusim.formats.logs.raw_log import LineKind, LoggedPattern, Member
from clusim.formats.logs.system_anomalies import Anomaly
from clusim.formats.logs.tables import TableRun


@dataclass(frozen=True, slots=True)
class HostJson(JsonObject):
    """A host: names of its GPUs and NICs, if they were printed."""

    gpus: list[str]
    nics: dict[str, str]


@dataclass(frozen=True, slots=True)
class LoggedRankJson(JsonObject):
    """A rank; texts are empty if the log does not contain them.

    Attributes
    ----------
    logged : bool
        True if it wrote lines.
    """

    rank: int
    host: str
    bus_id: str
    gpu: str
    logged: bool


@dataclass(frozen=True, slots=True)
class NvlsJson(JsonObject):
    """Ranks with NVLS available, unavailable, and with connected trees; heads, -1 if unknown."""

    available: int
    not_available: int
    heads: int
    connected: int


@dataclass(frozen=True, slots=True)
class LoggedCommJson(JsonObject):
    """A communicator.

    Attributes
    ----------
    run : int
        Number of the job's start to which it belongs.
    parent, color : int
        Communicator and color of the split that created it; otherwise -1.
    channels : dict
        Number of channels by sort.
    ring_channels : int
        -1 if unknown.
    rings, trees : dict
        By channel: ranks in order; for every rank its parent (-1 for the root) and its children.
    connections, transports : int, dict
        Lines about connections, all and by transport.
    system : list
        The node as NCCL printed it: depth, link, bandwidth [10^9 bytes/s], name and a note of each line.
    costs : dict
        By collective, algorithm and protocol: time [us] and bandwidth [10^9 bytes/s].
    init_s : float
        Initialisation time of the slowest rank [s]; 0 if it was not printed.
    ended : dict
        Number of ranks by the way they ended it.
    assumed : list of str
        Inferred facts, which are not in the log.
    """

    number: int
    run: int
    n_ranks: int
    ranks_logged: int
    comm_id: str
    parent: int
    color: int
    hosts: list[str]
    ranks: list[LoggedRankJson]
    channels: dict[str, int]
    ring_channels: int
    rings: dict[str, list[int]]
    trees: dict[str, dict[str, list[int | list[int]]]]
    nvls: NvlsJson
    connections: int
    transports: dict[str, int]
    search: list[LoggedPattern]
    system: list[list[int | float | str]]
    costs: dict[str, list[float]]
    init_s: float
    network: str
    ended: dict[str, int]
    assumed: list[str]


@dataclass(frozen=True, slots=True)
class CallGroupJson(JsonObject):
    """Operations of one kind.

    Attributes
    ----------
    size : int
        As defined by nccl-tests [bytes].
    channels : list of int
        The first and the last, if the tuner's choice was printed.
    model_us : float or None
        NCCL's estimate [us], if it was printed.
    """

    collective: str
    n_ranks: int
    size: int
    type: str
    op: str
    count: int
    algorithm: str
    protocol: str
    channels: list[int]
    model_us: float | None


@dataclass(frozen=True, slots=True)
class CallsFromJson(JsonObject):
    """Calls of one kind.

    Attributes
    ----------
    lines : dict
        Lines of calls by collective.
    cut : int
        Incomplete lines.
    operations : int
        Operations: the calls of all ranks count as one.
    from : str
        ``calls``, ``tuning lines``, or empty for no calls.
    """

    KEYS = ("lines", "cut", "operations", "from=source", "by_size")

    lines: dict[str, int]
    cut: int
    operations: int
    source: str
    by_size: list[CallGroupJson]


@dataclass(frozen=True, slots=True)
class TableRowJson(JsonObject):
    """A row of nccl-tests; None for fields that are not numbers.

    Attributes
    ----------
    size : int
        As printed [bytes].
    time, time_in_place : float or None
        Time of an iteration [us].
    algbw, busbw, busbw_in_place : float or None
        As defined by nccl-tests [10^9 bytes/s].
    """

    size: int
    type: str
    op: str
    time: float | None
    algbw: float | None
    busbw: float | None
    time_in_place: float | None
    busbw_in_place: float | None


@dataclass(frozen=True, slots=True)
class TableRunJson(JsonObject):
    """A table of nccl-tests.

    Attributes
    ----------
    config : dict
        Numbers of its header.
    nccl_tests : str
        Release of nccl-tests, if it was printed.
    average_busbw : float or None
        As printed [10^9 bytes/s].
    wrong : int
        Wrong values, -1 if they were not counted.
    """

    collective: str
    n_ranks: int
    config: dict[str, int]
    nccl_tests: str
    average_busbw: float | None
    wrong: int
    rows: list[TableRowJson]
    failures: list[str]


@dataclass(frozen=True, slots=True)
class LineKindJson(JsonObject):
    """Lines of a kind: their number, an example, and the location of the first."""

    kind: str
    count: int
    example: str
    first: str


@dataclass(frozen=True, slots=True)
class LogJson(JsonObject):
    """Content of a log of NCCL, RCCL or nccl-tests.

    Attributes
    ----------
    lines, bytes : int
        Of all files [lines, bytes].
    nccl_lines, other_lines : int
        Lines of the library, and other lines.
    library : str
        ``NCCL`` or ``RCCL``; empty if unknown.
    kernels : dict
        The most frequent kernels, with their counts.
    environment : dict
        Variables and their values.
    not_used, notes : list
        Unused kinds of lines, and kinds of lines with a remark.
    """

    files: list[str]
    lines: int
    bytes: int
    nccl_lines: int
    library: str
    versions: list[str]
    hosts: dict[str, HostJson]
    communicators: list[LoggedCommJson]
    calls: CallsFromJson
    tuning_lines: int
    kernels: dict[str, int]
    measurements: list[TableRunJson]
    environment: dict[str, list[str]]
    anomalies: list[Anomaly]
    not_used: list[LineKindJson]
    notes: list[LineKindJson]
    other_lines: int


def summarize(log: Log) -> dict[str, Any]:
    """Return the content of a log as plain values: bytes, times in us, bandwidths in GB/s."""
    facts = log.facts
    calls = {
        facts.names[name]: times for name, times in log.calls.tally("name").tolist()
    }
    source = "calls" if calls else "tuning lines" if len(facts.tunings) else ""
    return LogJson(
        files=list(facts.files),
        lines=facts.lines,
        bytes=facts.bytes,
        nccl_lines=facts.nccl_lines,
        library=facts.library or ("NCCL" if facts.versions else ""),
        versions=sorted(facts.versions),
        hosts={host: HostJson(gpus, facts.nics.get(host, {})) for host, gpus in log.hosts.items()},
        communicators=[_communicator(log, c) for c in log.communicators],
        calls=CallsFromJson(
            dict(sorted(calls.items())), facts.cut_calls, len(log.operations), source, groups_of_calls(log)
        ),
        tuning_lines=len(facts.tunings),
        kernels=dict(facts.kernels.most_common(50)),
        measurements=[_run(run) for run in log.runs],
        environment={name: sorted(values) for name, values in sorted(facts.environment.items())},
        anomalies=find_anomalies(log),
        not_used=_kinds(facts.unknown),
        notes=_kinds(facts.notes),
        other_lines=facts.app_lines,
    ).to_json()  # fmt: skip


def _kinds(kinds: dict[str, LineKind]) -> list[LineKindJson]:
    result = sorted(kinds.items(), key=lambda item: -item[1].count)
    return [
        LineKindJson(kind, entry.count, entry.example, entry.where)
        for kind, entry in result
    ]


def channels_of(members: list[Member]) -> dict[str, int]:
    """Return the number of channels of each sort that most ranks of a communicator report."""
    result: dict[str, int] = {}
    for name in ("coll", "collnet", "nvls", "p2p", "p2p per peer"):
        counts = [m.counts[name] for m in members if name in m.counts]
        if counts:
            result[name] = (
                Counter(counts).most_common(1)[0][0]
                if len(counts) > 1
                else counts[0]
            )
    return result


def _communicator(log: Log, communicator: LoggedCommunicator) -> LoggedCommJson:
    members = log.members(communicator)
    connections = log.connections_of(communicator)
    lines = Counter[str]()
    for *_, route, n in connections:
        lines[route.label] += n
    costs = next((m.costs for m in members if m.costs), {})
    system = next((m.system for m in members if m.system), [])
    return LoggedCommJson(
        number=communicator.number,
        run=communicator.run,
        n_ranks=communicator.n_ranks,
        ranks_logged=communicator.n_logged,
        comm_id=f"{communicator.comm_id:#x}" if communicator.comm_id else "",
        parent=communicator.parent,
        color=communicator.color,
        hosts=communicator.hosts,
        ranks=_ranks(communicator),
        channels=channels_of(members),
        ring_channels=max((m.channel_total for m in members), default=NONE),
        rings={
            str(channel): ring for channel, ring in log.rings(communicator).items()
        },
        trees={
            str(channel): {
                str(rank): [up, list(down)] for rank, (up, down) in tree.items()
            }
            for channel, tree in log.trees_of(communicator).items()
        },
        nvls=NvlsJson(
            available=sum(m.nvls is True for m in members),
            not_available=sum(m.nvls is False for m in members),
            heads=max((m.n_heads for m in members), default=NONE),
            connected=sum("NVLS tree" in m.connected for m in members),
        ),
        connections=len(connections),
        transports=dict(lines.most_common()),
        search=search_of(members),
        system=[
            [node.depth, node.link, node.bw, node.name, node.note] for node in system
        ],
        costs={
            " ".join(key): list(cost)
            for key, cost in costs.items()
            if cost != (0.0, 0.0)
        },
        init_s=max((m.timings.get("total", 0.0) for m in members), default=0.0),
        network=log.facts.processes[members[0].process].network,
        ended=dict(Counter(m.ended for m in members if m.ended)),
        assumed=communicator.assumed,
    )


def _ranks(communicator: LoggedCommunicator) -> list[LoggedRankJson]:
    return [
        LoggedRankJson(
            rank,
            communicator.host_of.get(rank, ""),
            f"{communicator.bus_of[rank]:x}" if rank in communicator.bus_of else "",
            communicator.gpu_of.get(rank, ""),
            rank in communicator.members,
        )
        for rank in sorted({*communicator.host_of, *communicator.members})
    ]


def search_of(members: list[Member]) -> list[LoggedPattern]:
    """Return the distinct results of the graph search, from the first rank that printed any."""
    return list(dict.fromkeys(next((m.patterns for m in members if m.patterns), [])))


def groups_of_calls(log: Log) -> list[CallGroupJson]:
    """Return operation counts by communicator size, collective, size and tuner's choice."""
    operations, facts = log.operations, log.facts
    ranks = np.array([c.n_ranks for c in log.communicators] + [NONE], np.int64)
    unique, counts, _ = alike(operations, ranks)
    result: list[CallGroupJson] = []
    for (size_of, name, size, kind, op, choice), times in sorted(
        zip(unique.tolist(), counts.tolist(), strict=True)
    ):
        collective, chosen = (
            facts.names[name] if name >= 0 else "",
            facts.choice(choice),
        )
        dtype = (
            DATATYPES[kind]
            if 0 <= kind < len(DATATYPES)
            else str(kind)
            if kind >= 0
            else ""
        )
        redop = ""
        if "Reduce" in collective and op >= 0:
            redop = REDUCTIONS[op] if op < len(REDUCTIONS) else str(op)
        channels = [chosen.first, chosen.last] if chosen.first >= 0 else []
        model_us = None if chosen.time_us < 0 else chosen.time_us
        result.append(
            CallGroupJson(
                collective, size_of, size, dtype, redop, times, chosen.algorithm, chosen.protocol, channels, model_us
            )
        )  # fmt: skip
    result.sort(key=lambda g: (g.collective, g.n_ranks, g.size, g.type, g.op))
    return result


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _run(run: TableRun) -> TableRunJson:
    rows = [
        TableRowJson(
            size, kind, op, *(_number(values[column]) for column in (0, 1, 2, 4, 6))
        )
        for size, kind, op, values in zip(
            run.sizes, run.types, run.ops, run.values, strict=True
        )
    ]
    average, wrong = _number(run.average_busbw), run.wrong
    return TableRunJson(
        run.collective(),
        run.n_ranks,
        run.config,
        run.version,
        average,
        wrong,
        rows,
        run.failures,
    )
