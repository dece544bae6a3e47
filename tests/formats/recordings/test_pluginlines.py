"""JSON lines of CoMMA and minimal-profiler: what is a call, how long it took, whose it is, damage."""

from __future__ import annotations

import json
import random
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusim.base.errors import InputError
from clusim.formats.recordings.kinds import kind_of
from clusim_formats.recordings.pluginlines import read
from support.covering import examples

TRACES = Path(__file__).resolve().parents[3] / "traces"
COMMA, MINIMAL = TRACES / "comma-4ranks", TRACES / "minimal-2ranks.jsonl"
US = 1_000_000


def lines(path: Path, *rows: dict[str, Any]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def call(rank: int, number: int, **more: Any) -> dict[str, Any]:
    """Return a call of CoMMA's."""
    own = {
        "args": {"size": 4096},
        "cat": "COLL",
        "comm_hash": "0xab",
        "rank": rank,
        "seq_num": number,
    }
    return own | {"name": "all_reduce", "ph": "X", "ts": 100 * number, "dur": 3} | more


def event(kind: str, rank: int, start: float, stop: float, **more: Any) -> dict[str, Any]:
    """Return an event of minimal-profiler's."""
    ends = {"start": {"ts": start}, "stop": {"ts": stop}, "duration": stop - start}
    own = {"recordType": "event", "type": kind, "commId": 7, "rank": rank, "myPid": 5, **ends}
    return (
        own | {"gpuUuid": f"GPU-0{rank}", "eventAddr": f"0x{start:.0f}", "parentObj": "0x1"} | more
    )


COLL = {"func": "AllReduce", "seq": 0, "algo": "RING", "proto": "LL", "channels": 2, "count": 1000}


def test_what_comma_writes() -> None:
    assert kind_of(str(COMMA)) == "jsonl"
    found = read(str(COMMA))
    assert (found.num_ranks, len(found.groups), found.skipped) == (4, 1, {})
    calls = [e for e in found.events if e.rank == 2 and e.kind == "collective"]
    assert [(e.operation, e.bytes, e.algorithm, e.protocol, e.channels) for e in calls] == [
        ("allreduce", 16 << 20, "ring", "simple", 24),
        ("all_gather", 4 << 20, "ring", "simple", 24),  # 1 MiB of each of four ranks
        ("allreduce", 16 << 20, "ring", "simple", 24),
    ]
    assert [e.duration_ps for e in calls] == [169 * US, 45 * US, 166 * US]  # child_dur, not dur
    sent = [(e.kind, e.rank, e.peer) for e in found.events if e.kind in ("send", "recv")]
    assert ("send", 3, 0) in sent
    assert ("recv", 0, 3) in sent


def test_what_minimal_profiler_writes() -> None:
    assert kind_of(str(MINIMAL)) == "jsonl"
    found = read(str(MINIMAL))
    own = [e for e in found.events if e.rank == 1]
    assert [(e.bytes, e.channels) for e in own] == [(16 << 20, 2), (4 << 20, 2)]
    # From the first channel's start to the last one's end: 20 to 20 + 410 + 1 us, and 112 + 1.
    assert [e.duration_ps for e in own] == [411 * US, 113 * US]
    assert own[1].start_ps - own[0].start_ps == 1000 * US


def test_a_kernel_may_end_before_or_behind_its_call(tmp_path: Path) -> None:
    rows = []
    for rank in (0, 1):
        coll = event(
            "ncclProfileColl", rank, 10, 20, details={**COLL, "dtype": "ncclFloat16"}, myPid=rank
        )
        one = event("ncclProfileKernelCh", rank, 12, 18, parentObj="0x10", myPid=rank)
        two = event("ncclProfileKernelCh", rank, 13, 40.5, parentObj="0x10", myPid=rank)
        rows += [one, coll, two]
    found = read(lines(tmp_path / "a.jsonl", *rows))
    assert [(e.bytes, e.duration_ps) for e in found.events] == [(2000, 28_500_000)] * 2


def test_a_kernel_of_an_address_that_was_another_calls(tmp_path: Path) -> None:
    first = event("ncclProfileColl", 0, 10, 11, details={**COLL, "dtype": "ncclInt8"})
    second = event(
        "ncclProfileColl",
        0,
        50,
        51,
        eventAddr="0x10",
        details={**COLL, "seq": 1, "dtype": "ncclInt8"},
    )
    early = event("ncclProfileKernelCh", 0, 12, 15, parentObj="0x10")
    late = event("ncclProfileKernelCh", 0, 52, 60, parentObj="0x10")
    found = read(lines(tmp_path / "a.jsonl", first, early, second, late))
    assert [e.duration_ps for e in found.events if e.rank == 0] == [3 * US, 8 * US]


def test_processes_in_one_file_and_in_several(tmp_path: Path) -> None:
    """Two communicators of two processes: which rank of the one is which of the other is known by the files."""
    rows = {r: [call(r, 0), call(1 - r, 0, comm_hash="0xcd", ts=50)] for r in (0, 1)}
    apart = [lines(tmp_path / f"latency-{r + 9}.json", *rows[r]) for r in rows]
    found = read(apart)
    assert sorted(group.ranks for group in found.groups) == [(0, 1), (1, 0)]
    merged = read(lines(tmp_path / "all.json", *rows[0], *rows[1]))
    assert [group.ranks for group in merged.groups] == [(0, 1), (0, 1)]


def test_what_is_left_out(tmp_path: Path) -> None:
    rows = [
        call(0, 0),
        call(1, 0),
        call(0, 1, name="all_dance"),
        call(0, 2, args={"size": 0}),
        call(-1, 3),
        {"cat": "GROUP", "comm_hash": "0xab", "name": "Group"},
        {"cat": "PROXY", "comm_hash": "0xab", "name": "ProxyOp"},
        {"cat": "COST", "comm_hash": "0xab"},
        call(0, 4, cat="P2P", name="send", peer=0),
    ]
    found = read(lines(tmp_path / "a.json", *rows))
    assert len(found.events) == 2
    assert {text.partition(" (first")[0]: n for text, n in found.skipped.items()} == {
        "calls of 'all_dance', unknown to clusim": 1,
        "calls without number, size or peer": 2,
        "calls without communicator, rank or size": 1,
        "objects that are not a call": 1,
    }
    assert any("2 calls without a time" in text for text in found.assumed)


def test_files_of_two_jobs(tmp_path: Path) -> None:
    one = event("ncclProfileColl", 0, 10, 11, details={**COLL, "dtype": "ncclInt8"})
    other = {**one, "gpuUuid": "GPU-77"}
    with pytest.raises(InputError, match="use files of one job"):
        read(lines(tmp_path / "a.jsonl", one, other))


@settings(max_examples=examples(20))
@given(seed=st.integers(0, 10**6), which=st.booleans())
def test_damage_is_refused_or_invents_nothing(seed: int, which: bool) -> None:
    rng = random.Random(seed)
    path = MINIMAL if which else COMMA / "latency-4101.json"
    data = bytearray(path.read_bytes())
    known = {(e.operation, e.kind) for e in read(str(path)).events}
    for _ in range(rng.randint(1, 6)):
        at = rng.randrange(len(data))
        if rng.random() < 0.5:
            del data[at : at + rng.randint(1, 40)]
        else:
            data[at] = rng.choice(b'0123456789",{}[]:-.e')
    with tempfile.TemporaryDirectory() as folder:
        name = Path(folder) / "a.jsonl"
        name.write_bytes(bytes(data))
        try:
            found = read(str(name))
        except InputError as error:
            assert "\n" not in str(error)  # noqa: PT017 - either outcome is right
            return
    names = {"allreduce", "all_gather", "broadcast", "reduce", "reduce_scatter", "alltoall", ""}
    assert {(e.operation, e.kind) for e in found.events} <= known | {
        (n, "collective") for n in names
    }
    assert all(0 <= e.rank < found.num_ranks for e in found.events)
