"""Runs that stand for those on many more machines: when they do, what is said of them, and how near they are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import clusim
from clusim.analysis.limits import wire_tables
from clusim.nccl import NcclPlan
from clusim.nccl.connect import ring_trip_ps, tree_detour_ps
from clusim.nccltests.jobs import kernel
from clusim.report.runreport import collective_report
from clusim.simulation import anchors, extrapolate, laws, samples
from clusim.simulation.api import result_of
from clusim.simulation.extrapolate import ERROR_LIMIT, extrapolated_result
from clusim.simulation.job import RunOptions, run_job
from clusim.simulation.laws import Levels, Linear
from clusim.simulation.plan import plan
from clusim.simulation.preparation import job_of
from clusim.simulation.request import Request
from clusim.simulation.session import Watch
from clusim.simulation.setup import Setup
from support.covering import THOROUGH

MIB = 1 << 20
BRIEF = RunOptions(histories=False)


def followed(asked: Request, options: RunOptions = BRIEF) -> bool:
    """Return whether other runs stand for a request."""
    return extrapolated_result(plan(asked), options, lambda: job_of(asked, options)) is not None


def has_law(asked: Request) -> bool:
    """Return whether the time of a request is known from fewer nodes."""
    run = anchors.cut_of(plan(asked))
    return run is not None and anchors.over_nodes(*run) is not None


def request(algorithm: str, nodes: int, size: int, **fields: Any) -> Request:
    env = (("NCCL_ALGO", algorithm), ("NCCL_PROTO", "Simple"))
    return Request(Setup("dgx-a100", nodes, env=env), "allreduce", size, **fields)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let other runs stand for what takes more than a second."""
    monkeypatch.setattr(extrapolate, "MANY_HOPS", 100_000)
    monkeypatch.setattr(anchors, "MOST_RANKS", 16)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("algorithm", ["Ring", "Tree"])
def test_runs_on_fewer_machines_are_within_the_error_that_is_said(algorithm: str) -> None:
    asked = request(algorithm, 12, MIB)
    found = result_of(asked, BRIEF)
    assert found.followed.startswith("from ")
    assert "nodes" in found.followed
    assert found.provenance.error_bound == ERROR_LIMIT
    whole = run_job(job_of(asked, BRIEF), BRIEF)
    assert abs(found.time_ps / whole.time_ps - 1) <= ERROR_LIMIT
    assert found.call == whole.call


def test_rings_that_share_a_nic_are_known_from_deeper_runs() -> None:
    """On 2 and 4 nodes they wait for each other in most steps: 22% too slow for 16 nodes, 11% from 4 and 8."""
    asked = Request(Setup("azure-ndv2", 16), "allreduce", 5_000_000, algorithm="hierarchical")
    origins = {}
    for case in (asked, replace(asked, algorithm="ring")):
        run = anchors.cut_of(plan(case))
        assert run is not None
        law = anchors.over_nodes(*run)
        origins[case.algorithm] = law and law.origin
    assert origins == {"hierarchical": "4 and 8 nodes", "ring": "2 and 4 nodes"}


@pytest.mark.usefixtures("small")
def test_what_is_not_known_of_a_run_that_others_stand_for_is_not_said() -> None:
    found = result_of(request("Ring", 12, 2 * MIB), BRIEF)
    said = found.to_json()
    for name in ("packets", "packet_hops", "grants", "packet_hops_per_s", "fingerprint"):
        assert said[name] is None, name
    assert said["followed"] == found.followed
    assert wire_tables(found).limit is None
    text = collective_report(found)
    assert f"simulated  {found.followed}; error limit " in text
    assert "busiest wires" not in text


@pytest.mark.parametrize(
    ("operation", "algorithm", "most"),
    [
        ("allreduce", "Ring", 1 << 40),
        ("allreduce", "Ring", 0),
        ("allreduce", "Tree", 0),
        ("allgather", "Ring", 1 << 40),
        ("alltoall", "Ring", 0),
        *(
            [
                ("allreduce", "Tree", 1 << 40),
                ("allgather", "Ring", 0),
                ("alltoall", "Ring", 1 << 40),
            ]
            if THOROUGH
            else []
        ),
    ],
)
def test_a_run_and_nccl_tests_give_one_answer(
    operation: str, algorithm: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both follow a size, or do not, by one rule and from the same runs: their times are equal to the picosecond."""
    monkeypatch.setattr(extrapolate, "MANY_HOPS", most)
    asked = replace(request(algorithm, 12, 128 << 10), operation=operation)
    found, row = result_of(asked, BRIEF), kernel(asked)
    assert row.time_ps == found.time_ps
    assert row.followed == bool(found.followed) == (most == 0)


def test_long_streams_of_one_machine_give_one_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extrapolate, "LONG_HOPS", 50_000)
    monkeypatch.setattr(anchors, "STREAM_HOPS", 50_000)
    asked = Request(
        Setup("gh200x4-mesh", env=(("NCCL_ALGO", "Ring"), ("NCCL_PROTO", "LL"))),
        "allreduce",
        64 * MIB,
    )
    found, row = result_of(asked, BRIEF), kernel(asked)
    assert found.followed == "from two smaller sizes, linear in the size"
    assert row.time_ps == found.time_ps


@pytest.mark.parametrize(
    ("algorithm", "runs", "most"),
    [("nccl", 1, 1_400_000), ("ring", 2, 4_200_000)],
    ids=["nvls", "ring"],
)
def test_a_long_stream_is_known_from_few_hops(algorithm: str, runs: int, most: int) -> None:
    """8 GiB are 57 million burst-hops by NVLS and 15 million by a ring, of which one loop over 8 chunks is 0.7."""
    asked = Request(Setup("dgx-h100"), "allreduce", 8 << 30, algorithm=algorithm)
    run = anchors.cut_of(plan(asked))
    assert run is not None
    grain = samples.phase(*run).grain
    in_one_size = replace(run[0], granularity=grain.burst_bytes[1])
    found = anchors.over_bytes(in_one_size, run[1], grain.grant_hops)
    assert found is not None
    assert found.origin == ["a smaller size", "two smaller sizes"][runs - 1]
    hops = [samples.phase(*each).grain.grant_hops for each in found.runs]
    assert hops[-1] == pytest.approx(runs * hops[0], rel=0.01)
    assert (len(hops), sum(hops) <= most < grain.grant_hops) == (runs, True)


def test_further_loops_of_a_long_stream_need_equal_times() -> None:
    """16 loops last as long as extrapolated from 8."""
    asked = Request(Setup("hgx-b200"), "allreduce", 8 << 30)
    run = anchors.cut_of(plan(asked))
    assert run is not None
    grain = samples.phase(*run).grain
    run = replace(run[0], granularity=grain.burst_bytes[1]), run[1]
    found = anchors.over_bytes(*run, grain.grant_hops)
    assert found is not None
    assert isinstance(found.law, laws.Steady)
    law = replace(found.law, at=8 * found.law.loop_bytes, to=16 * found.law.loop_bytes)
    assert isinstance(run[1], NcclPlan)
    few, many = (
        samples.phase(
            replace(run[0], size_bytes=int(size)),
            anchors._same_chunks(asked.setup.comm, run[1], int(size)),
        )
        for size in (law.at, law.to)
    )
    times_ps = samples.loop_of(few, 1 / 8)
    assert times_ps[0] == samples.time_of(few)
    assert samples.time_of(many) == pytest.approx(law.of(times_ps), rel=0.01)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    "fields", [{"granularity": "packet"}, {"granularity": 65536}, {"verify": True}]
)
def test_what_must_be_whole_is_simulated_whole(fields: dict[str, Any]) -> None:
    assert not followed(request("Ring", 12, 4 * MIB, **fields))


@pytest.mark.usefixtures("small")
def test_traces_faults_and_unknown_laws_are_simulated_whole() -> None:
    asked = request("Ring", 12, 4 * MIB)
    assert not followed(asked, replace(BRIEF, trace_out="t.h5"))
    broken = replace(asked.setup, faults=("rank 3 slow x1.3",))
    assert not followed(replace(asked, setup=broken))
    assert not followed(replace(asked, operation="broadcast"))
    own = replace(asked, setup=replace(asked.setup, env=()), algorithm="ring")
    assert followed(own)
    assert not followed(own, replace(BRIEF, trace_out="t.h5"))
    assert not followed(replace(own, setup=replace(own.setup, faults=("rank 3 slow x1.3",))))
    for algorithm in ("butterfly", "naive", "oneshot"):
        assert not has_law(replace(own, algorithm=algorithm))


@pytest.mark.usefixtures("small")
def test_named_algorithms_have_the_call_and_notes_of_a_run_in_full() -> None:
    asked = replace(request("Ring", 12, MIB), setup=Setup("dgx-a100", 12), algorithm="tree")
    found, whole = result_of(asked, BRIEF), run_job(job_of(asked, BRIEF), BRIEF)
    assert found.followed.startswith("from 4 and 8 nodes, each further level ")
    assert (found.call, found.provenance.notes) == (whole.call, whole.provenance.notes)
    wrong = replace(asked, setup=replace(asked.setup, env=(("NCCL_ALGO", "Tree"),)))
    with pytest.raises(clusim.ClusimError, match="add --algorithm nccl"):
        result_of(wrong, BRIEF)


@pytest.mark.usefixtures("small")
def test_exchanges_over_links_that_taper_are_simulated_whole() -> None:
    """A dragonfly of few groups has none of the congestion of many."""
    asked = Request(Setup("alps-gh200", 24), "alltoall", 8 * MIB, algorithm="direct")
    assert not has_law(asked)
    assert has_law(replace(asked, setup=Setup("dgx-h100", 12)))


def test_what_takes_seconds_is_simulated_whole() -> None:
    assert not followed(request("Ring", 12, 4 * MIB))


@pytest.mark.usefixtures("small")
def test_a_time_limit_ends_runs_that_stand_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "TIMES", samples.SampleCache(None))
    monkeypatch.setattr(extrapolate, "_TIMED", {})

    class Late(Watch):
        over = True

        def begins(self, what: str) -> None:
            """Let it be prepared."""

    with pytest.raises(clusim.ClusimError, match="for extrapolation"):
        result_of(request("Ring", 12, 4 * MIB), replace(BRIEF, watch=Late(10**12)))


def test_far_nodes_of_a_tree_are_counted() -> None:
    """Nodes 1, 2, 4, 8 and 0 of 16 are the longest way up; it leaves the group of eight nodes from 4 to 8 and from 8 to
    0, and again on the way down. A hop between groups crosses the spine, a second leaf and two cables more."""
    net = Setup("aws-p5en", 16).fabric
    switches = {node.tier: node.latency_ps for node in net.nodes if node.kind == "switch"}
    cable = next(link.latency_ps for link in net.links if link.b.startswith("spine"))
    further_ps = switches["leaf"] + switches["spine"] + 2 * cable
    for nodes, hops in ((4, 0), (8, 0), (16, 4), (64, 8)):
        detour_ps = tree_detour_ps(Setup("aws-p5en", nodes).fabric, nodes)
        assert detour_ps == pytest.approx(hops * further_ps, rel=0.03)


def test_a_ring_waits_for_its_longest_round_trip_unless_acknowledgements_take_longer() -> None:
    """Leaf switches of 32 nodes; EFA acknowledges no earlier than 18.8 us after a message of 8 us has passed."""
    near_ps, same_ps, far_ps = (
        ring_trip_ps(Setup("hgx-h100-ndr", nodes).fabric, nodes) for nodes in (4, 32, 33)
    )
    assert near_ps == same_ps < far_ps
    for nodes in (4, 9, 64):
        assert ring_trip_ps(Setup("aws-p5en", nodes).fabric, nodes) == 18_800_000
    law = Linear((2, 4), 10, "ranks", 16e6)
    assert law.of((100e6, 120e6)) == 120e6 + 6 * 10e6 + 16e6
    assert law.words(()) == "linear in ranks, 16us between far nodes"


@pytest.mark.parametrize("protocol", ["LL128", "LL", "Simple"])
def test_far_hops_leave_the_steps_of_a_ring_alone_while_their_way_hides(protocol: str) -> None:
    env = (("NCCL_ALGO", "Ring"), ("NCCL_PROTO", protocol), ("NCCL_MAX_NCHANNELS", "2"))
    asked = Request(Setup("aws-p5", 12, env=env), "allreduce", 64 << 10, granularity="quick")
    run = anchors.cut_of(plan(asked))
    assert run is not None
    found = anchors.over_nodes(*run)
    assert found is not None
    few = [extrapolate.timed(*part).time_ps for part in found.runs]
    whole = run_job(job_of(run[0], BRIEF), BRIEF)
    assert found.of(few)[0] == pytest.approx(whole.time_ps, rel=0.015)


def test_runs_on_fewer_nodes_keep_channels_and_shares() -> None:
    """128 KiB give 16 channels work; an eighth of it would give work to two."""
    env = (("NCCL_ALGO", "Ring"), ("NCCL_PROTO", "LL128"))
    asked = Request(Setup("aws-p5en", 16, version="2.28.3", env=env), "allreduce", 128 << 10)
    run = anchors.cut_of(plan(asked))
    assert run is not None
    found = anchors.over_nodes(*run)
    assert found is not None
    for part, cut in found.runs:
        assert isinstance(cut, NcclPlan)
        assert cut.num_channels == 16
        assert {piece.num_bytes for piece in cut.parts} == {part.size_bytes // 16}
        assert cut.chunks == run[1].chunks


def test_levels_beyond_the_runs_add_their_way() -> None:
    law = Levels(Linear((2, 3), 4), far_ps=(0, 0, 16))
    assert law.of((100, 130, 150)) == 150 + 30 + 16
    assert law.words((100e6, 130e6, 150e6)).startswith("each further level 30us, 1.6e-05us between")
