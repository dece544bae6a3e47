"""Programs whose ranks differ: processes, messages, values and pipelines by arithmetic."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from support.torch_programs import calls, needs_torch, result, torchrun

needs_torch()

DIFFERENT = """
dist.init_process_group("nccl")
rank, other = dist.get_rank(), 1 - dist.get_rank()
value = torch.tensor([rank + 1.0], device="cuda")
dist.all_reduce(value)
objects = [None, None]
dist.all_gather_object(objects, {"rank": rank})
large, small = torch.zeros(1 << 20, device="cuda"), torch.full((4,), rank, device="cuda")
received = torch.empty_like(large), torch.empty_like(small)
operations = [dist.P2POp(dist.isend, t, other) for t in (large, small)]
operations += [dist.P2POp(dist.irecv, t, other) for t in received]
for work in dist.batch_isend_irecv(operations):
    work.wait()
named = [{"from": 0}] if rank == 0 else [None]
dist.send_object_list(named, 1) if rank == 0 else dist.recv_object_list(named, 0)
if rank == 1:
    time.sleep(1.0)
dist.barrier()
seconds = round(time.time() - 1_750_000_000, 1)
with open(f"{rank}.txt", "w") as file:
    print(value.item(), objects, received[1].tolist(), named, seconds, file=file)
dist.recv(small, other)
"""


def test_ranks_that_differ_exchange_values_meet_in_time_and_do_not_hang(tmp_path: Path) -> None:
    run = torchrun(tmp_path, DIFFERENT, "--nproc-per-node", "2", "--distinct", "all")
    for rank in (0, 1):
        words = f"3.0 [{{'rank': 0}}, {{'rank': 1}}] {[1 - rank] * 4} [{{'from': 0}}] 1.0"
        assert (tmp_path / f"{rank}.txt").read_text(encoding="utf-8").strip() == words
    script = (tmp_path / "script.py").read_text(encoding="utf-8")
    line = f"{tmp_path}/script.py:{script.splitlines().index('dist.recv(small, other)') + 1}"
    waits = [f"rank {rank} waits in recv ({line}) for rank {1 - rank}" for rank in (0, 1)]
    assert run.returncode == 2
    assert f"clusim: {'; '.join(waits)}" in " ".join(run.stderr.split())


PIPELINE = """
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.device_mesh import init_device_mesh
dist.init_process_group("nccl")
mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("stage", "data"))
stage = mesh.get_local_rank("stage")
model = nn.Linear(512, 512).cuda()
def loss(output, target):
    return F.mse_loss(output, target)
pipeline = ScheduleGPipe(
    PipelineStage(model, stage, 2, torch.device("cuda", local), group=mesh.get_group("stage")), 4, loss_fn=loss
)
optimizer = torch.optim.SGD(model.parameters())
for step in range(3):
    x = torch.randn(256, 512, device="cuda")
    pipeline.step(x) if stage == 0 else pipeline.step(target=x)
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, group=mesh.get_group("data"))
    optimizer.step()
    optimizer.zero_grad()
    with open(f"memory{dist.get_rank()}", "a") as file:
        print(torch.cuda.memory_allocated(), file=file)
"""


def test_a_pipeline_moves_its_activations_and_gradients_once_per_microbatch(tmp_path: Path) -> None:
    """Stages start when the first sends; each represents its replicas, and gradients are reduced among these.

    Messages keep no memory after they are complete.
    """
    done, _ = result(tmp_path, PIPELINE, "--nproc-per-node", "4")
    assert [(o["rank"], o["represents"]) for o in done["others"]] == [(2, 2)]
    for rank in (0, 2):
        _, second, third = (tmp_path / f"memory{rank}").read_text(encoding="utf-8").split()
        assert second == third
    activations = 3 * 256 * 512 * 4
    for rank, forward, backward in (
        (calls(done), "send", "recv"),
        (calls(done["others"][0]), "recv", "send"),
    ):
        for count, size in (rank[forward, 2], rank[backward, 2]):
            # The shapes of activations and gradients precede them as objects.
            assert 0 < count - 3 * 4 <= 3
            assert 0 < size - activations < 10_000
        assert rank["allreduce", 2] == (3 * 2, 3 * 4 * (512 * 512 + 512))
    assert done["steps"][1]["time_us"] == pytest.approx(done["steps"][2]["time_us"], rel=0.1)


ALIKE = """
dist.init_process_group("nccl")
layer = nn.Linear(256, 256, bias=False).cuda()
optimizer = torch.optim.SGD(layer.parameters())
for step in range(3):
    layer(torch.randn(64, 256, device="cuda")).sum().backward()
    dist.all_reduce(layer.weight.grad)
    optimizer.step()
    DIFFERENT
"""


def test_ranks_are_proved_equal_and_a_second_run_reads_the_proof(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLUSIM_CACHE", str(tmp_path / "cache"))
    text, options = (
        ALIKE.replace("DIFFERENT", "pass"),
        ("--nodes", "2", "--nproc-per-node", "4", "--compare", "auto"),
    )
    first, _ = result(tmp_path, text, *options)
    proof = first["symmetry"]
    assert (proof["equal"], proof["differences"], proof["steps"]) == ([1, 3, 4, 7], [], 2)
    # Kernels and calls of two steps, and the host's times of both.
    kernels = sum(k["count"] for k in first["kernels"])
    assert proof["operations"] > 2 * (kernels // 3)
    second, _ = result(tmp_path, text, *options)
    assert second.pop("symmetry") == first.pop("symmetry") | {"cached": True}
    assert second == first


def test_the_first_different_operation_is_named_with_its_line(tmp_path: Path) -> None:
    """Rank 3 multiplies more after the first step, rank 4 reduces less; rank 1 is equal to rank 0."""
    different = "local == 3 and step == 0 and layer.weight @ layer.weight"
    text = ALIKE.replace("DIFFERENT", different).replace(
        "all_reduce(layer.weight.grad)",
        "all_reduce(layer.weight.grad[: 200 if dist.get_rank() == 4 else 256])",
    )
    options = ("--nodes", "2", "--nproc-per-node", "4", "--compare", "1,3,4", "--json")
    run = torchrun(tmp_path, text, *options)
    assert run.returncode == 0, run.stderr
    proof = json.loads(run.stdout)["symmetry"]
    lines = (tmp_path / "script.py").read_text(encoding="utf-8").splitlines()
    at = {
        word: f"({tmp_path}/script.py:{next(n for n, line in enumerate(lines, 1) if word in line)})"
        for word in ("dist.all_reduce", "local == 3", "layer(")
    }
    assert proof["equal"] == [1]
    third, fourth = proof["differences"]
    assert (third["rank"], third["representative"]) == (3, 0)
    assert third["own"] == f"mm of 256x256, 256x256 {at['local == 3']}"
    assert third["other"].startswith("randn")
    assert third["other"].endswith(at["layer("])
    ranks = f"bytes on ranks 0, 1, 2, 3, ... {at['dist.all_reduce']}"
    assert fourth["own"] == f"allreduce of {200 * 256 * 4} {ranks}"
    assert fourth["other"] == f"allreduce of {256 * 256 * 4} {ranks}"
    assert third["after"] > fourth["after"] > 0


REAL = """
gpu = torch.cuda.is_available()
device = torch.device("cuda", local) if gpu else torch.device("cpu")
torch.set_num_threads(1)  # sums of PyTorch depend on the number of threads, which is less on a loaded machine
dist.init_process_group("nccl" if gpu else "gloo")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.1), nn.Linear(128, 10)).to(device)
parallel = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(parallel.parameters(), foreach=True)
torch.manual_seed(rank)
for step in range(3):
    x, y = torch.randn(16, 64).to(device), torch.randint(0, 10, (16,)).to(device)
    loss = F.cross_entropy(parallel(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
parts = [torch.empty(4, device=device) for _ in range(size)]
dist.all_gather(parts, torch.full((4,), float(rank), device=device))
other = torch.empty(8, device=device)
works = [dist.isend(torch.arange(8.0, device=device) + rank, (rank + 1) % size)]
works.append(dist.irecv(other, (rank - 1) % size))
for work in works:
    work.wait()
mean = torch.full((2,), rank + 1.0, device=device)
dist.all_reduce(mean, op=dist.ReduceOp.AVG if gpu else dist.ReduceOp.SUM)
known = [torch.stack(parts).sum().item(), other.sum().item(), (mean if gpu else mean / size).tolist()]
checksum = sum(parameter.double().sum() for parameter in model.parameters()).item()
with open(f"{rank}{gpu}.txt", "w") as file:
    print(checksum.hex(), loss.item().hex(), known, file=file)
"""

FORKED = """
import os, runpy, sys, torch, torch.distributed
torch.cuda.set_device = lambda device: None
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": sys.argv[2], "WORLD_SIZE": "4"}
for rank in range(4):
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    if not os.fork():
        runpy.run_path(sys.argv[1], run_name="__main__")
        os._exit(0)
assert [os.wait()[1] for _ in range(4)] == [0] * 4
"""


def test_real_data_equal_those_of_gloo_in_every_bit(tmp_path: Path) -> None:
    """Four processes, each with its batches: parameters, losses and received values."""
    run = torchrun(tmp_path, REAL, "--data", "real", "--nproc-per-node", "4")
    assert run.returncode == 0, run.stdout + run.stderr
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    words = [sys.executable, "-c", FORKED, str(tmp_path / "script.py"), port]
    subprocess.run(words, cwd=tmp_path, check=True, timeout=300)
    for rank in range(4):
        plain, own = ((tmp_path / f"{rank}{gpu}.txt").read_text("utf-8") for gpu in (False, True))
        assert own == plain
        assert own.endswith(f"[24.0, {28.0 + 8 * ((rank - 1) % 4)}, [2.5, 2.5]]\n")


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--nproc-per-node", "9", "dgx-h100 has 8 GPUs per node"),
        ("--distinct", "8", "rank 8: dgx-h100 has ranks 0 to 7"),
        ("--distinct", "1,x", "not a list of ranks; write for example 0-7 or 0,2,4-6"),
        ("--distinct", "5-3", "5-3 is not an ascending range of ranks"),
    ],
)
def test_ranks_that_do_not_exist_are_errors(
    option: str, value: str, words: str, tmp_path: Path
) -> None:
    run = torchrun(tmp_path, "", option, value)
    assert run.returncode == 2
    assert words in " ".join(run.stderr.split())


CONTEXT = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import context_parallel
mesh = init_device_mesh("cuda", (2,), mesh_dim_names=("context",))
x = torch.randn(1, 4096, 512, device="cuda", dtype=torch.bfloat16)
qkv = nn.Linear(512, 1536, bias=False, device="cuda", dtype=torch.bfloat16)
with context_parallel(mesh, buffers=[x], buffer_seq_dims=[1]):
    q, k, v = (p.unflatten(-1, (4, 128)).transpose(1, 2) for p in qkv(x).chunk(3, -1))
    F.scaled_dot_product_attention(q, k, v, is_causal=True).sum().backward()
"""


def test_context_parallel_attention_has_the_keys_of_all_ranks(tmp_path: Path) -> None:
    """Keys and values of a rank, 2048 x 512 each in 16 bits, are gathered in both passes; gradients pass in 32 bits."""
    done, _ = result(tmp_path, CONTEXT, "--nproc-per-node", "2")
    both = 2 * 2048 * 512 * 2
    assert calls(done)["all_gather", 2] == (2, 2 * 2 * both)
    assert calls(done)["alltoall", 2] == (2, 2 * 2 * both)
