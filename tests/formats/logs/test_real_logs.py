"""Real logs and tables: every one is read and compared with what counting finds in it, and with the right answers."""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clusim.formats.logs import read_logs, summarize
from formats.logs.test_damage import mutate, survives
from support.realfiles import IN_FULL, SMALL, answers, real_files

FILES = real_files("nccl_logs", "nccl_tests")
MUTATIONS = 12 if IN_FULL else 2

FACTS = {row["sha256"]: row for row in answers("logs")}
"""What reading found in a file, by the start of its SHA-256: a file cut down and the same one whole."""

TABLES = {row["file"] for row in answers("tables")}


def key(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12]


def facts(summary: dict[str, Any]) -> dict[str, str]:
    communicators = summary["communicators"]
    first = communicators[0] if communicators else {}
    found = {
        "communicators": len(communicators),
        "ranks": first.get("n_ranks", 0),
        "ranks_logged": first.get("ranks_logged", 0),
        "channels": first.get("channels", {}).get("coll", 0),
        "rings": len(first.get("rings", {})),
        "connections": sum(sum(c["transports"].values()) for c in communicators),
        "call_lines": sum(summary["calls"]["lines"].values()),
        "operations": summary["calls"]["operations"],
        "rows": sum(len(run["rows"]) for run in summary["measurements"]),
        "versions": ",".join(summary["versions"]),
    }
    return {name: str(value) for name, value in found.items()}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_facts(path: Path) -> None:
    found = facts(summarize(read_logs([str(path)])))
    if SMALL in path.parents or key(path) in FACTS:
        right = FACTS[key(path)]
        assert found == {name: right[name] for name in found}


def number(text: str) -> float | None:
    return None if text == "N/A" else float(text)


@pytest.mark.parametrize("name", sorted(TABLES))
def test_every_measured_row_is_read(name: str) -> None:
    (path,) = (path for path in FILES if path.name == name)
    runs = summarize(read_logs([str(path)]))["measurements"]
    found = [
        (run["collective"], row["size"], row["time"], row["busbw"])
        for run in runs
        for row in run["rows"]
    ]
    right = [row for row in answers("tables") if row["file"] == name]
    assert len(found) == len(right)
    for (operation, *found_numbers), row in zip(found, right, strict=True):
        assert operation == (row["operation"] or operation)
        assert found_numbers == [number(row[name]) for name in ("bytes", "time_us", "busbw_GBps")]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
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


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_mutations(path: Path) -> None:
    data = path.read_bytes()[:60_000]
    for seed in range(MUTATIONS):
        survives(mutate(data, random.Random(seed)))


def pieces(path: Path) -> Iterator[bytes]:
    data = path.read_bytes()
    for part in range(1, 6):
        yield data[: len(data) * part // 6]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_cut_anywhere(path: Path) -> None:
    for data in pieces(path):
        survives(data)
