"""Serial servers: busy times by hand, limits of savings, and the instances that a verdict names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import clusim
from clusim.analysis.blame import server_table
from clusim.report.page_data import Feed
from clusim.results.cause_kinds import CauseKind
from clusim.results.servers import FULL, outstanding
from clusim.results.trace.inputs import read_inputs
from clusim.schedule.builder import ProgramBuilder
from clusim.simulation.api import result_of
from clusim.simulation.job import RunOptions, run_job
from clusim.simulation.plan import plan
from clusim.simulation.preparation import job_of
from clusim.simulation.request import Request
from clusim.simulation.setup import Setup
from clusim.simulation.speed import speed_of
from clusim.topology import Fabric
from clusim.topology.packets import Protocol
from support.limits import Asked
from support.workloads import ideal, tiny

PLAIN = RunOptions(bins=2, histories=False)


def test_a_proxy_thread_is_busy_for_each_message_of_its_rank(tmp_path: Path) -> None:
    """One channel over 16 ranks: 30 chunks of 2 slices, sent by one thread of each node."""
    trace = tmp_path / "run.h5"
    fabric = clusim.load("dgx-a100", nodes=2)
    result = clusim.collective(
        *(fabric, "allreduce", "64KiB"),
        algorithm="ring",
        protocol="simple",
        channels=1,
        trace_out=trace,
    )
    host = next(node.host for node in fabric.nodes if node.host is not None)
    nic = next(node.nic for node in fabric.nodes if node.nic is not None)
    each_ps = host.thread_ps + host.thread_after_ps + nic.progress_ps + nic.progress_simple_ps
    rows = {row["name"]: row for row in server_table(trace).rows()}
    threads = rows["proxy threads"]
    assert threads["servers"] == 2
    assert threads["busy"] * result.time_ps == pytest.approx(60 * each_ps, rel=1e-5)


@pytest.mark.parametrize(
    ("machine", "nodes", "operation", "size"),
    [
        ("dgx-h100", None, "allreduce", "1MiB"),
        ("a100x4-mesh", 2, "alltoall", "512KiB"),
        ("a100-pcie-x8", None, "reducescatter", "256KiB"),
    ],
)
def test_no_server_is_busy_for_longer_than_the_run(
    machine: str, nodes: int | None, operation: str, size: str
) -> None:
    result = clusim.collective(machine, operation, size, nodes=nodes, confirm=True)
    verdict = result.diagnose()
    assert {"CTAs, busiest of a rank", "memories"} <= {one.name for one in verdict.servers}
    for one in verdict.servers:
        assert 0 < one.mean <= one.busy
        assert one.busy <= 1 + 1e-6
        assert (one.full > 0) == (one.busy >= FULL)
    full = max(one.busy for one in verdict.servers if one.name != "CTA slots")
    first = verdict.headline
    assert first is not None
    assert first.saving_ps is not None
    assert first.saving_ps <= result.time_ps * (1 - full / 2)


def test_a_symmetric_ring_accuses_no_rank_and_a_slow_rank_is_named() -> None:
    sound, slow = (
        clusim.collective("dgx-h100", "allreduce", "64KiB", algorithm="ring", faults=faults)
        for faults in ([], ["rank 3 slow x4"])
    )
    lines = sound.diagnose().lines()
    assert any("all 8 ranks" in line for line in lines)
    assert not any("rank 5" in line or "(rank" in line for line in lines)
    first = slow.diagnose().headline
    assert first is not None
    assert (first.kind, first.remedy) == (CauseKind.STRAGGLER, "rank 3 repaired")


def test_only_instances_beyond_the_spread_of_the_others_are_outstanding() -> None:
    assert outstanding({"a": 10, "b": 10, "c": 10}, 3, 0.9) == ()
    assert outstanding({"a": 20, "b": 10, "c": 9}, 3, 0.9) == ("a",)
    assert outstanding({"a": 20, "b": 15, "c": 5}, 3, 0.9) == ()
    assert outstanding({"a": 20, "b": 20, "c": 1}, 1, 0.9) == ()


def test_host_threads_are_busy_for_their_tasks_and_kernels_for_theirs() -> None:
    """Three pauses of 5 us on a host and one on another, which has a second thread, and a kernel, in memory."""
    builder = ProgramBuilder(2, "hosts")
    for rank, count in ((0, 3), (1, 1)):
        for number in range(count):
            builder.delay(rank, 5_000_000, stream="host", name=f"host {number}")
    builder.delay(1, 2_000_000, stream="cpu 7", name="operator")
    builder.kernel(1, compute_ps=10_000_000, stream="kernels", name="F0")
    result = clusim.simulate(clusim.load("a100x4-mesh"), builder.build())
    rows = {one.name: one for one in result.verdict.servers}
    hosts = rows["host threads"]
    assert (hosts.servers, hosts.remedies) == (3, ("host x2",))
    assert hosts.busy * result.time_ps == pytest.approx(15_000_000, rel=1e-5)
    assert hosts.mean * result.time_ps == pytest.approx(
        (15_000_000 + 5_000_000 + 2_000_000) / 3, rel=1e-5
    )
    assert rows["kernels"].busy * result.time_ps == pytest.approx(10_000_000, rel=1e-5)


def test_the_report_of_a_step_has_its_host_threads(tmp_path: Path) -> None:
    trace = tmp_path / "step.h5"
    work = tiny("parallel: {data: 1}\nhost: {framework: pytorch}\n")
    found = clusim.train(work, ideal(1), steps=1, fold="none", trace_out=str(trace), confirm=False)
    rows = {row["name"]: row for row in server_table(trace).rows()}
    inputs = read_inputs(trace)
    on_host = [name == "host" for name in inputs.texts("tasks/stream")]
    paused_ps = int(inputs.image["tasks"]["delay_ps"][: len(on_host)][on_host].sum())
    busy = rows["host threads"]["busy"]
    assert busy * found.result.time_ps == pytest.approx(paused_ps, rel=1e-5)
    servers = Feed.open(trace).servers
    assert servers is not None
    assert "host threads" in [row["name"] for row in servers.rows()]


def doubled(fabric: Fabric) -> Fabric:
    """Return a system whose CTAs take half of the time per byte, as its file would say."""

    def faster(one: Protocol) -> Protocol:
        rates = {name: 2 * rate for name, rate in one.op_Bps.items()}
        further_ps = max(0, one.round_ps - one.fixed_ps) // 2
        round_ps = one.fixed_ps + further_ps if one.round_ps else 0
        return replace(one, op_Bps=rates, crowding=one.crowding / 2, round_ps=round_ps)

    return replace(fabric, protocols={name: faster(one) for name, one in fabric.protocols.items()})


@pytest.mark.parametrize(
    ("machine", "size"), [("dgx-h100", "256KiB"), ("dgx-1v", "2MiB"), ("mi300x", "64KiB")]
)
def test_cta_x2_is_twice_the_throughput_with_half_of_crowding_and_further_rounds(
    machine: str, size: str
) -> None:
    planned = plan(Request(Setup(machine), "allreduce", clusim.base.units.parse_size(size)))
    base = planned.options
    assert isinstance(base, Request)
    speed = speed_of("cta x2")
    assert speed is not None
    before = result_of(planned, PLAIN)
    by_words = run_job(speed.job(job_of(planned, PLAIN)), PLAIN)
    setup = replace(base.setup, topology=doubled(base.setup.fabric), nodes=None)
    by_file = run_job(job_of(replace(base.of(planned.schedule), setup=setup), PLAIN), PLAIN)
    assert by_words.time_ps < before.time_ps
    assert by_words.time_ps == pytest.approx(by_file.time_ps, rel=2e-3)


def test_a_partial_run_has_no_error_limit() -> None:
    result = clusim.collective("dgx-h100", "allreduce", "32MiB", algorithm="ring", watch=Asked(1))
    assert not result.complete
    assert result.provenance.error_bound is None
    verdict = result.diagnose()
    assert verdict.proof == ""
    assert all(cause.saving_ps is None for cause in verdict.causes)
