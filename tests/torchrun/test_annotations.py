"""Custom operators: annotated times and work, and errors with the line of the program."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusim.base.errors import InputError
from clusim.programs.annotations import annotate
from clusim.topology import load
from clusim.workload.chips import chip_of
from clusim.workload.kernels import PRECISIONS
from support.torch_programs import needs_torch, result, torchrun

needs_torch()

CUSTOM = """
import clusim

@torch.library.custom_op("own::scan", mutates_args=())
def scan(x: torch.Tensor) -> torch.Tensor:
    raise AssertionError("a GPU would run this")

@torch.library.custom_op("own::mix", mutates_args=())
def mix(x: torch.Tensor, times: int) -> torch.Tensor:
    raise AssertionError("a GPU would run this")

@torch.library.custom_op("own::bare", mutates_args=())
def bare(x: torch.Tensor) -> torch.Tensor:
    raise AssertionError("a GPU would run this")

@torch.library.custom_op("own::shapeless", mutates_args=())
def shapeless(x: torch.Tensor) -> torch.Tensor:
    raise AssertionError("a GPU would run this")

scan.register_fake(torch.empty_like)
bare.register_fake(torch.empty_like)
mix.register_fake(lambda x, times: torch.empty_like(x))
clusim.torch.annotate(scan, time="123us")
clusim.torch.annotate("own::mix", flops=0, bytes=lambda x, times: times * x.nbytes)
clusim.torch.annotate("own::scna", time="123us")  # misspelt
with torch.cuda.nvtx.range("ordered"), torch.cuda.profiler.profile():
    ordered = torch.rand(1 << 20, device="cuda", requires_grad=True).sort()[0]
ordered.sum().backward()  # backward
float(ordered[0])  # read
x = torch.zeros(1 << 20, device="cuda")
scan(scan(x))
mix(x, 1000)
bare(x)  # bare
for attempt in (
    lambda: shapeless(x),  # shapeless
    lambda: torch.rand(1 << 20, device="cuda").nonzero(),  # nonzero
):
    try:
        attempt()
    except Exception as error:
        print(error)
"""


def test_custom_operators_last_as_annotated_and_others_are_named(tmp_path: Path) -> None:
    done, lines = result(tmp_path, CUSTOM)
    text = (tmp_path / "script.py").read_text(encoding="utf-8").splitlines()
    at = {
        word: f"{tmp_path}/script.py:{n}"
        for n, line in enumerate(text, 1)
        for word in line.split("# ")[1:]
    }
    kernels = {kernel["operator"]: kernel for kernel in done["kernels"]}
    assert kernels["scan"]["time_us"] == 2 * 123
    memory_Bps = chip_of(load("dgx-h100"), PRECISIONS["fp32"]).memory_Bps
    assert kernels["mix"]["time_us"] == pytest.approx(1000 * (4 << 20) / memory_Bps * 1e6, rel=0.01)
    assert kernels["scan"]["measured"]
    assert kernels["mix"]["measured"]
    assert (kernels["bare"]["measured"], kernels["bare"]["where"]) == (False, at["bare"])
    assert kernels["scatter"]["where"] == at["backward"]
    assert done["placeholders_at"] == [at["read"]]
    assert done["unused_annotations"] == [f"{at['misspelt']}: own::scna"]
    assert lines[0].startswith(f"{at['shapeless']}: own::shapeless lacks a rule for the shape")
    assert lines[1].startswith(f"{at['nonzero']}: aten::nonzero: its result depends on values")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('torch.rand(9, device="cuda").nonzero()', "aten::nonzero: its result depends on values"),
        ("torch.cuda._sleep(9)", "torch._C._cuda_sleep of CUDA builds is not simulated"),
    ],
)
def test_an_operation_of_gpus_only_ends_the_program_with_its_line(
    line: str, words: str, tmp_path: Path
) -> None:
    run = torchrun(tmp_path, f"{line}\n")
    assert run.returncode == 2
    assert run.stderr.splitlines()[-1].startswith(f"clusim: {tmp_path}/script.py:5: {words}")


@pytest.mark.parametrize(
    ("operator", "given", "words"),
    [
        ("own::scan", {}, "give time, or flops and bytes"),
        ("own::scan", {"time": "1us", "flops": 1}, "give time, or flops and bytes"),
        ("scan", {"time": "1us"}, "NAMESPACE::NAME"),
        ("own::scan.out", {"time": "1us"}, "of all overloads; write own::scan"),
    ],
)
def test_annotations_are_checked(operator: str, given: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        annotate(operator, **given)  # type: ignore[arg-type]
