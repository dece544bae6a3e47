from __future__ import annotations

import json
from pathlib import Path

import pytest

import clusim
from clusim.training.layertable import layer_report, layer_rows, layer_table, optimizer_row
from clusim.workload import make_plan
from clusim.workload.layers import backward_steps
from clusim_cli.main import run
from support.workloads import tiny

FABRIC = clusim.load("dgx-a100")


def test_a_layer_by_hand() -> None:
    """A multilayer perceptron without tensor parallelism: every number can be counted."""
    work = tiny(
        "optimizer: momentum",
        model="{base: mlp, sizes: [1024, 2048, 512]}",
        batch="{global: 1024, micro: 128}",
    )
    plan = make_plan(work, FABRIC)
    first, second = layer_rows(plan)
    assert (first.count, first.parameters) == (1, 1024 * 2048 + 2048)
    product = 2 * 128 * 1024 * 2048
    assert first.forward_flops == first.input_flops == first.weight_flops == product
    matrices = 2 * (128 * 1024 + 1024 * 2048 + 128 * 2048)
    wide = 2 * 128 * 2048
    assert first.forward_hbm_bytes == matrices + 2 * wide
    assert first.input_hbm_bytes == matrices + 3 * wide
    assert first.weight_hbm_bytes == matrices
    assert first.activation_bytes == 2 * 128 * (1024 + 2048)
    assert second.parameters == 2048 * 512 + 512
    for part in ("forward", "input", "weight"):
        kernels = [k.time_ps for k in first.kernels if k.part == part]
        assert sum(kernels) == getattr(first, f"{part}_ps") > 0
    # Momentum: read a 16-bit gradient, read and write 32-bit weights and momentum, write 16-bit weights.
    step = optimizer_row(plan, 0)
    assert step.parameters == first.parameters + second.parameters
    assert step.hbm_bytes == step.parameters * (2 + 2 * 8 + 2)
    expected_s = 1e-6 + step.hbm_bytes / plan.chip.memory_Bps
    assert step.step_ps == pytest.approx(expected_s * 1e12, rel=1e-6)


def test_rows_are_what_stages_compute() -> None:
    work = tiny("parallel: {pipeline: 2, tensor: 2}\nrecompute: selective\nattention: plain")
    plan = make_plan(work, FABRIC)
    rows = layer_rows(plan)
    assert [(row.stage, row.layer, row.count) for row in rows] == [
        (0, "embedding", 1), (0, "block", 2), (1, "block", 2), (1, "head", 1),
    ]  # fmt: skip
    block = rows[1]
    assert block.collectives["forward"] == ["2 x allreduce tensor 64 KiB"]
    assert block.collectives["backward"] == ["2 x allreduce tensor 64 KiB"]
    layer = plan.stages[0][0][1]
    # The attention core is computed again, which counts as backward towards the inputs.
    assert block.input_flops - layer.flops("input") == 2 * 2 * 4 * 128 * 128 * 32
    assert block.activation_bytes == layer.kept_bytes
    assert 0 < block.memory_bound <= 1


def test_heads_and_embeddings_are_not_computed_again() -> None:
    plan = make_plan(tiny("recompute: full"), FABRIC)
    embedding, block, *_, head = plan.stages[0][0]
    assert len(backward_steps(block)) == len(block.forward) + len(block.backward)
    for layer in (embedding, head):
        assert backward_steps(layer) == list(layer.backward)


def test_a_sharded_optimizer_steps_its_part() -> None:
    whole, part = (
        optimizer_row(make_plan(tiny(f"data: {{kind: {kind}}}"), FABRIC), 0).parameters
        for kind in ("ddp", "zero1")
    )
    assert part == whole // 8


def test_the_command_shows_layers(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "w.yaml"
    model = "model: {base: gpt2, layers: 2}"
    path.write_text(f"topology: dgx-a100\n{model}\nsequence: 128\nbatch: {{global: 8}}\n")
    assert run(["train", str(path), "--layers", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [row["layer"] for row in data["layers"]] == ["embedding", "block", "head"]
    assert data["layers"][1]["count"] == 2
    assert {
        "forward_flops",
        "input_flops",
        "weight_flops",
        "forward_hbm_bytes",
        "activation_bytes",
    } < set(data["layers"][0])
    assert run(["train", str(path), "--layers"]) == 0
    out = capsys.readouterr().out
    assert "waits" in out
    assert "adam step" in out
    plan = make_plan(tiny(), FABRIC)
    assert json.loads(json.dumps(layer_table(plan).to_json()))["microbatches"] == 1
    assert layer_report(plan)
