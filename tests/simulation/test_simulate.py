from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import clusim
from clusim.analysis.flowrates import summarise
from clusim.analysis.limits import busiest_wires, class_traffic, limit
from clusim.base.errors import DeadlockError, InputError
from clusim.base.terms.operations import bus_factor
from clusim.lowering import Fault
from clusim.results.result import Result
from clusim.schedule import CollectiveWriter, Prim, Schedule
from clusim.simulation.capacity import capacity_Bps, wire_bytes
from clusim.simulation.traffic import TIMED_PATTERNS, Pattern
from clusim.simulation.traffic_image import to_image
from clusim.topology import Fabric
from clusim.topology.arrays import arrays_of


@pytest.fixture(scope="module")
def fabric() -> Fabric:
    return clusim.load("dgx-h100")


@pytest.fixture(scope="module")
def schedule(fabric: Fabric) -> Schedule:
    return clusim.collectives.build(fabric, "allreduce", "ring", 1 << 20, channels=4)


@pytest.fixture(scope="module")
def result(fabric: Fabric, schedule: Schedule) -> Result:
    return clusim.simulate(fabric, schedule, granularity="packet")


def test_bandwidths_are_those_of_nccl_tests(result: Result) -> None:
    assert result.algbw_GBps == pytest.approx((1 << 20) / (result.time_ps / 1e12) / 1e9)
    assert result.busbw_GBps == pytest.approx(result.algbw_GBps * 1.75)


@pytest.mark.parametrize(
    ("operation", "factor"),
    [("allreduce", 1.5), ("all_gather", 0.75), ("reduce_scatter", 0.75), ("alltoall", 0.75),
     ("broadcast", 1.0), ("reduce", 1.0), ("gather", 0.75), ("scatter", 0.75), ("sendrecv", 1.0)],
)  # fmt: skip
def test_bus_factors(operation: str, factor: float) -> None:
    assert bus_factor(operation, 4) == factor


@pytest.mark.parametrize("bins", [2, 16, 512])
def test_slices_bins_and_verification_change_nothing(
    fabric: Fabric, schedule: Schedule, result: Result, bins: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clusim.simulation.session.SLICE_S", 0.0)
    again = clusim.simulate(fabric, schedule, granularity="packet", bins=bins, verify=True)
    assert again.fingerprint == result.fingerprint
    assert again.time_ps == result.time_ps
    assert np.array_equal(again.wires.counters, result.wires.counters)
    assert again.verified is True


def test_bins_hold_the_whole_run(result: Result) -> None:
    assert result.bins.edge_ps[-1] == result.time_ps
    assert np.array_equal(result.bins.wires["busy"].sum(axis=1), result.wires.counters["busy_ps"])
    assert result.bins.hbm_bytes.sum() > 0


def test_progress_grows_from_0_to_1(
    fabric: Fabric, schedule: Schedule, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clusim.simulation.session.SLICE_S", 0.0)
    seen: list[tuple[float, int]] = []
    clusim.simulate(fabric, schedule, progress=lambda part, now_ps: seen.append((part, now_ps)))
    assert len(seen) > 10
    assert seen == sorted(seen)
    assert 0 <= seen[0][0] < 0.2
    assert 0.7 < seen[-1][0] <= 1


def test_progress_grows_while_equal_messages_are_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clusim.simulation.session.SLICE_S", 0.0)
    seen: list[float] = []
    clusim.simulate_traffic(
        clusim.load("star:4"),
        clusim.Traffic("permutation", 4 << 20, 4096),
        progress=lambda part, _: seen.append(part),
    )
    assert seen == sorted(seen)
    assert len({round(part, 1) for part in seen}) > 8


def test_what_crosses_the_wires_of_a_ring_is_what_busbw_counts(result: Result) -> None:
    up, down = class_traffic(result)
    assert (up.wire_class, down.wire_class) == ("nvlink gpu->switch", "nvlink switch->gpu")
    for row in (up, down):
        assert row.payload_bytes == row.asked_bytes == 14 << 20
        assert row.wire_bytes > row.payload_bytes
        assert 0 < row.mean_busy <= row.max_busy <= 1


@pytest.mark.parametrize(
    ("operation", "carried"),
    [("broadcast", 3.0), ("reduce", 3.0), ("gather", 0.75), ("scatter", 0.75), ("send", 1.0),
     ("all_gather", 3.0), ("reduce_scatter", 3.0), ("alltoall", 3.0), ("sendrecv", 4.0)],
)  # fmt: skip
def test_what_crosses_the_wires_of_any_operation_is_what_busbw_counts(
    fabric: Fabric, operation: str, carried: float
) -> None:
    size_bytes = 1 << 16
    schedule = clusim.collectives.build(fabric, operation, None, size_bytes, ranks=range(4))
    for row in class_traffic(clusim.simulate(fabric, schedule)):
        assert row.payload_bytes == row.asked_bytes == carried * size_bytes


def test_the_limit_is_the_busiest_wire(result: Result) -> None:
    top, first = limit(result), busiest_wires(result)[0]
    assert top is not None
    assert (top.name, top.reached) == (first.name, first.busy)
    assert top.busbw_bound_GBps is not None
    assert top.busbw_bound_GBps >= result.busbw_GBps
    assert first.busy + first.no_credit + first.nothing == pytest.approx(1)


def test_several_collectives_have_no_bandwidth(fabric: Fabric, schedule: Schedule) -> None:
    both = replace(schedule, calls=(*schedule.calls, schedule.calls[0]))
    result = clusim.simulate(fabric, both)
    assert result.call is None
    with pytest.raises(InputError, match="not one collective"):
        _ = result.busbw_GBps


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": "d"}, "engine 'd': unknown; use c or reference"),
        ({"seed": -1}, "seed -1: must be at least 0"),
        ({"bins": 1}, "bins 1: must be at least 2"),
        ({"trace_primitives": True}, "need a trace; add --trace-out"),
        ({"granularity": "fine"}, "granularity 'fine'"),
    ],
)
def test_bad_options_are_named(
    fabric: Fabric, schedule: Schedule, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        clusim.simulate(fabric, schedule, **options)


@pytest.mark.parametrize("fields", [{"routing": "scenic"}, {"seed": -1}, {"packet_bytes": 0}])
def test_bad_traffic_is_named(fields: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(fields)).split("_")[0]):
        clusim.Traffic(**({"pattern": "incast", "message_bytes": 64, "packet_bytes": 64} | fields))


def test_verify_refuses_more_memory_than_sensible(fabric: Fabric) -> None:
    big = clusim.collectives.build(fabric, "allreduce", "ring", 8 << 30)
    with pytest.raises(InputError, match=r"verify: real data would need 192\.0 GiB"):
        clusim.simulate(fabric, big, verify=True)


def waiting_circle() -> Schedule:
    """Three ranks of which each first receives from the one before."""
    writer = CollectiveWriter.create("allreduce", 3 << 10, ranks=3, num_ranks=8, algorithm="circle")
    for part in writer.parts():
        pipes = [writer.connect(rank, (rank + 1) % 3, part.channel) for rank in range(3)]
        for rank in range(3):
            prims = [Prim("recvReduceSend", recv=0, send=1)]
            writer.program(rank, part, prims, (pipes[rank - 1], pipes[rank]))
    return writer.schedule()


@pytest.mark.parametrize("engine", ["c", "reference"])
def test_a_deadlock_names_the_circle(fabric: Fabric, engine: str) -> None:
    with pytest.raises(DeadlockError) as caught:
        clusim.simulate(fabric, waiting_circle(), engine=engine)  # type: ignore[arg-type]
    message = str(caught.value)
    assert "3 of 3 programs are stuck" in message
    assert "each waits for the next, the last for the first" in message
    assert "rank 0 channel 0 (recvReduceSend needs slot 0 filled by rank 2)" in message
    assert "rank 2 channel 0 (recvReduceSend needs slot 0 filled by rank 1)" in message
    assert caught.value.exit_code == 1


def test_a_sender_without_a_receiver_is_named_with_its_slot(fabric: Fabric) -> None:
    writer = CollectiveWriter.create(
        "broadcast", 64 << 20, ranks=2, num_ranks=8, root=0, algorithm="deaf"
    )
    for part in writer.parts():
        pipe = writer.connect(0, 1, part.channel)
        writer.program(0, part, [Prim("send", send=0)], [pipe])
        writer.program(1, part, [Prim("recv", recv=0)], [pipe])
    stuck = writer.schedule()
    first, last = stuck.instances
    stuck = replace(stuck, instances=(first, replace(last, length=last.length // 2)))
    with pytest.raises(
        DeadlockError, match=r"rank 0 channel 0 \(send needs slot \d freed by rank 1\)"
    ):
        clusim.simulate(fabric, stuck)


def test_a_wire_that_is_down_is_survived_or_reported(fabric: Fabric, schedule: Schedule) -> None:
    wires = arrays_of(fabric).wire_names
    one = [Fault(time_ps=0, factor=Fraction(0), wire=wires[0])]
    slow = clusim.simulate(fabric, schedule, faults=one)
    assert slow.time_ps >= clusim.simulate(fabric, schedule).time_ps
    assert slow.wires.counters["packets"][0] == 0
    gone = [Fault(1, Fraction(0), wire=name) for name in wires if name.startswith("gpu0->")]
    with pytest.raises(DeadlockError, match=r"stalled at .* down since 1 ps"):
        clusim.simulate(fabric, schedule, faults=gone)


def traffic(pattern: Pattern, **fields: object) -> clusim.Traffic:
    if pattern in TIMED_PATTERNS:
        fields = {"load": 0.5, "duration_ps": 20_000_000, "message_bytes": 4096} | fields
    values = {"message_bytes": 64 << 10, "packet_bytes": 4096} | fields
    return clusim.Traffic(pattern, **values)  # type: ignore[arg-type]


@pytest.mark.parametrize("pattern", ["permutation", "uniform", "alltoall", "incast", "hotspot"])
@pytest.mark.parametrize("topology", ["mesh:4x4", "fat-tree:k=4", "dgx-a100"])
def test_every_message_arrives(topology: str, pattern: Pattern) -> None:
    machine = clusim.load(topology)
    result = clusim.simulate_traffic(machine, traffic(pattern))
    messages = result.messages
    assert messages is not None
    assert (messages.end_ps > messages.start_ps).all()
    assert (messages.source != messages.destination).all()
    assert messages.end_ps.max() == result.time_ps
    summary = summarise(result)
    assert summary.messages == len(messages.source) > 0
    again = clusim.simulate_traffic(machine, traffic(pattern))
    assert again.fingerprint == result.fingerprint
    if pattern != "alltoall" and pattern != "incast":
        other = clusim.simulate_traffic(machine, traffic(pattern, seed=1))
        assert other.fingerprint != result.fingerprint


def test_patterns_are_what_their_names_say() -> None:
    arrays = arrays_of(clusim.load("fat-tree:k=4"))
    permutation = traffic("permutation").plan(arrays).messages
    assert sorted(permutation.destination) == list(range(16))
    incast = traffic("incast").plan(arrays).messages
    assert set(incast.destination) == {0}
    pairs = traffic("alltoall").plan(arrays).messages
    assert len({*zip(pairs.source.tolist(), pairs.destination.tolist(), strict=True)}) == 16 * 15
    hot = traffic("hotspot", duration_ps=10**9).plan(arrays).messages
    share = np.mean(hot.destination[hot.source != 0] == 0)
    assert share == pytest.approx(0.2 + 0.8 / 15, abs=0.02)


def test_load_1_fills_the_fullest_wire_and_no_more() -> None:
    machine = clusim.load("mesh:4x4")
    half = clusim.simulate_traffic(machine, traffic("uniform", load=0.5, duration_ps=10**9))
    assert half.utilisation.max() == pytest.approx(0.5, abs=0.04)


def test_capacity_of_known_fabrics() -> None:
    """An 8x8 mesh saturates at half a link per node: 32 nodes send half over 8 wires each way."""
    mesh = arrays_of(clusim.load("mesh:8x8"))
    uniform = (1 - np.eye(64)) / 63
    rate_Bps = capacity_Bps(mesh, uniform, 4096)
    router = next(w for w, name in enumerate(mesh.wire_class) if name.startswith("dim"))
    link_Bps = mesh.wires["rate_num"][router] / mesh.wires["rate_den"][router] * 1e12
    payload = 4096 / wire_bytes(mesh, 4096)[router]
    assert rate_Bps == pytest.approx(link_Bps * payload * 8 / (32 * 32 / 63), rel=1e-6)


def test_bursts_of_traffic_keep_the_bytes() -> None:
    machine = clusim.load("fat-tree:k=4")
    exact = clusim.simulate_traffic(machine, traffic("permutation"))
    burst = clusim.simulate_traffic(machine, traffic("permutation"), granularity=16 << 10)
    assert burst.packets == exact.packets
    assert burst.grants == exact.grants // 4
    assert np.array_equal(burst.wires.counters["bytes"], exact.wires.counters["bytes"])


def test_parallel_links_get_parallel_sources() -> None:
    machine = clusim.load("dgx-h100")
    pattern = traffic("uniform")
    plan = pattern.plan(arrays_of(machine))
    image = to_image(machine, pattern, plan)
    assert len(image.sources) == 8 * 18
    for row in image.sources:
        times = image.messages["start_ps"][row["msg_lo"] : row["msg_hi"]]
        assert (np.diff(times) >= 0).all()
