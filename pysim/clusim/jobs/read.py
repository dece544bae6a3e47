"""Recordings as jobs."""

from __future__ import annotations

from clusim.formats.recordings.model import ABSENT, Event, Recording
from clusim.jobs.model import (
    CallWork,
    DelayWork,
    JobGraph,
    KernelWork,
    MessageWork,
    RankOperation,
    Work,
)


def job_of(recording: Recording) -> JobGraph:
    """Return a recording as a job, with times from its first event; operations have the numbers of their events."""
    job = JobGraph(recording.name, recording.num_ranks, recording.groups)
    origin_ps = min(
        (e.start_ps for e in recording.events if e.start_ps != ABSENT), default=0
    )
    for event in recording.events:
        job.append(
            RankOperation(
                rank=event.rank,
                stream=event.stream,
                work=_work_of(event),
                deps=event.deps,
                group=event.group,
                peer=event.peer,
                tag=event.tag,
                number=event.sequence,
                launch=event.bunch,
                label=event.name,
                where=event.where,
                start_ps=ABSENT
                if event.start_ps == ABSENT
                else event.start_ps - origin_ps,
                duration_ps=event.duration_ps,
            )
        )
    return job


def _work_of(event: Event) -> Work:
    if event.kind == "compute":
        time_ps = max(0, event.duration_ps)
        return KernelWork(
            time_ps,
            event.operator,
            event.flops,
            event.dtype,
            event.mem_bytes,
            event.sms,
        )
    if event.kind == "collective":
        return CallWork(
            operation=event.operation,
            bytes=event.bytes,
            dtype=event.dtype,
            redop=event.redop,
            root=event.root,
            algorithm=event.algorithm,
            protocol=event.protocol,
            channels=event.channels,
        )
    if event.kind == "delay":
        return DelayWork(max(0, event.duration_ps))
    return MessageWork(
        event.kind, event.bytes, event.eager, event.algorithm == "put"
    )
