"""Unmodified PyTorch programs: collectives by arithmetic, virtual time, values and errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusim.formats.recordings.model import OperatorCall, TensorShape
from clusim.topology import load
from clusim.workload.prices import Prices
from support.torch_programs import calls, needs_torch, result, torchrun

needs_torch()

DATA_PARALLEL = """
import sys
from torch.nn.parallel import DistributedDataParallel
assert sys.argv[1:] == ["--flag", "x"] and torch.cuda.device_count() == 8
dist.init_process_group("nccl")
assert dist.get_backend() == "nccl" and dist.get_world_size() == 8
class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.out = nn.Embedding(1000, 64), nn.Linear(64, 1000, bias=False)
        self.out.weight = self.embed.weight
        self.middle = nn.Sequential(*[nn.Linear(64, 64) for _ in range(10)])
    def forward(self, x):
        return self.out(self.middle(self.embed(x)))
model = DistributedDataParallel(Tied().to(local), device_ids=[local])
optimizer = torch.optim.AdamW(model.parameters())
for step in range(3):
    began = time.perf_counter()
    x = torch.randint(0, 1000, (4, 32)).cuda()
    loss = F.cross_entropy(model(x).flatten(0, 1), x.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    torch.cuda.synchronize()
    print(1e6 * (time.perf_counter() - began), loss.item(), loss.device)
large = DistributedDataParallel(nn.Linear(8192, 8192, bias=False).cuda(), device_ids=[local])
output = large(torch.randn(1, 8192, device="cuda")).sum()
marks = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
marks[0].record()
output.backward()
marks[1].record()
print(1e3 * marks[0].elapsed_time(marks[1]))
known = torch.arange(5, device="cuda") * 2
dist.all_reduce(known)
print(known.tolist())
for attempt in (
    lambda: torch.empty(1 << 40, device="cuda"),
    lambda: dist.recv(torch.ones(2, device="cuda")),
    lambda: torch.cuda.set_device(8),
):
    try:
        attempt()
    except Exception as error:
        print(type(error).__name__, str(error)[:37])
torch.save(model.state_dict(), "state.pt")
state = torch.load("state.pt")
print(state["module.embed.weight"].device, state["module.embed.weight"].shape)
dist.destroy_process_group()
"""


def test_data_parallel_steps_reduce_all_gradients_once(tmp_path: Path) -> None:
    """The shared weight is counted once; placeholders, known values and files behave as documented."""
    done, lines = result(tmp_path, DATA_PARALLEL)
    parameters = 1000 * 64 + 10 * (64 * 64 + 64)
    count, size = calls(done)["allreduce", 8]
    assert size == 3 * 4 * parameters + 8192 * 8192 * 4 + 8 * 5
    assert count >= 3
    # Gradients are used after their reduction, which is at most as fast as NVLink (450 GB/s).
    assert float(lines[-6]) > 8192 * 8192 * 4 * 2 * 7 / 8 / 450e3
    assert lines[-5] == "[0, 16, 32, 48, 64]"
    assert lines[-2] == "RuntimeError CUDA error: invalid device ordinal"
    assert lines[-4] == "OutOfMemoryError CUDA out of memory. Tried to allocate"
    assert lines[-3] == "InputError torch.distributed.recv from any sourc"
    assert lines[-1] == "cuda:0 torch.Size([1000, 64])"
    times = [float(line.split()[0]) for line in lines[:3]]
    assert all(line.split()[1:] == ["1.0", "cuda:0"] for line in lines[:3])
    assert times[2] == pytest.approx(done["steps"][2]["time_us"], rel=0.2)
    assert done["peak_bytes"] > 4 * 4 * parameters
    assert done["ranks"] == 8


TWO_GROUPS = """
dist.init_process_group("nccl")
own, gloo, second = dist.group.WORLD, dist.new_group(backend="gloo"), dist.new_group()
layer = nn.Linear(8, 8).cuda()
optimizer = torch.optim.SGD(layer.parameters())
tensors = [torch.empty(1 << 24, device="cuda") for _ in range(2)]
layer(torch.randn(8, 8, device="cuda")).sum().backward()
for groups in ((own, own), (own, second), (own, own), (own, second)):
    works = [dist.all_reduce(t, group=g, async_op=True) for t, g in zip(tensors, groups)]
    for work in works:
        work.wait()
    optimizer.step()
"""


def test_groups_of_equal_ranks_are_communicators_that_share_wires(tmp_path: Path) -> None:
    """Two reductions of 64 MiB at a time last longer than one, as they share wires, and shorter than one by one."""
    done, _ = result(tmp_path, TWO_GROUPS, "--nproc-per-node", "8")
    _, _, in_row, together = (step["time_us"] for step in done["steps"])
    one = done["calls"][0]["time_us"] / done["calls"][0]["count"]
    assert one < together < 0.9 * in_row
    assert done["overlaps"] == ["overlaps of calls of several communicators: 2 simulated together"]
    assert calls(done)["allreduce", 8] == (8, 8 * (1 << 26))


SHARDED = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard, MixedPrecisionPolicy
dist.init_process_group(device_id=torch.device("cuda", local))
mesh = init_device_mesh("cuda", (16,))
with torch.device("meta"):
    model = nn.Sequential(*[nn.Linear(512, 512, bias=False) for _ in range(4)])
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for layer in model:
    fully_shard(layer, mesh=mesh, mp_policy=policy)
fully_shard(model, mesh=mesh, mp_policy=policy)
model.to_empty(device="cuda")
optimizer = torch.optim.AdamW(model.parameters())
for step in range(2):
    model(torch.randn(64, 512, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
q = torch.empty(1, 8, 4096, 128, device="cuda", dtype=torch.bfloat16)
before.record()
F.scaled_dot_product_attention(q, q, q, is_causal=True)
after.record()
print(1e3 * before.elapsed_time(after))
"""


def test_sharded_steps_gather_twice_and_scatter_once(tmp_path: Path) -> None:
    """A layer is gathered in both passes in 16 bits, and its gradient is scattered once in 32 bits."""
    done, lines = result(tmp_path, SHARDED, "--nodes", "2", "--compare", "1,15")
    assert done["symmetry"]["equal"] == [1, 15]
    layer = 512 * 512
    # The last layer stays gathered between its passes.
    assert calls(done)["all_gather", 16] == (2 * 8, 2 * 8 * 2 * layer)
    assert calls(done)["reduce_scatter", 16] == (2 * 4, 2 * 4 * 4 * layer)
    kernels = {k["operator"]: k for k in done["kernels"]}
    attention = kernels["_scaled_dot_product_cudnn_attention"]  # as PyTorch prefers on Hopper
    assert attention["count"] == 1
    assert float(lines[-1]) == pytest.approx(attention["time_us"], rel=0.5)


TENSOR_PARALLEL = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
mesh = init_device_mesh("cuda", (4, 2), mesh_dim_names=("data", "tensor"))
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)).cuda()
parallelize_module(model, mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
for _ in range(3):
    model(torch.randn(32, 64, device="cuda")).sum().backward()
    model.zero_grad()
    print(torch.cuda.memory_allocated())
"""


def test_a_tensor_parallel_layer_reduces_its_output_on_its_group(tmp_path: Path) -> None:
    """An output and its reduction are freed with the step."""
    done, lines = result(tmp_path, TENSOR_PARALLEL)
    assert calls(done)["allreduce", 2] == (3, 3 * 32 * 64 * 4)
    assert len(set(lines)) == 1
    assert done["steps"] == []
    assert done["step_us"] is None


FLEX = """
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
q = torch.randn(2, 8, 4096, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
k, v = (torch.randn(2, 4, 4096, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(2))
ids = torch.zeros(4096, dtype=torch.long, device="cuda")
causal, documents = (
    create_block_mask(mask, None, None, 4096, 4096, device="cuda")
    for mask in (lambda b, h, i, j: i >= j, lambda b, h, i, j: (ids[i] == ids[j]) & (i >= j))
)
compiled = torch.compile(flex_attention)
for function, mask in ((flex_attention, None), (compiled, causal), (compiled, documents)):
    function(q, k, v, block_mask=mask, enable_gqa=True).sum().backward()
print(q.grad.shape == q.shape, k.grad.shape == k.shape)
"""


def test_flex_attention_is_fused_attention_with_a_causal_mask_if_it_has_one(tmp_path: Path) -> None:
    """Masks that depend on tensors of the GPU skip no block."""
    done, lines = result(tmp_path, FLEX, "--nproc-per-node", "1")
    assert lines == ["True True"]
    kernels = {k["operator"]: k for k in done["kernels"]}
    assert kernels["_scaled_dot_product_flash_attention_backward"]["count"] == 3
    shapes = [TensorShape((2, heads, 4096, 64), "bfloat16", 2) for heads in (8, 4, 4)]
    times = [
        Prices.of(load("dgx-h100")).price(
            OperatorCall("_scaled_dot_product_flash_attention", tuple(shapes), tuple(shapes[:1]), flags)
        ).time_ps
        for flags in ((), ("causal",), ())
    ]  # fmt: skip
    found = kernels["_scaled_dot_product_flash_attention"]["time_us"]
    assert found == pytest.approx(sum(times) / 1e6, rel=1e-3)
    assert times[1] < times[0]


ERRORS = {
    "raise ValueError('mine')": (1, "ValueError: mine"),
    "print('nothing')": (2, "ended without a kernel or a collective"),
    "torch.randn(9, device='cuda').nonzero()": (2, "its result depends on values"),
    "import sys; sys.exit(3)": (3, ""),
}


@pytest.mark.parametrize("text", ERRORS)
def test_errors_reach_the_user(tmp_path: Path, text: str) -> None:
    """The program's errors have its traceback; operations that are not simulated have one line."""
    code, words = ERRORS[text]
    run = torchrun(tmp_path, text)
    assert run.returncode == code, run.stdout + run.stderr
    assert words in " ".join(run.stderr.split())
    assert ("Traceback" in run.stderr) == (code == 1)
    assert "programs/launch.py" not in run.stderr
