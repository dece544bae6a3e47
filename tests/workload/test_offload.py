"""The optimiser on the host: ways by hand, times of tiles, memory."""

from __future__ import annotations

import pytest

import clusim
from clusim.base.errors import ClusimError
from clusim.workload.host import host_way
from clusim.workload.parallel.plan import make_plan
from support.workloads import ideal, tiny, written

A100 = clusim.load("dgx-a100")


@pytest.mark.parametrize(
    ("machine", "rate", "memory"),
    [
        # Two GPUs behind a PCIe switch with one link of generation 4; four a socket with eight channels of DDR4-3200.
        ("dgx-a100", 31.42e9 / 2, 204.8e9 * 0.82 / 4),
        # A PCIe switch each, but four of them share the memory: 307.2 / 4 is more than 62.85.
        ("dgx-h100", 62.85e9, 307.2e9 * 0.8 / 4),
        # Two GPUs a Grace, each with a C2C link, which the memory just feeds.
        ("gb200-nvl72", 225e9, 512e9 * 0.88 / 2),
    ],
)
def test_what_a_gpu_has_of_its_host(machine: str, rate: float, memory: float) -> None:
    way = host_way(clusim.load(machine))
    assert way.rate_Bps == pytest.approx(rate, rel=1e-3)
    assert way.memory_Bps == pytest.approx(memory, rel=1e-3)


def test_machines_of_a_cluster_do_not_share_their_hosts() -> None:
    assert host_way(clusim.load("dgx-a100", nodes=2)) == host_way(A100)


@pytest.mark.parametrize(("bucket", "tiles"), [("1GiB", 1), ("1MiB", 8), ("64KiB", 64)])
def test_tiles_go_through_copy_step_and_copy(bucket: str, tiles: int) -> None:
    """One tile takes all three; every further one what the slowest of them takes."""
    text = f"parallel: {{data: 1}}\ndata: {{bucket: {bucket}}}\n"
    work = tiny(text + "offload: {optimizer: true}", batch="{global: 1, micro: 1}")
    plan, _, schedule = written(work, A100)
    found = clusim.simulate(A100, schedule)
    tasks = [i for i, task in enumerate(schedule.tasks) if task.kind == "delay"]
    assert len(tasks) == 3 * tiles
    start, end = found.tasks.start_ps, found.tasks.end_ps
    took = max(int(end[i]) for i in tasks) - min(int(start[i]) for i in tasks)
    count, way = plan.optimizer_parameters(0), host_way(A100)
    # Adam: 2 + 8 bytes of a gradient and its sweeps, 12 of states read and written, 2 of weights.
    each = [
        2 * count / way.rate_Bps / tiles,
        (2 * 5 + 2 * 12 + 2) * count / way.memory_Bps / tiles,
        2 * count / way.rate_Bps / tiles,
    ]
    expected = sum(each) + (tiles - 1) * max(each)
    assert took == pytest.approx(expected * 1e12, rel=1e-3)


def test_states_leave_the_gpus_memory() -> None:
    for kind, parts in (("ddp", 1), ("zero1", 8), ("fsdp", 8)):
        text = f"data: {{kind: {kind}}}\n"
        own, plain = (
            make_plan(tiny(text + more), A100).memory(0)
            for more in ("offload: {optimizer: true}", "")
        )
        parameters = make_plan(tiny(), A100).model.parameters
        assert plain.optimizer == pytest.approx(12 * parameters / parts, abs=1)
        assert own.total == plain.total - plain.optimizer


def test_the_next_step_waits_for_the_weights() -> None:
    text = "parallel: {data: 2}\ndata: {kind: zero1}\noffload: {optimizer: true}"
    plain = text.replace("true", "false")
    one, two = (
        clusim.train(
            tiny(t, batch="{global: 2, micro: 1}"), A100, steps=2, granularity=65536, fold="none"
        )
        for t in (text, plain)
    )
    assert one.step_ps[-1] > two.step_ps[-1]
    assert one.traffic == two.traffic


MLP = "{base: mlp, sizes: [4096, 4096, 4096, 4096, 4096]}"


def layers_of(seconds: float) -> tuple[float, float, float, float]:
    """Return what a step of four like layers takes with and without offloading, a layer's passes and its copy [s].

    Passes take longer than `seconds`, by a slower chip.
    """
    hardware = f"hardware: {{gemm_fraction: {seconds}}}\noptimizer: sgd\nparallel: {{data: 1}}\n"
    fields = {"model": MLP, "batch": "{global: 4096, micro: 4096}"}
    one, two = (
        clusim.train(tiny(hardware + more, **fields), A100, steps=1, granularity=65536, fold="none")
        for more in ("offload: {activations: true}", "")
    )
    plan = one.plan
    layer = plan.stages[0][0][0]
    time = {part: sum(plan.chip.time_ps(k) for k in layer.kernels(part)) for part in ("forward", "input", "weight")}  # type: ignore[arg-type]  # fmt: skip
    optimizer = plan.chip.time_ps(plan.optimizer.kernel(plan.optimizer_parameters(0))) / 1e12
    copy = layer.activations.none / host_way(A100).rate_Bps
    both = time["forward"] / 1e12, (time["input"] + time["weight"]) / 1e12
    alone = 4 * sum(both) + optimizer
    assert two.step_time_s == pytest.approx(alone, rel=1e-3)
    return one.step_time_s - optimizer, two.step_time_s - optimizer, sum(both), copy


def test_copies_of_activations_hide_under_slow_layers() -> None:
    away, here, passes, copy = layers_of(0.01)
    assert 3 * copy < passes
    assert away == pytest.approx(here, rel=1e-6)


def test_slow_copies_of_activations_are_all_there_is() -> None:
    """Of four layers three leave, one after the other, and come back: 6 copies, and the first layer's two passes."""
    away, here, passes, copy = layers_of(1.0)
    assert copy > passes
    assert away == pytest.approx(6 * copy + passes, rel=1e-3)
    assert away > here


def test_copies_that_nothing_hides_are_exposed() -> None:
    """Of a step with the optimiser on the host only the CPU's own work is idle."""
    text = "parallel: {data: 1}\ndata: {bucket: 1GiB}\noffload: {optimizer: true}"
    found = clusim.train(
        tiny(text, batch="{global: 1, micro: 1}"), A100, steps=1, granularity=65536, fold="none"
    )
    count, way = found.plan.optimizer_parameters(0), host_way(A100)
    assert found.mean("exposed") == pytest.approx(2 * 2 * count / way.rate_Bps, rel=1e-3)
    idle = (2 * 5 + 2 * 12 + 2) * count / way.memory_Bps
    assert found.mean("idle") == pytest.approx(idle, rel=1e-3)


def test_activations_leave_the_gpus_memory() -> None:
    """All but the last layer's of each microbatch under way, and two that come or go."""
    text = "parallel: {pipeline: 2, data: 1}\npipeline: {schedule: gpipe}\n"
    fields = {"model": MLP, "batch": "{global: 12, micro: 4}"}
    own, plain = (
        make_plan(tiny(text + more, **fields), A100).memory(0)
        for more in ("offload: {activations: true}", "")
    )
    each = plain.activations // 3 // 2
    assert own.activations == 3 * each
    assert own.transient - plain.transient == 2 * each


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("parallel: {data: 1}", "is not connected to host memory"),
        ("data: {kind: parameter-server}", "servers step, not workers"),
    ],
)
def test_what_has_no_host_is_told(text: str, message: str) -> None:
    with pytest.raises(ClusimError, match=message):
        written(
            tiny(f"offload: {{optimizer: true}}\n{text}", batch="{global: 3, micro: 1}"), ideal(4)
        )
