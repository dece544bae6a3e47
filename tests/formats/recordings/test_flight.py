"""Dumps of PyTorch's flight recorder: pickles of which nothing is run, JSON, and what ranks no longer have."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from clusim.base.errors import InputError
from clusim.formats.recordings.flight import read, read_pickle
from clusim.formats.recordings.kinds import kind_of
from clusim.replays import ReplayRequest, replay


def entry(number: int, name: str = "all_reduce", **about: Any) -> dict[str, Any]:
    message = name.startswith(("send", "recv"))
    return {
        "record_id": number,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": 0 if message else number,
        "p2p_seq_id": number if message else 0,
        "profiling_name": f"nccl:{name}",
        "time_created_ns": 1000 * number,
        "input_sizes": [[4, 8]],
        "input_dtypes": ["BFloat16"],
        "output_sizes": [[4, 8]],
        "output_dtypes": ["BFloat16"],
        "state": "completed",
        "duration_ms": 0.5,
    } | about


def dump(rank: int, *entries: dict[str, Any], ranks: str = "[0, 1]") -> dict[str, Any]:
    return {
        "version": "2.5",
        "rank": rank,
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": ranks}},
        "entries": list(entries),
    }


def write(folder: Path, *dumps: dict[str, Any], text: bool = False) -> str:
    for number, data in enumerate(dumps):
        path = folder / f"nccl_trace_rank_{number}"
        path.write_bytes(json.dumps(data).encode() if text else pickle.dumps(data, protocol=2))
    return str(folder)


def test_lists_copied_again_and_again_are_refused() -> None:
    # A hundred bytes in the memo, of which each five bytes of instructions make a list of a hundred numbers.
    start = b"\x80\x02](ctorch.jit._pickle\nbuild_intlist\nq\x02C\x64" + b"a" * 100 + b"q\x000"
    with pytest.raises(InputError, match="lists of more values than it has bytes"):
        read_pickle(start + b"h\x02h\x00\x85R" * 1000 + b"e.", "dump")
    values = read_pickle(start + b"h\x02h\x00\x85Re.", "dump")
    assert values[1:] == [[97] * 100]


@pytest.mark.parametrize("text", [False, True])
def test_calls_of_groups(text: bool, tmp_path: Path) -> None:
    calls = [
        entry(1),
        entry(2, "_all_gather_base", output_sizes=[[8, 8]]),
        entry(3, "_reduce_scatter_base", output_sizes=[[2, 8]]),
        entry(4, "all_reduce_barrier", input_sizes=[[1]], output_sizes=[[1]]),
    ]
    name = write(tmp_path, dump(0, *calls), dump(1, *calls), text=text)
    assert kind_of(name) == "flight"
    found = read(name)
    assert (found.num_ranks, found.groups[0].ranks) == (2, (0, 1))
    own = [event for event in found.events if event.rank == 0]
    assert [(e.operation, e.bytes, e.dtype) for e in own] == [
        ("allreduce", 64, "bfloat16"),
        ("all_gather", 128, "bfloat16"),
        ("reduce_scatter", 64, "bfloat16"),
        ("barrier", 2, "bfloat16"),
    ]
    assert [e.start_ps for e in own] == [0, 10**6, 2 * 10**6, 3 * 10**6]
    assert own[0].duration_ps == 5 * 10**8


def test_what_a_rank_no_longer_has_is_left_out(tmp_path: Path) -> None:
    stuck = entry(4, state="started")
    one, two = dump(0, entry(1), entry(2), entry(3), stuck), dump(1, entry(2), entry(3))
    found = read(write(tmp_path, one, two))
    assert [(e.rank, e.start_ps // 10**6) for e in found.events] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    one, two = ([e.sequence for e in found.events if e.rank == rank] for rank in range(2))
    assert one == two
    assert found.skipped == {
        "calls that were only started": 1,
        "calls that not every rank of their group has (any more)": 1,
    }


def test_coalesced_calls_share_a_number_and_are_separate_matches(tmp_path: Path) -> None:
    """PyTorch gives all calls of a coalescing block one number."""
    names = ("all_reduce", "_all_gather_base", "all_reduce")
    calls = [entry(at, name, collective_seq_id=7) for at, name in enumerate(names)]
    found = read(write(tmp_path, dump(0, *calls), dump(1, *calls)))
    numbers = [[e.sequence for e in found.events if e.rank == rank] for rank in range(2)]
    assert numbers[0] == numbers[1]
    assert len(set(numbers[0])) == len(names)
    assert not found.skipped


def test_messages_have_two_ends(tmp_path: Path) -> None:
    one = dump(0, entry(1, "send 0->1"), entry(2, "send 0->1"))
    found = read(write(tmp_path, one, dump(1, entry(1, "recv 1<-0"), entry(2, "recv 1<-0"))))
    assert [(e.kind, e.rank, e.peer, e.sequence, e.bunch) for e in found.events] == [
        ("send", 0, 1, 0, 1), ("send", 0, 1, 1, 2), ("recv", 1, 0, 0, 1), ("recv", 1, 0, 1, 2),
    ]  # fmt: skip
    with pytest.raises(InputError, match="with only one end recorded"):
        read(write(tmp_path, one, dump(1)))


def test_it_is_replayed(tmp_path: Path) -> None:
    big = {"input_sizes": [[1024, 1024]], "output_sizes": [[1024, 1024]]}
    one = [entry(1, **big), entry(2, **big)]
    name = write(tmp_path, dump(0, *one), dump(1, *one))
    found = replay(ReplayRequest((name,), topology="dgx-a100"))
    assert (found.total_calls, found.calls[0].measured_us) == (2, 500.0)


class Evil:
    """Runs a command where it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch evil",)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (pickle.dumps({"entries": [Evil()]}), "which is not run"),
        (pickle.dumps({"entries": {1, 2}}), "EMPTY_SET in a pickle of plain values"),
        (b"\x80\x02}r\xff\xff\xff\x7f.", "a memo number of 2147483647"),
        (b"\x80\x02cbuiltins\neval\n(U\x011tR.", "names builtins.eval"),
        (b"\x80\x02]", "not a readable pickle"),
        (b"\x80\x02}q\x01h\x09.", "not a readable pickle"),
        (pickle.dumps([1]), "not a dump of the flight recorder"),
    ],
)
def test_nothing_in_a_pickle_is_run(
    data: bytes, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(data)
    with pytest.raises(InputError, match=message):
        read(str(path))
    assert not (tmp_path / "evil").exists()


def test_lists_of_one_type_as_pytorch_writes_them() -> None:
    data = b"\x80\x02ctorch.jit._pickle\nbuild_intlist\n](K\x01K\x02e\x85R."
    assert read_pickle(data, "x") == [1, 2]


def test_two_dumps_of_one_rank_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="rank 0, as"):
        read(write(tmp_path, dump(0, entry(1)), dump(0, entry(1))))
    other = dump(1, entry(1), ranks="[0, 1, 2]")
    with pytest.raises(InputError, match="has other ranks than in another file"):
        read(write(tmp_path, dump(0, entry(1)), other))
