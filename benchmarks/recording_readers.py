"""Speed of the recording readers on generated jobs, larger than the samples, in each format.

    python benchmarks/recording_readers.py

prints a row for each format: bytes, events, and both per second on one core. docs/performance.md summarises
these speeds.
"""

from __future__ import annotations

import json
import pickle
import sqlite3
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from clusim.formats.recordings.kinds import reader

TRACES = Path(__file__).resolve().parents[1] / "traces"
CALLS = 20_000


def flight(folder: Path) -> Path:
    """Write dumps of two ranks."""
    for rank in (0, 1):
        entries = [
            {
                "record_id": n, "process_group": ("0", "default_pg"), "collective_seq_id": n + 1, "p2p_seq_id": 0,
                "profiling_name": "nccl:all_reduce", "time_created_ns": n * 1000, "input_sizes": [[1024, 64]],
                "input_dtypes": ["Float"], "output_sizes": [[1024, 64]], "output_dtypes": ["Float"],
                "state": "completed", "duration_ms": 0.5,
            }
            for n in range(CALLS)
        ]  # fmt: skip
        data = {
            "rank": rank,
            "pg_config": {"0": {"ranks": "[0, 1]"}},
            "entries": entries,
        }
        (folder / f"nccl_trace_rank_{rank}").write_bytes(
            pickle.dumps(data, protocol=2)
        )
    return folder


def nsys(folder: Path) -> Path:
    """Write an export of one GPU with kernels only."""
    with closing(sqlite3.connect(folder / "a.sqlite")) as base:
        base.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
        base.execute("INSERT INTO StringIds VALUES (1, 'void gemm()')")
        names = "start, end, deviceId, streamId, globalPid, correlationId, demangledName, shortName"
        base.execute(f"CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL ({names})")
        rows = [
            (n * 1000, n * 1000 + 900, 0, 7, 1 << 24, n, 1, 1)
            for n in range(5 * CALLS)
        ]
        base.executemany(
            "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?,?,?,?,?,?,?,?)", rows
        )
        base.commit()
    return folder


def deepspeed(folder: Path) -> Path:
    """Write a log of calls."""
    line = (
        "[2025-03-02 10:11:12,101] [INFO] [logging.py:96:log_dist] [Rank 0] rank=0 | comm op: all_reduce |"
        " time (ms): 0.24 | msg size: 8.0 MB | algbw (Gbps): 1.0 | busbw (Gbps): 1.0\n"
    )
    (folder / "a.log").write_text(line * 5 * CALLS)
    return folder / "a.log"


def inspector(folder: Path) -> Path:
    """Repeat the sample's calls under further numbers."""
    rows = [
        json.loads(line)
        for line in (TRACES / "inspector-8ranks.jsonl").read_text().splitlines()
    ]
    with (folder / "a.jsonl").open("w") as out:
        for turn in range(CALLS // max(1, len(rows))):
            for row in rows:
                for kind in ("coll", "p2p"):
                    if f"{kind}_perf" in row:
                        row[f"{kind}_perf"][f"{kind}_sn"] += 1000
                out.write(json.dumps(row) + "\n")
            del turn
    return folder / "a.jsonl"


def jsonl(folder: Path) -> Path:
    """Repeat the calls of the first rank under further numbers."""
    text = (TRACES / "comma-4ranks" / "latency-4100.json").read_text()
    rows = [
        row for row in map(json.loads, text.splitlines()) if row["cat"] == "COLL"
    ]
    with (folder / "a.jsonl").open("w") as out:
        for number in range(CALLS):
            row = rows[number % len(rows)]
            out.write(
                json.dumps(row | {"seq_num": number, "ts": row["ts"] + 400 * number})
                + "\n"
            )
    return folder / "a.jsonl"


def goal(folder: Path) -> Path:
    """Write ranks that compute."""
    body = "\n".join(
        f"l{n}: calc 100" + (f"\nl{n} requires l{n - 1}" if n else "")
        for n in range(CALLS)
    )
    (folder / "a.goal").write_text(
        f"num_ranks 2\nrank 0 {{\n{body}\n}}\nrank 1 {{\n{body}\n}}\n"
    )
    return folder / "a.goal"


def binary_goal(folder: Path) -> Path:
    """Write the same, as txt2bin does."""
    row = struct.Struct("<IBIQIBBIIII")
    last = CALLS - 1
    rows = b"".join(
        row.pack(
            n > 0, 3, 0, 100, 0, 0, 0, n < last, min(n, last), 0, min(n + 1, last)
        )
        for n in range(CALLS)
    )
    part = (
        struct.pack("<III", CALLS, 1, 0)
        + rows
        + struct.pack(f"<{last}I", *range(1, CALLS))
    )
    table = struct.pack(
        "<4Q", 38, 38 + len(part), 38 + len(part), 38 + 2 * len(part)
    )
    (folder / "a.bin").write_bytes(
        struct.pack("<QIBB", 4223, 2, 0, 0) + table + part + part
    )
    return folder / "a.bin"


MADE: dict[str, tuple[Callable[[Path], Path], dict[str, Any]]] = {
    "flight": (flight, {}),
    "nsys": (nsys, {}),
    "deepspeed": (deepspeed, {"num_ranks": 2}),
    "inspector": (inspector, {}),
    "jsonl": (jsonl, {}),
    "goal": (goal, {}),
    "goal, binary": (binary_goal, {}),
}


def main() -> int:
    """Print a row for each format."""
    for kind, (make, options) in MADE.items():
        with tempfile.TemporaryDirectory() as name:
            where = make(Path(name))
            files = list(where.iterdir()) if where.is_dir() else [where]
            size = sum(path.stat().st_size for path in files)
            begun = time.perf_counter()
            events = len(
                reader(kind.partition(",")[0])(str(where), **options).events
            )
            took = time.perf_counter() - begun
        speed = f"{size / 1e6 / took:.1f} MB/s, {events / took:,.0f} events/s"
        print(f"| `{kind}` | {size / 1e6:.1f} MB, {events} events | {speed} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
