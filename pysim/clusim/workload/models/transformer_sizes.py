"""Dimensions of transformers, and checks of the parts that parallelism leaves a rank."""

from __future__ import annotations

from dataclasses import dataclass

from clusim.base.errors import InputError
from clusim.workload.layers import (
    Shard,
    Tensor,
)
from clusim.workload.models.parts import (
    LayeredModel,
)


@dataclass(frozen=True, slots=True)
class Latent:
    """Multi-head latent attention (DeepSeek-V2, V3): projection ranks and head dimensions."""

    q_rank: int
    kv_rank: int
    nope: int
    rope: int
    value: int


@dataclass(frozen=True, slots=True)
class TransformerSizes(LayeredModel):
    """Dimensions of a transformer.

    Attributes
    ----------
    kv_heads : int
        Heads of keys and values.
    intermediate : int
        Inner size of the dense feed-forward block; `gated` blocks have three matrices.
    positions : int
        Learned positions; 0 is rotary.
    experts, top_k, expert_size, shared_experts : int
        Mixture of experts: number, experts per token, inner size, and experts shared by all tokens.
    dense_layers : int
        First layers that remain dense.
    window, full_every : int
        Tokens that attention of windowed layers sees; one of `full_every` layers sees all. 0 is no window.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    intermediate: int
    vocab: int
    gated: bool = True
    bias: bool = False
    tied: bool = False
    causal: bool = True
    positions: int = 0
    segments: int = 0
    pooler: bool = False
    dropout: bool = False
    qkv_bias: bool = False
    experts: int = 0
    top_k: int = 0
    expert_size: int = 0
    shared_experts: int = 0
    dense_layers: int = 0
    latent: Latent | None = None
    window: int = 0
    full_every: int = 1

    unit = "tokens"

    def samples(self, shard: Shard) -> int:
        """Return the tokens of a microbatch."""
        return shard.batch * shard.sequence

    def check(self, shard: Shard) -> None:
        """Raise `InputError` if the model or its partition is invalid."""
        self.check_numbers()
        shard.cut(self.heads, shard.tensor, "tensor parallelism: attention heads")
        if self.kv_heads % shard.tensor and shard.tensor % self.kv_heads:
            raise InputError(
                f"tensor parallelism: {self.kv_heads} heads of keys and values cannot be cut into or copied to"
                f" {shard.tensor} parts"
            )
        shard.cut(
            self.vocab + -self.vocab % shard.tensor, shard.tensor, "vocabulary"
        )
        shard.cut(shard.sequence, shard.context * shard.tensor, "sequence length")
        if shard.around == "ulysses" and shard.context > 1:
            local_heads = self.heads // shard.tensor
            shard.cut(
                local_heads,
                shard.context,
                "context parallelism by ulysses: heads of a rank",
            )
            kv = self.local_heads(shard)[1]
            if kv % shard.context and shard.context % kv:
                raise InputError(
                    f"context parallelism by ulysses: {kv} heads of keys and values of a rank cannot be cut into or"
                    f" copied to {shard.context} parts"
                )
        if shard.expert > 1 and not self.experts:
            raise InputError(
                f"expert parallelism {shard.expert}: {self.name} has no experts"
            )
        if self.experts:
            shard.cut(self.experts, shard.expert, "expert parallelism: experts")
            shard.cut(
                self.expert_size,
                shard.tensor,
                "tensor parallelism: inner size of an expert",
            )
        if self.intermediate:
            shard.cut(
                self.intermediate, shard.tensor, "tensor parallelism: inner size"
            )
        if self.positions and shard.sequence > self.positions:
            raise InputError(
                f"sequence {shard.sequence}: {self.name} has {self.positions} positions"
            )

    def check_numbers(self) -> None:
        """Raise `InputError` for dimensions that contradict each other."""
        if self.heads % self.kv_heads:
            raise InputError(
                f"{self.heads} attention heads cannot share {self.kv_heads} heads of keys and values"
            )
        if self.experts and not 1 <= self.top_k <= self.experts:
            raise InputError(
                f"top_k {self.top_k}: must be 1 to {self.experts}, the experts"
            )
        if self.dense_layers > self.layers:
            raise InputError(
                f"dense_layers {self.dense_layers}: the model has {self.layers} layers"
            )

    def norm_tensors(self, name: str) -> list[Tensor]:
        """Return the weights of a norm, and its bias if the model has any."""
        return [Tensor(f"{name}.weight", self.hidden)] + [
            Tensor(f"{name}.bias", self.hidden)
        ] * self.bias

    def local_heads(self, shard: Shard) -> tuple[int, int]:
        """Return the heads of a rank: of queries, and of keys and values."""
        return self.heads // shard.tensor, max(1, self.kv_heads // shard.tensor)

    def head_sizes(self) -> tuple[int, int]:
        """Return the size of a head of queries and keys, and of values."""
        if self.latent is None:
            return self.head_size, self.head_size
        return self.latent.nope + self.latent.rope, self.latent.value
