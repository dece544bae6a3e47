"""What a host thread costs a step, derived by hand.

A host issues runs of kernels one after the other; run `i` takes it `H_i` and the GPU `C_i`. A run is done when both
are, and its kernels start when the run before is. Two runs with H = 10, 2 and C = 2, 10: the second starts at 10 and
ends at 20. With H = 2, 10 and C = 10, 2 the host is ahead: it ends at 12, and so does the step; with room for one
launch in the queue, or if it waits for its GPU in between, it begins the second run at 10 and ends at 20.
"""

from __future__ import annotations

from typing import Any

import pytest

import clusim
from clusim.base.units import parse_time
from clusim.collectives import ScheduleBuilder
from clusim.hardware import FRAMEWORKS
from clusim.training import train, training_report
from clusim.workload.host import HostThreads, HostTimes, Issue
from clusim.workload.kernels import Kernel
from clusim.workload.kernels import Kernel as LayerKernel
from clusim.workload.parallel.plan import make_plan
from support.workloads import ideal, tiny

US = 1_000_000


def times(**changes: Any) -> HostTimes:
    fields: dict[str, Any] = dict.fromkeys(
        ("again_ps", "collective_ps", "message_ps", "tensor_ps", "microbatch_ps", "step_ps"), 0
    )
    base = {"framework": FRAMEWORKS["pytorch"], "operator_ps": US, "node_ps": US, "queue": 1024}
    return HostTimes(**(fields | base | changes))


def ends(host: list[int], gpu: list[int], *, queue: int = 1024, wait: bool = False) -> int:
    """Return when all runs are done [us]."""
    builder = ScheduleBuilder(ideal(1), "runs")
    threads = HostThreads(times(queue=queue), builder)
    tail: tuple[int, ...] = ()
    for issue_us, work_us in zip(host, gpu, strict=True):
        issued = threads.issue(0, Issue(issue_us * US, 1), "run")
        task = builder.kernel(0, compute_ps=work_us * US, name="run", after=tail)
        threads.record_launches(0, task, 1)
        tail = (task, issued)
        if wait:
            threads.wait(0, tail)
    return round(clusim.simulate(ideal(1), builder.build()).time_ps / US)


@pytest.mark.parametrize(
    ("host", "gpu", "expected"),
    [
        ([10, 2], [2, 10], 20),
        ([2, 10], [10, 2], 12),
        ([10, 10, 10], [1, 1, 1], 30),
        ([1, 1, 1], [10, 10, 10], 30),
        ([2, 2, 10], [10, 10, 2], 22),
    ],
)
def test_a_step_takes_the_slower_of_host_and_gpu(
    host: list[int], gpu: list[int], expected: int
) -> None:
    assert ends(host, gpu) == expected


def test_a_full_queue_stops_the_host() -> None:
    assert ends([2, 10], [10, 2], queue=1) == 20
    assert ends([2, 10], [10, 2], queue=2) == 12


def test_a_host_that_waits_for_its_gpu_loses_its_lead() -> None:
    assert ends([2, 10], [10, 2], wait=True) == 20


SLOW = "host: {framework: jax, per_operator: 10ms}\noptimizer: sgd\n"
"""An operator of 10 ms, so that kernels of microseconds do not show."""


def kernels(work: Any, fabric: Any) -> tuple[int, int]:
    """Return how many kernels a microbatch has forwards and backwards."""
    layers = [layer for chunk in make_plan(work, fabric).stages[0] for layer in chunk]
    forward = sum(isinstance(s, LayerKernel) for layer in layers for s in layer.forward)
    backward = sum(isinstance(s, LayerKernel) for layer in layers for s in layer.backward)
    return forward, backward


@pytest.mark.parametrize("microbatches", [1, 4])
@pytest.mark.parametrize("fold", ["all", "none"])
def test_a_host_bound_step_is_its_operators(microbatches: int, fold: Any) -> None:
    batch = f"{{global: {microbatches}, micro: 1}}"
    work, fabric = tiny(SLOW + "parallel: {ranks: [0]}\n", batch=batch), ideal(1)
    forward, backward = kernels(work, fabric)
    found = train(work, fabric, steps=1, fold=fold)
    own = FRAMEWORKS["jax"]
    node = 10 * parse_time(str(own.node.value)) / parse_time(str(own.operator.value))
    expected_ms = microbatches * (10 * forward + node * backward)
    # The optimiser is one operator more, after the fixed time of a step.
    expected_ms += 10 + parse_time(str(own.step.value)) / 1e9
    assert found.step_time_s * 1e3 == pytest.approx(expected_ms, rel=2e-3)
    row = found.ranks[0]
    assert row.compute_ps + row.host_ps == pytest.approx(row.total_ps, rel=1e-3)
    assert row.host_ps > 0.98 * row.total_ps
    assert "waiting for the host" in training_report(found)
    assert found.to_json()["host_wait_s"] == pytest.approx(row.host_ps / 1e12)


GRAPH = "host: {framework: cuda-graph, per_operator: 10ms}\noptimizer: sgd\n"


@pytest.mark.parametrize(
    "text", ["", "parallel: {tensor: 2, data: 1}", "data: {bucket: 64KiB}\nparallel: {data: 2}"]
)
@pytest.mark.parametrize("fold", ["all", "none"])
def test_a_graph_is_launched_once_for_a_pass(text: str, fold: Any) -> None:
    """Two microbatches, four passes: a launch each, whatever their layers and collectives, and one of the optimiser."""
    batch = "{global: 4, micro: 1}" if "data: 2" in text else "{global: 2, micro: 1}"
    work = tiny(GRAPH + (text or "parallel: {ranks: [0]}"), batch=batch)
    found = train(work, ideal(2), steps=1, fold=fold)
    own = FRAMEWORKS["cuda-graph"]
    again = 10 * parse_time(str(own.node.value)) / parse_time(str(own.operator.value))
    host = found.plan.host()
    assert host is not None
    tensors = sum(len(layer.tensors) for layer in found.plan.stages[0][0])
    rest = 2 * host.microbatch_ps + host.step_ps + tensors * host.tensor_ps
    expected_ps = (2 * (10 + again) + 10) * US * 1e3 + rest
    # What a GPU does of a pass behind its first run of kernels comes after the launch: less than 2 ms in all.
    row = found.ranks[0]
    assert expected_ps * 0.995 <= row.total_ps <= expected_ps + row.compute_ps + row.exposed_ps
    assert row.compute_ps + row.exposed_ps < 2 * US * 1e3


def test_a_gpu_bound_step_waits_for_its_host_at_the_start_only() -> None:
    text = "hardware: {gemm_fraction: 0.000001}\nparallel: {ranks: [0]}\n"
    free = train(tiny(text), ideal(1), steps=1)
    own = train(tiny(text + "host: {framework: pytorch}\n"), ideal(1), steps=1)
    host = make_plan(tiny(text + "host: {framework: pytorch}\n"), ideal(1)).host()
    assert host is not None
    # Data of the first microbatch, and what lies around the optimiser, which waits for the gradients.
    tensors = 4 * 12 + 4
    most_ps = host.microbatch_ps + host.step_ps + 2 * tensors * host.tensor_ps + 100 * host.node_ps
    assert 0 < (own.step_time_s - free.step_time_s) * 1e12 < most_ps


def test_recomputation_costs_an_operator_and_what_checkpointing_does() -> None:
    own = times(operator_ps=5 * US, node_ps=3 * US, again_ps=2 * US)
    one = Kernel("fc1 forward", 8, 8)
    assert own.kernels([one]) == Issue(5 * US, 1)
    assert own.kernels([Kernel("fc1 forward", 8, 8, part="input", useful=0)]).time_ps == 7 * US
    assert own.kernels([Kernel("fc1 input", 8, 8, part="input")]).time_ps == 3 * US


@pytest.mark.parametrize(
    ("heads", "micro", "operators"), [(16, 1, 1), (2, 1, 6), (2, 2, 1), (3, 4, 1), (3, 1, 6)]
)
def test_an_unfused_softmax_is_several_operators(heads: int, micro: int, operators: int) -> None:
    model = f"{{base: gpt2, layers: 2, hidden: {heads * 64}, heads: {heads}, kv_heads: {heads}, head_size: 64}}"
    work = tiny(
        "attention: plain\nhost: {framework: megatron-deepspeed}\nparallel: {ranks: [0]}\n",
        model=model,
        batch=f"{{global: {micro}, micro: {micro}}}",
    )
    host = make_plan(work, ideal(1)).host()
    assert host is not None
    assert host.kernels([Kernel("softmax", bytes=8)]).launches == operators


def test_a_faster_processor_issues_faster() -> None:
    def host(preset: str) -> HostTimes:
        found = make_plan(tiny("host: {framework: pytorch}\n"), clusim.load(preset)).host()
        assert found is not None
        return found

    # EPYC Rome is what the figures are of; Sapphire Rapids has a pace of 1.5.
    assert host("dgx-a100").operator_ps == 40 * US
    assert host("dgx-h100").operator_ps == round(40 * US / 1.5)


def test_a_host_that_is_given_takes_its_own_time() -> None:
    work = tiny("host: {framework: pytorch, per_operator: 20us, data_loading: 3ms}\n")
    found, usual = make_plan(work, ideal(8)).host(), FRAMEWORKS["pytorch"]
    assert found is not None
    assert found.operator_ps == 20 * US
    assert found.node_ps == parse_time(str(usual.node.value)) // 2
    assert found.microbatch_ps == parse_time(str(usual.microbatch.value)) + 3000 * US


def test_no_host_takes_no_time() -> None:
    assert make_plan(tiny(), ideal(8)).host() is None
    assert train(tiny(), ideal(8), steps=1).mean("host") == 0


def test_an_unfused_loss_moves_32_bit_logits_for_every_operation() -> None:
    """Forwards: cast 2 + 4 bytes, greatest 4, difference 8, exponent 8, sum 4, quotient 8; backwards 8 and 6."""

    def moved(loss: str) -> list[int]:
        work = tiny(f"loss: {loss}\nparallel: {{ranks: [0]}}\n")
        head = make_plan(work, ideal(1)).stages[0][0][-1]
        steps = (head.forward, head.backward)
        return [
            sum(s.bytes for s in own if isinstance(s, Kernel) and s.name.startswith("cross"))
            for own in steps
        ]

    logits = 128 * 1024
    assert moved("plain") == [38 * logits, 14 * logits]
    assert moved("fused") == [6 * logits, 4 * logits]


def test_gradients_that_are_added_are_read_twice_and_written_once() -> None:
    def traffic(how: str, count: int) -> int:
        batch = f"{{global: {count}, micro: 1}}"
        work = tiny(f"accumulation: {how}\nparallel: {{ranks: [0]}}\n", batch=batch)
        block = make_plan(work, ideal(1)).stages[0][0][1]
        moved = sum(kernel.bytes for kernel in block.kernels("weight"))
        return moved - traffic_of_one(block.parameters, how, count)

    def traffic_of_one(parameters: int, how: str, count: int) -> int:
        return 3 * 2 * parameters if how == "added" and count > 1 else 0

    assert traffic("added", 4) == traffic("fused", 4) == traffic("added", 1)
