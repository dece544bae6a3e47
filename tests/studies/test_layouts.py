"""Layouts of a training job: which ones a search includes, counted independently, and what they write."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest

from clusim.simulation.setup import Setup
from clusim.studies.plan.layouts import ParallelLayout, layouts
from clusim.topology import Fabric
from clusim.workload import Workload
from clusim.workload.parallel.plan import model_of

DENSE = {"base": "gpt3-1.3b", "layers": 4, "hidden": 1024, "heads": 8, "kv_heads": 8, "vocab": 4096}
EXPERTS = {
    **{"base": "mixtral-8x7b", "layers": 16, "hidden": 1024, "heads": 8, "kv_heads": 8},
    **{"intermediate": 2048, "experts": 6, "vocab": 4096},
}
MESH = Setup("a100x4-mesh", 2).fabric


def job(model: dict[str, Any] | str, **more: Any) -> Workload:
    spec = {"name": "job", "model": model, "sequence": 512, "batch": {"global": 16}, **more}
    return Workload.model_validate(spec)


def all_layouts(workload: Workload, experts: int, depth: int) -> Iterator[ParallelLayout]:
    """Yield the layouts of two nodes of four GPUs whose conditions hold, of all possible sizes."""
    sizes = range(1, 17)
    for tensor, pipeline, context, data in product((1, 2, 4), sizes, (1, 2, 4, 8, 16), sizes):
        divides = depth % pipeline == 0 and workload.sequence % (2 * context) == 0
        if tensor * pipeline * context * data != 8 or not divides:
            continue
        groups = [n for n in range(1, experts + 1) if experts % n == 0 == data * context % n] or [1]
        for expert, micro, chunks in product(groups, (1, 2, 4, 8), range(1, 9)):
            rounds = workload.batch.all / (micro * data)
            if not rounds.is_integer():
                continue
            interleaved = (
                pipeline > 1 and rounds % pipeline == 0 and depth % (pipeline * chunks) == 0
            )
            if chunks > 1 and not interleaved:
                continue
            states = [("distributed-optimizer", 0)]
            if pipeline == 1:
                states.append(("fsdp", 0))
                shard = 4 // tensor
                if shard > 1 and data * context > shard and data * context % shard == 0:
                    states.append(("hsdp", shard))
            for state, again in product(states, ("none", "selective", "full")):
                mesh = tensor, pipeline, context, expert, data
                yield ParallelLayout(*mesh, micro, chunks, *state, again)


@pytest.mark.parametrize(
    ("model", "experts", "depth", "sequence", "batch"),
    [
        (DENSE, 0, 4, 512, 16),
        (DENSE, 0, 4, 4, 6),
        (EXPERTS, 6, 16, 512, 24),
        ({**DENSE, "heads": 6, "kv_heads": 6, "hidden": 768}, 0, 4, 8, 8),
    ],
)
def test_layouts_are_all_that_divide_model_system_and_batch(
    model: dict[str, Any], experts: int, depth: int, sequence: int, batch: int
) -> None:
    workload = job(model, sequence=sequence, batch={"global": batch})
    found = list(layouts(model_of(workload.model), workload, MESH))
    expected = [
        one for one in all_layouts(workload, experts, depth) if model["heads"] % one.tensor == 0
    ]
    assert len(set(found)) == len(found)
    assert set(found) == set(expected)


def test_a_model_without_layers_and_heads_has_replicas_only() -> None:
    workload = Workload.model_validate(
        {"name": "job", "model": "resnet-50", "batch": {"global": 8}}
    )
    found = list(layouts(model_of(workload.model), workload, MESH))
    assert {(one.tensor, one.pipeline, one.expert) for one in found} == {(1, 1, 1)}


def test_nodes_of_one_gpu_share_no_states() -> None:
    fabric: Fabric = Setup("ring:8").fabric
    workload = job(DENSE)
    found = list(layouts(model_of(workload.model), workload, fabric))
    assert found
    assert all(one.states != "hsdp" or one.shard > 1 for one in found)


def layout(**changes: Any) -> ParallelLayout:
    mesh = {"tensor": 1, "pipeline": 1, "context": 1, "expert": 1, "data": 8, "micro": 2}
    rest = {"chunks": 1, "states": "fsdp", "shard": 0, "recompute": "none"}
    return ParallelLayout(**{**mesh, **rest, **changes})


def test_a_layout_in_words_has_what_differs_from_one() -> None:
    assert layout().words == "DP8 MB2, fsdp"
    full = layout(tensor=2, pipeline=2, chunks=2, context=2, expert=2, recompute="full")
    assert full.words == "TP2 PP2 VPP2 CP2 EP2 DP8 MB2, fsdp, full recomputation"
    assert layout(data=1, states="hsdp", shard=4).words == "MB2, hsdp 4"


BASE = {"name": "job", "model": DENSE, "sequence": 512, "batch": {"global": 16}}


def test_a_layout_writes_its_keys_and_keeps_the_others() -> None:
    base = {**BASE, "data": {"bucket": "25MiB"}, "pipeline": {"schedule": "gpipe"}}
    work = layout(states="hsdp", shard=4).workload(base)
    assert (work.data.kind, work.data.shard, work.data.bucket) == ("fsdp", 4, 25 << 20)
    assert (work.batch.all, work.batch.micro, work.parallel.data) == (16, 2, 8)
    assert work.pipeline.schedule != "gpipe"
    assert work.pipeline.messages == "overlapped"
    assert work.host is not None
    assert work.host.framework == "torch-compile"
    assert not work.tensor.sequence_parallel
    assert layout().workload(BASE).data.shard is None


def test_a_tensor_parallel_pipeline_is_that_of_megatron() -> None:
    optimizer = {"states": "distributed-optimizer", "data": 2, "tensor": 2, "pipeline": 2}
    work = layout(**optimizer, chunks=2).workload(BASE)
    assert work.tensor.sequence_parallel
    assert (work.pipeline.schedule, work.pipeline.chunks) == ("interleaved", 2)
    assert work.gradient_bits == 32
    assert work.host is not None
    assert work.host.framework == "megatron"
    work = layout(**optimizer).workload(
        {**BASE, "gradient_bits": 16, "host": {"framework": "pytorch"}}
    )
    assert work.pipeline.schedule != "interleaved"
    assert work.gradient_bits == 16
    assert work.host is not None
    assert work.host.framework == "pytorch"
