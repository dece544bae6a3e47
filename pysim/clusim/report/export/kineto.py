"""PyTorch profiler traces, one per rank, and a Chrome trace of all ranks.

The file of a rank contains the GPU records of a profiler: kernels on streams with their launches, waits
between streams, and collectives with the names and arguments of NCCL's kernels, so that tools for such
traces (HolisticTraceAnalysis) and `clusim replay` can read them. Chrome's format has no nested tracks:
ranks are processes, streams threads, counters of wires processes of their nodes.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from clusim.base.files import Staging, refuse_inputs, replacing, text_of
from clusim.base.terms.operations import (
    COLLECTIVE_OF,
    GATHERING,
    REDUCING,
    ROOTED,
    SCATTERING,
    kernel_word,
)
from clusim.report.export.run import Run, TaskRow

FIRST_STREAM = 7
"""Number of the first stream, as of PyTorch's kernels."""

HOST_THREAD = 1
"""Number of the thread that launches; streams have others."""

_ON_GPU = ("kernel", "program")

_REDUCTIONS = {"max": "MinMax", "min": "MinMax", "avg": "PreMulSum"}
"""Names of NCCL's reduction kernels; the others have the collective's name."""


def write_kineto(path: str | Path, folder: Path) -> list[Path]:
    """Write ``rank-N.json.gz`` for every rank into `folder` and return the files."""
    run = Run.open(path)
    targets = []
    with Staging() as staging:
        staging.folder(folder)
        for tasks in filter(None, run.by_rank()):
            rank = tasks[0].rank
            target = folder / f"rank-{rank}.json.gz"
            refuse_inputs(target, [path])
            # No write time in the header: equal runs write equal files.
            with staging.open(target) as out:
                out.write(
                    gzip.compress(
                        json.dumps(_of_rank(run, rank, tasks)).encode(), 6, mtime=0
                    )
                )
            targets.append(target)
    return targets


def _of_rank(run: Run, rank: int, tasks: list[TaskRow]) -> dict[str, Any]:
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": rank, "name": run.rank_name(rank)}],
        "distributedInfo": {
            "backend": "nccl",
            "rank": rank,
            "world_size": run.num_ranks,
        },
        "displayTimeUnit": "ms",
        "traceEvents": [*_names(rank, tasks), *_rank_events(run, tasks)],
    }


def _rank_events(run: Run, tasks: list[TaskRow]) -> Iterator[dict[str, Any]]:
    """Yield the tasks of a rank with host events: launches in order, stream waits, messages.

    Launch numbers ascend, because a stream wait refers to the launch that it waits for.
    """
    streams, needs = _streams(tasks), _waits(run, tasks)
    launch: dict[int, int] = {}
    for task in tasks:
        event = _kernel(run, task, tasks)
        if task.kind not in _ON_GPU:
            yield event
            continue
        for other in needs[task.number]:
            # After the kernel, before the next launch.
            yield _sync(task, streams, other, launch[other.number])
        number = launch[task.number] = 4 * len(launch) + 4
        event["args"] |= {"correlation": number, "External id": number}
        if task.call >= 0:
            yield from _messages(run, task, number)
        yield _host("cuda_runtime", "cudaLaunchKernel", task) | {
            "args": {"External id": number, "correlation": number}
        }
        yield event


def _host(category: str, name: str, task: TaskRow) -> dict[str, Any]:
    """Return a zero-length host call at the start of a task."""
    return {
        "ph": "X", "cat": category, "name": name, "pid": task.rank, "tid": HOST_THREAD,
        "ts": task.start_ps / 1e6, "dur": 0,
    }  # fmt: skip


def _sync(
    task: TaskRow, streams: dict[str, int], on: TaskRow, launch: int
) -> dict[str, Any]:
    """Return the zero-length wait of a task's stream for a kernel on another stream."""
    stream = streams[task.stream]
    return _host("cuda_sync", "Stream Wait Event", task) | {
        "tid": stream,
        "args": {
            "device": task.rank, "stream": stream, "wait_on_stream": streams[on.stream],
            "correlation": launch + 2, "wait_on_cuda_event_record_corr_id": launch + 1,
            "cuda_sync_kind": "Stream Wait Event",
        },
    }  # fmt: skip


def _waits(run: Run, tasks: list[TaskRow]) -> dict[int, list[TaskRow]]:
    """Return the dependencies of every kernel of a rank: the last kernel of every other stream.

    Dependencies through delays are included.
    """
    deps, off = (
        run.inputs.numbers("tasks/deps"),
        run.inputs.numbers("tasks/deps_off"),
    )
    of_rank = {task.number: (place, task) for place, task in enumerate(tasks)}
    before: dict[int, set[int]] = {}
    result: dict[int, list[TaskRow]] = {}
    for place, task in enumerate(tasks):
        reached: set[int] = set()
        # Tasks of a replicated block follow the preceding task of their stream.
        last_row = min(task.number + 1, len(off) - 1)
        for other in deps[off[min(task.number, last_row)] : off[last_row]].tolist():
            if other not in of_rank or of_rank[other][0] >= place:
                continue
            reached |= (
                {other} if of_rank[other][1].kind in _ON_GPU else before[other]
            )
        last: dict[str, int] = {}
        for other in sorted(reached, key=lambda number: of_rank[number][0]):
            last[of_rank[other][1].stream] = other
        before[task.number] = set(last.values())
        result[task.number] = [
            of_rank[n][1] for stream, n in last.items() if stream != task.stream
        ]
    return result


def _sends(run: Run, task: TaskRow) -> bool:
    """Return True if a task sends and receives messages; a kernel has one or two of them."""
    return run.inputs.texts("calls/operation")[task.call] in ("sendrecv", "send")


def _messages(run: Run, task: TaskRow, number: int) -> Iterator[dict[str, Any]]:
    """Yield host records of messages; a kernel may have several, and has no record of its messages."""
    ranks = run.ranks(task.call)
    if task.rank not in ranks:
        return
    for which, (name, peer) in enumerate(run.messages(task)):
        end = "Dst Rank" if name == "send" else "Src Rank"
        args = _collective(run, task) | {
            "Collective name": name,
            "Rank": peer,
            end: ranks[peer],
        }
        yield _host("cpu_op", "record_param_comms", task) | {
            "args": {"External id": number + 1 + which, **args}
        }


def write_chrome(path: str | Path, target: Path) -> int:
    """Write one JSON file for chrome://tracing and Perfetto and return the number of its events."""
    run = Run.open(path)
    count = 0
    with replacing(target, [path]) as file, text_of(file) as out:
        out.write('{"displayTimeUnit":"ns","traceEvents":[\n')
        for event in _chrome_events(run):
            out.write(
                ("" if count == 0 else ",\n")
                + json.dumps(event, separators=(",", ":"))
            )
            count += 1
        out.write("\n]}\n")
    return count


def _chrome_events(run: Run) -> Iterator[dict[str, Any]]:
    for mine in filter(None, run.by_rank()):
        rank = mine[0].rank
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
        for time_ps, value in zip(
            bins.edge_ps[keep].tolist(), load[keep].tolist(), strict=True
        ):
            yield {
                "ph": "C",
                "name": f"to {to}",
                "pid": nodes[node],
                "ts": time_ps / 1e6,
                "args": {"load %": value},
            }


def _streams(tasks: list[TaskRow]) -> dict[str, int]:
    """Return the number of every stream of a rank, in the order of its names."""
    names = sorted(
        {task.stream for task in tasks}, key=lambda name: (name != "compute", name)
    )
    return {name: FIRST_STREAM + i for i, name in enumerate(names)}


def _meta(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {
        "ph": "M",
        "name": kind,
        "pid": process,
        "tid": thread,
        "ts": 0,
        "args": {"name": name},
    }


def _names(rank: int, tasks: list[TaskRow]) -> Iterator[dict[str, Any]]:
    yield _meta("process_name", rank, 0, "python")
    yield _meta("process_labels", rank, 0, f"GPU {rank}") | {
        "args": {"labels": f"GPU {rank}"}
    }
    yield _meta("thread_name", rank, HOST_THREAD, "host")
    for stream, number in _streams(tasks).items():
        yield _meta("thread_name", rank, number, f"stream {number} {stream}")


def _kernel(run: Run, task: TaskRow, tasks: list[TaskRow]) -> dict[str, Any]:
    """Return a task as a kernel; times in us, as Chrome's format has them."""
    stream = _streams(tasks)[task.stream]
    call = task.call >= 0
    # Other tools treat events with a stream as kernels.
    place = {"device": task.rank, "stream": stream} if task.kind in _ON_GPU else {}
    return {
        "ph": "X",
        "cat": "kernel" if task.kind in _ON_GPU else "user_annotation",
        "name": _kernel_name(run, task) if call else task.name,
        "pid": task.rank,
        "tid": stream,
        "ts": task.start_ps / 1e6,
        "dur": (task.end_ps - task.start_ps) / 1e6,
        "args": {
            **place,
            "correlation": task.number + 1,
            "External id": task.number + 1,
            **(_collective(run, task) if call and not _sends(run, task) else {}),
        },
    }


def _kernel_name(run: Run, task: TaskRow) -> str:
    """Return the name of NCCL's kernel, such as ``ncclDevKernel_AllReduce_Sum_f32_RING_SIMPLE``."""
    inputs, call = run.inputs, task.call
    operation = inputs.texts("calls/operation")[call]
    if operation not in COLLECTIVE_OF:
        return "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
    words = [
        kernel_word(inputs.texts(f"calls/{column}")[call])
        for column in ("algorithm", "protocol")
    ]
    if operation in REDUCING:
        redop = inputs.texts("calls/redop")[call]
        words = [
            _REDUCTIONS.get(redop, redop.capitalize()),
            run.dtype(call).short,
            *words,
        ]
    return f"ncclDevKernel_{COLLECTIVE_OF[operation]}_{'_'.join(words)}(ncclDevKernelArgsStorage<4096ul>)"


def _collective(run: Run, task: TaskRow) -> dict[str, Any]:
    """Return the arguments that the profiler notes for collectives."""
    inputs, call = run.inputs, task.call
    ranks = run.ranks(call)
    operation, dtype = inputs.texts("calls/operation")[call], run.dtype(call)
    elements = int(inputs.numbers("calls/bytes")[call]) // dtype.size_bytes
    share = elements // max(1, len(ranks))
    root = int(inputs.numbers("calls/root")[call])
    rooted: dict[str, Any] = {}
    if operation in ROOTED and root in ranks:
        rooted["Root"] = ranks.index(root)
    if operation in REDUCING:
        rooted["Reduction"] = inputs.texts("calls/redop")[call]
    return {
        "Collective name": operation,
        "In msg nelems": share if operation in GATHERING else elements,
        "Out msg nelems": share if operation in SCATTERING else elements,
        "Group size": len(ranks),
        "dtype": dtype.name,
        "Process Group Ranks": json.dumps(ranks),
        "Process Group Name": task.stream,
        **rooted,
    }
