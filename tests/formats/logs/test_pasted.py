"""Tables of nccl-tests as people paste them: disfigured ones have the clean one's answer or none, never another."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from clusim.base.errors import InputError
from clusim.base.terms.dtypes import IN_TABLES
from clusim.base.terms.operations import OPERATIONS, Operation
from clusim.formats.logs import TableRun
from formats.logs.samples import read

TESTS = [
    item
    for item in OPERATIONS.values()
    if item.test and item.test not in ("alltoallv", "hypercube")
]
HALF = "     time   algbw   busbw  #wrong"
ROW = re.compile(r"\s*\d+\s+\d+\s+[a-z]")
Table = list[str]


def table(item: Operation, n: int, kind: str, halves: int, dice: random.Random) -> Table:
    """Return the lines of a run."""
    lines = ["# nThread 1 nGpus 1 minBytes 8 maxBytes 64 step: 2(factor) warmup iters: 5 iters: 20"]
    lines += ["# Using devices"]
    lines += [
        f"#  Rank {i:2} Group  0 Pid {400 + i} on box{i // 8} device {i % 8:2} [0x{i % 8}a] NVIDIA H100"
        for i in range(n)
    ]
    lines += ["#", f"#       size         count      type   redop    root{HALF * halves}"]
    lines += ["#        (B)    (elements)" + "  (us)  (GB/s)  (GB/s)" * halves]
    op, root = ("sum" if item.reduces else "none"), ("0" if item.rooted else "-1")
    for power in range(3, 30, 6):
        count = 1 << power
        size = count * IN_TABLES[kind].size_bytes * (n if item.blocks else 1)
        row = f"{size:12}  {count:12}  {kind:>8}  {op:>6}  {root:>6}"
        for _ in range(halves):
            us = max(9.0, size / 1e3 / dice.uniform(20, 400))
            gbps = size / us / 1e3
            row += f"  {us:7.2f}  {gbps:6.2f}  {gbps * item.bus_factor(n):6.2f}      0"
        lines.append(row)
    return [*lines, "# Out of bounds values : 0 OK", "# Avg bus bandwidth    : 12.5"]


def tagged(lines: Table, dice: random.Random) -> Table:
    """Put a launcher's tag in front of all lines, or between columns of rows, glued or not."""
    tag = dice.choice(["[0]", "[0] ", "[1,0]<stdout>:", "[13]:"])
    if dice.random() < 0.5:
        return [tag + line for line in lines]
    found = []
    for line in lines:
        if ROW.match(line) and "|" not in line:
            words = re.findall(r"\s*\S+", line)
            for at in sorted({dice.randrange(5, len(words)) for _ in range(3)}, reverse=True):
                words[at] = tag + words[at]
            line = "".join(words)
        found.append(line)
    return found


def piped(lines: Table, dice: random.Random) -> Table:
    """Write rows and titles as a web page or Markdown shows them."""
    bar, ends = dice.choice("|│"), dice.random() < 0.5
    found = []
    for line in lines:
        if ROW.match(line) or " size " in line:
            cells = f" {bar} ".join(line.replace("#  ", "").split())
            line = f"{bar} {cells} {bar}" if ends else cells
        found.append(line)
        if " size " in line and dice.random() < 0.5:
            found.append("|---" * 12 + "|")
    return found


def uncommented(lines: Table, dice: random.Random) -> Table:
    return [line.replace("#", " ", 1) if line.startswith("#") else line for line in lines]


def indented(lines: Table, dice: random.Random) -> Table:
    by = dice.choice(["  ", "\t", "        ", "> ", "\u00a0\u00a0"])
    return [by + line for line in lines]


def untitled(lines: Table, dice: random.Random) -> Table:
    return [line for line in lines if "size " not in line and "(B)" not in line]


def cut_list(lines: Table, dice: random.Random) -> Table:
    """Leave the last lines of the list of ranks."""
    ranks = [line for line in lines if " Rank " in line]
    gone = set(ranks[: dice.randrange(1, len(ranks) + 1)]) if ranks else set()
    return [line for line in lines if line not in gone and "nThread" not in line]


WAYS: list[Callable[[Table, random.Random], Table]] = [
    untitled, cut_list, piped, uncommented, tagged, indented,
]  # fmt: skip


def rows(run: TableRun) -> list[tuple[object, ...]]:
    keys = zip(run.sizes, run.counts, run.types, run.ops, run.roots, strict=True)
    return [(*key, str(values)) for key, values in zip(keys, run.values, strict=True)]


@pytest.mark.parametrize("seed", range(len(TESTS) * 60))
def test_a_disfigured_table_has_no_other_answer(seed: int, tmp_path: Path) -> None:
    dice = random.Random(seed)
    item = TESTS[seed % len(TESTS)]
    n = dice.choice([2, 3, 4, 6, 8, 16, 24, 72, 144])
    lines = table(item, n, dice.choice(sorted(IN_TABLES)), dice.choice([1, 2]), dice)
    (clean,) = read(tmp_path, "\n".join(lines)).runs
    assert item.test in clean.collective().replace(",", "").split(" ")
    assert (clean.n_ranks, clean.is_complete, len(clean.sizes)) == (n, True, 5)
    # Pipes come before tags, and quotes last, as in real life.
    ways = sorted(dice.sample(WAYS, dice.randrange(1, 4)), key=WAYS.index)
    for way in ways:
        lines = way(lines, dice)
    try:
        (run,) = read(tmp_path, "\n".join(lines)).runs
    except InputError:
        pytest.fail(f"{[way.__name__ for way in ways]}: refused\n" + "\n".join(lines))
    assert rows(run) == rows(clean)
    names = set(re.split(", | or ", run.collective()))
    assert set(re.split(", | or ", clean.collective())) <= names
    assert run.n_ranks in (n, 0)
    assert run.is_complete == (run.n_ranks == n and len(run.devices) == n)
