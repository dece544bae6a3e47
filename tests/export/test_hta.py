"""HolisticTraceAnalysis reads an export and finds the overlap that clusim finds; skipped where it is not installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusim.export.kineto import write_kineto
from clusim.report.feed import Feed

pytestmark = pytest.mark.filterwarnings("ignore")


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
