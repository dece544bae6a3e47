"""No reader takes above a gigabyte, however its file is made: long lines, long lists, packed blanks.

Sizes are small by default; ``CLUSIM_THOROUGH=1`` reads files of 100 MB. docs/inputs.md states the limits.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fuzz.forked import Forks
from fuzz.targets import TARGETS, TRACES
from support.covering import THOROUGH

SIZE = 100_000_000 if THOROUGH else 2_000_000
"""Bytes of the files."""

MEMORY_BYTES = 1 << 30


def check(children: Forks, name: str, folder: Path) -> str:
    """Let a reader read the file in a folder in a process of its own; return what it said."""
    done = children.run("fuzz.peak", name, str(folder), str(MEMORY_BYTES + (256 << 20)))
    assert done.returncode == 0, done.stderr[-2000:]
    memory, time, said = done.stdout.strip().split(" ", 2)
    sys.stdout.write(
        f"{name} {folder.name}: {int(memory) >> 10} MiB {float(time):.1f} s of CPU: {said[:120]}\n"
    )
    assert int(memory) << 10 < MEMORY_BYTES
    return said


def sample(name: str) -> tuple[str, bytes]:
    return next(iter(sorted(TARGETS[name].samples[-1].items())))


TEXTS = [name for name in TARGETS if name not in ("trace", "replay", "replay-whole")]


@pytest.mark.parametrize("name", TEXTS)
def test_one_line_without_end_takes_little_memory(
    name: str, tmp_path: Path, children: Forks
) -> None:
    file, data = sample(name)
    at = data.find(b"\n", len(data) // 2) + 1
    (tmp_path / file).write_bytes(data[:at] + b"9" * SIZE + data[at:])
    check(children, name, tmp_path)


@pytest.mark.parametrize("name", TEXTS)
def test_a_sample_over_and_over_takes_little_memory(
    name: str, tmp_path: Path, children: Forks
) -> None:
    file, data = sample(name)
    (tmp_path / file).write_bytes(data * (SIZE // len(data)))
    check(children, name, tmp_path)


@pytest.mark.parametrize("name", ["log", "kineto", "profiler", "inspector", "goal", "simai"])
def test_packed_blanks_take_little_memory(name: str, tmp_path: Path, children: Forks) -> None:
    """A gigabyte of blanks packs into a megabyte."""
    file, data = sample(name)
    with gzip.open(tmp_path / file, "wb", 1) as out:
        out.write(data)
        for _ in range(10 * SIZE // 1_000_000):
            out.write(b" " * 1_000_000)
    check(children, name, tmp_path)


def _log_lines(size: int) -> Iterator[str]:
    from formats.logs.samples import begin, call

    yield from (begin(rank) for rank in range(2))
    for number in range(size // 400):
        yield from (call(rank, number, count=1 << 10) for rank in range(2))


def test_a_log_of_calls_is_understood_in_little_memory(tmp_path: Path, children: Forks) -> None:
    with (tmp_path / "nccl.log").open("w", encoding="utf-8") as out:
        out.writelines(f"{line}\n" for line in _log_lines(SIZE))
    assert check(children, "log", tmp_path) == "result"


def test_a_log_of_communicators_without_end_is_bounded(tmp_path: Path, children: Forks) -> None:
    """Every line another communicator of as many ranks as one may have; the work is by lines, not by ranks."""
    line = (
        "host0:100:200 [0] NCCL INFO comm 0x{0:x} rank 0 nranks 131072 cudaDev 0 nvmlDev 0 busId 1000"
        " commId 0x{0:x} - Init COMPLETE\n"
    )
    with (tmp_path / "nccl.log").open("w", encoding="utf-8") as out:
        out.writelines(line.format(number + 1) for number in range(min(SIZE, 10_000_000) // 140))
    assert check(children, "log", tmp_path) == "result"


def test_kernels_of_a_profile_are_read_in_little_memory(tmp_path: Path, children: Forks) -> None:
    data = json.loads((TRACES / "kineto-2ranks/rank0.json").read_text(encoding="utf-8"))
    kernels = [event for event in data["traceEvents"] if event.get("cat") == "kernel"]
    each = len(json.dumps(kernels[0]))
    data["traceEvents"] += [
        kernels[0] | {"ts": 10**6 + 100 * number} for number in range(SIZE // each)
    ]
    (tmp_path / "rank0.json").write_text(json.dumps(data), encoding="utf-8")
    assert check(children, "kernels", tmp_path) == "result"
