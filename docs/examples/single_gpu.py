"""Eight training steps on one GPU: time of a step and memory, measured or by ``clusim torchrun``.

``clusim torchrun --nproc-per-node 1 single_gpu.py --model gpt2-medium``; ``--help`` lists the models.
"""

import argparse
import time

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

DECODERS = {
    # layers, width, heads, heads of keys, inner width, vocabulary, sequence, samples
    "gpt2-small": (12, 768, 12, 12, 3072, 50304, 1024, 16),
    "gpt2-one": (12, 768, 12, 12, 3072, 50304, 1024, 1),
    "gpt2-medium": (24, 1024, 16, 16, 4096, 50304, 1024, 8),
    "gpt2-large": (36, 1280, 20, 20, 5120, 50304, 1024, 4),
    "llama-1b": (16, 2048, 32, 8, 8192, 128256, 4096, 1),
    "llama-1b-checkpoint": (16, 2048, 32, 8, 8192, 128256, 4096, 2),
    "bert-large": (24, 1024, 16, 16, 4096, 30528, 512, 16),
}
"""Sizes of transformers."""


class Block(nn.Module):
    """Layer: GPT-2 (norms first), Llama (rotary positions, SwiGLU) or BERT (norms last, dropout, plain attention)."""

    def __init__(self, kind, width, heads, kv, inner):
        super().__init__()
        self.kind, self.heads, self.kv, self.size = kind, heads, kv, width // heads
        bias = kind != "llama"
        self.qkv = nn.Linear(width, (heads + 2 * kv) * self.size, bias=bias)
        self.out = nn.Linear(width, width, bias=bias)
        self.up = nn.Linear(width, inner, bias=bias)
        self.gate = nn.Linear(width, inner, bias=False) if kind == "llama" else None
        self.down = nn.Linear(inner, width, bias=bias)
        norm = nn.RMSNorm if kind == "llama" else nn.LayerNorm
        self.first, self.second = norm(width, eps=1e-5), norm(width, eps=1e-5)

    def attention(self, x, turns):
        """Return the output of attention."""
        b, s, width = x.shape
        sizes = [n * self.size for n in (self.heads, self.kv, self.kv)]
        q, k, v = (
            y.view(b, s, -1, self.size).transpose(1, 2) for y in self.qkv(x).split(sizes, -1)
        )
        if turns is not None:
            q, k = (y * turns[0] + rotated(y) * turns[1] for y in (q, k))
        if self.kind == "bert":
            scores = (q @ k.transpose(-2, -1) * self.size**-0.5).softmax(-1)
            y = functional.dropout(scores, 0.1, self.training) @ v
        else:
            y = functional.scaled_dot_product_attention(
                q, k, v, is_causal=True, enable_gqa=self.kv < self.heads
            )
        return self.out(y.transpose(1, 2).reshape(b, s, width))

    def feed(self, x):
        """Return the output of the feed-forward network."""
        if self.gate is not None:
            return self.down(functional.silu(self.gate(x)) * self.up(x))
        return self.down(functional.gelu(self.up(x)))

    def forward(self, x, turns=None):
        """Return the output."""
        if self.kind == "bert":
            x = self.first(x + functional.dropout(self.attention(x, None), 0.1, self.training))
            return self.second(x + functional.dropout(self.feed(x), 0.1, self.training))
        x = x + self.attention(self.first(x), turns)
        return x + self.feed(self.second(x))


def rotated(x):
    """Return the halves of every head exchanged, the right one negative."""
    left, right = x.chunk(2, -1)
    return torch.cat((-right, left), -1)


class Transformer(nn.Module):
    """Embedding, layers, and logits with the embedding's weights (not Llama)."""

    def __init__(self, kind, sizes, again):
        super().__init__()
        layers, width, heads, kv, inner, vocabulary, sequence, _ = sizes
        self.again, self.kind = again, kind
        self.embed = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(sequence, width) if kind != "llama" else None
        self.blocks = nn.ModuleList(Block(kind, width, heads, kv, inner) for _ in range(layers))
        self.norm = nn.RMSNorm(width, eps=1e-5) if kind == "llama" else nn.LayerNorm(width)
        self.logits = nn.Linear(width, vocabulary, bias=False)
        if kind != "llama":
            self.logits.weight = self.embed.weight
        half = width // heads // 2
        angles = torch.outer(torch.arange(sequence), 5e5 ** (-torch.arange(half) / half)).repeat(
            1, 2
        )
        self.register_buffer("turns", torch.stack((angles.cos(), angles.sin())), persistent=False)

    def forward(self, tokens):
        """Return the logits."""
        x = self.embed(tokens)
        if self.places is not None:
            x = x + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        turns = self.turns.to(x.dtype) if self.kind == "llama" else None
        for block in self.blocks:
            x = checkpoint(block, x, turns, use_reentrant=False) if self.again else block(x, turns)
        return self.logits(self.norm(x))


class Bottleneck(nn.Module):
    """Residual block of ResNet-50."""

    def __init__(self, inside, width, stride):
        super().__init__()
        out = 4 * width
        self.one, self.two = (
            nn.Conv2d(inside, width, 1, bias=False),
            nn.Conv2d(width, width, 3, stride, 1, bias=False),
        )
        self.three = nn.Conv2d(width, out, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(n) for n in (width, width, out))
        self.short = None
        if stride > 1 or inside != out:
            self.short = nn.Sequential(
                nn.Conv2d(inside, out, 1, stride, bias=False), nn.BatchNorm2d(out)
            )

    def forward(self, x):
        """Return the output."""
        y = functional.relu(self.norms[0](self.one(x)), inplace=True)
        y = functional.relu(self.norms[1](self.two(y)), inplace=True)
        y = self.norms[2](self.three(y)) + (x if self.short is None else self.short(x))
        return functional.relu(y, inplace=True)


def resnet():
    """Return ResNet-50."""
    layers = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
    ]
    inside = 64
    for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for place in range(count):
            layers.append(Bottleneck(inside, width, stride if not place else 1))
            inside = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, 1000))


def image_step():
    """Return a step of ResNet-50: 256 images, bf16 by autocast, channels last, SGD."""
    model = resnet().cuda().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    images = torch.randn(256, 3, 224, 224, device="cuda").to(memory_format=torch.channels_last)
    labels = torch.randint(0, 1000, (256,), device="cuda")

    def step():
        with torch.autocast("cuda", torch.bfloat16):
            loss = functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def language_step(name):
    """Return a step of a transformer: weights in bf16 (Llama), or 32 bits and autocast."""
    sizes = DECODERS[name]
    kind = name.split("-")[0].removesuffix("2")
    with torch.device("cuda"):
        model = Transformer(kind, sizes, "checkpoint" in name)
    half = kind == "llama"
    if half:
        model.to(torch.bfloat16)
    fused = name not in ("gpt2-medium", "bert-large")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=fused)
    tokens = torch.randint(0, sizes[5], (sizes[7], sizes[6]), device="cuda")

    def step():
        with torch.autocast("cuda", torch.bfloat16, enabled=not half):
            loss = functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
        if name == "gpt2-large":
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def main():
    """Print the time of each step and the peak of memory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="gpt2-small", choices=["resnet50", *DECODERS])
    parser.add_argument("--steps", type=int, default=4)
    given = parser.parse_args()
    step = image_step() if given.model == "resnet50" else language_step(given.model)
    for number in range(given.steps):
        torch.cuda.synchronize()
        began = time.perf_counter()
        step()
        torch.cuda.synchronize()
        print(f"step {number}: {1e3 * (time.perf_counter() - began):.2f} ms", flush=True)
    print(f"peak: {torch.cuda.max_memory_allocated() / 2**20:.0f} MiB allocated", flush=True)


if __name__ == "__main__":
    main()
