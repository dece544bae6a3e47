"""Binary GOAL schedules: the same events as their texts, damage, limits."""

from __future__ import annotations

import gzip
import random
from dataclasses import replace
from pathlib import Path

import pytest

from clusim.base.errors import InputError
from clusim.base.match import ANY
from clusim.formats.recordings import Event
from clusim.formats.recordings.kinds import kind_of
from clusim_formats.recordings.goal import read
from clusim_formats.recordings.goal_order import GoalStep
from formats.recordings.goal_binaries import binary

TRACES = Path(__file__).resolve().parents[3] / "traces"
SAMPLE = TRACES / "ring-4.goal.bin"


def ring(num_ranks: int = 4) -> list[list[GoalStep]]:
    """Return the operations of traces/ring-4.goal."""
    return [
        [
            GoalStep("compute", 0, "", 20000),
            GoalStep("send", 1, "", 1 << 20, (rank + 1) % num_ranks, 7, needs=[0]),
            GoalStep("recv", 2, "", 1 << 20, (rank - 1) % num_ranks, 7, starts=[1]),
            GoalStep("compute", 3, "", 15000, needs=[2]),
            GoalStep("send", 4, "", 4096, (rank + 1) % num_ranks, 8, needs=[3]),
            GoalStep("recv", 5, "", 4096, (rank - 1) % num_ranks, 8, needs=[4]),
        ]
        for rank in range(num_ranks)
    ]


def bare(event: Event) -> Event:
    """Return an event without what a binary file does not say."""
    return replace(event, name="", where="")


def saved(path: Path, data: bytes) -> str:
    path = path / "a.bin"
    path.write_bytes(data)
    return str(path)


def test_the_sample_is_its_text() -> None:
    assert SAMPLE.read_bytes() == binary(ring())
    assert kind_of(str(SAMPLE)) == "goal"
    text, found = read(str(TRACES / "ring-4.goal")), read(str(SAMPLE))
    assert [bare(event) for event in found.events] == [bare(event) for event in text.events]
    assert (found.num_ranks, found.groups, found.assumed) == (4, text.groups, text.assumed)
    assert found.events[0].where.endswith("ring-4.goal.bin: rank 0 operation 0")


def test_packed_ones_and_receives_of_anybody(tmp_path: Path) -> None:
    ranks = ring(2)
    for step in ranks[1]:
        if step.kind == "recv":
            step.peer = step.tag = ANY
    path = tmp_path / "a.bin.gz"
    path.write_bytes(gzip.compress(binary(ranks)))
    found = read(str(path))
    assert [(e.rank, e.bytes, e.peer) for e in found.events if e.kind == "recv"] == [
        (0, 1 << 20, 1),
        (1, 1 << 20, 0),
        (0, 4096, 1),
        (1, 4096, 0),
    ]


def changed(at: int, number: int, size: int = 4) -> bytes:
    data = bytearray(binary(ring()))
    data[at : at + size] = number.to_bytes(size, "little")
    return bytes(data)


FIRST = 14 + 4 * 16
"""Where the part of rank 0 begins."""
OPERATIONS = FIRST + 8 + 4


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (changed(0, 2342, 8), "consumed"),
        (binary(ring())[:10], "ends in its header"),
        (binary(ring())[:40], "ends in its table"),
        (binary(ring())[:-5], "rank 3: is at"),
        (changed(8, 0), "0 ranks"),
        (changed(8, 1 << 30), "ranks; must be"),
        (changed(FIRST, 9), "do not fit"),
        (changed(OPERATIONS + 4, 7, 1), "rank 0 operation 0: type 7"),
        (changed(OPERATIONS, 5), "waits for 5 others, but 0 are listed"),
        (changed(OPERATIONS + 9, 1 << 60, 8), "calc"),
        (changed(OPERATIONS + 39 + 5, 9), "send: rank 9"),
        (changed(OPERATIONS + 39 + 9, 1 << 50, 8), "at most"),
        (changed(OPERATIONS + 27, 99), "at 99"),
        (changed(OPERATIONS + 23, 2), "name 6 that wait, and 5"),
    ],
)
def test_nonsense_is_refused_with_its_place(tmp_path: Path, data: bytes, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(saved(tmp_path, data))


@pytest.mark.parametrize("seed", range(60))
def test_damage_is_refused_or_invents_nothing(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    data = bytearray(SAMPLE.read_bytes())
    for _ in range(chance.randint(1, 3)):
        data[chance.randrange(8, len(data))] = chance.randrange(256)
    if chance.random() < 0.3:
        del data[chance.randrange(8, len(data)) :]
    try:
        found = read(saved(tmp_path, bytes(data)))
    except InputError:
        return
    assert len(found.events) <= 24


def test_endless_schedules_are_refused_by_their_header(tmp_path: Path) -> None:
    rows = [[GoalStep("compute", 0, "", 1)]]
    data = bytearray(binary(rows))
    path = tmp_path / "big.bin"
    count = 3_000_000
    size = 8 + 4 + 39 * count
    data[22:38] = (22).to_bytes(8, "little") + (22 + size).to_bytes(8, "little")
    data[14:30] = (22).to_bytes(8, "little") + (22 + size).to_bytes(8, "little")
    data[30:34] = count.to_bytes(4, "little")
    path.write_bytes(bytes(data))
    with path.open("r+b") as out:
        out.truncate(30 + size)
    with pytest.raises(InputError, match="more than 2000000 operations"):
        read(str(path))
