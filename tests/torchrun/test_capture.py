"""Steps of PyTorch programs as Chakra traces: content by arithmetic, replay on this and another system."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from clusim.formats.recordings import chakra
from clusim.topology import load
from clusim.workload.prices import Prices
from clusim_cli.schemas import schema
from support.torch_programs import needs_torch
from support.warm_torch import clusim

needs_torch()

WIDTH, LAYERS, ROWS = 256, 3, 32

TENSOR_PARALLEL = f"""
import os, torch, torch.nn as nn, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
local = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local)
dist.init_process_group("nccl", device_id=torch.device("cuda", local))
mesh = init_device_mesh("cuda", (dist.get_world_size() // 4, 4), mesh_dim_names=("dp", "tp"))
parts = [nn.Linear({WIDTH}, {WIDTH}, bias=False) for _ in range(2 * {LAYERS})]
model = nn.Sequential(*parts).to("cuda")
plan = {{str(at): RowwiseParallel() if at % 2 else ColwiseParallel() for at in range(2 * {LAYERS})}}
parallelize_module(model, mesh["tp"], plan)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for step in range(5):
    print("step", step, flush=True)
    model(torch.randn({ROWS}, {WIDTH}, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Return a captured step and the output of `clusim capture`."""
    folder = tmp_path_factory.mktemp("capture")
    script, trace = folder / "script.py", folder / "step.et"
    script.write_text(TENSOR_PARALLEL, encoding="utf-8")
    return trace, clusim("capture", "--json", "-o", trace, script, check=True).stdout


def test_the_second_step_is_recorded_and_ends_the_program(captured: tuple[Path, str]) -> None:
    *lines, last = captured[1].splitlines()
    done: dict[str, Any] = json.loads(last)
    Draft202012Validator(schema("capture")).validate(done)
    assert lines == ["step 0", "step 1"]
    assert done["recorded"]["step"] == 2
    assert done["recorded"]["only"]
    assert {(c["operation"], c["ranks"]): c["count"] for c in done["calls"]} == {
        ("allreduce", 4): LAYERS * 2 - 1
    }


def test_trials_of_dtensor_on_whole_shapes_use_no_memory(captured: tuple[Path, str]) -> None:
    """The first step holds the model before its division, which is larger than its shards and activations."""
    done = json.loads(captured[1].splitlines()[-1])
    whole = 2 * LAYERS * WIDTH * WIDTH * 4
    workspaces = 2 * (32 << 20)  # of the threads of both passes
    assert whole <= done["peak_bytes"] < 2 * whole + workspaces


def test_a_trace_has_the_products_of_the_shards(captured: tuple[Path, str]) -> None:
    got = chakra.read(str(captured[0]))
    assert got.num_ranks == 8
    operators = [e.operator for e in got.events if e.rank == 0 and e.operator is not None]
    products = [o for o in operators if o.name == "mm"]
    # Forward, weight and input; the first layer's input has no gradient.
    assert len(products) == 3 * 2 * LAYERS - 1
    flops = sum(
        2 * o.inputs[0].sizes[0] * o.inputs[0].sizes[1] * o.outputs[0].sizes[1] for o in products
    )
    assert flops == (3 * 2 * LAYERS - 1) * 2 * ROWS * WIDTH * (WIDTH // 4)
    calls = [e for e in got.events if e.rank == 5 and e.kind == "collective"]
    assert {got.groups[e.group].ranks for e in calls} == {(4, 5, 6, 7)}
    assert {e.bytes for e in calls} == {ROWS * WIDTH * 4}


def test_kernels_wait_for_the_reductions_that_they_read(captured: tuple[Path, str]) -> None:
    """The next kernel of the stream waits for the sum of the outputs, and for that of the inputs' gradients."""
    got = chakra.read(str(captured[0]))
    own = [(at, event) for at, event in enumerate(got.events) if event.rank == 0]
    for place, event in own:
        if event.kind == "collective":
            following = next(e for at, e in own if at > place and e.kind == "compute")
            assert place in following.deps


def test_a_replay_prices_operators_on_its_own_gpu(captured: tuple[Path, str]) -> None:
    got = chakra.read(str(captured[0]))
    own = [e for e in got.events if e.rank == 0 and e.kind == "compute"]
    for name in ("dgx-h100", "hgx-b200"):
        done = json.loads(clusim("replay", captured[0], name, "--json", check=True).stdout)
        prices = Prices.of(load(name))
        wanted = sum(prices.price(e.operator).time_ps if e.operator else e.duration_ps for e in own)
        assert done["compute_us"] == pytest.approx(wanted / 1e6, rel=1e-6)
        assert done["total_us"] > done["compute_us"]


def test_what_if_changes_the_system_of_a_trace(captured: tuple[Path, str]) -> None:
    words = f"replay {captured[0]} dgx-h100", "nvlink x2"
    rows = json.loads(clusim("what-if", *words, "--json", check=True).stdout)
    assert "nvlink x2" in json.dumps(rows)
