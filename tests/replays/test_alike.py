"""Jobs whose ranks all do the same, by one rank: groups on machines, what shares a GPU, the same as with all ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusim.base.errors import InputError
from clusim.jobs.peers import split_of
from clusim.replays import replay
from clusim.replays.placing import ReplayRequest
from clusim.replays.report import Replay
from clusim_cli.main import run
from clusim_formats.recordings import layers
from formats.recordings.layertables import layer, table

PS_PER_KERNEL = 1
"""What the engine rounds the end of a kernel up by [ps]."""


def head(tp: int, gpus: int, ep: int = 1) -> str:
    return f"HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: {tp} ep: {ep} pp: 1 all_gpus: {gpus}"


def replayed(name: str, *, limit: int, monkeypatch: pytest.MonkeyPatch) -> Replay:
    with monkeypatch.context() as patch:
        patch.setattr(layers, "MOST_LAYER_EVENTS", limit)
        return replay(ReplayRequest((name,), topology="dgx-a100", granularity="packet"))


def both(
    path: Path, first: str, rows: list[str], monkeypatch: pytest.MonkeyPatch
) -> tuple[Replay, Replay]:
    """Return a replay of all ranks, and one by one rank."""
    name = table(path, first, *rows)
    return (
        replayed(name, limit=10**6, monkeypatch=monkeypatch),
        replayed(name, limit=30, monkeypatch=monkeypatch),
    )


def test_groups_on_machines_of_eight() -> None:
    pairs = ((0, 1), (2, 3), (4, 5), (6, 7))
    assert split_of(range(2), 8) == (1, pairs)
    assert split_of(range(0, 32, 2), 8) == (4, ((0, 2, 4, 6), (1, 3, 5, 7)))
    assert split_of(range(0, 96, 32), 8) == (3, tuple((gpu,) for gpu in range(8)))
    assert split_of(range(16), 8) == (2, (tuple(range(8)),))
    assert split_of((0, 2), 8) == (1, ((0, 2), (1, 3), (4, 6), (5, 7)))


@pytest.mark.parametrize("ranks", [range(6), range(0, 12, 6), range(12), (0, 3)])
def test_groups_that_do_not_divide_machines(ranks: range) -> None:
    with pytest.raises(InputError, match="do not divide nodes of 8 GPUs evenly"):
        split_of(ranks, 8)


def test_one_rank_takes_what_all_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing overlaps: the same, but for ranks that are done with a call a little before the last one is."""
    call = ("ALLREDUCE", 1 << 18)
    rows = [layer(n, 10_000, 20_000, 30_000, f=call, i=call, update=100) for n in "ab"]
    for tp, gpus in ((8, 8), (2, 8), (16, 16)):
        every, one = both(tmp_path, head(tp, gpus), rows, monkeypatch)
        assert one.bounds_ps == [one.total_ps, one.total_ps]
        assert one.total_ps == pytest.approx(every.total_ps, rel=2e-4)
        assert one.total_calls == every.total_calls
        assert one.compute_ps == every.compute_ps == 120_000_000
        (there,) = {(c.operation, c.bytes, c.algorithm, c.channels) for c in every.calls}
        (call_of_one,) = one.calls
        assert (
            call_of_one.operation,
            call_of_one.bytes,
            call_of_one.algorithm,
            call_of_one.channels,
        ) == there


def test_one_call_of_one_rank_is_that_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel and then a call on which nobody comes late: the same to what the engine rounds up."""
    rows = [layer("a", 10_000, f=("ALLREDUCE", 1 << 18))]
    for tp, gpus in ((2, 8), (16, 16)):
        name = table(tmp_path, head(tp, gpus), *rows)
        every, one = (
            replayed(name, limit=limit, monkeypatch=monkeypatch) for limit in (10**6, 2 * gpus - 1)
        )
        assert 0 <= every.total_ps - one.total_ps <= PS_PER_KERNEL


def test_one_rank_is_disturbed_as_all_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weight gradients hide behind computing, from which they take SMs, in two groups of four."""
    call = ("ALLREDUCE", 1 << 19)
    rows = [layer(n, 100_000, 200_000, 300_000, f=call, i=call, w=call) for n in "ab"]
    every, one = both(tmp_path, head(2, 8), rows, monkeypatch)
    assert one.bounds_ps is not None
    least, most = one.bounds_ps
    assert least < every.total_ps < most
    assert one.total_ps == pytest.approx(every.total_ps, rel=2e-3)
    assert abs(one.total_ps - every.total_ps) < (one.total_ps - least) / 2


def test_a_pause_is_before_everything_that_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = ("ALLREDUCE", 1 << 16)
    name = table(tmp_path, head(8, 8), layer("a", 10, 20, 30, f=call, i=call))
    monkeypatch.setattr(layers, "MOST_LAYER_EVENTS", 10)
    plain, paused = (
        replay(ReplayRequest((name,), topology="dgx-a100", gap=gap)) for gap in ("none", 1000)
    )
    assert paused.total_ps - plain.total_ps == 4 * 1000


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            {"topology": "dgx-a100", "faults": ("link gpu3:nvl5 down",)},
            "faults affect ranks differently",
        ),
        ({"topology": "dgx-a100", "nodes": 1}, "give --nodes 2"),
        ({}, "does not contain the system"),
    ],
)
def test_what_one_rank_cannot_tell(
    more: dict[str, object],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = table(tmp_path, head(8, 16), layer("a", 10, f=("ALLREDUCE", 1 << 16)))
    monkeypatch.setattr(layers, "MOST_LAYER_EVENTS", 10)
    with pytest.raises(InputError, match=message):
        replay(ReplayRequest((name,), **more))  # type: ignore[arg-type]


def test_nine_thousand_ranks_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call = ("ALLREDUCE", 1 << 16)
    name = table(tmp_path, head(8, 9216), *(layer("a", 10, f=call) for _ in range(60)))
    assert run(["replay", name, "--topology", "dgx-h100"]) == 0
    shown = capsys.readouterr().out
    assert "9216 ranks on 1152 nodes" in shown
    assert "tp, one of 1152" in shown
    assert (
        run(["replay", name, "--topology", "dgx-h100", "--trace-out", str(tmp_path / "t.h5")]) == 2
    )
    assert "no trace can be written" in capsys.readouterr().err
