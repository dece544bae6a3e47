"""What happens if tensor parallelism leaves the machine."""

from __future__ import annotations

import pytest

import clusim
from clusim.base.units import parse_ranks
from clusim.training import training_report
from clusim.workload import make_plan
from support.workloads import tiny

FABRIC = clusim.load("dgx-h100", nodes=2)
ORDERS = ("[tensor, context, data, pipeline]", "[data, tensor, context, pipeline]")


def test_tensor_parallelism_over_the_network_is_exposed() -> None:
    inside, across = (
        clusim.train(
            tiny(
                f"parallel: {{tensor: 8, order: {order}}}\ndata: {{kind: naive}}\noptimizer: sgd",
                model="{base: gpt3-1.3b, layers: 2, hidden: 1024, heads: 16, head_size: 64, kv_heads: 16,"
                " intermediate: 4096, vocab: 1024}",
                sequence="2048",
                batch="{global: 16, micro: 8}",
            ),
            FABRIC,
            steps=1,
            granularity=131072,
        )
        for order in ORDERS
    )
    assert inside.to_json()["placement"]["tensor"] == "inside"
    assert across.to_json()["placement"]["tensor"] == "across"
    assert inside.to_json()["placement"]["data"] == "across"
    # The same volume, on slower links.
    assert across.traffic == inside.traffic
    assert across.mean("exposed") > 1.2 * inside.mean("exposed")
    assert across.step_ps[-1] > 1.1 * inside.step_ps[-1]
    assert any("nic" in name for name, _ in across.wires)
    assert not any("nic" in name for name, _ in inside.wires)
    assert "hint: tensor parallelism spans nodes" in training_report(across)
    assert "hint" not in training_report(inside)


@pytest.mark.parametrize(
    ("tensor", "hint"), [(8, "fit inside"), (16, "16 GPUs in a group, 8 per node")]
)
def test_hints_say_what_would_be_usual(tensor: int, hint: str) -> None:
    model = "{base: gpt3-1.3b, layers: 1, hidden: 512, heads: 16, head_size: 32, kv_heads: 16}"
    work = tiny(f"parallel: {{tensor: {tensor}, order: {ORDERS[1]}}}", model=model)
    assert hint in make_plan(work, FABRIC).hints()[0]


def test_large_meshes_show_ranks_of_every_stage() -> None:
    fabric = clusim.load("dgx-a100", nodes=3)
    work = tiny("parallel: {pipeline: 4}\ndata: {kind: naive}", batch="{global: 24, micro: 1}")
    text = training_report(clusim.train(work, fabric, steps=1, granularity=65536))
    table = text.partition("idle\n")[2].partition("more ranks")[0].splitlines()
    names = [line.split("%")[0].rpartition(" ")[0] for line in table if "%" in line]
    ranks = sorted(rank for name in names for rank in parse_ranks(name))
    assert ranks == [stage * 6 + place for stage in range(4) for place in range(4)]
    assert "and 8 more ranks" in text
