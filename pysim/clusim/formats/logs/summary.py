"""A log's summary as one JSON object."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np

from clusim.base.terms.dtypes import REDUCTIONS
from clusim.formats.logs.anomalies import find_anomalies
from clusim.formats.logs.columns import NONE
from clusim.formats.logs.communicators import LoggedCommunicator
from clusim.formats.logs.log import Log
from clusim.formats.logs.logjson import (
    CallGroupJson,
    LineKindJson,
    LoggedCommJson,
    LogJson,
    PatternJson,
    TableRunJson,
)
from clusim.formats.logs.operations import DATATYPES, alike
from clusim.formats.logs.raw_log import LineKind, LoggedPattern, Member
from clusim.formats.logs.tables import TableRun


def summarize(log: Log) -> LogJson:
    """Return what a log says as plain values: sizes in bytes, times in us, bandwidths in GB/s."""
    facts = log.facts
    calls = {facts.names[name]: times for name, times in log.calls.tally("name").tolist()}
    return {
        "files": list(facts.files),
        "lines": facts.lines,
        "bytes": facts.bytes,
        "nccl_lines": facts.nccl_lines,
        "library": facts.library or ("NCCL" if facts.versions else ""),
        "versions": sorted(facts.versions),
        "hosts": {
            host: {"gpus": gpus, "nics": facts.nics.get(host, {})}
            for host, gpus in log.hosts.items()
        },
        "communicators": [_communicator(log, c) for c in log.communicators],
        "calls": {
            "lines": dict(sorted(calls.items())),
            "cut": facts.cut_calls,
            "operations": len(log.operations),
            "from": "calls" if calls else "tuning lines" if len(facts.tunings) else "",
            "by_size": groups_of_calls(log),
        },
        "tuning_lines": len(facts.tunings),
        "kernels": dict(facts.kernels.most_common(50)),
        "measurements": [_run(run) for run in log.runs],
        "environment": {name: sorted(values) for name, values in sorted(facts.environment.items())},
        "anomalies": [{"kind": a.kind, "text": a.text} for a in find_anomalies(log)],
        "not_used": _kinds(facts.unknown),
        "notes": _kinds(facts.notes),
        "other_lines": facts.app_lines,
    }


def _kinds(kinds: dict[str, LineKind]) -> list[LineKindJson]:
    found = sorted(kinds.items(), key=lambda item: -item[1].count)
    return [
        {"kind": kind, "count": entry.count, "example": entry.example, "first": entry.where}
        for kind, entry in found
    ]


def channels_of(members: list[Member]) -> dict[str, int]:
    """Return how many channels of each sort a communicator has: what most ranks say."""
    found: dict[str, int] = {}
    for name in ("coll", "collnet", "nvls", "p2p", "p2p per peer"):
        counts = [m.counts[name] for m in members if name in m.counts]
        if counts:
            found[name] = Counter(counts).most_common(1)[0][0] if len(counts) > 1 else counts[0]
    return found


def _communicator(log: Log, communicator: LoggedCommunicator) -> LoggedCommJson:
    members = log.members(communicator)
    connections = log.connections_of(communicator)
    lines = Counter[str]()
    for *_, route, n in connections:
        lines[route.label] += n
    first = members[0]
    return {
        "number": communicator.number,
        "run": communicator.run,
        "n_ranks": communicator.n_ranks,
        "ranks_logged": communicator.n_logged,
        "comm_id": f"{communicator.comm_id:#x}" if communicator.comm_id else "",
        "parent": communicator.parent,
        "color": communicator.color,
        "hosts": communicator.hosts,
        "ranks": [
            {
                "rank": rank,
                "host": communicator.host_of.get(rank, ""),
                "bus_id": f"{communicator.bus_of[rank]:x}" if rank in communicator.bus_of else "",
                "gpu": communicator.gpu_of.get(rank, ""),
                "logged": rank in communicator.members,
            }
            for rank in sorted({*communicator.host_of, *communicator.members})
        ],
        "channels": channels_of(members),
        "ring_channels": max((m.channel_total for m in members), default=NONE),
        "rings": {str(channel): ring for channel, ring in log.rings(communicator).items()},
        "trees": {
            str(channel): {str(rank): [up, list(down)] for rank, (up, down) in tree.items()}
            for channel, tree in log.trees_of(communicator).items()
        },
        "nvls": {
            "available": sum(m.nvls is True for m in members),
            "not_available": sum(m.nvls is False for m in members),
            "heads": max((m.n_heads for m in members), default=NONE),
            "connected": sum("NVLS tree" in m.connected for m in members),
        },
        "connections": len(connections),
        "transports": dict(lines.most_common()),
        "search": [_pattern(p) for p in search_of(members)],
        "system": [
            [node.depth, node.link, node.bw, node.name, node.note]
            for node in next((m.system for m in members if m.system), [])
        ],
        "costs": {
            f"{name} {algorithm} {protocol}": list(cost)
            for (name, algorithm, protocol), cost in next(
                (m.costs for m in members if m.costs), {}
            ).items()
            if cost != (0.0, 0.0)
        },
        "init_s": max((m.timings.get("total", 0.0) for m in members), default=0.0),
        "network": log.facts.processes[first.process].network,
        "ended": dict(Counter(m.ended for m in members if m.ended)),
        "assumed": communicator.assumed,
    }


def search_of(members: list[Member]) -> list[LoggedPattern]:
    """Return the results of the graph search as the first rank that printed some says, each once."""
    return list(dict.fromkeys(next((m.patterns for m in members if m.patterns), [])))


def _pattern(pattern: LoggedPattern) -> PatternJson:
    return {
        "pattern": pattern.pattern,
        "channels": pattern.channels,
        "bw_intra": pattern.bw_intra,
        "bw_inter": pattern.bw_inter,
        "type_intra": pattern.type_intra,
        "type_inter": pattern.type_inter,
        "cross_nic": pattern.cross_nic,
        "same_channels": pattern.same_channels,
        "orders": [list(order) for order in pattern.orders],
    }


def groups_of_calls(log: Log) -> list[CallGroupJson]:
    """Return the operations counted by communicator size, collective, size and what the tuner chose."""
    operations, facts = log.operations, log.facts
    ranks = np.array([c.n_ranks for c in log.communicators] + [NONE], np.int64)
    unique, counts, _ = alike(operations, ranks)
    found: list[CallGroupJson] = []
    for (size_of, name, size, kind, op, choice), times in sorted(
        zip(unique.tolist(), counts.tolist(), strict=True)
    ):
        reduces = name >= 0 and "Reduce" in facts.names[name]
        chosen = facts.choices[choice] if choice >= 0 else ("", 0, "", "", NONE, NONE, -1.0)
        found.append(
            {
                "collective": facts.names[name] if name >= 0 else "",
                "n_ranks": size_of,
                "size": size,
                "type": DATATYPES[kind] if 0 <= kind < len(DATATYPES) else str(kind) if kind >= 0 else "",
                "op": (REDUCTIONS[op] if op < len(REDUCTIONS) else str(op)) if reduces and op >= 0 else "",
                "count": times,
                "algorithm": chosen[2],
                "protocol": chosen[3],
                "channels": [chosen[4], chosen[5]] if chosen[4] >= 0 else [],
                "model_us": None if chosen[6] < 0 else chosen[6],
            }
        )  # fmt: skip
    found.sort(key=lambda g: (g["collective"], g["n_ranks"], g["size"], g["type"], g["op"]))
    return found


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _run(run: TableRun) -> TableRunJson:
    rows = zip(run.sizes, run.types, run.ops, run.values, strict=True)
    return {
        "collective": run.collective(),
        "n_ranks": run.n_ranks,
        "config": run.config,
        "nccl_tests": run.version,
        "average_busbw": _number(run.average_busbw),
        "wrong": run.wrong,
        "rows": [
            {
                "size": size,
                "type": kind,
                "op": op,
                "time": _number(values[0]),
                "algbw": _number(values[1]),
                "busbw": _number(values[2]),
                "time_in_place": _number(values[4]),
                "busbw_in_place": _number(values[6]),
            }
            for size, kind, op, values in rows
        ],
        "failures": run.failures,
    }
