"""What a program prints for iterations of a kernel: a law by hand for every flag that changes it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusim.api import nccl_tests
from clusim.base.errors import InputError
from clusim.base.units import parse_time
from clusim.hardware import FAMILIES, HOST_COSTS
from clusim.nccl.launch import Host, Launch
from clusim.nccltests.jobs import PerfKernel, kernel
from clusim.nccltests.options import PerfOptions, parse_flags, without_effect
from clusim.nccltests.sweep import Harness, harness_of, iterations_of, place
from clusim.simulation.api import result_of
from clusim.simulation.request import Request
from clusim.simulation.setup import Setup

HOST = Host("hopper", "intel", 8)
US = 1_000_000
KERNEL = 50 * US
ROUNDING = 2
"""Of a division or two [ps]."""


def us(cost: str) -> int:
    return parse_time(str(getattr(HOST_COSTS["intel"], cost).value))


def family(cost: str) -> int:
    return parse_time(str(getattr(FAMILIES["hopper"], cost).value))


def ring(time_ps: int, lags_ps: tuple[int, ...] = ()) -> PerfKernel:
    return PerfKernel(time_ps, "Ring", "Simple", 1, lags_ps=lags_ps)


def printed(kernel_ps: int = KERNEL, kind: str = "nccl-tests", **flags: int) -> int:
    values = {name: str(value) for name, value in flags.items()}
    return harness_of(parse_flags(values), kind).time_ps(HOST, "allreduce", ring(kernel_ps))


AROUND = us("first_start") + us("notice")
STEADY = KERNEL + family("kernel_overhead")


@pytest.mark.parametrize("iters", [1, 5, 20, 100])
def test_every_iteration_has_its_share_of_start_and_end(iters: int) -> None:
    first = us("launch") + AROUND
    assert printed(iters=iters) == pytest.approx(STEADY + first / iters, abs=ROUNDING)


@pytest.mark.parametrize("flags", [{}, {"cudagraph": 2}, {"blocking": 1}, {"agg_iters": 3}])
def test_an_interval_ends_at_a_tick_of_the_clock(flags: dict[str, int]) -> None:
    values = {name: str(value) for name, value in flags.items()}
    harness = harness_of(parse_flags(values))
    exact, later = (
        harness.interval(HOST, "allreduce", ring(KERNEL + ps)).total_ps for ps in (0, 1)
    )
    assert exact % 1000 == later % 1000 == 0
    assert exact < later <= exact + 1000 * (20 if "blocking" in flags else 1)


def test_five_and_a_hundred_iterations_differ_by_a_fifth_less_a_hundredth() -> None:
    apart = printed(iters=5) - printed(iters=100)
    first = us("launch") + AROUND
    assert apart == pytest.approx(first * (1 / 5 - 1 / 100), abs=ROUNDING)


def test_a_slow_host_ends_with_the_last_kernel() -> None:
    group = us("group_base") + 8 * us("group_launch")
    short = US + family("kernel_overhead")
    found = printed(US, ngpus=8, iters=10)
    assert found == pytest.approx(group + (short + AROUND) / 10, abs=ROUNDING)


def test_threads_are_as_fast_as_processes_but_leave_a_barrier_apart() -> None:
    threads, processes = printed(nthreads=8, iters=20), printed(iters=20)
    assert threads - processes == pytest.approx(7 * us("wake") / 2 / 20, abs=ROUNDING)


def test_a_group_of_eight_is_slower_where_kernels_are_short() -> None:
    short = 5 * US
    assert printed(short, ngpus=8) > 2 * printed(short, nthreads=8)
    assert printed(500 * US, ngpus=8) == pytest.approx(printed(500 * US, nthreads=8), rel=0.01)


@pytest.mark.parametrize(("average", "part"), [(0, 0.5), (1, 0.5), (2, 0.0), (3, 1.0)])
def test_threads_are_averaged(average: int, part: float) -> None:
    least = printed(nthreads=8, iters=10, average=2)
    found = printed(nthreads=8, iters=10, average=average)
    assert found - least == pytest.approx(part * 7 * us("wake") / 10, abs=ROUNDING)
    assert printed(iters=10, average=average) == printed(iters=10)


def test_waiting_pays_start_and_end_every_time() -> None:
    alone = us("launch") + STEADY + AROUND
    assert printed(blocking=2) == printed(blocking=3) == printed(blocking=2, iters=100) == alone
    assert printed(blocking=1) == alone + 3 * us("wake")  # 8 processes meet in 3 rounds
    threads = printed(blocking=1, nthreads=8)
    assert threads == alone + 7 * us("wake") + 7 * us("wake") // 2


@pytest.mark.parametrize(
    ("flags", "lag"),
    [
        ({}, 25),  # eight processes: the mean of 4, 10, ..., 46 us
        ({"nthreads": 8}, 25),
        ({"nthreads": 8, "average": 0}, 4),
        ({"nthreads": 8, "average": 2}, 4),
        ({"nthreads": 8, "average": 3}, 46),
        ({"ngpus": 8}, 46),  # one thread waits for the last of its GPUs
        ({"ngpus": 2}, 28),  # the mean of 10, 22, 34 and 46 us
    ],
)
def test_iterations_share_the_rest_of_a_broadcast(flags: dict[str, int], lag: int) -> None:
    lags = tuple(range(4 * US, 47 * US, 6 * US))
    harness = harness_of(parse_flags({name: str(value) for name, value in flags.items()}))
    five, base = (
        replace(harness, iterations=5).time_ps(HOST, "broadcast", ring(KERNEL, some))
        for some in (lags, ())
    )
    assert five - base == pytest.approx(lag * US / 5, abs=ROUNDING + 200)  # ticks of 1 ns


def test_waiting_after_each_broadcast_includes_its_end_every_time() -> None:
    lags = tuple(range(4 * US, 47 * US, 6 * US))
    for blocking, lag in ((1, 46), (2, 25), (3, 25)):
        harness = harness_of(parse_flags({"blocking": str(blocking)}))
        times = [harness.time_ps(HOST, "broadcast", ring(KERNEL, some)) for some in (lags, ())]
        assert times[0] - times[1] == pytest.approx(lag * US, abs=ROUNDING)


def test_one_broadcast_lasts_until_its_ranks_end() -> None:
    request = Request(Setup("dgx-h100"), "broadcast", 1 << 20)
    broadcast = kernel(request)
    ends = result_of(replace(request, verify=False)).tasks.end_ps.tolist()
    assert [broadcast.time_ps + lag for lag in broadcast.lags_ps] == ends
    assert min(broadcast.lags_ps) < 0 < max(broadcast.lags_ps)
    assert kernel(replace(request, operation="allreduce")).lags_ps == ()


def test_a_group_of_iterations_is_launched_once() -> None:
    found = printed(agg_iters=4, iters=5)
    kernels = (4 * KERNEL + family("kernel_overhead")) / 4
    assert found == pytest.approx(kernels + (us("launch") + AROUND) / 20, abs=ROUNDING)


def test_a_graph_is_launched_once_for_all_its_iterations() -> None:
    node = STEADY - family("stream_launch") + family("graph_node")
    for gpus in (1, 4):
        start = gpus * us("graph_launch") + AROUND
        found = printed(cudagraph=1, ngpus=gpus, iters=20)
        assert found == pytest.approx(node + start / 20, abs=ROUNDING)
        often = printed(cudagraph=10, ngpus=gpus, iters=20)
        assert often == pytest.approx(node + start / 200, abs=ROUNDING)


def test_graphs_of_one_short_kernel_wait_for_the_host() -> None:
    found = printed(US, cudagraph=100, ngpus=8, iters=1)
    node = US + family("kernel_overhead") - family("stream_launch") + family("graph_node")
    assert found == pytest.approx(8 * us("graph_launch") + (node + AROUND) / 100, abs=ROUNDING)


def test_time_of_the_host_alone() -> None:
    def host(**flags: int) -> int:
        options = parse_flags({name: str(value) for name, value in flags.items()})
        return harness_of(options).on_host(HOST, "allreduce", ring(KERNEL)).mean_ps

    assert host() == us("launch")
    assert host(nthreads=8) == us("launch")
    assert host(ngpus=8) == us("group_base") + 8 * us("group_launch")
    assert host(agg_iters=4) == us("launch") // 4
    assert host(cudagraph=1, iters=20) == us("graph_launch") // 20
    assert host(blocking=2) == printed(blocking=2)


def test_a_loop_in_python_waits_for_its_host() -> None:
    call = us("torch_call") + us("launch")
    short = US + family("kernel_overhead") + 2 * family("stream_launch")
    found = printed(US, kind="torch", iters=10)
    assert found == pytest.approx(call + (short + AROUND) / 10, abs=ROUNDING)
    long = Harness("torch").time_ps(HOST, "allreduce", ring(500 * US))
    assert long == 500 * US + family("kernel_overhead") + 2 * family("stream_launch")
    with pytest.raises(InputError, match="-g 8: loops around torch"):
        printed(kind="torch", ngpus=8)


def test_the_loop_is_refused_before_anything_is_printed_and_said_in_all_output() -> None:
    setup = Setup("dgx-h100")
    with pytest.raises(InputError, match="-m 2: loops around torch"):
        place(setup, parse_flags({"agg_iters": "2"}), None, "torch")
    table = nccl_tests("all_reduce_perf", "dgx-h100", "-b 1K -e 1K -c 0", harness="torch", jobs=1)
    said = "iterations of a Python loop around torch.distributed"
    assert said in table.text()
    assert said in table.to_json()["notes"]
    assert table.lines[0].halves[0].time_us > us("torch_call") / US


def test_warm_ups_change_nothing_and_say_so() -> None:
    assert printed(warmup_iters=40) == printed()
    assert without_effect(PerfOptions()) == ()
    (said,) = without_effect(parse_flags({"warmup_iters": "40"}))
    assert said.startswith("-w 40 has no effect: one iteration of every size runs before")
    (said,) = without_effect(parse_flags({"average": "3"}))
    assert said == "-a 3 has no effect: only threads of a process differ"
    assert without_effect(parse_flags({"average": "3", "nthreads": "8"})) == ()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"blocking": "4"}, "-z 4: must be 0 to 3"),
        ({"average": "4"}, "-a 4: must be 0 to 3"),
        ({"blocking": "1", "cudagraph": "1"}, "-z 1 -G 1: a graph cannot wait"),
        ({"per_iter_timing": "1"}, "-I 1: times of single iterations are not simulated"),
    ],
)
def test_flags_that_nccl_tests_fails_with_are_refused(flags: dict[str, str], message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_flags(flags)
    assert message in str(caught.value)


def test_nothing_to_move_takes_no_start() -> None:
    assert printed(0, ngpus=4, iters=1) == 4 * us("empty_call")


def test_programs_that_do_not_say_their_iterations() -> None:
    assert (iterations_of("nccl-tests", 0), iterations_of("", 0), iterations_of("own", 0)) == (
        20,
        20,
        0,
    )
    assert iterations_of("torch", 7) == 7
    assert Harness(launch=Launch(2, threads=2)).processes(8) == 2
