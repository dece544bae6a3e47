"""Forms of distributed programs: their collectives by arithmetic. `pytest -s` prints the step of each.

Sizes are of all steps. A gathered or scattered tensor counts complete. `test_frameworks` has five frameworks.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from support.torch_programs import calls, needs_torch, result, torchrun

needs_torch()

STEPS = 3

BEGIN = """
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint
dist.init_process_group("nccl")
ranks = dist.get_world_size()
def train(model, inputs=lambda: torch.randn(8, 64, device="cuda", requires_grad=True)):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        x = inputs()
        model(x).float().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""

BRANCHES = """
class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = nn.Linear(64, 32), nn.Linear(64, 16)
    def forward(self, x):
        return self.used(x)
"""

RECOMPUTED = """
class Recomputed(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 32)
    def forward(self, x):
        x = checkpoint(self.first, x, use_reentrant=True)
        return checkpoint(self.second, x, use_reentrant=False)
"""

DENSE, UNUSED = 64 * 32 + 32, 64 * 16 + 16
RECOMPUTED_PARAMETERS = 64 * 64 + 64 + DENSE


@pytest.mark.parametrize(
    ("model", "count", "numbers"),
    [
        pytest.param("nn.Linear(64, 32).cuda()", STEPS, STEPS * DENSE, id="plain"),
        # A map of the four parameters that each rank used follows the gradients, unused ones included.
        pytest.param(
            "Branches().cuda(), find_unused_parameters=True",
            2 * STEPS,
            STEPS * (DENSE + UNUSED + 4),
            id="find_unused_parameters",
        ),
        # The map is reduced in the first step only.
        pytest.param(
            "Recomputed().cuda(), static_graph=True",
            STEPS + 1,
            STEPS * RECOMPUTED_PARAMETERS + 4,
            id="static_graph",
        ),
        pytest.param(
            "Recomputed().cuda()", STEPS, STEPS * RECOMPUTED_PARAMETERS, id="checkpoint"
        ),
    ],
)  # fmt: skip
def test_data_parallel_models_reduce_gradients_and_maps_of_used_parameters(
    tmp_path: Path, model: str, count: int, numbers: int
) -> None:
    program = f"{BEGIN}{BRANCHES}{RECOMPUTED}train(DDP({model}))"
    done, _ = result(tmp_path, program, "--nproc-per-node", "4")
    assert calls(done)["allreduce", 4] == (count, 4 * numbers)
    products = {row["operator"]: row["count"] for row in done["kernels"]}
    # The reentrant form repeats its product; the other form stops before it, when all saved tensors exist.
    recomputed = "Recomputed" in model
    # One layer has products for its output, and the gradients of its input and weight.
    assert products["addmm"] + products["mm"] == STEPS * (2 * 3 + 1 if recomputed else 3)


SHARDED = """
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(64, 128), nn.Linear(128, 64)
    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))
model = nn.Sequential(Block(), Block(), nn.Linear(64, 8))
"""

FIRST_FORM = """
half = MixedPrecision(torch.bfloat16, torch.bfloat16, torch.bfloat16)
blocks = ModuleWrapPolicy({Block})
train(FullyShardedDataParallel(model, auto_wrap_policy=blocks, mixed_precision=half, device_id=local))
"""

OFFLOADED_FORM = """
from torch.distributed.fsdp import CPUOffload
half = MixedPrecision(torch.bfloat16, torch.bfloat16, torch.bfloat16)
sharded = FullyShardedDataParallel(
    model, auto_wrap_policy=ModuleWrapPolicy({Block}), mixed_precision=half, device_id=local,
    cpu_offload=CPUOffload(offload_params=True), use_orig_params=ORIGINAL
)
train(sharded)
assert {p.device.type for p in sharded.parameters()} == {"cpu"}
sharded(torch.randn(8, 64, device="cuda")).float().sum().backward()
assert {p.grad.device.type for p in sharded.parameters() if p.numel()} == {"cpu"}
sharded.zero_grad()
"""

SECOND_FORM = """
model.cuda()
half = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for block in model[:2]:
    fully_shard(block, mp_policy=half)
train(fully_shard(model, mp_policy=half))
"""


@pytest.mark.parametrize(
    ("form", "reduced_bytes", "passes"),
    [
        pytest.param(FIRST_FORM, 2, STEPS, id="FSDP1"),
        pytest.param(SECOND_FORM, 4, STEPS, id="FSDP2"),
        pytest.param(OFFLOADED_FORM.replace("ORIGINAL", "False"), 2, STEPS + 1, id="CPUOffload"),
        pytest.param(
            OFFLOADED_FORM.replace("ORIGINAL", "True"), 2, STEPS + 1, id="use_orig_params"
        ),
    ],
)
def test_sharded_blocks_are_gathered_twice_and_the_rest_once_in_half_precision(
    tmp_path: Path, form: str, reduced_bytes: int, passes: int
) -> None:
    """Every shape is divisible by four ranks, so shards have no padding."""
    done, _ = result(tmp_path, BEGIN + SHARDED + form, "--nproc-per-node", "4")
    block, rest = 64 * 128 + 128 + 128 * 64 + 64, 64 * 8 + 8
    gathered = 2 * (2 * 2 * block + rest)
    assert calls(done)["all_gather", 4] == (passes * 5, passes * gathered)
    scattered = reduced_bytes * (2 * block + rest)
    assert calls(done)["reduce_scatter", 4] == (passes * 3, passes * scattered)


TENSOR_PARALLEL = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64)).cuda()
plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
train(parallelize_module(model, init_device_mesh("cuda", (4,)), plan))
"""


def test_tensor_parallel_layers_reduce_outputs_and_gradients_of_inputs(tmp_path: Path) -> None:
    done, _ = result(tmp_path, BEGIN + TENSOR_PARALLEL, "--nproc-per-node", "4")
    assert calls(done)["allreduce", 4] == (2 * STEPS, 2 * STEPS * 8 * 64 * 4)


EXCHANGE = """
class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        result = torch.empty_like(x)
        dist.all_to_all_single(result, x)
        return result
    @staticmethod
    def backward(context, gradient):
        return Exchange.forward(None, gradient.contiguous())
"""

EXPERTS = """
class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(64, ranks, bias=False)
        self.up, self.down = nn.Linear(64, 128), nn.Linear(128, 64)
    def forward(self, x):
        tokens, width = x.shape
        capacity = 2 * tokens // ranks
        weights = self.gate(x).softmax(-1)
        chosen = F.one_hot(weights.topk(2, -1).indices, ranks).sum(1)
        place = chosen.cumsum(0) - 1
        kept = (place < capacity) & (chosen > 0)
        slots = F.one_hot(place.clamp(0, capacity - 1), capacity) * kept.unsqueeze(-1)
        moved = torch.einsum("tec,td->ecd", slots.to(x.dtype), x)
        moved = self.down(F.silu(self.up(Exchange.apply(moved.contiguous()))))
        moved = Exchange.apply(moved)
        return torch.einsum("tec,ecd->td", slots * weights.unsqueeze(-1), moved)
train(Experts().cuda())
"""


def test_experts_with_a_capacity_exchange_full_slots_in_both_passes(tmp_path: Path) -> None:
    """Two slots per token of 8 tokens, whatever the gate chooses; no value is read."""
    done, _ = result(tmp_path, BEGIN + EXCHANGE + EXPERTS, "--nproc-per-node", "4")
    assert calls(done)["alltoall", 4] == (4 * STEPS, 4 * STEPS * 2 * 8 * 64 * 4)
    assert not done["placeholders"]


DROPLESS = """
gate = nn.Linear(64, ranks, bias=False).cuda()
experts = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64)).cuda()
x = torch.randn(32, 64, device="cuda")
expert = gate(x).argmax(-1)
counts = torch.bincount(expert, minlength=ranks)
others = torch.empty_like(counts)
dist.all_to_all_single(others, counts)
sent, received = counts.tolist(), others.tolist()
tokens = torch.empty(sum(received), 64, device="cuda")
dist.all_to_all_single(tokens, x[expert.argsort()], received, sent)
back = torch.empty_like(x)
dist.all_to_all_single(back, experts(tokens), sent, received)
print(f"tokens {dist.get_rank()} {sum(sent)} {sum(received)}\\n", end="", flush=True)
"""


def test_dropless_experts_exchange_as_many_tokens_as_the_gate_sends_with_real_data(
    tmp_path: Path,
) -> None:
    """A rank sends its 32 tokens and receives others: the larger sum counts, forth and back."""
    done, lines = result(
        tmp_path, BEGIN + EXCHANGE + DROPLESS, "--nproc-per-node", "4", "--data", "real"
    )
    exchanged = {}
    for line in lines:
        rank, sent, received = map(int, line.partition("tokens ")[2].split())
        assert sent == 32
        exchanged[rank] = max(sent, received)
    assert len(exchanged) == 4
    assert calls(done)["alltoall", 4] == (3, 4 * 8 + 2 * exchanged[0] * 64 * 4)
    assert not done["placeholders"]


TABLES = """
class Tables(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.EmbeddingBag(4_000_000, 16, mode="sum", sparse=True)
        self.top = DDP(nn.Linear(ranks * 16, 1).cuda())
    def forward(self, given):
        bags = Exchange.apply(self.table(*given)).view(ranks, 8, 16)
        return self.top(bags.transpose(0, 1).reshape(8, ranks * 16))
def bags():
    return torch.randint(0, 4_000_000, (ranks * 8 * 5,)), torch.arange(0, ranks * 8 * 5, 5)
with torch.device("cuda"):
    train(Tables(), inputs=bags)
"""


def test_sparse_tables_exchange_bags_and_their_optimizer_moves_the_rows_of_a_batch(
    tmp_path: Path,
) -> None:
    """A kernel that moved the table of 256 MB would need more than its size at 3.35 TB/s."""
    done, _ = result(tmp_path, BEGIN + EXCHANGE + TABLES, "--nproc-per-node", "4")
    assert calls(done)["alltoall", 4] == (2 * STEPS, 2 * STEPS * 4 * 8 * 16 * 4)
    assert calls(done)["allreduce", 4] == (STEPS, STEPS * 4 * (4 * 16 + 1))
    table = 4_000_000 * 16 * 4
    times = {row["operator"]: row["time_us"] / row["count"] for row in done["kernels"]}
    for name in ("_embedding_bag", "_embedding_bag_backward", "add_"):
        assert times[name] < table / 3.35e6 / 5
    assert table < done["peak_bytes"] < table + 80e6


SPARSE = """
table = DDP(nn.EmbeddingBag(100, 16, sparse=True).cuda())
train(table, inputs=lambda: torch.randint(0, 100, (8, 5)).cuda())
"""


def test_sparse_gradients_in_ddp_are_refused_as_by_nccl(tmp_path: Path) -> None:
    run = torchrun(tmp_path, BEGIN + SPARSE, "--nproc-per-node", "4")
    assert run.returncode == 2
    assert "NCCL reduces dense tensors only" in " ".join(run.stderr.split())


PIPELINE = """
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
stage = PipelineStage(nn.Linear(64, 64).cuda(), dist.get_rank(), 2, torch.device("cuda", local))
pipeline = Schedule1F1B(stage, 4, loss_fn=F.mse_loss)
for step in range(3):
    x = torch.randn(16, 64, device="cuda")
    pipeline.step(target=x) if dist.get_rank() else pipeline.step(x)
"""


def test_pipeline_stages_send_every_microbatch_forth_and_its_gradient_back(tmp_path: Path) -> None:
    done, _ = result(tmp_path, BEGIN + PIPELINE, "--nproc-per-node", "2")
    for found, own in ((done, "send"), (done["others"][0], "recv")):
        for operation in ("send", "recv"):
            count, size = calls(found)[operation, 2]
            # The shapes of activations and gradients precede them as objects.
            assert 0 <= count - STEPS * 4 <= 3, own
            assert 0 <= size - STEPS * 16 * 64 * 4 < 10_000


ACCUMULATED = """
model = DDP(nn.Linear(64, 32).cuda())
optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cuda")
def loss():
    with torch.autocast("cuda", torch.float16):
        return scaler.scale(model(torch.randn(8, 64, device="cuda")).float().sum())
for step in range(3):
    with model.no_sync():
        for part in range(3):
            loss().backward()
    loss().backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
"""


def test_accumulated_scaled_gradients_are_reduced_once_per_step_in_32_bits(tmp_path: Path) -> None:
    """Of four microbatches the last reduces; scaling, its check for infinities and the norm are local."""
    done, _ = result(tmp_path, BEGIN + ACCUMULATED, "--nproc-per-node", "4")
    assert calls(done)["allreduce", 4] == (STEPS, STEPS * 4 * DENSE)
    products = {row["operator"]: row["count"] for row in done["kernels"]}
    # The input needs no gradient.
    assert products["addmm"] + products["mm"] == STEPS * 4 * 2


JOINED = """
model = DDP(nn.Linear(64, 32).cuda())
with model.join():
    train(model)
"""


def test_joined_ranks_count_the_active_ones_in_every_step(tmp_path: Path) -> None:
    """Per step two further numbers of 4 bytes: active ranks, and whether gradients are synchronised.

    At the end once more the active ranks, and the rank of 8 bytes whose weights all receive.
    """
    done, _ = result(tmp_path, BEGIN + JOINED, "--nproc-per-node", "4")
    more = STEPS * 2 * 4 + 4 + 8
    assert calls(done)["allreduce", 4] == (3 * STEPS + 2, STEPS * 4 * DENSE + more)
    assert calls(done)["broadcast", 4][1] >= 2 * 4 * DENSE


SHARDED_FORMS = """
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard
from torch.distributed.device_mesh import init_device_mesh
def sharded(device, clipped, **options):
    model = nn.Sequential(nn.Linear(64, 128), nn.Linear(128, 64)).to(device)
    for module in (*model, model):
        fully_shard(module, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        model(torch.randn(8, 64, device="cuda")).sum().backward()
        if clipped:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
sharded("cuda", True)
sharded("cpu", False, offload_policy=CPUOffloadPolicy())
sharded("cuda", False, mesh=init_device_mesh("cuda", (2, 2), mesh_dim_names=("replicas", "shards")))
"""


def test_sharded_forms_clip_by_four_norms_offload_and_reduce_shards_among_replicas(
    tmp_path: Path,
) -> None:
    """Two layers, gathered for both passes; the norm of a DTensor is a partial sum over the shards."""
    done, _ = result(tmp_path, BEGIN + SHARDED_FORMS, "--nproc-per-node", "4")
    layers = 4 * (64 * 128 + 128 + 128 * 64 + 64)
    found = calls(done)
    forms = {4: 2, 2: 1}
    for ranks, times in forms.items():
        assert found["all_gather", ranks] == (times * STEPS * 4, times * STEPS * 2 * layers)
        assert found["reduce_scatter", ranks] == (times * STEPS * 2, times * STEPS * layers)
    assert found["allreduce", 4] == (STEPS, STEPS * 4 * 4)
    assert found["allreduce", 2] == (STEPS * 2, STEPS * layers // 2)


RING = """
import triton, triton.language as tl
@triton.jit
def unused(pointer, size: tl.constexpr):
    pass
rank = dist.get_rank()
query, keys = (torch.randn(n, 4, 128, 32, device="cuda", dtype=torch.bfloat16) for n in (1, 2))
for part in range(ranks):
    F.scaled_dot_product_attention(query, keys[:1], keys[1:])
    if part < ranks - 1:
        other = torch.empty_like(keys)
        ends = (dist.isend, keys, (rank + 1) % ranks), (dist.irecv, other, (rank - 1) % ranks)
        for work in dist.batch_isend_irecv([dist.P2POp(*end) for end in ends]):
            work.wait()
        keys = other
"""


def test_a_ring_of_keys_passes_every_part_on_in_a_program_that_imports_triton(
    tmp_path: Path,
) -> None:
    done, _ = result(tmp_path, BEGIN + RING, "--nproc-per-node", "4")
    moved = {name[0]: size for name, size in calls(done).items() if name[0] in ("send", "recv")}
    assert moved == dict.fromkeys(("send", "recv"), (3, 3 * 2 * 4 * 128 * 32 * 2))


CHUNKS = """
from torch.distributed.pipelining import (
    PipelineStage, ScheduleInterleaved1F1B, ScheduleInterleavedZeroBubble
)
rank, device = dist.get_rank(), torch.device("cuda", local)
for schedule in (ScheduleInterleaved1F1B, ScheduleInterleavedZeroBubble):
    places = rank, rank + 2
    stages = [PipelineStage(nn.Linear(64, 64).cuda(), place, 4, device) for place in places]
    pipeline = schedule(stages, 4, loss_fn=F.mse_loss)
    for step in range(3):
        x = torch.randn(16, 64, device="cuda")
        pipeline.step(target=x) if rank else pipeline.step(x)
"""


def test_interleaved_and_zero_bubble_pipelines_send_over_three_boundaries(tmp_path: Path) -> None:
    """Of four stages on two ranks: a rank sends two activations and a gradient, or the reverse, per microbatch."""
    done, _ = result(tmp_path, BEGIN + CHUNKS, "--nproc-per-node", "2")
    for found in (done, done["others"][0]):
        for operation in ("send", "recv"):
            count, size = calls(found)[operation, 2]
            # The shapes of activations and gradients precede them as objects.
            assert 0 <= count - 2 * STEPS * 4 * 3 <= 18
            assert 0 <= size - 2 * STEPS * 3 * 16 * 64 * 4 < 10_000


COMPILED = """
@torch.compile
def never_called(x):
    return x
@torch.compile(mode="max-autotune")
def activation(x):
    return torch.relu(x)
train(torch.compile(DDP(nn.Sequential(nn.Linear(64, 32), nn.ReLU()).cuda())))
activation(torch.randn(8, 64, device="cuda"))
"""


def test_compiled_models_and_called_functions_run_eagerly_and_are_named(tmp_path: Path) -> None:
    done, _ = result(tmp_path, BEGIN + COMPILED, "--nproc-per-node", "4")
    assert calls(done)["allreduce", 4] == (STEPS, STEPS * 4 * DENSE)
    lines = (tmp_path / "script.py").read_text(encoding="utf-8").splitlines()
    named = [lines[int(where.rpartition(":")[2]) - 1] for where in done["eager_at"]]
    assert [line.partition("(")[0] for line in named] == ["train", "activation"]
