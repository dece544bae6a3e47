"""Training of GPT, MPT and Llama with DistributedDataParallel or FSDP2: plain PyTorch modules, without fused kernels.

``clusim torchrun language_model.py --layers 12 --width 2048 --heads 16``; ``--help`` lists the other options.
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

parser = argparse.ArgumentParser()
for name, default in (
    ("layers", 12),
    ("width", 1024),
    ("heads", 16),
    ("kv-heads", 0),
    ("inner", 0),
):
    parser.add_argument(f"--{name}", type=int, default=default)
for name, default in (
    ("vocabulary", 50257),
    ("sequence", 1024),
    ("micro", 1),
    ("accumulate", 1),
    ("steps", 2),
):
    parser.add_argument(f"--{name}", type=int, default=default)
for name in ("llama", "bias", "flash", "recompute", "fsdp", "keep", "fp16"):
    parser.add_argument(f"--{name}", action="store_true")
given = parser.parse_args()
BIAS = given.bias and not given.llama


class Attention(nn.Module):
    """Causal attention with one product for queries, keys and values; rotary positions if Llama."""

    def __init__(self) -> None:
        super().__init__()
        self.size = given.width // given.heads
        self.kv = given.kv_heads or given.heads
        self.qkv = nn.Linear(given.width, (given.heads + 2 * self.kv) * self.size, bias=BIAS)
        self.out = nn.Linear(given.width, given.width, bias=BIAS)

    def forward(self, x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
        """Return the output; `turns` are complex rotations of positions."""
        b, s, _ = x.shape
        sizes = [heads * self.size for heads in (given.heads, self.kv, self.kv)]
        q, k, v = (y.view(b, s, -1, self.size) for y in self.qkv(x).split(sizes, -1))
        if given.llama:
            q, k = (rotated(y, turns) for y in (q, k))
        q, k, v = (y.transpose(1, 2) for y in (q, k, v))
        if given.flash:
            with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
                y = functional.scaled_dot_product_attention(
                    q, k, v, is_causal=True, enable_gqa=self.kv < given.heads
                )
        else:
            scores = q @ k.transpose(2, 3) * self.size**-0.5
            mask = torch.ones(s, s, dtype=torch.bool, device=x.device).triu(1)
            y = scores.masked_fill(mask, float("-inf")).softmax(-1) @ v
        return self.out(y.transpose(1, 2).reshape(b, s, given.width))


def rotated(x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
    """Return queries or keys rotated by their positions."""
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turns[:, None]).flatten(3).type_as(x)


class Feed(nn.Module):
    """Feed-forward network: GELU, or SwiGLU if Llama."""

    def __init__(self) -> None:
        super().__init__()
        inner = given.inner or 4 * given.width
        self.up = nn.Linear(given.width, inner, bias=BIAS)
        self.gate = nn.Linear(given.width, inner, bias=False) if given.llama else None
        self.down = nn.Linear(inner, given.width, bias=BIAS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the output."""
        if self.gate is None:
            return self.down(functional.gelu(self.up(x)))
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """Decoder layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(norm() for _ in range(2))
        self.attention, self.feed = Attention(), Feed()

    def forward(self, x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
        """Return the output."""
        x = x + self.attention(self.norms[0](x), turns)
        return x + self.feed(self.norms[1](x))


def norm() -> nn.Module:
    """Return a norm."""
    return (
        nn.RMSNorm(given.width, eps=1e-5) if given.llama else nn.LayerNorm(given.width, bias=BIAS)
    )


class Model(nn.Module):
    """Decoder with learned positions, rotary for Llama."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(given.vocabulary, given.width)
        self.place = None if given.llama else nn.Embedding(given.sequence, given.width)
        self.blocks = nn.ModuleList(Block() for _ in range(given.layers))
        self.norm, self.out = norm(), nn.Linear(given.width, given.vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        x = self.embed(tokens)
        places = torch.arange(tokens.shape[1], device=tokens.device)
        angles = torch.outer(
            places.float(),
            1e-4 ** torch.linspace(0, 1, given.width // given.heads // 2, device=x.device),
        )
        turns = torch.polar(torch.ones_like(angles), angles)
        if self.place is not None:
            x = x + self.place(places)
        for block in self.blocks:
            again = given.recompute and self.training
            x = checkpoint(block, x, turns, use_reentrant=False) if again else block(x, turns)
        return self.out(self.norm(x))


def main() -> None:
    """Train for a few steps."""
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    with torch.device("meta"):
        model = Model()
    half = torch.float16 if given.fp16 else torch.bfloat16
    masters: list[torch.Tensor] = []
    if given.fsdp:
        mesh = init_device_mesh("cuda", (dist.get_world_size(),))
        policy = MixedPrecisionPolicy(
            param_dtype=half, reduce_dtype=torch.float32 if given.llama else half
        )
        for block in model.blocks:
            fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=not given.keep)
        fully_shard(model, mesh=mesh, mp_policy=policy)
        model.to_empty(device=device)
        run = model
    else:
        model.to_empty(device=device).to(half)
        masters = [p.detach().float() for p in model.parameters()]
        run = DistributedDataParallel(
            model, device_ids=[device.index], gradient_as_bucket_view=True
        )
    optimizer = torch.optim.AdamW(masters or model.parameters(), lr=1e-4, fused=bool(masters))
    for step in range(given.steps):
        began = time.perf_counter()
        for part in range(given.accumulate):
            last = part == given.accumulate - 1
            if given.fsdp:
                model.set_requires_gradient_sync(last)
            else:
                run.require_backward_grad_sync = last
            tokens = torch.randint(
                0, given.vocabulary, (given.micro, given.sequence), device=device
            )
            functional.cross_entropy(run(tokens).flatten(0, 1).float(), tokens.flatten()).backward()
        for parameter, master in zip(model.parameters(), masters, strict=bool(masters)):
            master.grad = parameter.grad.float()
        optimizer.step()
        for parameter, master in zip(model.parameters(), masters, strict=bool(masters)):
            parameter.data.copy_(master)
        model.zero_grad()
        torch.cuda.synchronize()
        if dist.get_rank() == 0:
            print(f"step {step}: {1e3 * (time.perf_counter() - began):.2f} ms")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
