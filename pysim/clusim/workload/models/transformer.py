"""Transformers: GPT, BERT, Llama, and mixtures of experts such as Mixtral and DeepSeek-V3.

**Hardware** The kernels launched by a framework: matrix products, fused or plain attention,
normalisation, activation, dropout and residual additions, each with its memory traffic. **Model** Tensor
parallelism as in Megatron-LM: matrices are split by columns, then by rows, with one all-reduce after the
second (arXiv 1909.08053); with sequence parallelism an all-gather before and a reduce-scatter after
(arXiv 2205.05198). The input gradient is reduced while the weight gradient is computed. Context
parallelism passes keys and values around a ring during the attention kernels, gathers them (arXiv
2407.21783), or exchanges heads for tokens (Ulysses, arXiv 2309.14509). Experts receive their tokens by
all-to-all. **Not modelled** Fused kernels of particular libraries; the reduced work when experts drop
tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from clusim.workload.kernels import Gemm, Part
from clusim.workload.layers import (
    JOINED,
    Activations,
    Comm,
    Layer,
    Shard,
    Tensor,
    memory_kernel,
)
from clusim.workload.models.attention import Attention, add_attention
from clusim.workload.models.parts import Recorder, loss_gradients
from clusim.workload.models.transformer_sizes import TransformerSizes
from clusim.workload.recipes import input_bytes, output_bytes


@dataclass(frozen=True, slots=True)
class Transformer(TransformerSizes):
    """Transformer by its dimensions."""

    def build(self, shard: Shard) -> list[Layer]:
        """Return the layers of a rank: embedding, blocks, head; equal blocks are one object."""
        self.check(shard)
        dense = (
            self._block(shard, moe=False)
            if self.dense_layers or not self.experts
            else None
        )
        moe = self._block(shard, moe=True) if self.experts else None
        result = [self._embedding(shard)]
        for index in range(self.layers):
            block = moe if moe is not None and index >= self.dense_layers else dense
            assert block is not None
            result.append(block)
        return [*result, self._head(shard)]

    def _embedding(self, shard: Shard) -> Layer:
        rec = Recorder(shard)
        rows = -(-self.vocab // shard.tensor)
        size = shard.tokens * self.hidden
        tensors = [Tensor("embedding", rows * self.hidden)]
        tensors += [Tensor("positions", self.positions * self.hidden)] * bool(
            self.positions
        )
        tensors += [Tensor("segments", self.segments * self.hidden)] * bool(
            self.segments
        )
        if self.segments:
            tensors += self.norm_tensors("embedding norm")
        rec.memory("embedding", size, size, 2 * size)
        rec.leave(size)
        kept_bytes = shard.local_tokens * self.hidden * self.dropout
        acts = Activations(kept_bytes, kept_bytes)
        return rec.layer(
            "embedding", "embedding", tensors, self._input_bytes(shard), acts
        )

    def _input_bytes(self, shard: Shard) -> int:
        return shard.local_tokens * self.hidden * shard.precision.bytes

    def _head(self, shard: Shard) -> Layer:
        rec = Recorder(shard)
        local, rows = (
            shard.local_tokens * self.hidden,
            -(-self.vocab // shard.tensor),
        )
        e = shard.precision.bytes
        rec.norm("final norm", local)
        tensors = [] if self.segments else self.norm_tensors("final norm")
        if self.pooler:
            tensors += [
                Tensor("pooler", self.hidden * self.hidden),
                Tensor("pooler bias", self.hidden),
            ]
        if not self.tied:
            tensors.append(Tensor("head", rows * self.hidden))
        rec.column("head", shard.tokens, rows, self.hidden)
        logits = shard.tokens * rows
        self._loss(rec, shard, logits)
        if shard.tensor > 1:
            rec.forward.append(
                Comm("tensor", "allreduce", 3 * shard.tokens * 4, "cross entropy")
            )
        kept_bytes = 2 * local * e + logits * 4
        acts = Activations(
            kept_bytes, kept_bytes, gradients=loss_gradients(logits, shard)
        )
        return rec.layer("head", "head", tensors, 0, acts)

    def _loss(self, rec: Recorder, shard: Shard, logits: int) -> None:
        """Write cross-entropy.

        Unfused, every operation reads and writes 32-bit logits: cast, maximum, difference, exponent, sum and
        quotient, and backwards product and cast.
        """
        if shard.fused_loss:
            rec.memory("cross entropy", 2 * logits, logits, 2 * logits)
            return
        wide = 4 * logits / shard.precision.bytes
        rec.memory("cross entropy cast", logits, wide, wide + logits)
        rec.memory("cross entropy greatest", wide, 0, 0)
        rec.memory("cross entropy difference", wide, wide, 0)
        rec.memory("cross entropy exponent", wide, wide, 0)
        rec.memory("cross entropy sum", wide, 0, 0)
        rec.memory("cross entropy quotient", wide, wide, 2 * wide)

    def _block(self, shard: Shard, *, moe: bool) -> Layer:
        rec = Recorder(shard)
        e, local = shard.precision.bytes, shard.local_tokens * self.hidden
        rec.norm("norm 1", local, forked=True)
        rec.module("layernorm", 0, self._normed_bytes(shard))
        tensors = self.norm_tensors("norm 1") + self._attention(rec, shard)
        kept_attention = self._residual(rec, shard)
        first = len(rec.forward)
        rec.norm("norm 2", local, forked=True)
        normed = e if moe else input_bytes(shard.precision)
        rec.module("layernorm", first, round(local * normed))
        tensors += self.norm_tensors("norm 2")
        first = len(rec.forward)
        feed = self._experts(rec, shard) if moe else self._feed_forward(rec, shard)
        rec.module("moe" if moe else "mlp", first, feed[1] - local * e)
        tensors += feed[0]
        kept_bytes = (
            2 * local * e + kept_attention + feed[1] + self._residual(rec, shard)
        )
        acts = Activations(
            kept_bytes + self._attention_kept(shard) + self._scores(shard), local * e
        )
        return rec.layer(
            "block",
            "moe" if moe else "block",
            tensors,
            self._input_bytes(shard),
            acts,
        )

    def _residual(self, rec: Recorder, shard: Shard) -> int:
        """Write bias, dropout and the residual addition; return the bytes of the kept mask.

        Without dropout the gradient is passed unchanged to both branches.
        """
        local = shard.local_tokens * self.hidden
        if not self.dropout:
            rec.pair([memory_kernel("add", 2 * local, local, rec.element_bytes)], [])
            return 0
        mask = local / shard.precision.bytes
        rec.memory("residual", 2 * local, local + mask, 2 * local + mask)
        return local

    def _attention_kept(self, shard: Shard) -> int:
        """Return the kept tensors of attention except scores: input, Q, K, V and output [bytes]."""
        n = shard.tokens
        heads, kv = self.local_heads(shard)
        query, value = self.head_sizes()
        if shard.around == "ulysses" and shard.context > 1:
            kv = max(kv, shard.context)
        elements = heads * query + kv * (query + value)
        if self.latent is not None:
            elements = (
                heads * (2 * query + value)
                + self.latent.q_rank
                + self.latent.kv_rank
            )
        output_size = (
            heads * value * output_bytes(shard.precision, fused=shard.flash)
        )
        return round(
            n * (elements * shard.precision.bytes + output_size)
        ) + self._normed_bytes(shard)

    def _normed_bytes(self, shard: Shard) -> int:
        """Return the kept input of attention [bytes]: in 8 bits, one copy per layer that reads it."""
        readers = 2 if self.latent is not None and shard.precision.recipe else 1
        return round(
            readers * shard.local_tokens * self.hidden * input_bytes(shard.precision)
        )

    def _scores(self, shard: Shard) -> int:
        """Return the kept scores of attention: softmax, dropout and its mask [bytes]."""
        heads, _ = self.local_heads(shard)
        scores = (
            shard.batch * heads * (shard.sequence // shard.context) * shard.sequence
        )
        if shard.flash:
            return shard.tokens * heads * 4
        return scores * (
            2 * shard.precision.bytes + 1 if self.dropout else shard.precision.bytes
        )

    def _attention(self, rec: Recorder, shard: Shard) -> list[Tensor]:
        """Write the projections and the attention core; return its parameters."""
        n, h = shard.tokens, self.hidden
        heads, kv = self.local_heads(shard)
        query, value = self.head_sizes()
        if self.latent is not None:
            tensors = self._latent_projections(rec, shard)
        else:
            width = heads * query + kv * 2 * query
            rec.column("qkv", n, width, h)
            rec.join("qkv", (heads * query, kv * query, kv * query))
            if shard.eager:
                rec.behind(f"{JOINED} qkv", 2 * n * width)
            tensors = [_factor("qkv", width * h)] + [Tensor("qkv bias", width)] * (
                self.bias or self.qkv_bias
            )
        if not self.positions:
            turned = n * (heads + kv) * query
            rec.memory("rotary", turned, turned, 2 * turned)
        first = len(rec.forward)
        self._core(rec, shard, heads, kv)
        rec.module("core_attn", first, self._scores(shard))
        rec.row("projection", n, h, heads * value)
        return [*tensors, _factor("projection", heads * value * h)] + [
            Tensor("projection bias", h)
        ] * self.bias

    def _latent_projections(self, rec: Recorder, shard: Shard) -> list[Tensor]:
        latent, n, h = self.latent, shard.tokens, self.hidden
        assert latent is not None
        heads, _ = self.local_heads(shard)
        up = (
            heads * (latent.nope + latent.rope),
            heads * (latent.nope + latent.value),
        )
        rec.plain("q down", n, latent.q_rank, h)
        rec.plain("kv down", n, latent.kv_rank + latent.rope, h)
        first = len(rec.forward)
        rec.column("q up", n, up[0], latent.q_rank)
        rec.plain("kv up", n, up[1], latent.kv_rank)
        query, value = self.head_sizes()
        rec.module(
            "mla_up_proj",
            first,
            n * heads * (2 * query + value) * shard.precision.bytes,
        )
        return [
            _factor("q down", latent.q_rank * h),
            Tensor("q norm", latent.q_rank),
            _factor("q up", up[0] * latent.q_rank),
            _factor("kv down", (latent.kv_rank + latent.rope) * h),
            Tensor("kv norm", latent.kv_rank),
            _factor("kv up", up[1] * latent.kv_rank),
        ]

    def _core(self, rec: Recorder, shard: Shard, heads: int, kv: int) -> None:
        """Write scores, softmax and values, fused or not, with context parallelism."""
        query, value = self.head_sizes()
        part, sequence, parts = (
            shard.sequence // shard.context,
            shard.sequence,
            shard.context,
        )
        token = shard.batch * part * shard.precision.bytes
        ring = token * kv * (query + value)
        if parts > 1 and shard.around == "all-gather":
            # Keys and values are gathered again for the backward pass, and their gradients scattered.
            rec.gather_keys(ring * parts)
            self._attend(rec, Attention(heads, kv, part, sequence, query, value))
            rec.gather_keys_again(ring * parts)
        elif parts > 1 and shard.around == "ulysses":
            # If a rank has fewer heads of keys than there are ranks, each head is sent to several.
            num_key_heads = max(kv, parts)
            rec.swap(
                "heads", token * (heads * query + num_key_heads * (query + value))
            )
            attention = Attention(
                heads // parts,
                num_key_heads // parts,
                sequence,
                sequence,
                query,
                value,
            )
            self._attend(rec, attention)
            rec.swap("tokens", token * heads * value)
        else:
            for step in range(parts):
                if step < parts - 1:
                    rec.start("context", "sendrecv", ring, 2 * ring, f"ring {step}")
                self._attend(rec, Attention(heads, kv, part, part, query, value))
                if step < parts - 1:
                    rec.finish(f"ring {step}")

    def _attend(self, rec: Recorder, attention: Attention) -> None:
        add_attention(rec, attention, causal=self.causal, dropout=self.dropout)

    def _feed_forward(self, rec: Recorder, shard: Shard) -> tuple[list[Tensor], int]:
        """Write the dense block; return its parameters and the bytes kept."""
        local_size = self.intermediate // shard.tensor
        wide, n, h = (2 if self.gated else 1) * local_size, shard.tokens, self.hidden
        operand = input_bytes(shard.precision)
        rec.column("fc1", n, wide, h)
        if self.gated:
            rec.join("fc1", (local_size, local_size))
        first = len(rec.forward)
        rec.memory(
            "activation", n * wide, n * local_size, n * (2 * wide + local_size)
        )
        rec.module("mlp_act", first, round(n * local_size * operand))
        rec.row("fc2", n, h, local_size)
        tensors = [_factor("fc1", wide * h)] + [Tensor("fc1 bias", wide)] * self.bias
        tensors += [_factor("fc2", local_size * h)] + [
            Tensor("fc2 bias", h)
        ] * self.bias
        inputs = (n * local_size + shard.local_tokens * h) * operand
        return tensors, n * wide * shard.precision.bytes + round(inputs)

    def _experts(self, rec: Recorder, shard: Shard) -> tuple[list[Tensor], int]:
        """Write router, dispatch, experts and combine; return parameters and the bytes kept."""
        h, e, t = self.hidden, shard.precision.bytes, shard.tensor
        operand = input_bytes(shard.precision)
        cut = shard.sequence_parallel
        tokens, local_size = shard.local_tokens, self.expert_size // t
        routed = tokens * self.top_k
        count = self.experts // shard.expert
        tensors, shared = [Tensor("router", h * self.experts)], 0
        rec.plain("router", tokens, self.experts, h)
        if self.shared_experts:
            inner, first = self.shared_experts * local_size, len(rec.forward)
            rec.column("shared fc1", shard.tokens, 2 * inner, h)
            rec.memory(
                "shared activation",
                2 * inner * shard.tokens,
                inner * shard.tokens,
                5 * inner * shard.tokens,
            )
            rec.row("shared fc2", shard.tokens, h, inner)
            shared = self._shared_kept(shard, inner)
            rec.module("shared_experts", first, shared)
            tensors += [
                _factor("shared fc1", 2 * inner * h),
                _factor("shared fc2", inner * h),
            ]
        moved = routed * h
        rec.memory("permute", moved, moved, 2 * moved)
        self._exchange(rec, shard, "dispatch")
        if t > 1 and cut:
            rec.gather(moved * t * e)
            routed *= t
        wide = (2 if self.gated else 1) * local_size
        per_expert = max(1, routed // count)
        rec.linear("expert fc1", Gemm(count, per_expert, wide, h), inside="expert")
        first = len(rec.forward)
        rec.memory(
            "expert activation",
            routed * wide,
            routed * local_size,
            routed * (2 * wide + local_size),
            inside="expert",
        )
        rec.module("moe_act", first, round(routed * local_size * operand))
        rec.linear(
            "expert fc2", Gemm(count, per_expert, h, local_size), inside="expert"
        )
        rec.after_experts(
            moved * t * e if cut else shard.tokens * self.top_k * h * e
        )
        self._exchange(rec, shard, "combine")
        rec.memory("unpermute", moved, tokens * h, moved + tokens * h)
        tensors += [
            _factor("expert fc1", count * wide * h, expert=True),
            _factor("expert fc2", count * local_size * h, expert=True),
        ]
        total = (routed * wide + 2 * tokens * h) * e + round(
            routed * (local_size + h) * operand
        )
        return tensors, total + shared

    def _shared_kept(self, shard: Shard, inner: int) -> int:
        """Return the bytes kept by shared experts.

        Their input is the router's and not counted, except an 8-bit copy.
        """
        operand = input_bytes(shard.precision)
        copy = (
            shard.local_tokens * self.hidden * operand
            if shard.precision.recipe
            else 0
        )
        product_bytes = shard.tokens * inner * (2 * shard.precision.bytes + operand)
        return round(product_bytes + copy)

    def _exchange(
        self, rec: Recorder, shard: Shard, kind: Literal["dispatch", "combine"]
    ) -> None:
        """Exchange tokens with each of their experts, or with DeepEP with each rank that has one."""
        deepep, tokens, e = shard.deepep, shard.local_tokens, shard.precision.bytes
        if deepep is None or shard.expert == 1:
            rec.exchange(kind, tokens * self.top_k * self.hidden * e)
            return
        routed = deepep.route_tokens(
            tokens, self.hidden, shard.expert, (self.experts, self.top_k)
        )

        def once(
            direction: Literal["dispatch", "combine"], name: str, part: Part
        ) -> Comm:
            size = deepep.exchange_sizes(direction, routed, e)
            least_ps = deepep.least_ps(direction, routed, size.inside)
            return Comm(
                "expert",
                "alltoall",
                size.inside,
                name,
                part=part,
                channels=deepep.blocks,
                least_ps=least_ps,
                across=size.across,
                flags=deepep.low_latency,
            )

        # Gradients return in the opposite mode: combine for dispatch, and vice versa.
        back: Literal["dispatch", "combine"] = (
            "combine" if kind == "dispatch" else "dispatch"
        )
        rec.pair(
            [once(kind, kind, "forward")], [once(back, f"{kind} gradient", "input")]
        )


def _factor(name: str, elements: int, *, expert: bool = False) -> Tensor:
    """Return the weights of a linear layer that multiplies in 8 bits if products do."""
    return Tensor(name, elements, expert, factor=True)
