"""Traces of the PyTorch profiler, one file for each rank, and one Chrome trace of all of them.

The files of a rank hold what a rank's profiler records of its GPU: kernels on streams, collectives under the names and
with the arguments that NCCL's kernels have, so that tools for such traces (HolisticTraceAnalysis) read them. Chrome's
format has no nested tracks: ranks are processes, streams threads, counters of wires processes of their nodes.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from clusim.export.run import Run, TaskRow
from clusim.files import Staging, refuse_inputs, replacing, text_of
from clusim.vocabulary.algorithms import kernel_word
from clusim.vocabulary.operations import COLLECTIVE_OF, GATHERING, REDUCING, SCATTERING

__all__ = ["write_chrome", "write_kineto"]

FIRST_STREAM = 7
"""Number of the first stream; that of PyTorch's own kernels."""


def write_kineto(path: str | Path, folder: Path) -> list[Path]:
    """Write ``rank-N.json.gz`` for every rank into `folder` and return the files."""
    run = Run.open(path)
    by_rank: dict[int, list[TaskRow]] = {rank: [] for rank in range(run.num_ranks)}
    for task in run.tasks():
        by_rank[task.rank].append(task)
    written = []
    with Staging() as staging:
        staging.folder(folder)
        for rank, tasks in by_rank.items():
            if not tasks:
                continue
            target = folder / f"rank-{rank}.json.gz"
            refuse_inputs(target, [path])
            # No time of writing in the header: the same run gives the same file.
            with staging.open(target) as out:
                out.write(
                    gzip.compress(json.dumps(_of_rank(run, rank, tasks)).encode(), 6, mtime=0)
                )
            written.append(target)
    return written


def _of_rank(run: Run, rank: int, tasks: list[TaskRow]) -> dict[str, Any]:
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": rank, "name": run.rank_name(rank)}],
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": run.num_ranks},
        "displayTimeUnit": "ms",
        "traceEvents": [*_names(rank, tasks), *(_kernel(run, task, tasks) for task in tasks)],
    }


def write_chrome(path: str | Path, target: Path) -> int:
    """Write one JSON file for chrome://tracing and Perfetto and return the number of its events."""
    run = Run.open(path)
    tasks = run.tasks()
    count = 0
    with replacing(target, [path]) as file, text_of(file) as out:
        out.write('{"displayTimeUnit":"ns","traceEvents":[\n')
        for event in _chrome_events(run, tasks):
            out.write(("" if count == 0 else ",\n") + json.dumps(event, separators=(",", ":")))
            count += 1
        out.write("\n]}\n")
    return count


def _chrome_events(run: Run, tasks: list[TaskRow]) -> Iterator[dict[str, Any]]:
    by_rank: dict[int, list[TaskRow]] = {}
    for task in tasks:
        by_rank.setdefault(task.rank, []).append(task)
    for rank, mine in by_rank.items():
        yield _meta("process_name", rank, 0, f"rank {rank} ({run.rank_name(rank)})")
        for stream, number in _streams(mine).items():
            yield _meta("thread_name", rank, number, stream)
        yield from (_kernel(run, task, mine) for task in mine)
    yield from _counters(run)


def _counters(run: Run) -> Iterator[dict[str, Any]]:
    """Yield the load of every wire that was used, where it changes."""
    bins, names = run.result.bins, run.result.wires.names
    width = np.maximum(np.diff(bins.edge_ps), 1)
    nodes = {name: 1_000_000 + i for i, name in enumerate(run.inputs.nodes)}
    titled = set()
    for name, busy in zip(names, bins.wires["busy"], strict=True):
        if not busy.any():
            continue
        node, _, to = name.partition("->")
        if node not in titled:
            titled.add(node)
            yield _meta("process_name", nodes[node], 0, f"wires of {node}")
        load = np.append(np.round(100 * busy / width, 1), 0.0)
        keep = np.append(True, load[1:] != load[:-1])
        for time_ps, value in zip(bins.edge_ps[keep].tolist(), load[keep].tolist(), strict=True):
            yield {
                "ph": "C",
                "name": f"to {to}",
                "pid": nodes[node],
                "ts": time_ps / 1e6,
                "args": {"load %": value},
            }


def _streams(tasks: list[TaskRow]) -> dict[str, int]:
    """Return the number of every stream of a rank, in the order of its names."""
    names = sorted({task.stream for task in tasks}, key=lambda name: (name != "compute", name))
    return {name: FIRST_STREAM + i for i, name in enumerate(names)}


def _meta(what: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "ts": 0, "args": {"name": name}}


def _names(rank: int, tasks: list[TaskRow]) -> Iterator[dict[str, Any]]:
    yield _meta("process_name", rank, 0, "python")
    yield _meta("process_labels", rank, 0, f"GPU {rank}") | {"args": {"labels": f"GPU {rank}"}}
    for stream, number in _streams(tasks).items():
        yield _meta("thread_name", rank, number, f"stream {number} {stream}")


def _kernel(run: Run, task: TaskRow, tasks: list[TaskRow]) -> dict[str, Any]:
    """Return a task as a kernel; times in us, as Chrome's format has them."""
    stream = _streams(tasks)[task.stream]
    call = task.call >= 0
    return {
        "ph": "X",
        "cat": "kernel" if task.kind in ("kernel", "program") else "user_annotation",
        "name": _kernel_name(run, task) if call else task.name,
        "pid": task.rank,
        "tid": stream,
        "ts": task.start_ps / 1e6,
        "dur": (task.end_ps - task.start_ps) / 1e6,
        "args": {
            "device": task.rank,
            "stream": stream,
            "correlation": task.number + 1,
            "External id": task.number + 1,
            **(_collective(run, task) if call else {}),
        },
    }


def _kernel_name(run: Run, task: TaskRow) -> str:
    """Return the name of NCCL's kernel, such as ``ncclDevKernel_AllReduce_Sum_f32_RING_SIMPLE``."""
    inputs, call = run.inputs, task.call
    operation = inputs.texts("calls/operation")[call]
    if operation not in COLLECTIVE_OF:
        return "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
    way = [kernel_word(inputs.texts(f"calls/{what}")[call]) for what in ("algorithm", "protocol")]
    if operation in REDUCING:
        way = [inputs.texts("calls/redop")[call].capitalize(), run.dtype(call).short, *way]
    return f"ncclDevKernel_{COLLECTIVE_OF[operation]}_{'_'.join(way)}(ncclDevKernelArgsStorage<4096ul>)"


def _collective(run: Run, task: TaskRow) -> dict[str, Any]:
    """Return the arguments that the profiler notes for collectives."""
    inputs, call = run.inputs, task.call
    off = inputs.numbers("calls/ranks_off")
    ranks = inputs.numbers("calls/ranks")[off[call] : off[call + 1]].tolist()
    operation, dtype = inputs.texts("calls/operation")[call], run.dtype(call)
    elements = int(inputs.numbers("calls/bytes")[call]) // dtype.size_bytes
    share = elements // max(1, len(ranks))
    return {
        "Collective name": operation,
        "In msg nelems": share if operation in GATHERING else elements,
        "Out msg nelems": share if operation in SCATTERING else elements,
        "Group size": len(ranks),
        "dtype": dtype.name,
        "Process Group Ranks": json.dumps(ranks),
        "Process Group Name": task.stream,
    }
