"""Models by name; dimensions from the papers and published configurations."""

from __future__ import annotations

from clusim.base.errors import InputError
from clusim.topology.validate import did_you_mean
from clusim.workload.models.dlrm import Dlrm
from clusim.workload.models.recurrent import Recurrent
from clusim.workload.models.transformer import Latent, Transformer
from clusim.workload.models.vision import Perceptron, ResNet

Model = Transformer | Perceptron | ResNet | Dlrm | Recurrent

Size = tuple[int, int, int]
"""Layers, hidden size and heads."""


def gpt(name: str, size: Size, *, vocab: int = 50257, positions: int = 2048) -> Transformer:
    """Return a GPT model.

    Plain feed-forward blocks of four times the hidden size, biases, dropout, learned positions.
    """
    layers, hidden, heads = size
    return Transformer(
        name, layers, hidden, heads, heads, hidden // heads, 4 * hidden, vocab,
        gated=False, bias=True, tied=True, positions=positions, dropout=True,
    )  # fmt: skip


def llama(name: str, size: Size, kv_heads: int, inner: int, vocab: int = 128256) -> Transformer:
    """Return a Llama: gated blocks, no biases, grouped keys and values, rotary positions."""
    layers, hidden, heads = size
    return Transformer(name, layers, hidden, heads, kv_heads, hidden // heads, inner, vocab)


def mixtral(name: str, size: Size, inner: int, vocab: int) -> Transformer:
    """Return a Mixtral model: eight experts, two per token."""
    layers, hidden, heads = size
    return Transformer(
        name,
        layers,
        hidden,
        heads,
        8,
        hidden // heads,
        0,
        vocab,
        experts=8,
        top_k=2,
        expert_size=inner,
    )


_ALL: list[Model] = [
    Perceptron("mlp"),
    ResNet(),
    Transformer(
        "bert-large", 24, 1024, 16, 16, 64, 4096, 30522, gated=False, bias=True, tied=True, causal=False,
        positions=512, segments=2, pooler=True, dropout=True,
    ),
    gpt("gpt2", (12, 768, 12), positions=1024),
    gpt("gpt2-medium", (24, 1024, 16), positions=1024),
    gpt("gpt2-large", (36, 1280, 20), positions=1024),
    gpt("gpt2-xl", (48, 1600, 25), positions=1024),
    gpt("gpt3-1.3b", (24, 2048, 16)),
    gpt("gpt3-6.7b", (32, 4096, 32)),
    gpt("gpt3-13b", (40, 5120, 40)),
    gpt("gpt3-175b", (96, 12288, 96)),
    gpt("megatron-22b", (48, 6144, 64), vocab=51200),
    gpt("megatron-175b", (96, 12288, 96), vocab=51200),
    gpt("megatron-530b", (105, 20480, 128), vocab=51200),
    gpt("megatron-1t", (128, 25600, 160), vocab=51200),
    llama("llama3-8b", (32, 4096, 32), 8, 14336),
    llama("llama3-70b", (80, 8192, 64), 8, 28672),
    llama("llama3-405b", (126, 16384, 128), 8, 53248),
    mixtral("mixtral-8x7b", (32, 4096, 32), 14336, 32000),
    mixtral("mixtral-8x22b", (56, 6144, 48), 16384, 32768),
    Transformer(
        "deepseek-v3", 61, 7168, 128, 128, 128, 18432, 129280, experts=256, top_k=8, expert_size=2048,
        shared_experts=1, dense_layers=3, latent=Latent(1536, 512, 128, 64, 128),
    ),
    Dlrm(),
    Recurrent(),
]  # fmt: skip

MODELS: dict[str, Model] = {model.name: model for model in _ALL}
"""Models by name."""


def find_model(name: str) -> Model:
    """Return the model called `name`."""
    if name not in MODELS:
        raise InputError(f"model {name!r}: unknown{did_you_mean(name, MODELS)}")
    return MODELS[name]
