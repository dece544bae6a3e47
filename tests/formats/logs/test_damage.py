"""Damaged logs: nothing ends in a traceback, and lines that are dropped, shuffled, spliced or cut give no new calls."""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clusim.base.errors import ClusimError
from clusim.formats.logs import Log, read_logs, report, summarize
from formats.logs.samples import ALL, begin, call, read
from support.covering import examples

TABLE = """\
# nThread 1 nGpus 2 minBytes 8 maxBytes 64 step: 2(factor) warmup iters: 5 iters: 20
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
          64            16     float     sum      -1    11.50    1.25    1.25       0    12.50    1.15    1.15      0
# Avg bus bandwidth    : 1.5
"""
JOB = "".join(ALL.values()) + TABLE
CALLS = [begin(0), begin(1), *(call(r, i, count=7 + i) for i in range(12) for r in (0, 1))]

Cuts = Callable[[random.Random, list[str]], list[str]]


def survives(data: bytes) -> Log | None:
    """Read damaged bytes; all that may happen is an error of one line."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "nccl.log"
        path.write_bytes(data)
        try:
            log = read_logs([str(path)])
            assert report(log)
            assert json.dumps(summarize(log), allow_nan=False)
        except ClusimError as error:
            assert "\n" not in str(error)  # noqa: PT017 - either outcome is right
            return None
        return log


def mutate(data: bytes, chosen: random.Random) -> bytes:
    """Change some bytes, and sometimes drop, repeat or cut a piece."""
    text = bytearray(data)
    for _ in range(chosen.randrange(1, 40)):
        if text:
            text[chosen.randrange(len(text))] = chosen.randrange(256)
    for _ in range(chosen.randrange(3)):
        a, b = sorted(chosen.randrange(len(text) + 1) for _ in range(2))
        piece = bytes(text[a:b][:500])
        match chosen.randrange(4):
            case 0:
                del text[a : a + len(piece)]
            case 1:
                text[b:b] = piece * chosen.randrange(1, 4)
            case 2:
                text[a:a] = bytes(chosen.randrange(256) for _ in range(20))
            case _:
                del text[b:]
    return bytes(text)


@pytest.mark.parametrize("seed", range(300))
def test_changed_bytes(seed: int) -> None:
    survives(mutate(JOB.encode(), random.Random(seed)))


@settings(max_examples=examples(20), suppress_health_check=[HealthCheck.too_slow])
@given(st.binary(max_size=2000), st.integers(0, len(JOB)))
def test_any_bytes_anywhere(data: bytes, at: int) -> None:
    text = JOB.encode()
    survives(text[:at] + data + text[at:])


@settings(max_examples=examples(20))
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["host0:1:2 [0] NCCL INFO ", "[0] NCCL INFO ", "NCCL WARN ", "#", " ", ""]),
            st.sampled_from([
                "comm", "Channel", "Ring", "Trees [0]", "Tree 0 :", "Pattern 4,", "=== System :",
                "AllReduce: opCount", "64 Bytes -> Algo", "Init timings -", "NVLS", "CollNet 0",
                "Rank 0 Pid", "size count time", "  64 16 float", "## [1.0] [0:0] 1 KL",
            ]),
            st.text(alphabet="0123456789abcdef/:[]->|.x ()", max_size=60),
        ),
        max_size=30,
    )
)  # fmt: skip
def test_lines_that_begin_well(pieces: list[tuple[str, str, str]]) -> None:
    survives("\n".join(f"{who}{word} {rest}" for who, word, rest in pieces).encode())


def dropped(chosen: random.Random, lines: list[str]) -> list[str]:
    return [line for line in lines if chosen.random() < 0.8]


def shuffled(chosen: random.Random, lines: list[str]) -> list[str]:
    """Shuffle between ranks, each rank's lines in their order."""
    queues = [[line for line in lines if f":{100 + rank}:" in line] for rank in (0, 1)]
    merged = []
    while any(queues):
        queue = chosen.choice([queue for queue in queues if queue])
        merged.append(queue.pop(0))
    return merged


def spliced(chosen: random.Random, lines: list[str]) -> list[str]:
    """Write some lines into the middle of others."""
    found = list(lines)
    for _ in range(6):
        i, j = (chosen.randrange(2, len(found)) for _ in range(2))
        at = chosen.randrange(1, len(found[i]))
        found[i] = found[i][:at] + found[j] + "\n" + found[i][at:]
    return found


def cut(chosen: random.Random, lines: list[str]) -> list[str]:
    return [
        line[: chosen.randrange(1, len(line))] if i > 1 and chosen.random() < 0.3 else line
        for i, line in enumerate(lines)
    ]


def seen(log: Log) -> set[tuple[int, int, int]]:
    operations = log.operations
    columns = (operations[name].tolist() for name in ("op_count", "count", "type"))
    return set(zip(*columns, strict=True))


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("damage", [dropped, shuffled, spliced, cut])
def test_no_call_is_invented(damage: Cuts, seed: int, tmp_path: Path) -> None:
    whole = read(tmp_path, "\n".join(CALLS) + "\n")
    assert len(seen(whole)) == 12
    log = survives(("\n".join(damage(random.Random(seed), CALLS)) + "\n").encode())
    assert log is not None
    assert seen(log) <= seen(whole)
    if damage is shuffled:
        assert seen(log) == seen(whole)
        assert log.operations["ranks"].tolist() == [2] * 12
