"""Traces of the PyTorch profiler, as its releases write them, for tests and for traces/kineto-2ranks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

BASE_NS = 1_731_000_000_000_000_000
COMPUTE, COMM = 7, 20


class Writer:
    """Writes what one rank did; times in microseconds since the base."""

    def __init__(self, rank: int, world: int, *, start_us: float = 1000.0) -> None:
        self.rank, self.world, self.now = rank, world, start_us
        self.events: list[dict[str, Any]] = []
        self.launch = 100
        self.external = 10

    def add(self, category: str, name: str, ts: float, dur: float, **args: Any) -> dict[str, Any]:
        """Append an event of any category; underscores in names of arguments are spaces."""
        event = {
            "ph": "X", "cat": category, "name": name, "pid": 0, "tid": args.get("stream", 4711),
            "ts": round(ts, 3), "dur": round(dur, 3), "args": args,
        }  # fmt: skip
        self.events.append(event)
        return event

    def next_launch(self, name: str = "cudaLaunchKernel") -> int:
        """Append a call of the runtime and return its number."""
        self.launch += 1
        ts = self.now - 30 + self.launch / 1000
        self.add(
            "cuda_runtime", name, ts, 1, correlation=self.launch, **{"External id": self.external}
        )
        return self.launch

    def kernel(self, name: str, ts: float, dur: float, stream: int = COMPUTE, **args: Any) -> None:
        """Append a kernel and its launch."""
        self.now, self.external = ts, self.external + 1
        self.add(
            "kernel", name, ts, dur, device=0, stream=stream, correlation=self.next_launch(),
            **{"External id": self.external}, **args,
        )  # fmt: skip

    def wait(self, stream: int, on: int) -> None:
        """Let a stream wait for what was launched on another one so far."""
        record = self.next_launch("cudaEventRecord")
        self.add(
            "cuda_sync", "Stream Wait Event", self.now, 1, stream=stream, device=0, wait_on_stream=on,
            correlation=self.next_launch("cudaStreamWaitEvent"), wait_on_cuda_event_record_corr_id=record,
            cuda_sync_kind="Stream Wait Event",
        )  # fmt: skip

    def collective(
        self, operation: str, ts: float, dur: float, count: int, out: int | None = None, **more: Any
    ) -> None:
        """Append a collective: what the host noted, its launch and its kernel, which has all of it again."""
        args = self.comm(operation, count, out, **more)
        self.now, self.external = ts, self.external + 1
        self.add(
            "cpu_op", "record_param_comms", ts - 40, 30, **{"External id": self.external}, **args
        )
        self.add(
            "kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*, unsigned long)", ts, dur,
            device=0, stream=COMM, correlation=self.next_launch(), grid=[16, 1, 1],
            **{"External id": self.external}, **args,
        )  # fmt: skip

    def comm(
        self, operation: str, count: int, out: int | None = None, dtype: str = "Float", **more: Any
    ) -> dict[str, Any]:
        """Return the arguments of a collective of all ranks."""
        return {
            "Collective name": operation, "In msg nelems": count, "Out msg nelems": count if out is None else out,
            "Group size": self.world, "dtype": dtype, "In split size": "[]", "Out split size": "[]",
            "Process Group Name": "0", "Process Group Description": "default_pg",
            "Process Group Ranks": str(list(range(self.world))),
        } | more  # fmt: skip

    def trace(self, **top: Any) -> dict[str, Any]:
        """Return the whole file."""
        return {
            "schemaVersion": 1,
            "distributedInfo": {
                "backend": "nccl", "rank": self.rank, "world_size": self.world, "pg_count": 1,
                "pg_config": [{"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cuda:nccl",
                               "pg_size": self.world, "ranks": list(range(self.world))}],
                "nccl_version": "2.21.5",
            },
            "baseTimeNanoseconds": BASE_NS,
            "displayTimeUnit": "ms",
            "traceEvents": self.events,
        } | top  # fmt: skip


def save(path: Path, trace: Any) -> str:
    """Write a trace to a file and return its name."""
    path.write_text(json.dumps(trace))
    return str(path)


def training(rank: int) -> dict[str, Any]:
    """Return rank `rank` of two of a step of training: two gradient buckets that are reduced during backward.

    Rank 1 is slower: the collectives of rank 0 take longer, as they wait for it.
    """
    out = Writer(rank, 2)
    slow = 30.0 * rank
    out.kernel("forward", 1000, 150 + slow)
    out.kernel("backward of layer 2", 1160 + slow, 200 + slow)
    first = 1370 + 2 * slow
    out.wait(COMM, COMPUTE)
    out.collective("allreduce", first, 1545 - first, 4 << 20, Seq=7)
    out.kernel("backward of layer 1", first, 180 + slow)
    second = first + 190 + slow
    out.wait(COMM, COMPUTE)
    out.collective("allreduce", second, 1810 - second, 6 << 20, Seq=8)
    out.wait(COMPUTE, COMM)
    out.kernel("optimizer", 1818, 90)
    return out.trace()


def write_sample(folder: Path) -> None:
    """Write traces/kineto-2ranks."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(2):
        trace = training(rank)
        events = ",\n".join(json.dumps(event) for event in trace.pop("traceEvents"))
        head = json.dumps(trace, indent=1)[:-2]
        text = f'{head},\n "traceEvents": [\n{events}\n]}}\n'
        (folder / f"rank{rank}.json").write_text(text)
