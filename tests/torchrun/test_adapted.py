"""Parts of a CUDA build that programs expect: pinned memory, Triton, the library of the simulated device."""

from __future__ import annotations

import ctypes
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path

import pytest

from clusim.programs import device
from support.torch_programs import needs_torch, torchrun

needs_torch()

PINNED = """
from torch.utils.data import DataLoader, TensorDataset
def host_us(run):
    torch.cuda.synchronize()
    began = time.perf_counter()
    run()
    return 1e6 * (time.perf_counter() - began)
pageable = torch.zeros(1 << 24)
pinned = pageable.pin_memory()
assert pinned.is_pinned() and pinned[1 << 20:].is_pinned() and not pageable.is_pinned()
assert all(x.is_pinned() for x, in DataLoader(TensorDataset(torch.zeros(4, 2)), pin_memory=True))
there = pinned.cuda()
waits = pinned.cuda, pageable.cuda, there.cpu, lambda: pageable.copy_(there, non_blocking=True)
returns = (
    lambda: pinned.cuda(non_blocking=True),
    lambda: there.to("cpu", non_blocking=True),
    lambda: pinned.copy_(there, non_blocking=True),
)
print(min(map(host_us, waits)), max(map(host_us, returns)))
for device in ("cuda", "cpu"):
    one, other = torch.ones(4, device=device), torch.ones(4, device=device)
    addresses = [x.untyped_storage().data_ptr() for x in (one, one[1:], other)]
    assert addresses[0] == addresses[1] != addresses[2] and all(addresses)
    one.untyped_storage().resize_(0)
    assert device == "cpu" or one.untyped_storage().data_ptr() == 0
with torch.device("cuda"):
    assert torch.arange(3).tolist() == [0, 1, 2] and torch.ones(2).device.type == "cuda"
"""


def test_only_copies_of_pinned_memory_return_before_they_end(tmp_path: Path) -> None:
    """64 MiB need a millisecond at PCIe's 64 GB/s; an operator's issue needs microseconds."""
    run = torchrun(tmp_path, PINNED, "--nproc-per-node", "1")
    assert run.returncode == 0, run.stderr
    waiting_us, returning_us = map(float, run.stdout.splitlines()[0].split())
    assert waiting_us > (1 << 26) / 64e3
    assert returning_us < 50


DEPENDENT = """
x = torch.randn(100, device="cuda")
for attempt in (
    lambda: torch.bincount(x.argsort(), minlength=4),
    lambda: x.nonzero(),
    lambda: x[x > 0],
    lambda: torch.unique(x),
    lambda: torch.masked_select(x, x > 0),
    lambda: torch.repeat_interleave(x.argsort()),
):
    try:
        attempt()
    except Exception as error:
        print(error)
"""


def test_every_operator_whose_shape_depends_on_values_names_the_option_that_computes_them(
    tmp_path: Path,
) -> None:
    run = torchrun(tmp_path, DEPENDENT, "--nproc-per-node", "1")
    assert run.returncode == 0, run.stderr
    lines = run.stdout.splitlines()[:6]
    assert all("--data real computes them, or use fixed shapes" in line for line in lines), lines
    real = torchrun(tmp_path, DEPENDENT, "--nproc-per-node", "1", "--data", "real")
    assert "--data real" not in real.stdout
    assert real.returncode == 0, real.stderr


TRITON = """
import triton, triton.language as tl
from triton.language.extra import libdevice
assert int(triton.__version__.split(".")[0]) >= 3 and triton.cdiv(9, 4) == 3
@triton.autotune(configs=[triton.Config({"BLOCK": 64}, num_warps=4)], key=["n"])
@triton.jit
def root(x, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, libdevice.sqrt(tl.load(x + at, mask=at < n)), mask=at < n)
assert not isinstance(root, dict) and not isinstance(3, triton.runtime.JITFunction)
x = torch.ones(100, device="cuda")
print("imported")
root[lambda meta: (triton.cdiv(100, meta["BLOCK"]),)](x, 100)
"""


@pytest.mark.skipif(find_spec("triton") is not None, reason="triton: installed")
def test_triton_can_be_imported_and_a_launch_of_its_kernels_is_refused(tmp_path: Path) -> None:
    run = torchrun(tmp_path, TRITON, "--nproc-per-node", "1")
    assert (run.returncode, run.stdout.splitlines()[0]) == (2, "imported")
    line = f"{tmp_path}/script.py:{(tmp_path / 'script.py').read_text('utf-8').count(chr(10))}"
    words = " ".join(run.stderr.split())
    assert f"{line}: root: kernels of Triton do not run; make it an operator" in words


def test_a_job_that_waits_for_another_one_does_not_compile_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other job has the lock, and its library exists when it releases it."""
    (tmp_path / "version.py").write_text("cuda: Optional[str] = None\n", encoding="utf-8")
    spec = ModuleSpec("torch", None, origin=str(tmp_path / "__init__.py"))
    compiled: list[Path] = []
    loaded: list[str] = []
    monkeypatch.setattr(device, "find_spec", lambda name: spec)
    monkeypatch.setattr(device, "user_folder", lambda: tmp_path)
    monkeypatch.setattr(device, "_compile", lambda folder, path: compiled.append(path))
    monkeypatch.setattr(ctypes, "CDLL", lambda name, mode: loaded.append(name))
    device.library.__wrapped__()
    assert [str(path) for path in compiled] == loaded

    def released(_lock: object, _kind: int) -> None:
        compiled[0].touch()

    monkeypatch.setattr(device.fcntl, "flock", released)
    device.library.__wrapped__()
    assert len(compiled) == 1
    assert len(loaded) == 2
