"""HolisticTraceAnalysis reads an export and finds what clusim finds; skipped where it is not installed.

With Jupyter and what else it needs it takes 500 MB, so that nothing here installs it.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import clusim
from clusim.export.kineto import write_kineto
from clusim.export.run import Run
from clusim.report.feed import Feed

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def resnet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("traces") / "resnet.h5"
    clusim.train("resnet50-dgx1v", steps=1, fold="none", trace_out=path)
    return path


def test_times_of_a_training_step_are_the_same_in_holistic_trace_analysis(
    resnet: Path, tmp_path: Path
) -> None:
    hta = pytest.importorskip("hta.trace_analysis", reason="HolisticTraceAnalysis is not installed")
    write_kineto(resnet, tmp_path / "kineto")
    analysis = hta.TraceAnalysis(trace_dir=str(tmp_path / "kineto"))
    shares = Feed.open(resnet).shares
    # It rounds start and length of every event down to microseconds.
    events = 2 * max(Counter(task.rank for task in Run.open(resnet).tasks()).values())
    times = analysis.get_temporal_breakdown(visualize=False).set_index("rank")
    overlap = analysis.get_comm_comp_overlap(visualize=False).set_index("rank")
    for place, rank in enumerate(shares.ranks):
        computed, both, bare = (
            int(column[place]) / 1e6 for column in (shares.compute, shares.both, shares.exposed)
        )
        row = times.loc[rank]
        assert row["compute_time(us)"] == pytest.approx(computed + both, abs=events)
        assert row["non_compute_time(us)"] == pytest.approx(bare, abs=4)
        assert row["idle_time(us)"] <= events + 1
        assert overlap.comp_comm_overlap_pctg[rank] == pytest.approx(
            100 * both / (both + bare), abs=100 * 4 / (both + bare)
        )
    kinds, _ = analysis.get_gpu_kernel_breakdown(visualize=False)
    total = kinds.set_index("kernel_type")["sum"]
    hidden = total["COMPUTATION overlapping COMMUNICATION"]
    ranks = len(shares.ranks)
    assert hidden == pytest.approx(int(sum(shares.both)) / 1e6, abs=4 * ranks)
    assert total["COMMUNICATION"] == pytest.approx(int(sum(shares.exposed)) / 1e6, abs=4 * ranks)


def test_overlap_is_the_same_in_holistic_trace_analysis(training: Path, tmp_path: Path) -> None:
    hta = pytest.importorskip("hta.trace_analysis", reason="HolisticTraceAnalysis is not installed")
    write_kineto(training, tmp_path / "kineto")
    analysis = hta.TraceAnalysis(trace_dir=str(tmp_path / "kineto"))
    shares = Feed.open(training).shares

    table = analysis.get_comm_comp_overlap(visualize=False).set_index("rank")
    for place, rank in enumerate(shares.ranks):
        hidden, bare = int(shares.both[place]), int(shares.exposed[place])
        # It rounds times down to microseconds.
        slack = 100 * 4e6 / (hidden + bare)
        assert table.comp_comm_overlap_pctg[rank] == pytest.approx(
            100 * hidden / (hidden + bare), abs=slack
        )

    times = analysis.get_temporal_breakdown(visualize=False).set_index("rank")
    for place, rank in enumerate(shares.ranks):
        computed_us = (int(shares.compute[place]) + int(shares.both[place])) / 1e6
        assert times["compute_time(us)"][rank] == pytest.approx(computed_us, abs=4)
