"""``clusim calibrate gpu`` without a GPU: a device of known times, its record, and the file made of it."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import clusim
from clusim.base.errors import InputError
from clusim.hardware.kernels.calibrate import RECORD, check_record, measure, overlay
from clusim.hardware.kernels.calibrate.overlay import SHAPES
from clusim.hardware.kernels.calibrate.probe import Torch
from clusim.hardware.kernels.fused import Fused
from clusim.hardware.kernels.measured_tables import find_attention, find_figures, find_table
from clusim.hardware.kernels.products import Product
from clusim.topology import load
from clusim.training import train
from clusim.workload import PRECISIONS, Gemm, chip_of, load_workload
from clusim.workload.kernels import Kernel
from clusim.workload.spec import HardwareSpec
from clusim_cli.main import run
from support.fake_gpu import A100, A100_NODE, FakeGpu
from support.workloads import tiny


@pytest.fixture(scope="module")
def record() -> dict[str, Any]:
    heard: list[str] = []
    found = measure(FakeGpu(), heard.append)
    assert f"{len(SHAPES)} products of bf16" in heard
    return json.loads(json.dumps(check_record(found, "fake")))


@pytest.fixture(scope="module")
def file(record: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the path of the file that is made of the record."""
    path = tmp_path_factory.mktemp("calibrated") / "mine.json"
    path.write_text(json.dumps(overlay(record)))
    return str(path)


def test_figures_are_those_of_the_record(file: str) -> None:
    expected = {"memory_efficiency": 0.8, "sustained": 0.9, "kernel_floor_us": 2.5}
    assert find_figures(file) == pytest.approx(expected)
    data = json.loads(Path(file).read_text(encoding="utf-8"))
    assert data["mark"] == "calibrated"
    assert "a test, today" in data["source"]
    assert data["host"]["copies_GBps"] == {"from": 25.0, "to": 26.0}


def test_products_are_met_also_between_the_measured_ones(file: str) -> None:
    table, fake = find_table(file, "bf16"), FakeGpu()
    assert table is not None
    assert table.library == "torch"
    metal = replace(A100.silicon, memory_Bps=0.8 * 2039e9)
    for shape in ((4096, 4096, 4096), (2048, 14336, 4096), (8192, 8192, 8192), (1024, 2048, 2048)):
        wanted = fake.product_us("bf16", shape) * 1e-6
        assert table.time_s(metal, Product(1, *shape), (2, 2)) == pytest.approx(wanted, rel=0.08)


def test_attention_is_met(file: str) -> None:
    table = find_attention(file)
    assert table is not None
    for backward in (False, True):
        fused = Fused(2, 16, 16, 4096, 4096, 128, 128, True, backward)
        wanted = 1.2 * A100.fused_s(fused)
        assert table.time_s(A100.silicon, fused) == pytest.approx(wanted, rel=0.05)


def test_a_workload_takes_the_file(file: str) -> None:
    chip = chip_of(clusim.load("dgx-a100"), PRECISIONS["bf16"], HardwareSpec(kernels=file))
    assert chip.sustained == 0.9
    assert chip.memory_Bps == pytest.approx(0.8 * 2039e9)
    assert chip.time_ps(Kernel("tiny", flops=1)) == 2_500_000
    gemm = Gemm(1, 8192, 8192, 8192)
    assert chip.product_s(gemm) / A100.product_s(gemm) > 1.3


def test_a_chip_of_a_topology_takes_the_file(file: str, tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(
        f"name: own\nchips:\n  mine: {{base: a100-sxm4-80gb, kernels: {file}, power: 300}}\n"
        "nodes:\n  gpu0..1: {kind: gpu, chip: mine}\nlinks:\n  - {from: gpu0, to: gpu1, type: nvlink3, count: 12}\n"
    )
    chip = chip_of(load(str(path)), PRECISIONS["bf16"])
    assert chip.sustained == 0.9
    assert chip.products.library == "torch"


def test_the_command_makes_the_file_of_a_record(
    record: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = tmp_path / "record.json", tmp_path / "kernels.json"
    source.write_text(json.dumps(record))
    command = ["calibrate", "gpu", "--from", str(source), "-o", str(target)]
    assert run(command) == 0
    out = capsys.readouterr().out
    assert "kernels of a100-sxm4-80gb (calibrated)" in " ".join(out.split())
    assert "hardware: {kernels:" in out
    assert find_figures(str(target))["sustained"] == pytest.approx(0.9)


def test_an_unknown_gpu_needs_a_chip(record: dict[str, Any]) -> None:
    other = {**record, "gpu": {"name": "Moon 9000"}}
    with pytest.raises(InputError, match=r"no chip has the product name 'Moon 9000'; .*--preset"):
        overlay(other)
    assert overlay(other, "h100-sxm5")["architecture"] == "hopper"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "x"}, f"format '{RECORD}'"),
        ({"gpu": {}}, "must contain the name"),
        ({"products": []}, "'products' must be a list"),
        ({"memory": [{"bytes": 1, "us": 0}]}, r"memory\[0\]: us is 0"),
        ({"long": {"short_us": 1, "long_us": "2"}}, "long: long_us is '2'"),
        ({"launch": None}, "launch: must be a mapping"),
        (
            {"products": [{"m": 1, "n": 1, "k": 1, "us": 1}]},
            r"products\[0\]: kind is None; must be a word",
        ),
        (
            {"products": [{"kind": "bf16", "m": 1.5, "n": 1, "k": 1, "us": 1}]},
            "must be an integer",
        ),
        (
            {"attention": [{"batch": 1, "heads": 1, "tokens": 1, "size": 1, "us": 1}]},
            r"attention\[0\]: causal is None; must be true or false",
        ),
    ],
)
def test_records_that_are_none_are_refused(
    record: dict[str, Any], change: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        check_record({**record, **change}, "file")


@pytest.mark.parametrize(
    ("times", "message"), [(0.1, "of another chip"), (1e6, "or of one that was busy")]
)
def test_products_that_are_not_the_chips_are_refused(
    record: dict[str, Any], times: float, message: str
) -> None:
    rows = [{**row, "us": row["us"] * times} for row in record["products"]]
    with pytest.raises(
        InputError, match=rf"a100-sxm4-80gb: products of bf16 reach .* its peak is 312; .*{message}"
    ):
        overlay({**record, "products": rows})


def test_an_unknown_preset_is_told_with_the_nearest(record: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"no GPU is called 'h100-sxm'; did you mean 'h100-sxm5'"):
        overlay(record, "h100-sxm")


def test_paths_start_from_the_file_that_names_them(file: str, tmp_path: Path) -> None:
    """A workload and a topology beside the file of kernels, read from another directory."""
    (tmp_path / "kernels.json").write_text(Path(file).read_text(encoding="utf-8"))
    workload, machine = tmp_path / "job.yaml", tmp_path / "own.yaml"
    workload.write_text("model: gpt2\nbatch: {global: 2}\nhardware: {kernels: kernels.json}\n")
    machine.write_text(
        "name: own\nchips:\n  mine: {base: a100-sxm4-80gb, kernels: kernels.json}\n"
        "nodes:\n  gpu0..1: {kind: gpu, chip: mine}\nlinks:\n  - {from: gpu0, to: gpu1, type: nvlink3, count: 12}\n"
    )
    assert load_workload(workload).hardware.kernels == str(tmp_path / "kernels.json")
    assert chip_of(load(str(machine)), PRECISIONS["bf16"]).sustained == 0.9


def test_a_step_is_slower_by_what_was_measured(file: str) -> None:
    """Products take 1.3 times as long and a long run keeps 0.9 instead of 0.85: the step is between the two."""
    own, usual = (
        train(
            tiny(text + "parallel: {ranks: [0]}", model="gpt3-1.3b", batch="{global: 1}"),
            A100_NODE,
            steps=1,
        )
        for text in (f"hardware: {{kernels: {file}}}\n", "")
    )
    assert 1.05 < own.step_time_s / usual.step_time_s < 1.3 * 0.85 / 0.9 * 1.1


def test_nothing_is_measured_for_a_file_that_cannot_be_written(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["calibrate", "gpu", "-o", "nowhere/kernels.json"]) == 2
    assert "nowhere/kernels.json: cannot be written: no such directory" in capsys.readouterr().err


def test_without_pytorch_the_command_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(InputError, match=r"pip install 'clusim-net\[gpu\]'"):
        Torch()
