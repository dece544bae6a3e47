"""What is understood of a dozen self-written logs, line by line as a careful reader would note it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from clusim.formats.logs import read_logs, summarize
from clusim.formats.logs.calls import call_table
from clusim.formats.logs.jobranks import add_runs, job_ranks
from replays.samples import LogWriter, job

TEXTS = Path(__file__).parent / "texts"
SHIPPED = Path(__file__).resolve().parents[3] / "traces" / "nccl-8xh100.log"


def groups() -> str:
    """Return two communicators of four ranks and one across them."""
    log = LogWriter(8)
    for comm, members in enumerate((range(4), range(4, 8), (0, 4))):
        log.init(comm, members=members, rings=[range(len(members))])
        log.call("AllReduce", 256, comm=comm, members=members, stream=comm)
    return log.text()


def one_rank() -> str:
    log = job()
    return "".join(f"{line}\n" for line in log.lines if f"{log.head(0)} " in line)


def tagged() -> str:
    return "".join(f"[1,{i % 8}]<stdout>:{line}\n" for i, line in enumerate(job().lines))


def old_types() -> str:
    log = LogWriter(4, release="2.21.5")
    log.init(rings=[(0, 1, 2, 3), (0, 3, 2, 1), (0, 2, 1, 3)])
    log.call("Reduce", 1000, dtype="float16", op=2, root=2)
    log.call("AllReduce", 3, dtype="uint8", op=3)
    return log.text()


MADE = {"groups": groups, "one-rank": one_rank, "tagged": tagged, "old-types": old_types,
        "job": lambda: job().text()}  # fmt: skip

# sample -> versions; per communicator ranks, logged ranks, coll channels, rings, trees, connections; machines;
# distinct calls with how often.
GOLDEN: dict[str, tuple[list[str], list[tuple[int, ...]], int, list[tuple[str, int, str, int]]]] = {
    "nccl-2.12.log": (
        [],
        [(2, 2, 0, 0, 0, 0)],
        1,
        [("allreduce", 64, "float32", 1), ("broadcast", 2048, "bfloat16", 1)],
    ),
    "nccl-2.21.log": (["2.21.5+cuda12.1"], [(2, 1, 2, 1, 1, 1)], 1, []),
    "nccl-2.29.log": (
        ["2.29.2+cuda13.1"],
        [(2, 2, 24, 1, 0, 3)],
        1,
        [("allreduce", 268435456, "float32", 2), ("allreduce", 8, "float32", 1)],
    ),
    "nccl-2.4.log": (
        ["2.4.6+cuda10.0"],
        [(2, 2, 0, 2, 0, 2)],
        2,
        [("allreduce", 8, "float32", 1), ("allreduce", 1024, "float32", 1)],
    ),
    "nccl-2.8.log": (["2.8.4+cuda11.0"], [(2, 2, 2, 2, 2, 2)], 1, []),
    "rccl-2.18.log": (["2.18.3+hip6.0"], [(2, 2, 0, 1, 1, 0)], 1, [("allreduce", 8, "float16", 2)]),
    "nccl-2.16.log": (
        ["2.16.5+cuda12.0"],
        [(2, 2, 2, 2, 2, 2)],
        2,
        [("all_gather", 1024, "int8", 1)],
    ),
    "nccl-2.18.log": (
        ["2.18.3+cuda12.2"],
        [(2, 2, 2, 2, 2, 2)],
        1,
        [("reduce_scatter", 2400, "float32", 1)],
    ),
    "nccl-2.20.log": (
        ["2.20.5+cuda12.4"],
        [(2, 1, 4, 1, 2, 2)],
        1,
        [("reduce", 800, "float64", 1), ("messages", 4096, "uint8", 1)],
    ),
    "nccl-2.22.log": (
        ["2.22.3+cuda12.2"],
        [(2, 2, 2, 2, 0, 2)],
        1,
        [("allreduce", 128, "bfloat16", 1)],
    ),
    "nccl-2.27.log": (
        ["2.27.5+cuda12.9"],
        [(2, 2, 2, 2, 2, 0)],
        1,
        [("allreduce", 8388608, "float32", 1), ("all_gather", 2048, "float8e4m3", 1)],
    ),
    "nccl-8xh100.log": (
        ["2.27.3+cuda12.6"],
        [(8, 8, 24, 24, 24, 0)],
        1,
        [
            ("all_gather", 16777216, "bfloat16", 3),
            ("reduce_scatter", 16777216, "bfloat16", 3),
            ("allreduce", 33554432, "bfloat16", 3),
            ("broadcast", 16384, "float32", 1),
            ("messages", 4194304, "uint8", 1),
        ],
    ),
    "groups": (
        ["2.27.3+cuda12.6"],
        [(4, 4, 1, 1, 0, 0), (4, 4, 1, 1, 0, 0), (2, 2, 1, 1, 0, 0)],
        1,
        [
            ("allreduce", 1024, "float32", 1),
            ("allreduce", 1024, "float32", 1),
            ("allreduce", 1024, "float32", 1),
        ],
    ),
    "one-rank": (
        ["2.27.3+cuda12.6"],
        [(8, 1, 2, 2, 2, 0)],
        1,
        [
            ("allreduce", 4194304, "float32", 2),
            ("all_gather", 1048576, "bfloat16", 1),
            ("reduce_scatter", 1048576, "bfloat16", 1),
            ("broadcast", 8192, "float16", 1),
            ("messages", 65536, "uint8", 1),
        ],
    ),
    "tagged": (
        ["2.27.3+cuda12.6"],
        [(8, 8, 2, 2, 2, 0)],
        1,
        [
            ("allreduce", 4194304, "float32", 2),
            ("all_gather", 1048576, "bfloat16", 1),
            ("reduce_scatter", 1048576, "bfloat16", 1),
            ("broadcast", 8192, "float16", 1),
            ("messages", 65536, "uint8", 1),
        ],
    ),
    "old-types": (
        ["2.21.5+cuda12.6"],
        [(4, 4, 3, 3, 0, 0)],
        1,
        [("reduce", 2000, "float16", 1), ("allreduce", 3, "uint8", 1)],
    ),
    "job": (
        ["2.27.3+cuda12.6"],
        [(8, 8, 2, 2, 2, 0)],
        1,
        [
            ("allreduce", 4194304, "float32", 2),
            ("all_gather", 1048576, "bfloat16", 1),
            ("reduce_scatter", 1048576, "bfloat16", 1),
            ("broadcast", 8192, "float16", 1),
            ("messages", 65536, "uint8", 1),
        ],
    ),
}


def essence(path: Path) -> tuple[Any, ...]:
    log = read_logs([str(path)])
    found = summarize(log)
    add_runs(log)
    table, ranks = call_table(log), job_ranks(log)
    comms = [
        (c["n_ranks"], c["ranks_logged"], c["channels"].get("coll", 0), len(c["rings"]), len(c["trees"]),
         c["connections"])
        for c in found["communicators"]
    ]  # fmt: skip
    calls = [
        (call.operation, call.bytes, call.dtype, count)
        for call, count in zip(table.distinct, table.counts.tolist(), strict=True)
    ]
    return found["versions"], comms, len(ranks.machines), calls


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_summary(name: str, tmp_path: Path) -> None:
    path = SHIPPED if name == SHIPPED.name else TEXTS / name
    if name in MADE:
        path = tmp_path / f"{name}.log"
        path.write_text(MADE[name]())
    assert essence(path) == GOLDEN[name]
