"""The time of an iteration from that of a kernel: arithmetic on the figures of the presets."""

from __future__ import annotations

import pytest

from clusim.base.units import parse_time
from clusim.hardware import FAMILIES, HOST_COSTS
from clusim.nccl.launch import Host, Launch, host_of, iteration_ps, overhead_ps, period_ps
from clusim.simulation.setup import Setup

US = 1_000_000


@pytest.fixture(scope="module")
def h100() -> Host:
    return host_of(Setup("dgx-h100").comm)


def us(cost: str, key: str) -> int:
    return parse_time(str(getattr(FAMILIES.get(key) or HOST_COSTS[key], cost).value))


def test_long_kernels_follow_each_other(h100: Host) -> None:
    gap = us("kernel_overhead", "hopper")
    for launch in (Launch(), Launch(8), Launch(threads=8)):
        assert iteration_ps(h100, "allreduce", 500 * US, launch) == 500 * US + gap


def test_work_for_many_channels_takes_a_group_time() -> None:
    host = host_of(Setup("dgx-a100").comm)
    one, all_channels = (period_ps(host, "allreduce", Launch(8), count) for count in (1, 24))
    assert all_channels - one == 8 * 23 * us("group_channel", "amd")
    alone, messages = (
        period_ps(host, "allreduce", Launch(), 24),
        period_ps(host, "alltoall", Launch(8)),
    )
    assert alone == us("launch", "amd")
    assert messages == period_ps(host, "alltoall", Launch(8), 24)


def test_short_kernels_wait_for_a_host_with_many_gpus(h100: Host) -> None:
    period = us("group_base", "intel") + 8 * us("group_launch", "intel")
    assert iteration_ps(h100, "allreduce", US, Launch(8)) == period
    assert iteration_ps(h100, "allreduce", 3 * US, Launch(8)) == period
    alone = iteration_ps(h100, "allreduce", US, Launch(1))
    assert alone == US + us("kernel_overhead", "hopper") < period


def test_the_period_grows_with_the_gpus_of_a_process(h100: Host) -> None:
    periods = [period_ps(h100, "allreduce", Launch(count)) for count in (1, 2, 4, 8)]
    assert periods == sorted(periods)
    assert len(set(periods)) == 4


def test_alltoall_enqueues_a_task_per_peer(h100: Host) -> None:
    extra = period_ps(h100, "alltoall", Launch(8)) - period_ps(h100, "allreduce", Launch(8))
    assert extra == 8 * 16 * us("p2p_task", "intel")


def test_graphs_have_no_host(h100: Host) -> None:
    graph = Launch(1, graph=True)
    assert period_ps(h100, "alltoall", graph) == 0
    saved = us("stream_launch", "hopper") - us("graph_node", "hopper")
    assert overhead_ps(h100, Launch()) - overhead_ps(h100, graph) == saved


def test_aggregated_launches_share_what_launching_costs(h100: Host) -> None:
    one = iteration_ps(h100, "allreduce", 20 * US, Launch(8))
    four = iteration_ps(h100, "allreduce", 20 * US, Launch(8, aggregated=4))
    assert four == 20 * US + overhead_ps(h100, Launch(8)) // 4 < one


def test_blocking_adds_host_kernel_start_and_end(h100: Host) -> None:
    blocking = iteration_ps(h100, "allreduce", 20 * US, Launch(1, blocking=1))
    kernel = 20 * US + overhead_ps(h100, Launch())
    around = us("first_start", "intel") + us("notice", "intel")
    assert blocking == period_ps(h100, "allreduce", Launch()) + kernel + around


def test_the_last_thread_launched_for_all_before_2_9() -> None:
    old, new = (host_of(Setup("dgx-a100", version=version).comm) for version in ("2.8", "2.9"))
    threads, group = Launch(threads=8), Launch(8)
    assert period_ps(old, "allreduce", threads) == period_ps(old, "allreduce", group)
    assert period_ps(new, "allreduce", threads) == period_ps(new, "allreduce", Launch())


def test_nothing_to_do_takes_almost_nothing(h100: Host) -> None:
    assert iteration_ps(h100, "all_gather", 0, Launch(4)) == 4 * us("empty_call", "intel")
