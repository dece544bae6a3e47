"""Training of a transformer with fully sharded data parallelism (FSDP2): an ordinary PyTorch program.

With GPUs: ``torchrun --nproc-per-node 8 sharded.py``. Without: ``clusim torchrun --nodes 2 sharded.py``.
"""

import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional

WIDTH, HEADS, LAYERS, VOCABULARY, SEQUENCE, BATCH, STEPS = 2048, 16, 4, 32000, 2048, 2, 3


class Block(nn.Module):
    """Attention and feed-forward network."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's output."""
        b, s, _ = x.shape
        parts = self.qkv(self.norms[0](x)).chunk(3, -1)
        q, k, v = (p.view(b, s, HEADS, WIDTH // HEADS).transpose(1, 2) for p in parts)
        attention = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attention.transpose(1, 2).reshape(b, s, WIDTH))
        return x + self.down(functional.gelu(self.up(self.norms[1](x))))


def main() -> None:
    """Train for a few steps."""
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    blocks = [Block() for _ in range(LAYERS)]
    model = nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), *blocks, nn.Linear(WIDTH, VOCABULARY))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model.to(device), mesh=mesh, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for step in range(STEPS):
        began = time.perf_counter()
        tokens = torch.randint(0, VOCABULARY, (BATCH, SEQUENCE), device=device)
        loss = functional.cross_entropy(model(tokens).flatten(0, 1).float(), tokens.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        if dist.get_rank() == 0:
            print(f"step {step}: {1e3 * (time.perf_counter() - began):.2f} ms")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
