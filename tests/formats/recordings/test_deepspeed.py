"""Logs of DeepSpeed's communication: lines of calls, and its summary."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusim.base.errors import InputError
from clusim.formats.recordings.kinds import kind_of
from clusim.replays import ReplayRequest, replay
from clusim_formats.recordings.deepspeed import read


def line(name: str, size: str, ms: float = 0.5, rank: int = 0) -> str:
    return (
        f"[2025-03-02 10:11:12,101] [INFO] [logging.py:96:log_dist] [Rank {rank}] rank={rank} | comm op: {name}"
        f" | time (ms): {ms} | msg size: {size} | algbw (Gbps): 1.0 | busbw (Gbps): 1.0"
    )


SUMMARY = """\
Comm. Op            Message Size        Count               Total Latency(ms)   Avg Latency(ms)     tput_avg (Gbps)
broadcast
                    0B                  2                   0.19                0.10                0.00
                    2.0 KB              3                   0.36                0.12                0.43
reduce_scatter_tensor
                    64.0 MB             2                   1.00                0.50                1468.06
"""


def write(folder: Path, text: str) -> str:
    path = folder / "train.log"
    path.write_text(text)
    return str(path)


def test_lines_of_calls(tmp_path: Path) -> None:
    name = write(
        tmp_path,
        "\n".join(
            (
                "epoch 1",
                line("all_gather_into_tensor", "8.0 MB"),
                line("all_reduce", "4.0 B", 0.04),
                line("all_reduce", "4.0 B", 0.09, rank=1),
                line("send", "1.5 MB"),
            )
        ),
    )
    assert kind_of(name) == "deepspeed"
    found = read(name, num_ranks=4)
    own = [event for event in found.events if event.rank == 0]
    assert [(e.operation, e.bytes, e.duration_ps) for e in own] == [
        ("all_gather", 32 << 20, 5 * 10**8),
        ("allreduce", 4, 4 * 10**7),
    ]
    assert len(found.events) == 8
    assert found.skipped == {
        "calls of further ranks, which are taken to be the same": 1,
        "calls 'send'": 1,
    }


def test_the_summary_is_read_where_no_calls_are(tmp_path: Path) -> None:
    name = write(tmp_path, SUMMARY)
    assert kind_of(name) == "deepspeed"
    own = [e for e in read(name, num_ranks=2).events if e.rank == 0]
    assert [(e.operation, e.bytes) for e in own] == [("broadcast", 2048)] * 3 + [
        ("reduce_scatter", 64 << 20)
    ] * 2
    both = write(tmp_path, SUMMARY + line("all_reduce", "1.0 KB") + "\n" + SUMMARY)
    assert [e.operation for e in read(both, num_ranks=2).events] == ["allreduce"] * 2


def test_a_log_of_nccl_with_such_lines_is_one_of_nccl(tmp_path: Path) -> None:
    text = line("all_reduce", "4.0 B") + "\nh:1:1 [0] NCCL INFO Using network IB\n"
    assert kind_of(write(tmp_path, text)) == "nccl-log"


def test_it_is_replayed_on_all_gpus_of_a_topology(tmp_path: Path) -> None:
    name = write(tmp_path, line("all_reduce", "16.0 MB", 0.16) + "\n")
    with pytest.raises(InputError, match="set --topology"):
        read(name)
    found = replay(ReplayRequest((name,), topology="dgx-a100"))
    assert (found.ranks, found.calls[0].measured_us) == (8, 160.0)
