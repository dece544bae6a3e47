"""Attention as one fused kernel, or as separate kernels."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from clusim.hardware.kernels.fused import Fused
from clusim.workload.kernels import Gemm, Kernel
from clusim.workload.layers import (
    linear,
)
from clusim.workload.models.parts import Recorder


class Attention(NamedTuple):
    """Attention of `rows` queries to `columns` keys per sample and head.

    Sizes of queries (and keys) and of values.
    """

    heads: int
    kv_heads: int
    rows: int
    columns: int
    query: int
    value: int


def add_attention(
    rec: Recorder, attention: Attention, *, causal: bool, dropout: bool
) -> None:
    """Add attention: one fused kernel, or kernels of scores, softmax, dropout and values."""
    if rec.shard.flash:
        _add_fused(rec, attention, causal=causal)
    else:
        _add_separate(rec, attention, dropout=dropout)


def _add_fused(rec: Recorder, attention: Attention, *, causal: bool) -> None:
    """Add fused attention.

    Rows that are a part of the sequence are balanced under a causal mask: of 2n chunks rank i has chunks i
    and 2n - 1 - i, which meet equally many keys on every rank. Masks of kernels are aligned at the last key;
    with (columns + rows) / 2 keys they yield the same work.
    """
    batch = rec.shard.batch
    heads, kv, rows, columns, query, value = attention
    full = 2 * batch * heads * rows * columns * (query + value)
    done = full // 2 if causal else full
    moved = (
        batch * (heads * rows + kv * columns) * (query + value) * rec.element_bytes
    )
    met = (columns + rows) // 2 if causal else columns
    shape = Fused(batch, heads, kv, rows, met, query, value, causal)
    one = Kernel("attention", done, moved, fused=shape, useful=full)
    two = Kernel(
        "attention backward",
        done * 5 // 2,
        2 * moved,
        fused=replace(shape, backward=True),
        part="input",
        useful=2 * full,
    )
    rec.pair([one], [two])


def _add_separate(rec: Recorder, attention: Attention, *, dropout: bool) -> None:
    """Add attention as separate kernels: scores, softmax, dropout, values."""
    heads, _, rows, columns, query, value = attention
    batch = rec.shard.batch * heads
    scores = batch * rows * columns
    one = linear(
        "scores", rec.shard, Gemm(batch, rows, columns, query), inside="core"
    )
    rec.pair([one[0]], [kernel.as_part("input") for kernel in one[1:]])
    rec.memory("softmax", scores, scores, 3 * scores, inside="core")
    if dropout:
        mask = scores / rec.element_bytes
        rec.memory(
            "dropout", scores, scores + mask, 2 * scores + mask, inside="core"
        )
    two = linear(
        "values", rec.shard, Gemm(batch, rows, value, columns), inside="core"
    )
    rec.pair([two[0]], [kernel.as_part("input") for kernel in two[1:]])
