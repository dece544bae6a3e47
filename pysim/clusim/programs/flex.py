"""FlexAttention on the simulated device.

**Hardware** ``torch.compile`` generates a fused kernel that skips the blocks that a mask excludes. **Model** The fused
attention of the same shapes, forward and backward, with a causal mask if the program's mask equals one at sampled
positions. **Not modelled** Other masks skip no block, so that the time is an upper bound; score functions are free.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

SAMPLES = 64
"""Sampled positions of queries, and of keys, of a mask."""


def is_causal(mask: Callable[..., Any], queries: int, keys: int) -> bool:
    """Return True if a mask function equals the causal mask at sampled positions of its first head.

    Parameters
    ----------
    mask : callable
        Function of the indices of sample, head, query and key, as of ``create_block_mask``.
    queries, keys : int
        Lengths.
    """
    at = torch.linspace(0, queries - 1, SAMPLES, device="cpu").long()[:, None]
    to = torch.linspace(0, keys - 1, SAMPLES, device="cpu").long()
    first = torch.zeros((), dtype=torch.long, device="cpu")
    try:
        is_visible = mask(first, first, at, to)
    except (RuntimeError, TypeError, ValueError, IndexError):
        return False  # a mask of other forms than elementwise functions of indices
    if not isinstance(is_visible, torch.Tensor) or isinstance(
        is_visible, FakeTensor
    ):
        return False
    return bool(torch.equal(is_visible, at >= to))


def install() -> None:
    """Replace the operator of FlexAttention for tensors of the simulated device."""
    module = import_module("torch._higher_order_ops.flex_attention")
    before = module.FlexAttentionHOP.__call__

    def call(operator: Any, *args: Any, **options: Any) -> Any:
        query, key, value, _, block_mask, *_ = args
        if not isinstance(query, FakeTensor):
            return before(operator, *args, **options)
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            out = scaled_dot_product_attention(
                query,
                key,
                value,
                is_causal=is_causal(block_mask[-1], query.shape[-2], key.shape[-2]),
                enable_gqa=query.shape[-3] != key.shape[-3],
            )
        statistics = query.new_empty(query.shape[:-1], dtype=torch.float32)
        return out, statistics, statistics

    module.FlexAttentionHOP.__call__ = call
    # Its compilation is replaced as well, with the warning on its absence.
    public: Any = import_module("torch.nn.attention.flex_attention")
    public._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = True
