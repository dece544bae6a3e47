"""Measured times that are no times of calls: waiting for ranks that did not record, and impossible rates."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from clusim.base.errors import InputError
from clusim.replays.api import replay
from clusim.replays.placing import ReplayRequest
from clusim.replays.report import CallResult, Replay

HEAD = {"id": "0x9e7a", "n_ranks": 4, "nnodes": 1}


def recorded(folder: Path, times_us: dict[int, int], size: int, coll: str) -> list[str]:
    """Write what NCCL's inspector plugin does: a file for each of these ranks."""
    names = []
    for rank, us in times_us.items():
        own = {
            "coll": coll, "coll_sn": 1, "coll_msg_size_bytes": size, "coll_exec_time_us": us,
            "coll_timing_source": "kernel_gpu",
        }  # fmt: skip
        meta = {"dump_timestamp_us": 10_000_000 + us, "hostname": "a", "pid": 10 + rank}
        path = folder / f"rank{rank}.json"
        path.write_text(
            json.dumps({"header": HEAD | {"rank": rank}, "metadata": meta, "coll_perf": own})
        )
        names.append(str(path))
    return names


def replayed(
    folder: Path,
    times_us: dict[int, int],
    size: int = 1 << 20,
    coll: str = "AllReduce",
    strict: bool = False,
) -> Replay:
    names = recorded(folder, times_us, size, coll)
    return replay(ReplayRequest(names, topology="dgx-h100", strict=strict, granularity="quick"))


@pytest.mark.parametrize("times", [{2: 900_000}, {0: 900_000, 1: 700_000, 3: 900_000}])
def test_waiting_for_ranks_that_did_not_record_is_not_compared(
    times: dict[int, int], tmp_path: Path
) -> None:
    found = replayed(tmp_path, times, coll="AllGather", strict=True)
    (call,) = found.calls
    assert (call.error, found.doubts, found.to_json()["mean_abs_error"]) == (None, [], None)
    assert call.measured_us == min(times.values())
    (said,) = (note for note in found.notes if "upper bounds" in note)
    assert f"as few as {len(times)} of 4 did" in said


def test_times_of_all_ranks_are_compared(tmp_path: Path) -> None:
    found = replayed(tmp_path, dict.fromkeys(range(4), 900_000))
    assert found.calls[0].error is not None
    assert "probably not dgx-h100" in found.doubts[0]
    with pytest.raises(InputError, match="probably not"):
        replayed(tmp_path, dict.fromkeys(range(4), 900_000), strict=True)


def test_a_rank_that_was_faster_than_predicted_is_evidence(tmp_path: Path) -> None:
    found = replayed(tmp_path, {1: 60}, size=1 << 26)
    (call,) = found.calls
    assert call.error is not None
    assert call.error > 0.5
    assert "probably not" in found.doubts[0]


def test_impossible_rates_are_named(tmp_path: Path) -> None:
    found = replayed(
        tmp_path, dict.fromkeys(range(4), 3), size=1 << 28, coll="ReduceScatter", strict=True
    )
    assert (found.calls[0].error, found.doubts) == (None, [])
    assert any(
        "reduce_scatter of 1 GiB in 3 us" in note and "the memory of no known GPU" in note
        for note in found.notes
    )


@pytest.mark.parametrize(("us", "wrong"), [(5.0, True), (200.0, False)])
def test_the_limit_is_the_fastest_memory(us: float, wrong: bool) -> None:
    call = CallResult(
        0, 2, "broadcast", 1 << 28, "float32", 1, "Ring", "Simple", 1, 10**9, 10**9, measured_us=us
    )
    assert call.impossible is wrong
    assert (call.error is None) is wrong
