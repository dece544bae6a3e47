"""Logs of several processes that wrote into each other's lines: ranks and machines are those of the job, or none."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from clusim.base.errors import InputError
from clusim.formats.logs import Log
from clusim.formats.logs.jobranks import job_ranks
from formats.logs.samples import read
from replays.samples import LogWriter


def torn(seed: int, share: float, ranks: int = 4) -> str:
    """Return a log whose ranks wrote pieces of lines, of which a `share` was cut anywhere."""
    chance = random.Random(seed)
    writer = LogWriter(ranks, host="gpunode01")
    writer.init(rings=[range(ranks)] * 4)
    for rank in range(ranks):
        after = (rank + 1) % ranks
        for channel in range(4):
            writer.say(
                rank,
                f"Channel {channel:02}/0 : {rank}[{rank}] -> {after}[{after}] via P2P/CUMEM/read",
            )
    for number in range(30):
        writer.call("AllReduce", 1024 << (number % 4))
    left = dict.fromkeys(range(ranks), "")
    for line in writer.lines:
        left[int(line.split("[")[1].partition("]")[0])] += line + "\n"
    parts = []
    while live := [rank for rank, text in left.items() if text]:
        rank = chance.choice(live)
        text = left[rank]
        size = chance.randint(5, 60) if chance.random() < share else text.find("\n") + 1
        parts.append(text[:size])
        left[rank] = text[size:]
    return "".join(parts)


def shape(log: Log) -> tuple[int, int, int]:
    """Return ranks and machines of the job, and communicators."""
    ranks = job_ranks(log)
    return len(ranks.hosts), len(ranks.machines), len(log.communicators)


@pytest.mark.parametrize("share", [0.05, 0.1, 0.3, 0.7])
def test_four_ranks_on_one_machine_stay_so(share: float, tmp_path: Path) -> None:
    for seed in range(8):
        log = read(tmp_path, torn(seed, share))
        assert shape(log) == (4, 1, 1), (seed, share)
        assert log.communicators[0].n_ranks == 4


def test_a_whole_log_is_left_as_it_is(tmp_path: Path) -> None:
    log = read(tmp_path, torn(0, 0.0))
    assert shape(log) == (4, 1, 1)
    assert not log.facts.torn_handles
    assert log.operations["ranks"].tolist() == [4] * 30


def test_more_machines_than_the_lines_allow_are_refused(tmp_path: Path) -> None:
    """Two communicators of four ranks, one of them without a place: it would be on a machine of its own."""
    writer = LogWriter(4)
    writer.init()
    for rank in range(4):
        text = "comm 0x5500 rank {0} nRanks 4 nNodes 1 localRanks 4 localRank {0} MNNVL 0"
        writer.say(rank, text.format(rank).replace("0x5500", f"0x55{rank:02x}00"))
    writer.lines.append(
        f"{writer.head(0)} Channel 00 : 0[0] -> {writer.head(1)} Connected all rings"
    )
    assert shape(read(tmp_path, "\n".join(writer.lines) + "\n"))[:2] == (4, 1)
    extra = (
        "torn:7:7 [0] NCCL INFO ncclCommInitRank comm 0x77 rank 0 nranks 16 cudaDev 0 nvmlDev 0 busId 1000"
        " commId 0xeeee - Init COMPLETE"
    )
    log = read(tmp_path, "\n".join([*writer.lines, extra]) + "\n")
    with pytest.raises(InputError) as error:
        job_ranks(log)
    text = str(error.value)
    assert "log0.txt:" in text
    assert text.count("log0.txt:") == 2
    assert "NCCL_DEBUG_FILE" in text


def test_a_rank_of_which_one_line_is_whole(tmp_path: Path) -> None:
    """Of rank 0 all lines but the last are in others' lines: its process is no part of the other's name."""
    one, zero = "box:4100:4140 [1] NCCL INFO ", "box:4099:4139 [0] NCCL INFO "
    lines = [
        f"{one}NET/Socket : Using [0]eth0:10.0.0.1<0>",
        *(f"{one}Using network Socket" for _ in range(8)),
        f"{one}comm 0xb10 rank 1 nranks {zero}comm 0xa00 rank 0 nranks 2 cudaDev 0{one}Trees [0] -1/-1/-1->1->0",
        f"{one}comm 0xb10 rank 1 nranks 2 cudaDev 1 nvmlDev 1 busId 3000 commId 0x51 - Init COMPLETE",
        f"{zero}comm 0xa00 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 2000 commId 0x51 - Init COMPLETE",
    ]
    log = read(tmp_path, "\n".join(lines) + "\n")
    assert shape(log) == (2, 1, 1)
    assert sorted(log.communicators[0].host_of) == [0, 1]
