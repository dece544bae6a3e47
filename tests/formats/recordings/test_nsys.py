"""Exports of Nsight Systems: kernels of every GPU, and NCCL's ranges with their sizes."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from clusim.base.errors import InputError
from clusim.formats.recordings.kinds import kind_of
from clusim.formats.recordings.nsys import MOST_TEXT, _rows, read
from clusim.replays import ReplayRequest, replay

SCHEMA = """
CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INT, end INT, deviceId INT, streamId INT, correlationId INT,
  globalPid INT, demangledName INT, shortName INT);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMSET (start INT, end INT, deviceId INT, streamId INT, globalPid INT);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INT, end INT, globalTid INT, correlationId INT, nameId INT);
CREATE TABLE NVTX_EVENTS (start INT, end INT, eventType INT, text TEXT, globalTid INT, textId INT, jsonText TEXT);
"""
NAMES = [
    "void gemm(float*)",
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(Args)",
    "ncclDevKernel_SendRecv(Args)",
]
Step = tuple[int, int, int]
"""Which name, how long [us], and the size of a call [bytes]."""


def export(path: Path, rank: int, steps: Sequence[Step], *, grouped: bool = False) -> str:
    """Write an export; `grouped`: all calls are made before the first launch."""
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as base:
        base.executescript(SCHEMA)
        base.executemany("INSERT INTO StringIds VALUES (?, ?)", list(enumerate(NAMES)))
        pid, time = (100 + rank) << 24, 1_000_000
        for number, (name, us, size) in enumerate(steps):
            launch = time - 20_000
            if name == 1:
                made = 900_000 + number if grouped else launch - 5
                payload = f'{{"Message size [bytes]": {size}}}' if size else None
                row = (made, made + 1, 59, "ncclAllReduce", pid + 1, payload)
                base.execute("INSERT INTO NVTX_EVENTS VALUES (?, ?, ?, ?, ?, NULL, ?)", row)
            row = (launch, launch + 10, pid + 1, number)
            base.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?, ?, 0)", row)
            stream = 13 if name else 7
            kernel = (time, time + us * 1000, rank, stream, number, pid, name, name)
            base.execute(
                "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, ?, ?, ?, ?, ?)", kernel
            )
            time += us * 1000 + 2000
        row = (time, time + 1000, rank, 7, pid)
        base.execute("INSERT INTO CUPTI_ACTIVITY_KIND_MEMSET VALUES (?, ?, ?, ?, ?)", row)
        base.commit()
    return str(path)


STEPS = [(0, 100, 0), (1, 50, 1 << 20), (1, 60, 2 << 20), (0, 30, 0)]


@pytest.mark.parametrize("grouped", [False, True])
def test_kernels_and_calls(grouped: bool, tmp_path: Path) -> None:
    for rank in (0, 1):
        name = export(tmp_path / f"rank{rank}.sqlite", rank, STEPS, grouped=grouped)
        assert kind_of(name) == "nsys"
    found = read(str(tmp_path))
    own = [event for event in found.events if event.rank == 1]
    assert found.num_ranks == 2
    assert [(e.kind, e.operation, e.bytes, e.dtype, e.stream) for e in own] == [
        ("compute", "", 0, "float32", "7"),
        ("collective", "allreduce", 1 << 20, "bfloat16", "13"),
        ("collective", "allreduce", 2 << 20, "bfloat16", "13"),
        ("compute", "", 0, "float32", "7"),
        ("compute", "", 0, "float32", "7"),
    ]
    assert [[d - 5 for d in e.deps] for e in own] == [[], [0], [], [2], []]
    assert (own[1].start_ps, own[1].duration_ps) == (102 * 10**6, 50 * 10**6)


def test_without_sizes_kernels_stay_kernels(tmp_path: Path) -> None:
    name = export(tmp_path / "a.sqlite", 0, [(1, 50, 0), (2, 20, 0)])
    found = read(name)
    assert [e.kind for e in found.events] == ["compute"] * 3
    (what,) = found.skipped
    assert what.startswith("kernels of NCCL without a size")


def test_ranks_with_different_collectives_are_refused(tmp_path: Path) -> None:
    names = [export(tmp_path / f"{n}.sqlite", n, STEPS if n else STEPS[:2]) for n in (0, 1)]
    with pytest.raises(InputError, match="ranks have different collectives"):
        read(names)


def test_of_long_texts_only_the_beginning_is_read(tmp_path: Path) -> None:
    name = export(tmp_path / "a.sqlite", 0, STEPS)
    with closing(sqlite3.connect(name)) as base:
        base.execute("INSERT INTO StringIds VALUES (987654, zeroblob(50000000))")
        base.commit()
        rows = list(_rows(base, "StringIds", ("id", "value")))
    assert max(len(value) for _, value in rows) == MOST_TEXT
    assert read(name).num_ranks == 1


def test_other_databases_and_damaged_ones_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite"
    with closing(sqlite3.connect(path)) as base:
        base.execute("CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS SELECT 1 AS start, 2 AS end")
        base.commit()
    with pytest.raises(InputError, match="no kernels in it"):
        read(str(path))
    whole = Path(export(tmp_path / "y.sqlite", 0, STEPS)).read_bytes()
    path.write_bytes(whole[:5000])
    with pytest.raises(InputError, match="is damaged, or no export"):
        read(str(path))


def test_it_is_replayed(tmp_path: Path) -> None:
    for rank in (0, 1):
        export(tmp_path / f"rank{rank}.sqlite", rank, STEPS)
    found = replay(ReplayRequest((str(tmp_path),), topology="dgx-a100"))
    assert (found.total_calls, found.compute_ps) == (2, 131 * 10**6)


def test_a_schema_that_is_not_text_is_one_line(tmp_path: Path) -> None:
    """Every byte of the first page, which contains the schema, with its highest bit set."""
    data = min((Path(__file__).resolve().parents[3] / "traces/nsys-2ranks").iterdir()).read_bytes()
    path = tmp_path / "run.sqlite"
    size = int.from_bytes(data[16:18], "big")
    starts = [
        at for at in range(100, size) if data[at : at + 6] in (b"CREATE", b"start ", b"StringI")
    ]
    assert starts
    for at in [*starts, *range(100, size, 61)]:
        damaged = bytearray(data)
        damaged[at] |= 0x80
        path.write_bytes(damaged)
        problem = ""
        try:
            read(str(path))
        except InputError as error:
            problem = str(error)
        assert problem.isprintable()
        assert "codec" not in problem
