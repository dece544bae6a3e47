"""Training of a transformer with tensor parallelism inside nodes and FSDP2 among them: an ordinary PyTorch program.

With GPUs: ``torchrun --nproc-per-node 8 tensor_parallel.py``. Without: ``clusim torchrun tensor_parallel.py``.
"""

import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn import functional

WIDTH, HEADS, LAYERS, SEQUENCE, BATCH, TENSOR, STEPS = 4096, 32, 2, 2048, 2, 4, 3


class Block(nn.Module):
    """Attention and feed-forward network; each rank of a tensor group has a part of the heads."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(WIDTH) for _ in range(2))
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.up = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's output."""
        y = self.norms[0](x)
        q, k, v = (
            part(y).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )
        attention = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attention.transpose(1, 2).flatten(-2))
        return x + self.down(functional.gelu(self.up(self.norms[1](x))))


def main() -> None:
    """Train for a few steps."""
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    mesh = init_device_mesh(
        "cuda", (dist.get_world_size() // TENSOR, TENSOR), mesh_dim_names=("data", "tensor")
    )
    with torch.device("meta"):
        model = nn.Sequential(*(Block() for _ in range(LAYERS)))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    columns, rows = ("q", "k", "v", "up"), ("out", "down")
    plan = dict.fromkeys(columns, ColwiseParallel()) | dict.fromkeys(rows, RowwiseParallel())
    for block in model:
        parallelize_module(block, mesh["tensor"], plan)
        fully_shard(block, mesh=mesh["data"], mp_policy=policy)
    fully_shard(model, mesh=mesh["data"], mp_policy=policy)
    model.to_empty(device=device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for step in range(STEPS):
        began = time.perf_counter()
        model(torch.randn(BATCH, SEQUENCE, WIDTH, device=device)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        if dist.get_rank() == 0:
            print(f"step {step}: {1e3 * (time.perf_counter() - began):.2f} ms")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
