"""Forward pass of a step: its kernels and messages on a rank.

**Hardware** A CUDA graph of the kernels of all layers: norms with the residual addition, products, rotation with the
write of the cache, attention, activation; sums over the ranks of a tensor group; experts in one grouped kernel. Latent
attention of decoding is absorbed: queries are multiplied into the compressed space, so that keys are not expanded.
**Model** Every kernel as in training steps (`clusim.workload.kernels`), without launches; decode attention and experts
by the engine's forms. Prompts of a step attend one after the other. **Not modelled** Gaps between kernels, programmatic
launches, fusion of norms into all-reduces, sampling.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from clusim.hardware.engines import ServingEngine
from clusim.hardware.kernels.decoding import (
    Decoding,
    Grouped,
    active_experts,
)
from clusim.hardware.kernels.fused import BLOCK, Fused, moved_s
from clusim.hardware.kernels.products import Silicon
from clusim.serving.exchange import ServedDeepEp
from clusim.serving.layout import (
    CACHE_BYTES,
    PLAIN_BYTES,
    WEIGHT_BYTES,
    ReplicaLayout,
)
from clusim.topology.node import Endpoint
from clusim.workload.deepep import Routed
from clusim.workload.kernels import Chip, Gemm
from clusim.workload.layers import Comm

LATENT_HEADS = 64
"""Heads of queries that share a wave of latent attention (`Decoding.kv_heads`)."""


class StepShape(NamedTuple):
    """Tokens of a step on a rank.

    Attributes
    ----------
    tokens : int
        Tokens of products, padding included.
    sequences, cached : int
        Sequences that decode, and the tokens of their caches together.
    chunks : tuple of (int, int)
        Tokens of each prompt in the step, and those before them.
    outputs : int
        Sequences that get a token.
    everywhere : int
        Tokens on all groups of attention together.
    """

    tokens: int
    sequences: int
    cached: int
    chunks: tuple[tuple[int, int], ...]
    outputs: int
    everywhere: int


class StepKernel(NamedTuple):
    """Kernels of one kind in a step: their time each [s], and their number."""

    name: str
    time_s: float
    number: int


class StepMessage(NamedTuple):
    """Collectives of one kind in a step.

    Attributes
    ----------
    operation : str
        Collective; ``send`` is to the next stage.
    size_bytes : int
        As of `clusim.collective` [bytes].
    ranks : int
        Consecutive ranks of a group.
    number : int
        Number, one after the other.
    exchange : Comm or None
        DeepEP's exchange.
    """

    operation: str
    size_bytes: int
    ranks: int
    number: int
    exchange: Comm | None = None


@dataclass(frozen=True)
class ForwardPass:
    """Forward passes of a model on a chip, by an engine.

    Attributes
    ----------
    chip, plain : Chip
        Kernels at the precision of the weights; at 16 bits.
    endpoint : Endpoint
        The GPU.
    exchange : str
        Exchange of tokens for experts with data parallelism of attention: ``gather`` (all-gather and
        reduce-scatter) or ``alltoall``, which dispatches 8 bits and combines 16, each token once to a
        group of ranks with some of its experts; ``deepep``: by `deepep`.
    skew : float
        Additional load of the fullest group of experts, as a fraction.
    """

    layout: ReplicaLayout
    chip: Chip
    plain: Chip
    endpoint: Endpoint
    engine: ServingEngine
    exchange: str = "gather"
    skew: float = 0.0
    deepep: ServedDeepEp | None = None

    @cached_property
    def _peaks(self) -> Silicon:
        """Peak rates of the chip at 16 bits."""
        return self._silicon("bf16")

    @property
    def _place(self) -> tuple[str, str]:
        return self.endpoint.chip, self.endpoint.architecture

    def _silicon(self, peak: str) -> Silicon:
        peaks = self.endpoint.peak_flops
        flops = float(peaks.get(peak, peaks.get("f16", 0.0)))
        return Silicon(self.endpoint.sms, flops, float(self.endpoint.mem_Bps))

    def _product_s(self, m: int, n: int, k: int, *, plain: bool = False) -> float:
        chip = self.plain if plain else self.chip
        return self._at_least(chip.product_s(Gemm(1, m, n, k)))

    def _moved_s(self, name: str, elements: float) -> float:
        return self._at_least(
            moved_s(name, elements * PLAIN_BYTES, self.chip.memory_Bps)
        )

    def _at_least(self, seconds: float) -> float:
        return max(self.chip.floor_ps * 1e-12, seconds)

    @property
    def balance(self) -> float:
        """Tokens at which the arithmetic of a step's products takes as long as reading the weights."""
        read_s = self.layout.weight_bytes() / self.endpoint.mem_Bps
        return read_s * self.chip.peak_flops / self.layout.token_flops()

    def kernels(self, shape: StepShape) -> Iterator[StepKernel]:
        """Yield the kernels of a step of a stage, by kind."""
        layout, model = self.layout, self.layout.model
        layers, hidden, tokens = layout.stage_layers, model.hidden, shape.tokens
        if tokens:
            yield StepKernel(
                "norms", self._moved_s("norm", 4 * tokens * hidden), 2 * layers
            )
            for name, seconds in self._projections(tokens):
                yield StepKernel(name, seconds, layers)
        full, windowed = layout.full_layers, layers - layout.full_layers
        yield StepKernel("attention", self._attention_s(shape), full)
        if windowed:
            within_s = self._attention_s(shape, model.window)
            yield StepKernel("windowed attention", within_s, windowed)
        dense = layers - layout.moe_layers
        if dense and tokens:
            inner = model.intermediate // layout.tensor
            for name, seconds in self._feed_forward(tokens, inner):
                yield StepKernel(name, seconds, dense)
        if layout.moe_layers:
            for name, seconds in self._experts(shape):
                yield StepKernel(name, seconds, layout.moe_layers)
        if shape.outputs:
            columns = -(-model.vocab // layout.tensor)
            head_s = self._product_s(shape.outputs, columns, hidden, plain=True)
            yield StepKernel("head", head_s, 1)

    def _projections(self, tokens: int) -> Iterator[tuple[str, float]]:
        """Yield the products around attention of a layer, and the rotation."""
        layout, model = self.layout, self.layout.model
        heads, hidden, latent = layout.heads, model.hidden, model.latent
        if latent is None:
            width = (heads + 2 * layout.kv_heads) * model.head_size
            yield "qkv", self._product_s(tokens, width, hidden)
            yield "rotation and cache", self._moved_s("rotary", 2 * tokens * width)
            yield (
                "projection",
                self._product_s(tokens, hidden, heads * model.head_size),
            )
            return
        down = latent.q_rank + latent.kv_rank + latent.rope
        query = latent.nope + latent.rope
        yield "down", self._product_s(tokens, down, hidden)
        yield "latent norms", self._moved_s("norm", 2 * tokens * down)
        yield "query up", self._product_s(tokens, heads * query, latent.q_rank)
        moved = tokens * (heads * query + latent.kv_rank + latent.rope)
        yield "rotation and cache", self._moved_s("rotary", 2 * moved)
        yield "projection", self._product_s(tokens, hidden, heads * latent.value)

    def _attention_s(self, shape: StepShape, window: int = 0) -> float:
        """Return the attention of a layer: of decoding sequences, then of each prompt [s].

        Sequences have equal contexts; blocks of queries meet the keys of all their windows.
        """
        total = 0.0
        if window:
            cached = min(shape.cached, shape.sequences * window)
            shape = shape._replace(cached=cached)
        if shape.sequences:
            total += self._decode_s(shape)
        for tokens, before in shape.chunks:
            columns = tokens + before
            if window:
                columns = min(columns, window + BLOCK - 1)
            total += self._prompt_s(tokens, columns, causal=columns >= tokens)
        return total

    def _decode_s(self, shape: StepShape) -> float:
        layout, model, latent = (
            self.layout,
            self.layout.model,
            self.layout.model.latent,
        )
        size = CACHE_BYTES[layout.cache]
        form = self.engine.decode_form(
            self._place, layout.cache, latent=latent is not None
        )
        if latent is None:
            read_bytes = 2 * size * layout.kv_heads * model.head_size * shape.cached
            work = Decoding(shape.sequences, layout.kv_heads, read_bytes)
            return self._at_least(form.time_s(self._peaks, work))
        width, heads = latent.kv_rank + latent.rope, layout.heads
        flops = 2 * heads * shape.cached * (width + latent.kv_rank)
        waves = max(1.0, heads / LATENT_HEADS)
        work = Decoding(shape.sequences, waves, size * width * shape.cached, flops)
        absorbed = Gemm(heads, shape.sequences, latent.kv_rank, latent.nope)
        values = Gemm(heads, shape.sequences, latent.value, latent.kv_rank)
        return (
            self._at_least(form.time_s(self._peaks, work))
            + self._at_least(self.plain.product_s(absorbed))
            + self._at_least(self.plain.product_s(values))
        )

    def _prompt_s(self, tokens: int, columns: int, *, causal: bool) -> float:
        layout, latent = self.layout, self.layout.model.latent
        heads, kv_heads, size = layout.heads, layout.kv_heads, layout.model.head_size
        query = value = size
        expand_s = 0.0
        if latent is not None:
            kv_heads, query = heads, latent.nope + latent.rope
            value = latent.value
            up = heads * (latent.nope + latent.value)
            expand_s = self._product_s(columns, up, latent.kv_rank)
        fused = Fused(
            1, heads, kv_heads, tokens, columns, query, value, causal=causal
        )
        return expand_s + self._at_least(self.plain.fused_s(fused))

    def _feed_forward(self, tokens: int, inner: int) -> Iterator[tuple[str, float]]:
        hidden, wide = self.layout.model.hidden, self.layout.matrices - 1
        yield "gate and up", self._product_s(tokens, wide * inner, hidden)
        yield "activation", self._moved_s("activation", (wide + 1) * tokens * inner)
        yield "down", self._product_s(tokens, hidden, inner)

    def _experts(self, shape: StepShape) -> Iterator[tuple[str, float]]:
        layout, model = self.layout, self.layout.model
        tokens = max(1, shape.everywhere)
        local = model.experts // layout.expert
        rows = max(1, shape.tokens)
        yield (
            "router",
            self._product_s(rows, model.experts, model.hidden, plain=True),
        )
        pairs = tokens * model.top_k / layout.expert * (1 + self.skew)
        inner = model.expert_size // layout.expert_cut
        work = Grouped(
            tokens=pairs,
            active=active_experts(model.experts, local, model.top_k, tokens),
            weight_elements=layout.expert_elements(),
            weight_bytes=WEIGHT_BYTES[layout.weights],
            moved_elements=2 * model.hidden + layout.matrices * inner,
        )
        peak = "bf16" if WEIGHT_BYTES[layout.weights] > 1.5 else "f8"
        form = self.engine.expert_form(self._place, layout.weights)
        yield "experts", form.time_s(self._silicon(peak), work)
        if model.shared_experts and shape.tokens:
            size = model.shared_experts * model.expert_size // layout.tensor
            for name, seconds in self._feed_forward(shape.tokens, size):
                yield f"shared {name}", seconds

    def messages(self, shape: StepShape) -> Iterator[StepMessage]:
        """Yield the collectives of a step of a stage, by kind."""
        layout, model = self.layout, self.layout.model
        size = shape.tokens * model.hidden * PLAIN_BYTES
        spread = layout.attention_data > 1
        behind = layout.stage_layers - (layout.moe_layers if spread else 0)
        if layout.tensor > 1 and size:
            count = layout.stage_layers + behind
            yield StepMessage("allreduce", size, layout.tensor, count)
        if spread and shape.everywhere:
            every = shape.everywhere * model.hidden * PLAIN_BYTES
            if self.deepep is not None:
                prompts = bool(shape.chunks)
                for comm in self.deepep.exchanges(shape.tokens, prompts=prompts):
                    yield StepMessage(
                        comm.name, comm.bytes, layout.group, layout.moe_layers, comm
                    )
            elif self.exchange == "alltoall":
                experts = model.experts, model.top_k
                routed = Routed(shape.tokens, model.hidden, layout.expert, *experts)
                sent = round(routed.copies * layout.expert_cut * model.hidden)
                yield StepMessage("alltoall", sent, layout.group, layout.moe_layers)
                yield StepMessage(
                    "alltoall", sent * PLAIN_BYTES, layout.group, layout.moe_layers
                )
            else:
                for operation in ("all_gather", "reduce_scatter"):
                    yield StepMessage(
                        operation, every, layout.group, layout.moe_layers
                    )
        if layout.tensor > 1 and shape.outputs:
            columns = -(-model.vocab // layout.tensor) * layout.tensor
            logits = shape.outputs * columns * PLAIN_BYTES
            yield StepMessage("all_gather", logits, layout.tensor, 1)
        if layout.pipeline > 1 and size:
            yield StepMessage("send", size, 2, 1)
