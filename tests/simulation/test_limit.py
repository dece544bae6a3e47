"""Runs that are ended by the clock on the wall: what is known of them, and what must not be changed by looking."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import clusim
from clusim.base.errors import InputError, TimeLimitReached
from clusim.results.resultjson import Unfinished
from clusim.results.trace.reader import read_result
from clusim.simulation.session import Watch
from support.limits import SECOND_PS, Asked


def _ring(watch: Watch, size: str = "32MiB", **options: Any) -> clusim.Result:
    told = {"algorithm": "ring", "granularity": "packet", "watch": watch, **options}
    return clusim.collective("dgx-h100", "allreduce", size, **told)


def test_a_run_that_is_ended_says_how_far_it_got(tmp_path: Path) -> None:
    whole = _ring(Watch())
    assert whole.unfinished is None
    watch = Asked(1)
    part = _ring(watch, trace_out=tmp_path / "t.h5")
    ended = part.unfinished
    assert ended is not None
    assert not part.complete
    assert 0 < part.time_ps < whole.time_ps
    assert 0 <= ended.part_done < 1
    assert part.time_ps <= ended.least_ps <= whole.time_ps
    assert watch.begun[-1] == "the engine looks at its input"
    kept = read_result(tmp_path / "t.h5.partial")
    assert (kept.complete, kept.time_ps) == (False, part.time_ps)
    assert not (tmp_path / "t.h5").exists()


def test_no_run_takes_less_than_its_data_over_the_wires_of_an_endpoint() -> None:
    """All-reduce of S over n GPUs: 2 S (n - 1) / n comes to each, over 18 NVLinks of 25 GB/s and the PCIe lanes."""
    ended = _ring(Asked(1), "128MiB").unfinished
    assert ended is not None
    nvlinks_ps = 2 * (128 << 20) * 7 / 8 / (18 * 25e9) * SECOND_PS
    assert 0.8 * nvlinks_ps < ended.least_ps <= nvlinks_ps


def test_what_is_expected_of_the_rest_is_said_only_when_something_was_done() -> None:
    assert Unfinished("", 0.25, 10).expected_ps(100) == 400
    assert Unfinished("", 0.25, 500).expected_ps(100) == 500
    assert Unfinished("", 0.001, 10).expected_ps(100) is None


def test_time_that_is_up_before_the_engine_starts_is_an_error() -> None:
    with pytest.raises(
        TimeLimitReached, match=r"time limit of 1 ps: reached before .* longer limit"
    ):
        _ring(Watch(1))
    with pytest.raises(InputError, match="must be positive"):
        Watch(0)


@pytest.mark.parametrize(
    ("machine", "operation", "algorithm", "size"),
    [
        ("dgx-a100", "allreduce", "tree", "12MiB"),
        ("dgx-h100", "allreduce", "nccl", "24MiB"),
        ("dgx-h100", "alltoall", "nccl", "48MiB"),
        ("a100-pcie-x8", "allgather", "ring", "8MiB"),
        ("fat-tree:k=4", "reducescatter", "ring", "256MiB"),
    ],
)
def test_the_part_done_is_that_of_the_packet_hops(
    machine: str, operation: str, algorithm: str, size: str
) -> None:
    def run(watch: Watch) -> clusim.Result:
        told = {"algorithm": algorithm, "granularity": "packet", "watch": watch}
        return clusim.collective(machine, operation, size, **told)

    whole, seen = run(Watch()), []
    for slices in (1, 3):
        part = run(Asked(slices))
        if part.unfinished is not None:
            done = part.packet_hops / whole.packet_hops
            assert done / 1.1 <= part.unfinished.part_done <= done * 1.1
            seen.append((done, part.unfinished.part_done))
    # The engine sets the length of a slice by the clock, so that the first one may be longer than three others.
    parts = [part for _, part in sorted(seen)]
    assert parts == sorted(parts)
    assert parts
