"""Anomalies of a job: of its systems, damage of the log, disagreement between ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from clusim.base.terms.operations import ENDS
from clusim.formats.logs.columns import NONE, Repeating
from clusim.formats.logs.communicators import LoggedCommunicator
from clusim.formats.logs.log import Log
from clusim.formats.logs.operations import MOST_ALIKE, TYPE_BYTES, alike
from clusim.formats.logs.raw_log import (
    MOST_CHOICES,
    MOST_CHOSEN,
    MOST_COMMUNICATORS,
    MOST_HANDLES,
    MOST_LOGGED_CALLS,
    MOST_THREADS,
    UNKNOWN_CHOICE,
    Member,
)
from clusim.formats.logs.system_anomalies import (
    Anomaly,
    comm_name,
    graph_anomalies,
    transport_anomalies,
)
from clusim.formats.logs.tables import TableRun
from clusim.hardware.product_names import gpu_by_product

CONTRADICTION = "ranks contradict"
"""Kind of anomalies: lines about ranks that contradict each other."""

_OTHER_UNIT = 300
"""Smallest factor between two columns that implies different units, not sizes."""

_FORBID = {
    "NCCL_P2P_DISABLE": "forbids direct transfers between GPUs",
    "NCCL_P2P_LEVEL": "limits direct transfers between GPUs",
    "NCCL_SHM_DISABLE": "forbids transfers through host memory",
    "NCCL_IB_DISABLE": "forbids InfiniBand and RoCE",
    "NCCL_NET_GDR_LEVEL": "limits GPUDirect RDMA",
    "NCCL_NVLS_ENABLE": "decides on NVLS",
    "NCCL_ALGO": "forces the algorithm",
    "NCCL_PROTO": "forces the protocol",
    "NCCL_MAX_NCHANNELS": "limits the channels",
    "NCCL_MIN_NCHANNELS": "raises the channels",
    "NCCL_NTHREADS": "forces the threads of a channel",
    "NCCL_TREE_THRESHOLD": "forces ring or tree",
}


def find_anomalies(log: Log) -> list[Anomaly]:
    """Return the distinct anomalies of a log."""
    result: dict[tuple[str, str], Anomaly] = {}
    for anomaly in _all(log):
        result.setdefault((anomaly.kind, anomaly.text), anomaly)
    return list(result.values())


def _all(log: Log) -> Iterator[Anomaly]:
    yield from _job(log)
    yield from _contradictions(log)
    for communicator in log.communicators:
        yield from _sizes_of_calls(log, communicator)
        yield from _same_gpu(log, communicator)
        yield from _ranks(log, communicator)
        yield from transport_anomalies(log, communicator)
        yield from graph_anomalies(log, communicator)
    yield from _calls(log)
    for run in log.runs:
        yield from _run(run)
    yield from _damage(log)


def _job(log: Log) -> Iterator[Anomaly]:
    facts = log.facts
    versions = [v for v, n in facts.versions.items() if n]
    if len(versions) > 1:
        yield Anomaly(
            "versions",
            f"ranks use different versions: {', '.join(sorted(versions))}",
        )
    for name, description in _FORBID.items():
        for value in facts.environment.get(name, {}):
            yield Anomaly("setting", f"{name}={value} {description}")
    for name, values in facts.environment.items():
        if len(values) > 1 and name.startswith("NCCL_"):
            listing = ", ".join(sorted(values)[:4])
            yield Anomaly(
                "settings differ",
                f"{name} is not the same in all processes: {listing}",
            )
    for kind, entry in facts.timeouts.items():
        yield Anomaly("timeout", f"watchdog timeout: {kind} ({entry.count} times)")
    for kind, entry in facts.warnings.items():
        low = kind.lower()
        word = "warning"
        if "timeout" in low or "timed out" in low:
            word = "timeout"
        elif "retr" in low:
            word = "retry"
        elif "async event" in low or "got completion" in low:
            word = "network error"
        yield Anomaly(
            word, f"{entry.example} ({entry.count} times, first at {entry.where})"
        )
    for host, nics in facts.nics.items():
        rates = {
            name: description.split()[1]
            for name, description in nics.items()
            if description.endswith("Gb/s")
        }
        common = Counter(rates.values()).most_common(1)
        slow = [n for n, rate in rates.items() if float(rate) < float(common[0][0])]
        for name in slow:
            yield Anomaly(
                "slow NIC",
                f"{host}: {name} runs at {rates[name]} Gb/s, others at {common[0][0]}",
            )


def _contradictions(log: Log) -> Iterator[Anomaly]:
    """Compare sizes and ranks of handles with the same commId."""
    facts = log.facts
    sizes: dict[tuple[int, int], Member] = {}
    reported: set[tuple[int, int, int]] = set()
    twice = False
    ranks: dict[tuple[int, int, int, int], Member] = {}
    for member in facts.members:
        if not member.comm_id or member.parent != NONE or member.n_ranks == NONE:
            continue
        ident = (member.run, member.comm_id)
        first = sizes.setdefault(ident, member)
        name = f"communicator {member.comm_id:#x}"
        if first.n_ranks != member.n_ranks:
            if (*ident, member.n_ranks) in reported:
                continue
            reported.add((*ident, member.n_ranks))
            yield Anomaly(
                CONTRADICTION, f"{name} has {first.n_ranks} ranks at {facts.place(first.line)} and"
                f" {member.n_ranks} at {facts.place(member.line)}: taken as two",
            )  # fmt: skip
            continue
        if member.rank == NONE:
            continue
        other = ranks.setdefault((*ident, member.n_ranks, member.rank), member)
        if other.process != member.process:
            yield Anomaly(
                CONTRADICTION, f"two processes are rank {member.rank} of {name}: at"
                f" {facts.place(other.line)} and at {facts.place(member.line)}; the first is used",
            )  # fmt: skip
        elif other is not member and other.pointer == member.pointer and not twice:
            twice = True
            yield Anomaly(
                CONTRADICTION, f"rank {member.rank} of {name} begins twice in one process: at"
                f" {facts.place(other.line)} and at {facts.place(member.line)}; if the log is given"
                " twice, its calls count twice: use it once",
            )  # fmt: skip


def _sizes_of_calls(log: Log, communicator: LoggedCommunicator) -> Iterator[Anomaly]:
    """Compare the numbers of ranks in calls with those of the communicator's handles."""
    facts = log.facts
    odd = {
        h: facts.miscounts[h] for h in communicator.handles if h in facts.miscounts
    }
    if odd:
        handle, first = min(odd.items(), key=lambda item: item[1].line)
        yield Anomaly(
            CONTRADICTION, f"{comm_name(log, communicator)}{sum(m.calls for m in odd.values())} calls have another"
            f" number of ranks than the {facts.members[handle].n_ranks} of {facts.place(facts.members[handle].line)},"
            f" first {first.n_ranks} at {facts.place(first.line)}; the former is used",
        )  # fmt: skip


def _same_gpu(log: Log, communicator: LoggedCommunicator) -> Iterator[Anomaly]:
    """Compare the GPUs of a communicator's ranks, which must differ."""
    facts = log.facts
    members_by_gpu: dict[tuple[str, int], Member] = {}
    for member in log.members(communicator):
        if member.bus == NONE or member.rank == NONE:
            continue
        host = facts.processes[member.process].host
        other = members_by_gpu.setdefault((host, member.bus), member)
        if other.rank != member.rank:
            yield Anomaly(
                CONTRADICTION, f"{comm_name(log, communicator)}ranks {other.rank} and {member.rank} are on one GPU,"
                f" bus {member.bus:x} of {host}: at {facts.place(other.line)} and at {facts.place(member.line)};"
                " taken as two GPUs",
            )  # fmt: skip


def _ranks(log: Log, communicator: LoggedCommunicator) -> Iterator[Anomaly]:
    where = comm_name(log, communicator)
    members = log.members(communicator)
    for name in ("coll", "nvls", "p2p"):
        logged_counts = [m.counts[name] for m in members if name in m.counts]
        if len(set(logged_counts)) > 1:
            counts = Counter(logged_counts)
            listing = ", ".join(
                f"{n} on {times} ranks" for n, times in sorted(counts.items())
            )
            yield Anomaly(
                "channels",
                f"{where}ranks have different numbers of {name} channels: {listing}",
            )
    started = [
        m.rank for m in members if m.started and not m.complete and not m.ended
    ]
    if started and any(m.complete for m in members):
        yield Anomaly(
            "init", f"{where}ranks {started} began to initialise and never finished"
        )
    elif started:
        yield Anomaly("init", f"{where}no rank finished to initialise")
    aborted = [m.rank for m in members if m.ended == "aborted"]
    if aborted:
        yield Anomaly(
            "abort", f"{where}{len(aborted)} ranks aborted the communicator"
        )
    gpus = {name for name in communicator.gpu_of.values() if name}
    if len(gpus) > 1:
        yield Anomaly(
            "mixed GPUs", f"{where}different GPUs: {', '.join(sorted(gpus))}"
        )
    without = [m for m in members if m.nvls is False]
    if without and any(
        chip is not None and chip.multicast for chip in map(gpu_by_product, gpus)
    ):
        yield Anomaly(
            "NVLS",
            f"{where}NVLS is not available on {len(without)} ranks, though the GPUs can do it",
        )


def _first_odd(operations: Repeating) -> int:
    """Return the line of the first operation about which ranks disagree."""
    rows = np.flatnonzero(operations.column("agree") == 0)[:1]
    return int(operations.column("line", rows)[0]) if len(rows) else NONE


def _calls(log: Log) -> Iterator[Anomaly]:
    operations, facts = log.operations, log.facts
    if len(log.calls):
        missing = sum(
            times
            for communicator, name, ranks, times in operations.tally(
                "communicator", "name", "ranks"
            ).tolist()
            if communicator >= 0
            and facts.names[name] not in ENDS
            and ranks < log.communicators[communicator].n_logged
        )
        if missing:
            yield Anomaly(
                "calls missing",
                f"{missing} collectives are not in the log of all ranks that logged",
            )
        kinds = log.calls.tally("type").tolist()
        unknown = sum(times for kind, times in kinds if kind >= len(TYPE_BYTES))
        if unknown:
            yield Anomaly("datatype", f"{unknown} calls have an unknown datatype")
    differ = sum(
        times for agree, times in operations.tally("agree").tolist() if not agree
    )
    if differ:
        at = facts.place(_first_odd(operations))
        yield Anomaly(
            "calls differ",
            f"ranks call {differ} collectives with different arguments, first at {at}",
        )
    ranks = np.array([c.n_ranks for c in log.communicators] + [NONE], np.int64)
    left_out = alike(operations, ranks)[2]
    if left_out:
        yield Anomaly(
            "calls differ", f"calls are of more than {MOST_ALIKE} sizes and choices; {left_out} rare ones are not shown"
        )  # fmt: skip
    if facts.cut_calls:
        yield Anomaly(
            "calls cut", f"{facts.cut_calls} lines of calls are cut and not counted"
        )


def _unit(run: TableRun) -> str:
    """Return the error if sizes over times differ from the bandwidths of a table, else empty."""
    if not run.values:
        return ""
    time, algbw = run.column("time"), run.column("algbw")
    sure = (algbw >= 1) & (time > 0)
    if not sure.any():
        return ""
    share = float(
        np.median(np.array(run.sizes)[sure] / time[sure] / 1000 / algbw[sure])
    )
    if 1 / _OTHER_UNIT < share < _OTHER_UNIT:
        return ""
    return f"sizes over times are {share:.3g} times the bandwidths of the table: its times are in another unit than us"


def _run(run: TableRun) -> Iterator[Anomaly]:
    name = run.collective() or "nccl-tests"
    if run.wrong > 0:
        yield Anomaly("wrong results", f"{name}: {run.wrong} wrong values")
    for text in run.failures[:3]:
        yield Anomaly("failure", f"{name}: {text}")
    if run.broken:
        yield Anomaly(
            "rows",
            f"{name}: {run.broken} rows of the table are incomplete, or not in numbers like 1234.5, and ignored, first"
            f" at {run.source}:{run.broken_line}",
        )
    if odd := _unit(run):
        yield Anomaly("times", f"{name}: {odd}")
    if run.reduced:
        yield Anomaly("memory", f"{name}: {run.reduced}")
    sizes, busbw = (
        np.array(run.sizes),
        run.column("busbw") if run.values else np.zeros(0),
    )
    large = np.flatnonzero(sizes >= 1 << 20) if len(sizes) else np.zeros(0, np.int64)
    if len(large) >= 3:
        best, last = float(np.nanmax(busbw[large])), float(busbw[large[-1]])
        if last < 0.6 * best:
            yield Anomaly(
                "bandwidth falls",
                f"{name}: busbw falls from {best:g} to {last:g} GB/s at {int(sizes[large[-1]])} B",
            )


def _damage(log: Log) -> Iterator[Anomaly]:
    facts = log.facts
    for name, text in facts.problems:
        yield Anomaly("file", f"{name}: {text}")
    limits: tuple[tuple[object, str], ...] = (
        (facts.long_lines, f"{facts.long_lines} lines are longer than 64 KiB; only their start is read"),
        (facts.unread, f"{facts.unread} lines torn by other lines are not read: too many"),
        (
            facts.lost_handle != NONE,
            f"more than {MOST_HANDLES} handles of communicators; lines about others are ignored",
        ),
        (
            facts.later_calls,
            f"{facts.later_calls} lines of calls after the first {MOST_LOGGED_CALLS}, or of choices after the first"
            f" {MOST_CHOSEN}, are not used",
        ),
        (
            facts.left_out,
            f"more than {MOST_COMMUNICATORS} communicators; {facts.left_out} handles of others are ignored",
        ),
        (
            UNKNOWN_CHOICE in facts.choices[MOST_CHOICES:],
            f"more than {MOST_CHOICES} different choices of the tuner; others are ignored",
        ),
        (
            facts.lost_thread != NONE,
            f"there are more than {MOST_THREADS} threads; others are taken as one",
        ),
    )  # fmt: skip
    yield from (Anomaly("file", text) for beyond, text in limits if beyond)
    if facts.spliced:
        rejoined = (
            f"; {facts.rejoined} pieces could be joined again"
            if facts.rejoined
            else ""
        )
        lost = facts.lost_handles
        rejoined += (
            f"; the owners of {lost} communicators' names are unknown"
            if lost
            else ""
        )
        yield Anomaly(
            "spliced",
            f"ranks wrote into each other's lines {facts.spliced} times{rejoined}",
        )
    for communicator in log.communicators:
        if not communicator.hosts and len(log.communicators) > 1:
            continue
        for text in communicator.assumed:
            yield Anomaly("assumed", f"{comm_name(log, communicator)}{text}")
