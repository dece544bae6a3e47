"""Logs whose lines say two things about their ranks: both places are named first; with `strict` it is an error."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusim.base.errors import InputError
from clusim.formats.logs import read_logs
from clusim.formats.logs.anomalies import CONTRADICTION, find_anomalies
from clusim.replays import ReplayRequest, replay
from replays.samples import job

HEAD = "NCCL_DEBUG_FILE=nccl.%h.%p"


def log(tmp_path: Path, old: str, new: str, only: str = "") -> Path:
    """Write the log of a job of eight ranks, with a text replaced in the lines that have `only`."""
    lines = job().text().splitlines(keepends=True)
    assert any(old in line and only in line for line in lines)
    path = tmp_path / "nccl.log"
    path.write_text("".join(x.replace(old, new) if only in x else x for x in lines))
    return path


def place(path: Path, text: str) -> str:
    """Return file and line of the first line with a text."""
    lines = path.read_text().splitlines()
    return f"{path}:{next(i for i, line in enumerate(lines, 1) if text in line)}"


@pytest.mark.parametrize(
    ("old", "new", "only", "says", "marks"),
    [
        # Calls of all ranks, and of one: 7 calls a rank.
        ("[nranks=8]", "[nranks=4]", "", "56 calls have another", ("rank 0 nranks 8", "[nranks=4]")),
        ("[nranks=8]", "[nranks=16]", ":4103 ", "7 calls have another", ("rank 3 nranks 8", "[nranks=16]")),
        ("nranks 8 ", "nranks 4 ", ":4103 ", "taken as two", ("rank 0 nranks 8", "rank 3 nranks 4")),
        ("rank 3 nranks", "rank 2 nranks", "", "two processes are rank 2", (":4102 ", ":4103 ")),
        ("busId 61000", "busId 52000", "", "ranks 2 and 3 are on one GPU, bus 52000", (":4102 ", ":4103 ")),
    ],
)  # fmt: skip
def test_both_places_are_named_first_and_strict_is_an_error(
    tmp_path: Path, old: str, new: str, only: str, says: str, marks: tuple[str, str]
) -> None:
    path = log(tmp_path, old, new, only)
    found = replay(ReplayRequest((str(path),), calls=1))
    (doubt, *_) = [line for line in found.doubts if says in line]
    assert place(path, marks[0]) in doubt
    assert place(path, marks[1]) in doubt
    assert HEAD in doubt
    with pytest.raises(InputError, match=says):
        replay(ReplayRequest((str(path),), calls=1, strict=True))


def test_a_log_that_is_one_is_not_doubted(tmp_path: Path) -> None:
    path = tmp_path / "nccl.log"
    path.write_text(job().text())
    assert replay(ReplayRequest((str(path),), calls=1, strict=True)).doubts == []


def test_calls_of_lines_that_are_read_one_at_a_time_are_compared_too(tmp_path: Path) -> None:
    # Old releases of RCCL have the time between device and level.
    path = log(tmp_path, "] NCCL INFO", "] 1700000000000000 NCCL INFO")
    path.write_text(path.read_text().replace("[nranks=8]", "[nranks=4]"))
    (odd,) = [x for x in find_anomalies(read_logs([str(path)])) if x.kind == CONTRADICTION]
    assert "56 calls have another number of ranks than the 8" in odd.text


def test_roots_and_peers_that_are_none_of_the_ranks_are_left_out_and_counted(
    tmp_path: Path,
) -> None:
    # The broadcast has root 3, one rank sends to 3 and another receives from it.
    found = replay(ReplayRequest((str(log(tmp_path, "root 3", "root 8")),)))
    whole = replay(ReplayRequest((str(log(tmp_path, "root 3", "root 3")),)))
    text = "of a root or peer that the communicator does not have"
    assert found.skipped == {f"{name} {text}": 1 for name in ("Broadcast", "Send", "Recv")}
    assert found.total_calls == whole.total_calls - 1
    assert not whole.skipped
