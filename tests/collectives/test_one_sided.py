"""Puts and signals: time of a put alone, order of data and signals, and CTAs that stay free."""

from __future__ import annotations

import pytest

import clusim
from clusim.base.errors import InputError, ScheduleError
from clusim.collectives import ScheduleBuilder
from clusim.topology import Fabric

KIB = 1 << 10


@pytest.fixture(scope="module")
def h100() -> Fabric:
    return clusim.load("dgx-h100")


def arrival_ps(machine: Fabric, bytes: int, pair: tuple[int, int] = (0, 1)) -> int:
    """Return when a put alone has arrived and its signal is counted."""
    builder = ScheduleBuilder(machine)
    builder.put(*pair, bytes)
    builder.wait_signal(pair[1], pair[0])
    result = clusim.simulate(machine, builder.build(), verify=bytes <= 64 * KIB)
    assert bytes > 64 * KIB or result.verified
    return result.time_ps


def test_a_put_alone_needs_its_latency_and_the_time_on_the_wires(h100: Fabric) -> None:
    """One write of 8 B is latency; twice the bytes need twice the further time, at the rate of 18 NVLinks."""
    least, one, two = (arrival_ps(h100, size) for size in (8, 2048 * KIB, 4096 * KIB))
    three = arrival_ps(h100, 6144 * KIB)
    assert least < 2_000_000
    assert three - two == pytest.approx(two - one, rel=0.04), (
        "pieces are not whole numbers of stripes"
    )
    rate_GBps = 2048 * KIB / (two - one) * 1000
    assert 0.8 * 450 < rate_GBps < 450, "NVLink's rate without packet headers"
    message = clusim.collective(h100, "send", 4 << 20, ranks=(0, 1), algorithm="direct")
    assert two < message.time_ps, "CTAs and their FIFO are not in the way"


def test_a_put_between_nodes_has_the_rate_of_its_nic() -> None:
    pair = clusim.load("dgx-h100", nodes=2)
    one, two = (arrival_ps(pair, size, (0, 8)) for size in (16 << 20, 32 << 20))
    assert (16 << 20) / (two - one) * 1000 == pytest.approx(50, rel=0.05)


def test_a_signal_follows_the_puts_before_it(h100: Fabric) -> None:
    builder = ScheduleBuilder(h100)
    builder.put(0, 1, 1024 * KIB)
    builder.signal(0, 1)
    seen = builder.wait_signal(1, 0, 2)
    both = clusim.simulate(h100, builder.build())
    assert both.tasks.end_ps[seen] >= arrival_ps(h100, 1024 * KIB)
    alone = ScheduleBuilder(h100)
    alone.signal(0, 1)
    seen = alone.wait_signal(1, 0)
    assert clusim.simulate(h100, alone.build()).tasks.end_ps[seen] < 2_000_000


def test_a_wait_counts_signals_once_and_may_come_first(h100: Fabric) -> None:
    builder = ScheduleBuilder(h100)
    first = builder.wait_signal(1, 0)
    last = builder.wait_signal(1, 0, 2)
    for size in (8, 512 * KIB, 512 * KIB):
        builder.put(0, 1, size)
    schedule = builder.build()
    ends = clusim.simulate(h100, schedule).tasks.end_ps
    assert ends[first] < 2_000_000 < ends[last]
    again = ScheduleBuilder(2)
    again.put(0, 1, 8)
    again.wait_signal(1, 0, 2)
    with pytest.raises(
        ScheduleError, match="rank 1 waits for signal 2 of rank 0, which sends 1; add the others"
    ):
        again.build()
    with pytest.raises(InputError, match="a wait for 0 signals"):
        again.wait_signal(1, 0, 0)


def test_neither_side_of_a_put_holds_an_sm(h100: Fabric) -> None:
    """A kernel on all SMs is as long as alone beside puts, and longer beside messages of CTAs."""
    ends = {}
    for way in ("alone", "put", "send"):
        builder = ScheduleBuilder(h100)
        kernels = [builder.kernel(rank, compute_ps=20_000_000) for rank in (0, 1)]
        if way == "put":
            builder.put(0, 1, 4 << 20)
        if way == "send":
            builder.send(0, 1, 4 << 20)
            builder.recv(1, 0, 4 << 20)
        times = clusim.simulate(h100, builder.build()).tasks.end_ps
        ends[way] = [int(times[kernel]) for kernel in kernels]
    assert ends["put"] == ends["alone"]
    assert min(ends["send"]) > max(ends["alone"])


@pytest.mark.parametrize("operation", ["all_gather", "alltoall", "sendrecv"])
@pytest.mark.parametrize("size", [1004, 256 * KIB])
def test_copies_of_all_ranks_have_the_right_data(operation: str, size: int) -> None:
    for machine, ranks in (("dgx-h100", 3), ("a100x4-mesh", 4)):
        result = clusim.collective(
            machine, operation, size, algorithm="copy-engines", ranks=range(ranks), verify=True
        )
        assert result.verified


def test_messages_around_a_ring_by_copy_engines_are_puts(h100: Fabric) -> None:
    """All ranks send at once, each over the links of its GPU, and a kernel on all SMs lasts as long as alone."""
    size = 8 << 20
    times = []
    for way in ("alone", "ring"):
        builder = ScheduleBuilder(h100)
        kernel = builder.kernel(0, compute_ps=40_000_000)
        if way == "ring":
            tasks = builder.collective("sendrecv", size, algorithm="copy-engines")
        times.append(clusim.simulate(h100, builder.build()).tasks.end_ps)
    assert times[1][kernel] == times[0][kernel]
    assert max(times[1][task] for task in tasks) < 1.1 * arrival_ps(h100, size)


def test_copies_to_peers_run_side_by_side() -> None:
    """On a mesh of four A100 each peer has links of its own: three copies take as long as one."""
    mesh = clusim.load("a100x4-mesh")
    block = 2048 * KIB
    gathered = clusim.collective(mesh, "all_gather", 4 * block, algorithm="copy-engines")
    assert gathered.time_ps < 1.1 * arrival_ps(mesh, block) + 3_000_000


@pytest.mark.parametrize("operation", ["all_gather", "alltoall", "sendrecv"])
def test_copy_engines_reach_no_other_node(operation: str) -> None:
    with pytest.raises(
        InputError, match="copy-engines: 2 nodes; copy engines reach GPUs of a node"
    ):
        clusim.collective("dgx-h100", operation, "1MiB", algorithm="copy-engines", nodes=2)
