"""Files as they are: tags, times, compression, several at once; and the two ways to read a line agree."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clusim.base.errors import InputError
from clusim.formats.logs import Log, read_logs, summarize
from clusim.formats.logs import source as source_module
from clusim.formats.logs.line_reader import LineReader
from formats.logs.samples import ALL, V28, V212, V221, V229, begin, call, read

JOB = (
    "\n".join([*V28.splitlines(), *V229.splitlines(), *V212.splitlines(), *V221.splitlines()])
    + "\n"
)


def facts_of(log: Log) -> dict[str, Any]:
    """Return a summary without what depends on the file's name and size."""
    summary = summarize(log)
    return {k: v for k, v in summary.items() if k not in ("files", "bytes", "lines")}


@pytest.mark.parametrize(
    "pack", [bytes, gzip.compress, bz2.compress, lzma.compress], ids=["plain", "gz", "bz2", "xz"]
)
def test_compressed(pack: Any, tmp_path: Path) -> None:
    assert facts_of(read(tmp_path, pack(JOB.encode()))) == facts_of(read(tmp_path, JOB))


def test_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stdin:
        buffer = io.BytesIO(JOB.encode())

    monkeypatch.setattr(source_module.sys, "stdin", Stdin)
    piped, file = facts_of(read_logs(["-"])), facts_of(read(tmp_path, JOB))
    for name in ("communicators", "calls", "environment", "versions"):
        assert piped[name] == file[name]


@pytest.mark.parametrize("tag", ["[1,{rank}]<stdout>:", "{rank}: ", " {rank}: "])
def test_tags(tag: str, tmp_path: Path) -> None:
    """Ranks come from the launcher's tags where the log has only calls."""
    lines = [f"{tag.format(rank=rank)}{call(rank, i)}" for i in range(3) for rank in (1, 0)]
    log = read(tmp_path, "\n".join(lines) + "\n")
    (communicator,) = log.communicators
    assert sorted(communicator.members) == [0, 1]
    assert log.operations["ranks"].tolist() == [2, 2, 2]
    assert communicator.assumed == ["ranks are the numbers the launcher put in front of the lines"]


@pytest.mark.parametrize(
    "stamp",
    [
        "[2026-03-12 13:57:{second:02}] ",
        "2026-03-12T13:57:{second:02}.500000Z ",
        "13:57:{second:02} ",
    ],
)
def test_times_are_kept(stamp: str, tmp_path: Path) -> None:
    lines = [stamp.format(second=i % 60) + call(i % 2, i // 2) for i in range(400)]
    log = read(tmp_path, "\n".join(lines) + "\n")
    times = log.calls["time_ns"]
    seconds = (times - times[0]) // 10**9
    assert seconds.tolist() == [i % 60 for i in range(400)]
    assert len(log.operations["line"]) == 200


def test_carriage_returns(tmp_path: Path) -> None:
    """Windows line ends, and progress bars that are overwritten in place."""
    expected = facts_of(read(tmp_path, JOB))
    assert facts_of(read(tmp_path, JOB.replace("\n", "\r\n"))) == expected
    bars = "\r 10%|#   | 1/10\r 20%|##  | 2/10\r"
    with_bars = bars.join(line + "\n" for line in JOB.splitlines())
    found = facts_of(read(tmp_path, with_bars))
    for name in ("communicators", "calls", "environment"):
        assert found[name] == expected[name]


def test_files_of_one_job(tmp_path: Path) -> None:
    texts = ["\n".join([begin(r), *(call(r, i) for i in range(5))]) + "\n" for r in (0, 1)]
    log = read(tmp_path, *texts)
    (communicator,) = log.communicators
    assert communicator.n_logged == 2
    assert log.operations["ranks"].tolist() == [2] * 5
    assert log.facts.place(8).endswith("log1.txt:2")


@pytest.mark.parametrize("size", [64, 300, 4096])
def test_blocks_do_not_matter(size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "\n".join(ALL.values()) + "\n".join(call(i % 2, i // 2) for i in range(100)) + "\n"
    whole = facts_of(read(tmp_path, text))
    monkeypatch.setattr(source_module, "BLOCK_BYTES", size)
    assert facts_of(read(tmp_path, text)) == whole


@pytest.mark.parametrize("seed", range(8))
def test_both_ways_to_read_agree(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines with a regular header give the same as lines that are searched for headers."""
    chosen = random.Random(seed)
    lines = [line for text in (V28, V212, V221, V229) for line in text.splitlines()]
    names = ("AllReduce", "AllGather", "Send", "Recv", "ReduceScatter")
    for i in range(300):
        lines.append(
            call(chosen.randrange(2), i, name=chosen.choice(names), count=chosen.randrange(1 << 40))
        )
        if chosen.random() < 0.2:
            lines.append(f"AllReduce: opCount {i} cut")
        if chosen.random() < 0.1:
            lines.append(call(0, i)[: chosen.randrange(40, 150)])
    text = "\n".join(lines) + "\n"
    fast = read(tmp_path, text)

    monkeypatch.setattr(LineReader, "_writer", lambda *_: None)
    slow = read(tmp_path, text)
    for name in set(fast.operations.names) - {"name", "choice", "stream"}:
        np.testing.assert_array_equal(fast.operations[name], slow.operations[name], err_msg=name)
    assert named(fast) == named(slow)
    one, two = facts_of(fast), facts_of(slow)
    for name in ("communicators", "calls", "measurements", "environment", "versions", "not_used"):
        assert one[name] == two[name], name


def named(log: Log) -> list[tuple[str, Any]]:
    """Return names and choices of the operations; their numbers are in the order they were met."""
    names, choices = log.facts.names, [*log.facts.choices, None]
    return [
        (names[name], choices[choice])
        for name, choice in zip(
            log.operations["name"].tolist(), log.operations["choice"].tolist(), strict=True
        )
    ]


def test_bad_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_logs([str(tmp_path / "none.log")])
    with pytest.raises(InputError, match="is a directory"):
        read_logs([str(tmp_path)])
    with pytest.raises(InputError, match="no line of NCCL"):
        read(tmp_path, "hello\nworld\n")
    with pytest.raises(InputError, match="no line of NCCL"):
        read(tmp_path, b"")
    with pytest.raises(InputError, match="zstd"):
        read(tmp_path, b"\x28\xb5\x2f\xfd rest")


def test_cut_gzip(tmp_path: Path) -> None:
    """What is there of a cut file is read, and said to be cut."""
    lines = [begin(0), *(call(0, random.Random(i).getrandbits(60)) for i in range(5000))]
    packed = gzip.compress(("\n".join(lines) + "\n").encode())
    log = read(tmp_path, packed[: len(packed) // 2])
    assert 0 < len(log.calls["line"]) < 5000
    assert any("damaged or cut" in a["text"] for a in summarize(log)["anomalies"])


def test_a_huge_line(tmp_path: Path) -> None:
    text = call(0, 0) + "\n" + "x" * (9 << 20) + call(0, 1) + "\n" + call(0, 2) + "\n"
    log = read(tmp_path, text)
    assert log.operations["op_count"].tolist() == [0, 2]
    assert any("longer than 1 MiB" in a["text"] for a in summarize(log)["anomalies"])


def test_zero_bytes(tmp_path: Path) -> None:
    log = read(tmp_path, call(0, 0).encode() + b"\n" + b"\0" * 5000 + call(0, 1).encode() + b"\n")
    assert any("5000 zero bytes" in a["text"] for a in summarize(log)["anomalies"])


def test_frequent_lines_that_say_nothing_are_counted(tmp_path: Path) -> None:
    noise = [f"h:1:2 [0] NCCL INFO NET/OFI Some plugin says {i}" for i in range(500)]
    log = read(tmp_path, begin(0) + "\n" + "\n".join(noise * 3) + "\n")
    (kind,) = log.facts.unknown.values()
    assert kind.count == 1500
