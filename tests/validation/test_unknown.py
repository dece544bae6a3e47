"""What a measurement does not say is bounded: launches, and releases that would run it otherwise."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from clusim.nccl.launch import Launch, host_of
from clusim.nccltests.jobs import PerfKernel
from clusim.simulation.request import Request
from clusim.validation.collectives import narrowing
from clusim.validation.collectives.breakdown import Point, launch_span, launches, times_us
from clusim.validation.collectives.measurements import CurveGroup, Row
from clusim.validation.collectives.narrowing import other_releases
from clusim.validation.collectives.releases import ruled_out, with_releases
from clusim.validation.collectives.systems import plugin_notes, setup_of
from clusim.validation.collectives.validate import validate

MIB = 1 << 20
US = 1_000_000
BLANK = CurveGroup("dgx-h100", 1, 8, "all_reduce", harness="nccl-tests")
OPEN = "2.16 to 2.28.9"


def test_a_blank_launch_is_any_and_the_likeliest_is_predicted() -> None:
    assert launches(BLANK) == [
        Launch(8),
        Launch(1, threads=8),
        Launch(1),
        Launch(1, True),
    ]
    assert "launch not given: -g 8 assumed" in BLANK.assumptions
    apart = replace(BLANK, n_nodes=2, n_gpus=16)
    assert launches(apart)[0] == Launch(1)
    assert "launch not given: one process per GPU assumed" in apart.assumptions
    assert launches(replace(BLANK, harness="own"))[0] == Launch(1)


def test_a_launch_that_is_known_is_not_doubted() -> None:
    for known in ({"gpus_per_process": 8}, {"threads_per_process": 8}, {"harness": "torch"}):
        group = replace(BLANK, **known)
        assert launches(group) == [group.launch]
        assert not [said for said in group.assumptions if "launch" in said]


def test_the_span_is_that_of_all_launches() -> None:
    row, kernel = Row(BLANK, 1024, 25.0), PerfKernel(8 * US, "Ring", "LL", 1)
    host = host_of(setup_of(BLANK).comm)
    known = host, "allreduce", kernel
    found, times = launch_span(row, *known), times_us(row, *known)
    assert found is not None
    assert len(times) == 4
    assert (found.low_us, found.high_us) == (min(times), max(times))
    assert times[0] == row.harness.time_ps(*known) / US == found.high_us
    assert found.high_us > 2 * found.low_us
    assert found.why == "launch"
    assert launch_span(replace(row, group=replace(BLANK, gpus_per_process=8)), *known) is None


def test_releases_count_that_run_it_otherwise_and_can_be_meant() -> None:
    setup = setup_of(BLANK)
    small, large = (Request(setup, "allreduce", size) for size in (16 << 10, 256 * MIB))
    assert other_releases(small) == []
    others = other_releases(large)
    assert [str(case.setup.version) for case in others] == ["2.16"]  # before NVLS
    forced = CurveGroup("dgx-h100", 1, 8, "all_reduce", algorithm="nvls", protocol="simple")
    others = other_releases(Request(setup_of(forced), "allreduce", 256 * MIB))
    # Before NVLS, NCCL sets Ring and Tree free again.
    assert [str(case.setup.version) for case in others] == ["2.16"]


def test_a_release_that_is_slower_than_what_was_measured_is_none() -> None:
    (old,) = other_releases(Request(setup_of(BLANK), "allreduce", 256 * MIB))
    found = {old: PerfKernel(1300 * US, "Ring", "Simple", 24)}

    def out(size: int, measured_us: float) -> set[str]:
        point = Point(Row(BLANK, size, measured_us), 1.0, "NVLS", "Simple", ())
        return ruled_out({point: [old]}, found)

    assert out(256 * MIB, 1000.0) == {"2.16"}
    assert out(256 * MIB, 1100.0) == set()
    assert out(16 * MIB, 1.0) == set()
    assert ruled_out({}, found) == set()


def test_a_validation_keeps_spans() -> None:
    group = CurveGroup("gh200x4-mesh", 1, 2, "all_gather")
    known = replace(group, gpus_per_process=1, nccl_version="2.27")
    report = validate([Row(group, 1024, 6.0), Row(known, 1024, 6.0)], jobs=1)
    blank, said = report.points
    assert blank.span is not None
    assert said.span is None
    assert blank.span.low_us <= blank.predicted_us <= blank.span.high_us
    row, other = report.to_json()["points"]
    assert other["unknown"] is other["predicted_low_us"] is None
    assert row["predicted_low_us"] < row["predicted_high_us"]
    assert with_releases(report, jobs=1).points[1] == said


def test_old_releases_widen_a_span() -> None:
    group = replace(BLANK, gpus_per_process=8, n_gpus=4)
    report = validate([Row(group, 4 * MIB, 60.0), Row(group, 8, 23.0)], jobs=1)
    large, small = with_releases(report, jobs=1).points[::-1]
    assert {point.row.size_bytes for point in (large, small)} == {8, 4 * MIB}
    spans = [point.span for point in (large, small) if point.span is not None]
    assert spans
    assert all(span.why == "release" and span.low_us < span.high_us for span in spans)


@pytest.mark.parametrize(
    ("measured_us", "range_"), [(1300.0, "2.16 to 2.16"), (1000.0, OPEN), (1160.0, OPEN)]
)
def test_rows_whose_plan_depends_on_the_release_exclude_releases(monkeypatch, measured_us, range_):
    """Ring up to 2.16 needs 1300 us, NVLS afterwards 1000 us; rows on more nodes follow, and do not decide."""

    def known(cases: Iterable[Request], **_: object) -> dict[Request, PerfKernel]:
        old = {case: case.setup.version == "2.16" for case in cases}
        return {case: PerfKernel((1300 if old[case] else 1000) * US, "", "", 8) for case in old}

    monkeypatch.setattr(narrowing, "kernels", known)
    group = replace(BLANK, gpus_per_process=8, release=OPEN)
    host = host_of(setup_of(group).comm)
    launch_us = times_us(Row(group), host, "allreduce", PerfKernel(0, "", "", 8))[0]
    large = Row(group, 256 * MIB, measured_us + launch_us, "a")
    small, far = (
        replace(large, size_bytes=1024),
        replace(large, group=replace(group, n_nodes=2, n_gpus=16), time_us=1.0),
    )
    other = replace(large, source="b", time_us=1000.0 + launch_us)
    told = narrowing.narrow_rows([large, small, far, other], granularity="quick")
    assert [row.group.release for row in told] == [range_, range_, range_, OPEN]
    assert {bool(row.unused) for row in told[:3]} == {range_ != OPEN}
    assert told[0].group.version == ("2.16" if range_ != OPEN else "2.28.9")


def test_a_plugin_of_several_nodes_that_is_not_given_is_noted() -> None:
    near = CurveGroup("aws-p5en", 1, 8, "all_reduce")
    far = replace(near, n_nodes=2, n_gpus=16)
    fabric = setup_of(far).fabric
    assert plugin_notes(far, fabric) == (
        "release of aws-ofi-nccl on EFA not given: the newest assumed",
    )
    assert plugin_notes(near, fabric) == ()
    assert plugin_notes(replace(far, plugin="aws-ofi-nccl 1.16"), fabric) == ()
    verbs = CurveGroup("azure-ndv5", 2, 16, "all_reduce")
    assert plugin_notes(verbs, setup_of(verbs).fabric) == ()
