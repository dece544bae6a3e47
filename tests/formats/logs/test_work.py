"""What reading a log costs: twice the lines take twice the work, and what is beyond a limit is told and not used."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from clusim.formats.logs import Log, read_logs, report, summarize
from clusim.formats.logs.anomalies import find_anomalies
from clusim.formats.logs.columns import OwnedRows
from clusim.formats.logs.lines import LONGEST, MOST_TEXTS, Remembered, parts
from formats.logs.samples import ALL, begin, call, read
from support.work import calls_of

HEAD = "h:1:1 [0] NCCL INFO "
TABLE = "# size count type redop root time algbw busbw #wrong time algbw busbw #wrong\n"


def letters(number: int) -> str:
    """Return a word of its own for a number."""
    return "".join(chr(97 + number // 26**i % 26) for i in range(4))


KINDS: dict[str, Callable[[int], str]] = {
    "samples": lambda i: "".join(ALL.values()) if i % 50 == 0 else "",
    "unknown": lambda i: f"{HEAD}{letters(i)} {letters(i * 7)}",
    "comments": lambda i: "#",
    "numbers": lambda i: f"{TABLE}8 2 float sum -1 1 1 1" if i == 0 else "8",
    "rows": lambda i: f"{TABLE if i == 0 else ''}8 2 float sum -1 1 1 1 0 1 1 1 0",
    "devices": lambda i: f"# Rank {i % 8} Pid {i % 100} on h device 0 [0x07] N",
    "programs": lambda i: "# Collective test starting: all_reduce_perf\n# nThread 1 nGpus 1",
    "communicators": lambda i: f"{HEAD}comm 0x{i + 1:x} rank 0 nranks 1 commId 0x{i + 1:x} - Init COMPLETE",
    "one address": lambda i: f"{HEAD}comm 0x1 rank {i % 7} nranks 7 - Init START",
    "rings": lambda i: f"{HEAD}Ring 0 : 0 -> {i % 8} -> 1",
    "bare rings": lambda i: f"Ring 0 : 0 -> {i % 8} -> 1",
    "trees": lambda i: f"{HEAD}Trees [0] 1/-1/-1->{i % 8}->-1",
    "orders": lambda i: f"{HEAD}Channel {i % 32:02}/32 : 0 1",
    "connections": lambda i: f"{HEAD}Channel 00/0 : {i % 8}[0] -> 1[0] [send] via SHM",
    "threads": lambda i: f"h:1:{i + 1} [0] NCCL INFO Ring 0 : 0 -> {i % 8} -> 1",
    "hosts": lambda i: f"h{i}:1:1 [0] NCCL INFO Channel 00/0 : {i % 8}[0] -> 1[0] [send] via SHM",
    "choices": lambda i: f"{HEAD}{i} Bytes -> Algo 1 proto 2 time 1",
    "settings": lambda i: f"{HEAD}{letters(i)} set by user to 1",
    "patterns": lambda i: f"{HEAD}Pattern 4, crossNic 0, nChannels 1, bw 1/1, type A/B, sameChannels 1",
    "topology": lambda i: f"{HEAD}=== System : maxBw 1 totalBw 1" if i == 0 else f"{HEAD}GPU/{i}",
    "warnings": lambda i: f"h:1:1 [0] NCCL WARN {letters(i)}",
    "torn": lambda i: f"h:1:1 [0] NCCL INFO Channel 00 : 0[{i:x}] -> h:1:1 [0] NCCL INFO x",
    "rests": lambda i: f"0[{i:x}] -> 1[0] via P2P/IPC" if i % 2 else "h:1:1 [0] NCCL INFO Channel 0 :h",
    "other programs": lambda i: f"xx NCCL INFO {letters(i)}",
    "watchdog": lambda i: (
        f"[Rank {i}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={i}, OpType=A, Timeout(ms)=1)"
    ),
}  # fmt: skip
"""Lines that are not calls, of every kind that something is made of."""


def understood(path: Path) -> None:
    log = read_logs([str(path)])
    report(log, everything=True)
    summarize(log)


@pytest.mark.parametrize("kind", KINDS)
def test_twice_the_lines_take_twice_the_work(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Communicators without ids are compared with each other, up to a number of times; here not at all."""
    monkeypatch.setattr("clusim.formats.logs.communicators._MOST_LOOKS", 0)
    files = []
    for count in (150, 300):
        files.append(tmp_path / f"{count}.log")
        lines = (KINDS[kind](i) for i in range(count))
        files[-1].write_text("\n".join([begin(0), *lines]) + "\n")
    for path in files:  # what is remembered of texts is there before
        understood(path)
    half, whole = (calls_of(partial(understood, path)) for path in files)
    assert whole < 2.2 * half


def test_a_word_of_64_kib_takes_no_more_calls_than_a_short_one(tmp_path: Path) -> None:
    """How long patterns take over it is another matter: `fuzz.patterns`."""
    works = []
    for length in (1_000, 60_000):
        path = tmp_path / f"{length}.log"
        words = [
            f"{HEAD}{'A' * length}",
            "9" * length,
            f"# {'a' * length}",
            f"{'e' * length} 0h:1:1 [0] NCCL INFO x",
        ]
        path.write_text("\n".join([begin(0), *words]) + "\n")
        understood(path)
        works.append(calls_of(partial(understood, path)))
    assert works[1] < 1.1 * works[0]


def test_names_of_hosts_have_at_most_256_letters() -> None:
    found = parts(b"h" * 1000 + b":1:2 [0] NCCL INFO x", ())
    assert [len(part.host) for part in found if part.level] == [256]


def test_a_look_at_one_owner_touches_its_own_rows() -> None:
    touched = []

    class Column:
        def __getitem__(self, rows: np.ndarray) -> np.ndarray:
            touched.append(len(rows))
            return rows

    groups = OwnedRows(np.arange(1000) % 100, {"value": Column()})  # type: ignore[dict-item]
    assert list(groups.rows(7, ["value"])) == [(row,) for row in range(7, 1000, 100)]
    assert touched == [10]


def test_what_is_remembered_has_bounds() -> None:
    asked = []

    def parse(text: str) -> str:
        asked.append(text)
        return text.upper()

    look = Remembered(parse)
    assert [look["a"], look["a"]] == ["A", "A"]
    assert asked == ["a"]
    long = "b" * (LONGEST + 1)
    assert [look[long], look[long]] == [long.upper()] * 2
    assert asked == ["a", long, long]
    for number in range(MOST_TEXTS):
        look[str(number)]
    look["a"]
    assert asked[-1] == "a"


def told(log: Log) -> list[str]:
    return [anomaly.text for anomaly in find_anomalies(log)]


def test_rows_of_tables_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("tables", "line_reader"):
        monkeypatch.setattr(f"clusim.formats.logs.{module}.MOST_ROWS", 3)
    log = read(tmp_path, "".join(KINDS["rows"](i) + "\n" for i in range(5)))
    assert [len(run.sizes) for run in log.runs] == [3]
    assert any("has 5 rows of nccl-tests; those after the first 3 are not used" in t for t in told(log))  # fmt: skip


def test_choices_of_the_tuner_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clusim.formats.logs.raw_log.MOST_CHOICES", 3)
    monkeypatch.setattr("clusim.formats.logs.anomalies.MOST_CHOICES", 3)
    log = read(tmp_path, "".join(KINDS["choices"](i) + "\n" for i in range(9)))
    assert len(log.facts.choices) == 4
    assert len(log.facts.tunings) == 9
    assert "more than 3 different choices of the tuner; others are ignored" in told(log)


def test_sizes_in_summaries_are_bounded_to_the_most_frequent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("operations", "anomalies"):
        monkeypatch.setattr(f"clusim.formats.logs.{module}.MOST_ALIKE", 2)
    sizes = (8, 16, 16, 32, 32, 32)
    log = read(tmp_path, "".join(f"{HEAD}{size} Bytes -> Algo 1 proto 2\n" for size in sizes))
    groups = summarize(log)["calls"]["by_size"]
    assert [(group["size"], group["count"]) for group in groups] == [(16, 2), (32, 3)]
    assert "calls are of more than 2 sizes and choices; 1 rare ones are not shown" in told(log)


@pytest.mark.parametrize(
    ("name", "kind", "text"),
    [
        ("MOST_HANDLES", "communicators", "more than 4 handles of communicators"),
        ("MOST_THREADS", "threads", "there are more than 4 threads; others are taken as one"),
        ("MOST_COMMUNICATORS", "communicators", "more than 4 communicators; 5 handles"),
    ],
)
def test_handles_threads_and_communicators_are_bounded(
    name: str, kind: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("raw_log", "communicators", "anomalies"):
        monkeypatch.setattr(f"clusim.formats.logs.{module}.{name}", 4, raising=False)
    log = read(tmp_path, "".join(KINDS[kind](i) + "\n" for i in range(9)))
    assert any(sentence.startswith(text) for sentence in told(log))
    assert len(log.facts.members) <= 10
    assert len(log.facts.threads) <= 10
    assert len(log.communicators) <= 4 or name == "MOST_THREADS"


def test_torn_lines_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clusim.formats.logs.line_reader._TORN_WORK", 5)
    log = read(tmp_path, "".join(KINDS["other programs"](i) + "\n" for i in range(20)))
    assert log.facts.unread == 15
    assert "15 lines torn by other lines are not read: too many" in told(log)


def test_later_calls_are_counted_and_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is kept of calls has a limit; the first ones are as they were without it."""
    text = "\n".join(call(rank, number) for number in range(60) for rank in (0, 1)) + "\n"
    whole = read(tmp_path, text, text.replace(" comm 0x", " comm 0x7"))
    monkeypatch.setattr("clusim.formats.logs.call_lines.MOST_LOGGED_CALLS", 100)
    some = read(tmp_path, text, text.replace(" comm 0x", " comm 0x7"))
    assert len(whole.operations["size"]) == 120
    assert some.operations["size"].tolist() == whole.operations["size"][:60].tolist()
    assert some.facts.later_calls == 120
    assert any("120 lines of calls" in anomaly.text for anomaly in find_anomalies(some))
