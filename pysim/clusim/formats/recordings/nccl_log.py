"""NCCL logs as recordings: one event per call and rank, in the order of the log.

Every rank of a communicator is assumed to issue the calls found. Times are those of the lines, if recorded: the start
of a call, not its duration.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable

from clusim.formats.logs import Log, read_logs
from clusim.formats.logs.calls import CallTable, LoggedCall, call_table
from clusim.formats.logs.jobranks import JobRanks, add_runs, job_ranks
from clusim.formats.recordings.model import ABSENT, Event, Group, Recording


def read(
    paths: str | os.PathLike[str] | Iterable[str], *, limit: int | None = None
) -> Recording:
    """Read logs of one job, at most the first `limit` calls.

    Raises
    ------
    InputError
        A file cannot be read, or the files contain no output of NCCL.
    """
    names = (
        [os.fspath(paths)]
        if isinstance(paths, (str, os.PathLike))
        else [os.fspath(p) for p in paths]
    )
    log = read_logs(names)
    add_runs(log)
    return recording_of(log, call_table(log, limit=limit), job_ranks(log))


def recording_of(log: Log, table: CallTable, ranks: JobRanks) -> Recording:
    """Return the calls of a log as a recording."""
    number = {comm: at for at, comm in enumerate(ranks.of)}
    version = next(iter(log.facts.versions), "").split("+")[0]
    result = Recording(
        "nccl-log",
        log.facts.files[0] if log.facts.files else "log",
        len(ranks.hosts),
        [
            Group(f"communicator {comm}", members)
            for comm, members in ranks.of.items()
        ],
        assumed=[*ranks.assumed, *table.assumed],
        skipped=Counter(table.skipped),
        nccl_version=version,
    )
    rows = zip(table.call, table.stream, table.time_ns, table.line, strict=True)
    for sequence, (which, stream, time_ns, line) in enumerate(rows):
        call = table.distinct[which]
        group = number[call.comm]
        start = time_ns * 1000 if time_ns >= 0 else ABSENT
        name = str(stream) if stream >= 0 else f"comm{call.comm}"
        where = log.facts.place(line)
        if call.messages:
            result.events += _messages(
                call,
                result.groups[group].ranks,
                group,
                sequence,
                (name, start, where),
            )
            continue
        for rank in result.groups[group].ranks:
            result.events.append(
                Event(
                    "collective", rank, name,
                    start_ps=start, group=group, sequence=sequence, operation=call.operation,
                    bytes=call.bytes, dtype=call.dtype, redop=call.redop, root=call.root,
                    algorithm=call.algorithm.lower(), protocol=call.protocol.lower(),
                    channels=call.channels, where=where,
                )
            )  # fmt: skip
    return result


def _messages(
    call: LoggedCall,
    ranks: tuple[int, ...],
    group: int,
    sequence: int,
    message: tuple[str, int, str],
) -> list[Event]:
    """Return both ends of the messages or puts of a launch."""
    stream, start, where = message
    result = []
    for tag, (src, dst, size) in enumerate(call.messages):
        for kind, local, peer in (("send", src, dst), ("recv", dst, src)):
            result.append(
                Event(
                    "send" if kind == "send" else "recv", ranks[local], stream,
                    start_ps=start, group=group, sequence=sequence, bytes=size, dtype="uint8",
                    peer=peer, tag=tag, bunch=sequence, where=where,
                    algorithm="put" if call.operation == "puts" else "",
                )
            )  # fmt: skip
    return result
