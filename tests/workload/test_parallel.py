from __future__ import annotations

from itertools import pairwise

import pytest

import clusim
from clusim.schedule import Schedule
from clusim.workload.layers import Layer, Tensor
from clusim.workload.parallel.checks import expert_loads
from clusim.workload.parallel.data import fill_buckets
from support.workloads import ancestors, ideal, tiny, volume, written

FABRIC = clusim.load("dgx-a100")
MIB = 1 << 20


def kernels(schedule: Schedule, rank: int, prefix: str = "") -> list[int]:
    return [
        index
        for index, task in enumerate(schedule.tasks)
        if task.kind == "kernel" and task.rank == rank and task.name.startswith(prefix)
    ]


def calls(schedule: Schedule, operation: str) -> list[int]:
    return [index for index, call in enumerate(schedule.calls) if call.operation == operation]


def tasks_of(schedule: Schedule, call: int, rank: int) -> list[int]:
    return [i for i, task in enumerate(schedule.tasks) if task.call == call and task.rank == rank]


class TestBuckets:
    def layers(self, *sizes: int) -> list[Layer]:
        return [Layer("l", "block", (Tensor("w", size),)) for size in sizes]

    def test_the_first_is_small_and_the_order_is_reversed(self) -> None:
        chunks = [self.layers(*[MIB] * 40)]
        found = fill_buckets(chunks, 2, MIB, 25 * MIB)
        assert [bucket.elements // MIB for bucket in found] == [1, 13, 13, 13]
        assert found[0].layers == {(0, 39)}
        assert found[1].layers == {(0, index) for index in range(26, 39)}

    def test_a_tensor_is_never_cut(self) -> None:
        found = fill_buckets([self.layers(1, 100 * MIB, 1)], 2, MIB, 25 * MIB)
        assert [bucket.elements for bucket in found] == [1 + 100 * MIB, 1]

    def test_everything_is_in_one_bucket_once(self) -> None:
        chunks = [self.layers(3, 5), self.layers(7, 11)]
        found = fill_buckets(chunks, 4, 16, 64)
        assert sum(bucket.elements for bucket in found) == 26
        assert found[0].layers == {(1, 1)}

    def test_experts_have_their_own(self) -> None:
        layers = [Layer("l", "moe", (Tensor("w", 10), Tensor("e", 20, True)))]
        assert [b.elements for b in fill_buckets([layers], 2, MIB, MIB)] == [10]
        assert [b.elements for b in fill_buckets([layers], 2, MIB, MIB, expert=True)] == [20]


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_data_parallelism_moves_what_theory_says(ranks: int) -> None:
    """Ring: 2 (d-1)/d of the parameters; ZeRO 1 and 2 the same; ZeRO 3 one and a half times."""
    share = (ranks - 1) / ranks
    for kind, factor in [
        ("ddp", 2),
        ("naive", 2),
        ("zero1", 2),
        ("zero2", 2),
        ("distributed-optimizer", 2),
        ("fsdp", 3),
    ]:
        work = tiny(
            f"parallel: {{data: {ranks}}}\ndata: {{kind: {kind}}}",
            batch=f"{{global: {ranks}, micro: 1}}",
        )
        plan, writer, _ = written(work, FABRIC)
        parameters = sum(layer.parameters for layer in plan.stages[0][0])
        expected = factor * share * parameters * 2
        assert volume(writer, "data") == pytest.approx(expected, rel=2e-3), kind


def test_accumulation_reduces_only_the_last_microbatch() -> None:
    for text, times in (
        ("{kind: ddp}", 1),
        ("{kind: ddp, accumulate: false}", 4),
        ("{kind: zero2}", 4),
    ):
        work = tiny(f"parallel: {{data: 2}}\ndata: {text}", batch="{global: 8, micro: 1}")
        plan, _, schedule = written(work, FABRIC)
        one = sum(layer.parameters for layer in plan.stages[0][0]) * 2
        reduced = [
            schedule.calls[i].bytes
            for i in (*calls(schedule, "allreduce"), *calls(schedule, "reduce_scatter"))
        ]
        assert sum(reduced) == pytest.approx(times * one, rel=1e-3), text


def test_fsdp_that_does_not_reshard_gathers_once() -> None:
    work = tiny(
        "parallel: {data: 4}\ndata: {kind: fsdp, reshard: false}", batch="{global: 4, micro: 1}"
    )
    plan, writer, _ = written(work, FABRIC)
    parameters = sum(layer.parameters for layer in plan.stages[0][0])
    assert volume(writer, "data") == pytest.approx(2 * 0.75 * parameters * 2, rel=2e-3)


def test_no_layer_is_used_before_its_weights_are_gathered() -> None:
    work = tiny(
        "parallel: {data: 4}\ndata: {kind: fsdp, prefetch: 2}", batch="{global: 4, micro: 1}"
    )
    plan, _, schedule = written(work, FABRIC)
    gathers = calls(schedule, "all_gather")
    layers = len(plan.stages[0][0])
    assert len(gathers) == 2 * layers
    forward, backward = kernels(schedule, 1, "F0"), kernels(schedule, 1, "B0")
    assert len(forward) == len(backward) == layers
    for number, kernel in enumerate([*forward, *backward]):
        before = ancestors(schedule, [kernel])
        assert set(tasks_of(schedule, gathers[number], 1)) <= before
        # Two are prefetched, none further ahead.
        ahead = [i for i, call in enumerate(gathers) if set(tasks_of(schedule, call, 1)) <= before]
        assert max(ahead) <= number + 2


def test_no_gradient_is_reduced_before_it_is_computed() -> None:
    for kind, operation in (("ddp", "allreduce"), ("fsdp", "reduce_scatter")):
        work = tiny(
            f"parallel: {{data: 4}}\ndata: {{kind: {kind}, first_bucket: 64KiB, bucket: 1MiB}}",
            batch="{global: 4, micro: 1}",
        )
        plan, writer, schedule = written(work, FABRIC)
        back = kernels(schedule, 2, "B0")
        reduced = calls(schedule, operation)
        assert len(reduced) >= 4
        if kind == "fsdp":
            needs = [{len(back) - 1 - index} for index in range(len(back) - 1, -1, -1)]
        else:
            buckets = writer.data[0].buckets  # type: ignore[attr-defined]
            last = len(plan.stages[0][0]) - 1
            needs = [{last - index for _, index in bucket.layers} for bucket in buckets]
        for call, wanted in zip(reduced, needs, strict=True):
            before = ancestors(schedule, tasks_of(schedule, call, 2))
            assert {back[index] for index in wanted} <= before
            # It does not wait for layers whose gradients it does not carry.
            later = {back[index] for index in range(max(wanted) + 1, len(back))}
            assert not later & before
        optimizer = kernels(schedule, 2, "optimizer")
        assert len(optimizer) == 1
        arrived = {task for call in reduced for task in tasks_of(schedule, call, 2)}
        assert arrived <= ancestors(schedule, optimizer)


def test_reductions_do_not_hold_the_backward_pass_up() -> None:
    _, _, schedule = written(tiny("parallel: {data: 4}", batch="{global: 4, micro: 1}"), FABRIC)
    for kernel in kernels(schedule, 0, "B0"):
        assert not any(schedule.tasks[i].call >= 0 for i in ancestors(schedule, [kernel]))


def test_naive_reduces_once_after_everything() -> None:
    work = tiny("parallel: {data: 4}\ndata: {kind: naive}", batch="{global: 4, micro: 1}")
    _, _, schedule = written(work, FABRIC)
    assert [call.operation for call in schedule.calls] == ["allreduce"]
    before = ancestors(schedule, tasks_of(schedule, 0, 3))
    assert set(kernels(schedule, 3, "B0")) <= before


def test_a_driver_reduces_with_its_own_algorithm() -> None:
    work = tiny("parallel: {data: 4}\ndata: {kind: driver}", batch="{global: 4, micro: 1}")
    _, _, schedule = written(work, FABRIC)
    assert [call.algorithm for call in schedule.calls] == ["driver"]


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("mode", ["bsp", "async"])
def test_parameter_servers_move_everything_twice(servers: int, mode: str) -> None:
    text = (
        f"parallel: {{data: 4}}\ndata: {{kind: parameter-server, servers: {servers}, mode: {mode}}}"
    )
    plan, writer, schedule = written(tiny(text, batch="{global: 4, micro: 1}"), FABRIC)
    parameters = sum(layer.parameters for layer in plan.stages[0][0])
    assert plan.servers == tuple(range(4, 4 + servers))
    # Pushed by each of four workers, and pulled by each.
    assert volume(writer, "data") == pytest.approx(2 * parameters * 2, rel=2e-3)
    into = sum(call.bytes for call in schedule.calls if call.ranks[1] == 4)
    assert into == pytest.approx(4 * parameters * 2 / servers, rel=2e-3)
    pulls = [call for call in range(len(schedule.calls)) if schedule.calls[call].ranks[0] >= 4]
    pushes = [call for call in range(len(schedule.calls)) if schedule.calls[call].ranks[1] >= 4]
    server = schedule.calls[pulls[0]].ranks[0]
    own = set(tasks_of(schedule, pulls[0], server))
    arrived = [call for call in pushes[: 4 * servers] if schedule.calls[call].ranks[1] == server]
    there = [set(tasks_of(schedule, call, server)) <= ancestors(schedule, own) for call in arrived]
    # Bulk-synchronous servers wait for all workers, asynchronous ones only for the one they answer.
    assert sum(there) == (4 if mode == "bsp" else 1)


def test_servers_can_be_workers() -> None:
    text = "parallel: {data: 4}\ndata: {kind: parameter-server, servers: 4, colocated: true}"
    plan, writer, _ = written(tiny(text, batch="{global: 4, micro: 1}"), FABRIC)
    parameters = sum(layer.parameters for layer in plan.stages[0][0])
    # A quarter stays where it is.
    assert volume(writer, "data") == pytest.approx(2 * 0.75 * parameters * 2, rel=2e-3)


def test_tensor_parallelism_synchronises_two_times_each_way() -> None:
    work = tiny("parallel: {tensor: 4, data: 1}", batch="{global: 2, micro: 1}")
    plan, writer, _ = written(work, FABRIC)
    size = 128 * 256 * 2
    blocks = 4 * 4 * 2 * size
    ends = 2 * (2 * size + 128 * 3 * 4)
    assert volume(writer, "tensor") == pytest.approx(2 * 0.75 * (blocks + ends), rel=1e-3)
    assert writer.emitter.traffic["tensor"].calls == 2 * (4 * 4 + 3)
    assert plan.microbatches == 2


def test_sequence_parallelism_moves_as_much_and_gathers_inputs_again() -> None:
    plain = written(tiny("parallel: {tensor: 4, data: 1}", batch="{global: 1, micro: 1}"), FABRIC)[
        1
    ]
    cut = written(
        tiny(
            "parallel: {tensor: 4, data: 1}\ntensor: {sequence_parallel: true}",
            batch="{global: 1, micro: 1}",
        ),
        FABRIC,
    )[1]
    size = 128 * 256 * 2
    again = 0.75 * size * (2 * 4 + 1)
    # Apart from the ends, where embeddings and logits are handed over differently.
    assert volume(cut, "tensor") == pytest.approx(volume(plain, "tensor") + again, rel=0.05)


def test_norms_of_sequence_parallelism_are_summed_once_a_step() -> None:
    text = "parallel: {tensor: 4, data: 2}\ntensor: {sequence_parallel: true}"
    plan, _, schedule = written(tiny(text, batch="{global: 8, micro: 1}"), FABRIC)
    # Of each of four layers: two norms with biases, and the biases behind projection and fc2; and the last norm.
    size = 2 * 256 * (4 * (4 + 2) + 2)
    assert plan.whole_bytes(0) == size
    reduced = [schedule.calls[i] for i in calls(schedule, "allreduce")]
    assert [call.bytes for call in reduced if len(call.ranks) == 4 and call.bytes == size] == [
        size
    ] * 2
    last = next(i for i, call in enumerate(schedule.calls) if call.bytes == size)
    rank = schedule.calls[last].ranks[0]
    assert set(tasks_of(schedule, last, rank)) <= ancestors(
        schedule, kernels(schedule, rank, "optimizer")
    )


def test_experts_exchange_four_times_per_layer() -> None:
    work = tiny(
        "parallel: {expert: 4, data: 4}",
        model="{base: mixtral-8x7b, layers: 2, hidden: 256, heads: 8, kv_heads: 8, head_size: 32,"
        " expert_size: 512, vocab: 1024}",
        batch="{global: 4, micro: 1}",
    )
    _, writer, schedule = written(work, FABRIC)
    assert len(calls(schedule, "alltoall")) == 2 * 4
    assert volume(writer, "expert") == 2 * 4 * 0.75 * (128 * 2 * 256 * 2)


def test_uneven_experts_get_more_and_work_longer() -> None:
    assert expert_loads(4, 0.0) == [1.0] * 4
    loads = expert_loads(8, 1.0, seed=3)
    assert max(loads) == pytest.approx(2.0, rel=0.01)
    assert sum(loads) == pytest.approx(8)
    assert max(expert_loads(8, 1.0, capacity=1.25, seed=3)) == 1.25
    assert expert_loads(8, 1.0, seed=3) == loads != expert_loads(8, 1.0, seed=4)
    model = (
        "{base: mixtral-8x7b, layers: 2, hidden: 256, heads: 8, kv_heads: 8, head_size: 32,"
        " expert_size: 4096, vocab: 1024}"
    )
    work = tiny(
        "parallel: {expert: 4, data: 4}\nexperts: {skew: 1.0}",
        model=model,
        batch="{global: 4, micro: 1}",
    )
    _, writer, schedule = written(work, FABRIC)
    assert len(calls(schedule, "alltoallv")) == 8
    times = [
        sum(schedule.tasks[k].compute_ps for k in kernels(schedule, rank)) for rank in range(4)
    ]
    order = sorted(range(4), key=lambda rank: writer.emitter.loads[rank])
    assert sorted(range(4), key=lambda rank: times[rank]) == order
    result = clusim.simulate(FABRIC, schedule)
    assert result.time_ps > 0


def test_pipeline_messages_are_what_a_stage_hands_on() -> None:
    work = tiny("parallel: {pipeline: 4, data: 2}", batch="{global: 8, micro: 1}")
    _, _, schedule = written(work, FABRIC)
    sends = calls(schedule, "send")
    assert len(sends) == 2 * 3 * 4 * 2
    assert {schedule.calls[i].bytes for i in sends} == {128 * 256 * 2}


def test_tensor_ranks_send_a_part_each_and_gather() -> None:
    for text, size in (
        ("", 128 * 256 * 2 // 2),
        ("\npipeline: {scatter_gather: false}", 128 * 256 * 2),
    ):
        work = tiny(
            "parallel: {pipeline: 2, tensor: 2, data: 1}" + text, batch="{global: 2, micro: 1}"
        )
        _, _, schedule = written(work, FABRIC)
        assert {schedule.calls[i].bytes for i in calls(schedule, "send")} == {size}
        assert bool(calls(schedule, "all_gather")) == (not text)


def test_a_stage_computes_only_what_it_has_received() -> None:
    work = tiny("parallel: {pipeline: 4, data: 1}", batch="{global: 6, micro: 1}")
    _, _, schedule = written(work, FABRIC)
    for microbatch in range(6):
        names = [f"{kind}{microbatch}" for kind in "FB"]
        path = [kernels(schedule, rank, names[0]) for rank in range(4)]
        path += [kernels(schedule, rank, names[1]) for rank in (3, 2, 1, 0)]
        for earlier, later in pairwise(path):
            assert len(earlier) == len(later) == 1
            assert earlier[0] in ancestors(schedule, later)


@pytest.mark.parametrize("schedule", ["naive", "gpipe", "1f1b", "pipedream", "zero-bubble"])
def test_stages_do_their_passes_in_the_order_of_the_schedule(schedule: str) -> None:
    from clusim.workload.pipeline_schedules import order

    work = tiny(
        f"parallel: {{pipeline: 4, data: 1}}\npipeline: {{schedule: {schedule}}}",
        batch="{global: 6, micro: 1}",
    )
    _, _, found = written(work, FABRIC)
    for rank in range(4):
        names = [
            found.tasks[i].name for i in kernels(found, rank) if found.tasks[i].name[0] in "FBW"
        ]
        assert names == [str(action) for action in order(schedule, rank, 4, 6)]


def bubble(text: str, microbatches: int, stages: int) -> float:
    """Return idle time over busy time of a pipeline of equal stages on an ideal machine, with slow kernels."""
    work = tiny(
        f"parallel: {{pipeline: {stages}, data: 1}}\npipeline: {text}\noptimizer: sgd\n"
        "hardware: {gemm_fraction: 0.5}",
        model="{base: mlp, sizes: [" + ", ".join(["4096"] * 17) + "]}",
        batch=f"{{global: {2048 * microbatches}, micro: 2048}}",
    )
    fabric = ideal(stages)
    _, _, schedule = written(work, fabric)
    result = clusim.simulate(fabric, schedule)
    own = [
        i
        for i, task in enumerate(schedule.tasks)
        if task.kind == "kernel" and task.name[0] in "FBW"
    ]
    end = max(int(result.tasks.end_ps[i]) for i in own)
    busy = sum(int(result.tasks.end_ps[i] - result.tasks.start_ps[i]) for i in own)
    return (end * stages - busy) / busy


@pytest.mark.parametrize(
    ("text", "microbatches", "stages", "expected"),
    [
        ("{schedule: naive}", 4, 4, 3.0),
        ("{schedule: gpipe}", 8, 4, 3 / 8),
        ("{schedule: 1f1b}", 8, 4, 3 / 8),
        ("{schedule: 1f1b, messages: overlapped}", 8, 4, 3 / 8),
        ("{schedule: interleaved, chunks: 2}", 8, 4, 3 / 16),
        ("{schedule: interleaved, chunks: 4}", 8, 4, 3 / 32),
        ("{schedule: 1f1b}", 8, 2, 1 / 8),
    ],
)
def test_the_simulated_bubble_is_that_of_the_papers(
    text: str, microbatches: int, stages: int, expected: float
) -> None:
    assert bubble(text, microbatches, stages) == pytest.approx(expected, rel=0.03, abs=0.008)


def test_zero_bubble_leaves_a_third() -> None:
    assert bubble("{schedule: zero-bubble}", 8, 4) < 0.45 * 3 / 8


def test_pipedream_does_not_wait_between_steps() -> None:
    times = {}
    for kind in ("1f1b", "pipedream"):
        work = tiny(
            f"parallel: {{pipeline: 4, data: 1}}\npipeline: {{schedule: {kind}}}\noptimizer: sgd",
            model="{base: mlp, sizes: [" + ", ".join(["2048"] * 9) + "]}",
            batch="{global: 4096, micro: 1024}",
        )
        fabric = ideal(4)
        _, writer, schedule = written(work, fabric, steps=4)
        result = clusim.simulate(fabric, schedule)
        assert len(writer.steps) == 4
        times[kind] = result.time_ps
    assert times["pipedream"] < 0.8 * times["1f1b"]


@pytest.mark.parametrize("bits", [16, 32])
def test_both_copies_of_a_tied_embedding_get_the_same_gradient(bits: int) -> None:
    work = tiny(
        f"parallel: {{pipeline: 4, tensor: 2, data: 1}}\ngradient_bits: {bits}",
        batch="{global: 4, micro: 1}",
    )
    plan, _, schedule = written(work, FABRIC)
    copy = 1024 * 256 // 2
    assert plan.tied_bytes == copy * bits // 8
    sums = [
        call for call in schedule.calls if set(call.ranks) == {0, 6} or set(call.ranks) == {1, 7}
    ]
    assert [(call.operation, call.bytes) for call in sums] == [("allreduce", plan.tied_bytes)] * 2
    number = schedule.calls.index(sums[0])
    for rank in (0, 6):
        before = ancestors(schedule, kernels(schedule, rank, "optimizer"))
        assert set(tasks_of(schedule, number, rank)) <= before
        assert {*kernels(schedule, 0, "B3"), *kernels(schedule, 6, "B3")} <= before
    # Both copies are kept, and stepped.
    one = tiny("parallel: {tensor: 2, data: 1}", batch="{global: 4, micro: 1}")
    whole = sum(layer.parameters for layer in written(one, FABRIC)[0].stages[0][0])
    parts = [layer.parameters for chunks in plan.stages for layer in chunks[0]]
    assert sum(parts) == whole + copy


def test_an_embedding_of_its_own_is_not_copied() -> None:
    model = (
        "{base: llama3-8b, layers: 4, hidden: 256, heads: 8, kv_heads: 8, head_size: 32,"
        " intermediate: 512, vocab: 1024}"
    )
    for text in ("", "pipeline: {schedule: pipedream}"):
        own = {"model": model} if not text else {}
        work = tiny(
            f"parallel: {{pipeline: 4, data: 1}}\n{text}", batch="{global: 4, micro: 1}", **own
        )
        plan, _, schedule = written(work, FABRIC)
        assert plan.tied_bytes == 0
        assert not calls(schedule, "allreduce")


def test_sharded_gradients_wait_for_passes_of_their_own() -> None:
    work = tiny(
        "parallel: {pipeline: 2, data: 4}\npipeline: {schedule: zero-bubble}\ndata: {kind: fsdp}",
        batch="{global: 16, micro: 1}",
    )
    _, _, schedule = written(work, FABRIC)
    scatters = [
        call for call in calls(schedule, "reduce_scatter") if 0 in schedule.calls[call].ranks
    ]
    weights = kernels(schedule, 0, "W")
    # The embedding of the stage has no kernel for its weights' gradient, but a scatter.
    assert len(scatters) == 4 * 3
    assert len(weights) == 4 * 2
    last = tasks_of(schedule, scatters[-1], 0)
    assert set(weights) <= ancestors(schedule, last)
    for number, kernel in enumerate(weights):
        layer = number // 2 * 3 + number % 2
        assert kernel in ancestors(schedule, tasks_of(schedule, scatters[layer], 0))
