"""A directory of real logs, named by CLUSIM_CORPUS: every one is read and compared with what counting finds in it.

The files are not part of the project; without the variable there is nothing to do.
"""

from __future__ import annotations

import hashlib
import os
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clusim.formats.logs import read_logs, summarize
from logs.test_damage import mutate, survives

CORPUS = os.environ.get("CLUSIM_CORPUS", "")
FILES = sorted(
    path
    for folder in ("nccl_logs", "nccl_tests")
    for path in (Path(CORPUS) / folder).glob("*")
    if CORPUS
)
MUTATIONS = 12

pytestmark = pytest.mark.skipif(not FILES, reason="CLUSIM_CORPUS names no directory of real logs")

# Found by reading: start of the file's SHA-256 -> communicators, their ranks, ranks that logged, channels, rings,
# connections, lines of calls, operations, measured rows, version.
FACTS: dict[str, tuple[int, int, int, int, int, int, int, int, int, str]] = {
    "73877719916c": (1, 8, 8, 4, 4, 80, 0, 0, 0, "2.20.5+cuda12.4"),
    "f69daeda7199": (1, 8, 8, 4, 4, 79, 0, 0, 0, "2.20.5+cuda12.4"),
    "3a3829f86b90": (1, 8, 8, 4, 4, 80, 0, 0, 0, "2.20.5+cuda12.4"),
    "cb0609a2c7b1": (1, 8, 8, 4, 4, 76, 0, 0, 0, "2.20.5+cuda12.4"),
    "353e5c277f25": (1, 8, 8, 4, 4, 80, 0, 0, 0, "2.20.5+cuda12.4"),
    "cbfcf135c11e": (1, 16, 16, 0, 2, 36, 0, 0, 21, "2.4.6+cuda10.0"),
    "c7bfc2a154b4": (2, 128, 1, 0, 0, 0, 2, 2, 0, ""),
    "47ce01cc5182": (1, 8, 3, 0, 0, 0, 3, 3, 0, ""),
    "80ad8325954f": (1, 16, 4, 0, 0, 0, 3, 1, 0, ""),
    "d358d0a19f6d": (1, 16, 16, 16, 16, 976, 0, 0, 32, "2.20.3+cuda12.2"),
    "1033968003d6": (1, 16, 16, 16, 16, 960, 0, 0, 32, "2.22.3+cuda12.2"),
    "fe82b889782e": (1, 8, 8, 24, 24, 401, 0, 0, 17, "2.8.4+cuda11.0"),
    "4f8f105df029": (1, 8, 8, 24, 24, 442, 0, 0, 17, "2.8.4+cuda11.0"),
    "c31250934c8c": (12, 32, 32, 0, 16, 0, 0, 0, 0, ""),
    "15219d9a03c6": (32, 32, 32, 0, 0, 0, 3008, 94, 31, "2.12.12+cuda11.7"),
    "2eb4b132dfaf": (1, 16, 16, 0, 2, 0, 0, 0, 0, "2.18.1+cuda11.7"),
    "1b7c28dfc77c": (1, 16, 8, 0, 0, 0, 0, 0, 0, ""),
    "95a0b621be46": (1, 2, 2, 2, 0, 2, 0, 0, 0, ""),
    "12c27749527b": (1, 2, 1, 2, 2, 2, 1, 1, 0, "2.21.5+cuda12.1"),
    "62f00077ecf7": (1, 2, 2, 24, 24, 0, 0, 654, 6, "2.29.2+cuda13.1"),
    "664a4987c89e": (1, 2, 2, 24, 24, 48, 0, 654, 6, "2.29.2+cuda13.1"),
    "d0ecc7b57b1d": (1, 2, 2, 24, 24, 48, 0, 654, 6, "2.29.2+cuda13.1"),
    "8a3d68a53857": (1, 4, 4, 24, 24, 0, 0, 654, 6, "2.29.2+cuda13.1"),
    "340e649a3882": (1, 4, 4, 24, 24, 96, 0, 654, 6, "2.29.2+cuda13.1"),
    "4e60a1500486": (1, 4, 4, 24, 24, 96, 0, 654, 6, "2.29.2+cuda13.1"),
    "8f38e9270407": (1, 6, 6, 24, 24, 0, 0, 654, 6, "2.29.2+cuda13.1"),
    "4cdd96064280": (1, 6, 6, 24, 24, 144, 0, 654, 6, "2.29.2+cuda13.1"),
    "303d9f32dae3": (1, 6, 6, 24, 24, 0, 0, 654, 6, "2.29.2+cuda13.1"),
    "f6df8edc84e5": (0, 0, 0, 0, 0, 0, 0, 0, 2, ""),
    "537a755af96e": (0, 0, 0, 0, 0, 0, 0, 0, 2, ""),
    "f7d42233fa6e": (0, 0, 0, 0, 0, 0, 0, 0, 2, ""),
    "2b8755ecb171": (0, 0, 0, 0, 0, 0, 0, 0, 2, ""),
    "47bf4b9368d9": (0, 0, 0, 0, 0, 0, 0, 0, 2, ""),
    "e02a350f0e12": (0, 0, 0, 0, 0, 0, 0, 0, 2, ""),
    "89b729064543": (0, 0, 0, 0, 0, 0, 0, 0, 20, "2.28.7"),
    "076072444ac2": (0, 0, 0, 0, 0, 0, 0, 0, 20, "2.28.7"),
    "d8d13033f31c": (0, 0, 0, 0, 0, 0, 0, 0, 20, "2.28.7"),
    "69893fc8b438": (0, 0, 0, 0, 0, 0, 0, 0, 10, "2.28.7"),
    "6b6a9bbaed70": (0, 0, 0, 0, 0, 0, 0, 0, 20, "2.28.7"),
    "52feadb17ed6": (0, 0, 0, 0, 0, 0, 0, 0, 20, "2.28.7"),
}


def key(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12]


def facts(summary: dict[str, Any]) -> tuple[Any, ...]:
    communicators = summary["communicators"]
    first = communicators[0] if communicators else {}
    return (
        len(communicators), first.get("n_ranks", 0), first.get("ranks_logged", 0),
        first.get("channels", {}).get("coll", 0), len(first.get("rings", {})),
        sum(sum(c["transports"].values()) for c in communicators),
        sum(summary["calls"]["lines"].values()), summary["calls"]["operations"],
        sum(len(run["rows"]) for run in summary["measurements"]), ",".join(summary["versions"]),
    )  # fmt: skip


@pytest.mark.parametrize("path", FILES or [Path()], ids=lambda path: path.name)
def test_facts(path: Path) -> None:
    found = facts(summarize(read_logs([str(path)])))
    print(f'    "{key(path)}": {found},')
    if key(path) in FACTS:
        assert found == FACTS[key(path)]


@pytest.mark.parametrize("path", FILES or [Path()], ids=lambda path: path.name)
def test_counted_in_another_way(path: Path) -> None:
    """Count with plain patterns over the whole text what the reader must have found."""
    text = path.read_bytes().decode("utf-8", "replace").replace("\r", "\n")
    log = read_logs([str(path)])
    summary = summarize(log)

    def count(pattern: str) -> int:
        return len(re.findall(pattern, text))

    whole_calls = (
        r"\w+: opCount [0-9a-f]+ sendbuff \S+ recvbuff \S+ count \d+ datatype \d+ op \d+ root \d+"
        r" comm 0x\w+ \[nranks=\d+\] stream 0x\w+"
    )
    assert sum(summary["calls"]["lines"].values()) == count(whole_calls)
    assert summary["tuning_lines"] == count(r"\d Bytes -> Algo \w+ proto \w+")
    rows = count(r"(?m)^(?:\[1,0\]<stdout>:)?\s+\d+\s+\d+\s+(?:float|double)\s")
    broken = sum(run.broken for run in log.runs)
    assert sum(len(run["rows"]) for run in summary["measurements"]) + broken == rows
    averages = [float(x) for x in re.findall(r"Avg bus bandwidth\s*: ([\d.]+)", text)]
    assert [r["average_busbw"] for r in summary["measurements"] if r["average_busbw"]] == averages
    printed = set(re.findall(r"[NR]CCL version (\d+\.\d+\.\d+\+\w+\.\d+)", text))
    assert not printed or set(summary["versions"]) == printed
    assert len({c["comm_id"] for c in summary["communicators"]} - {""}) == len(
        set(re.findall(r"commId (0x[0-9a-f]+)", text))
    )
    orders = set(re.findall(r"Channel (\d+)/\d+ : +((?:\d+ +)*\d+)\s*$", text, re.MULTILINE))
    rings = {
        (int(channel), tuple(ring))
        for communicator in summary["communicators"]
        for channel, ring in communicator["rings"].items()
    }
    assert {(int(c), tuple(int(r) for r in ranks.split())) for c, ranks in orders} <= rings
    assert summary["other_lines"] + summary["nccl_lines"] <= summary["lines"]


@pytest.mark.parametrize("path", FILES or [Path()], ids=lambda path: path.name)
def test_mutations(path: Path) -> None:
    data = path.read_bytes()[:60_000]
    for seed in range(MUTATIONS):
        survives(mutate(data, random.Random(seed)))


def pieces(path: Path) -> Iterator[bytes]:
    data = path.read_bytes()
    for part in range(1, 6):
        yield data[: len(data) * part // 6]


@pytest.mark.parametrize("path", FILES or [Path()], ids=lambda path: path.name)
def test_cut_anywhere(path: Path) -> None:
    for data in pieces(path):
        survives(data)
