"""Parts of a served model on a rank: its weights, and its cache of keys and values.

**Model** Tensor parallelism cuts heads and inner sizes over `tensor` ranks, and copies heads of keys and values if
there are fewer than ranks. With data parallelism of attention each of `attention_data` groups has the complete
attention of some sequences. Experts are distributed over `expert` groups of ranks, and cut over the ranks of a group.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from clusim.base.errors import InputError
from clusim.workload.models.transformer_sizes import TransformerSizes

WEIGHT_BYTES = {
    "bf16": 2.0,
    "fp8": 1.0,
    "fp8-block": 1.0 + 4 / 128**2,
    "nvfp4": 0.5625,
    "mxfp4": 0.53125,
}
"""Bytes of a weight in matrices by precision, scales of blocks included."""

EXPERTS_ONLY = ("mxfp4",)
"""Precisions of experts; other matrices have 16 bits (gpt-oss)."""

CACHE_BYTES = {"bf16": 2, "fp8": 1}
"""Bytes of an element of the cache by type."""

PLAIN_BYTES = 2
"""Bytes of an element of activations, embeddings and norms."""


def place_replicas(sizes: Iterable[int], per_node: int) -> list[int]:
    """Return the first ranks of replicas with some ranks, and the rank after the last.

    A replica begins at the next node if it would cross the end of one.
    """
    places, first = [], 0
    for size in sizes:
        used = first % per_node
        if used and used + size > per_node:
            first += per_node - used
        places.append(first)
        first += size
    return [*places, first]


@dataclass(frozen=True, slots=True)
class ReplicaLayout:
    """A model on the ranks of a replica.

    Attributes
    ----------
    tensor, pipeline, expert, attention_data : int
        Ranks that share a layer's attention; stages; groups of ranks with different experts; copies of attention.
    weights, cache : str
        Precision of matrices; type of the cache.
    """

    model: TransformerSizes
    tensor: int = 1
    pipeline: int = 1
    expert: int = 1
    attention_data: int = 1
    weights: str = "bf16"
    cache: str = "bf16"

    def __post_init__(self) -> None:
        """Check that the model can be cut."""
        model, tensor = self.model, self.tensor
        model.check_numbers()
        if model.heads % tensor:
            raise InputError(
                f"tensor {tensor}: does not divide the {model.heads} attention heads of {model.name}"
            )
        if model.kv_heads % tensor and tensor % model.kv_heads and not model.latent:
            raise InputError(
                f"tensor {tensor}: {model.kv_heads} heads of keys and values cannot be cut into or copied to it"
            )
        if self.pipeline > model.layers:
            raise InputError(
                f"pipeline {self.pipeline}: {model.name} has {model.layers} layers"
            )
        if self.expert > 1 and not model.experts:
            raise InputError(f"expert {self.expert}: {model.name} has no experts")
        if model.experts and (
            self.group % self.expert or model.experts % self.expert
        ):
            raise InputError(
                f"expert {self.expert}: must divide {self.group} ranks and {model.experts} experts"
            )
        if self.weights in EXPERTS_ONLY and not model.experts:
            raise InputError(
                f"precision {self.weights}: {model.name} has no experts"
            )
        if self.attention_data > 1 and not model.experts:
            raise InputError(
                f"attention_data {self.attention_data}: {model.name} has no experts; use replicas"
            )

    @property
    def group(self) -> int:
        """Ranks of a stage."""
        return self.tensor * self.attention_data

    @property
    def ranks(self) -> int:
        """Ranks of a replica."""
        return self.group * self.pipeline

    @property
    def expert_cut(self) -> int:
        """Ranks that share an expert."""
        return self.group // self.expert

    @property
    def heads(self) -> int:
        """Heads of queries on a rank."""
        return self.model.heads // self.tensor

    @property
    def kv_heads(self) -> int:
        """Heads of keys and values on a rank."""
        return max(1, self.model.kv_heads // self.tensor)

    @property
    def stage_layers(self) -> int:
        """Layers of the largest stage."""
        return -(-self.model.layers // self.pipeline)

    @property
    def moe_layers(self) -> int:
        """Layers with experts, in the largest stage."""
        if not self.model.experts:
            return 0
        dense = self.model.dense_layers if self.pipeline == 1 else 0
        return self.stage_layers - dense

    @property
    def full_layers(self) -> int:
        """Layers of the largest stage whose attention sees all tokens."""
        layers = self.stage_layers
        return layers // self.model.full_every if self.model.window else layers

    def attention_elements(self) -> int:
        """Return the elements of a layer's attention matrices on a rank."""
        model, heads = self.model, self.heads
        if model.latent is None:
            width = (heads + 2 * self.kv_heads) * model.head_size
            return model.hidden * (width + heads * model.head_size)
        latent = model.latent
        down = latent.q_rank + latent.kv_rank + latent.rope
        up = latent.q_rank * (latent.nope + latent.rope) + latent.kv_rank * (
            latent.nope + latent.value
        )
        return model.hidden * down + heads * (up + latent.value * model.hidden)

    @property
    def matrices(self) -> int:
        """Matrices of a feed-forward block."""
        return 3 if self.model.gated else 2

    def expert_elements(self) -> int:
        """Return the elements of an expert's matrices on a rank."""
        inner = self.model.expert_size // self.expert_cut
        return self.matrices * self.model.hidden * inner

    def weight_bytes(self) -> float:
        """Return the weights of a rank of the largest stage [bytes]."""
        model, size = self.model, WEIGHT_BYTES[self.weights]
        dense = self.matrices * model.hidden * model.intermediate // self.tensor
        other = PLAIN_BYTES if self.weights in EXPERTS_ONLY else size
        total = self.stage_layers * self.attention_elements() * other
        total += (self.stage_layers - self.moe_layers) * dense * other
        if self.moe_layers:
            local = model.experts // self.expert
            shared = model.shared_experts * self.matrices * model.expert_size
            layer = local * self.expert_elements() * size
            layer += shared * model.hidden // self.tensor * other
            layer += model.experts * model.hidden * PLAIN_BYTES
            total += self.moe_layers * layer
        tables = 1 if model.tied or self.pipeline > 1 else 2
        return (
            total + tables * model.vocab * model.hidden // self.tensor * PLAIN_BYTES
        )

    def token_flops(self) -> float:
        """Return the arithmetic of a token with the matrices of a rank [FLOP]."""
        plain = replace(self, weights="bf16")
        elements = plain.weight_bytes() / PLAIN_BYTES
        if self.moe_layers:
            local = self.model.experts // self.expert * self.expert_elements()
            idle = 1 - self.model.top_k / self.model.experts
            elements -= self.moe_layers * local * idle
        return 2 * elements

    def token_bytes(self) -> int:
        """Return the cache of a token on a rank of the largest stage, in layers without windows [bytes]."""
        return self.full_layers * self.layer_bytes()

    def layer_bytes(self) -> int:
        """Return the cache of a token in a layer on a rank [bytes]."""
        size, model = CACHE_BYTES[self.cache], self.model
        if model.latent is not None:
            return (model.latent.kv_rank + model.latent.rope) * size
        return 2 * self.kv_heads * model.head_size * size

    def sequence_bytes(self, tokens: int) -> int:
        """Return the cache of a sequence on a rank: windowed layers keep the last tokens only [bytes]."""
        windowed = self.stage_layers - self.full_layers
        last = min(tokens, self.model.window)
        return self.token_bytes() * tokens + windowed * self.layer_bytes() * last

    def activation_bytes(self, tokens: int) -> int:
        """Return the activations of a pass of `tokens`: input, residual, and the widest layer [bytes]."""
        model = self.model
        inner = max(
            model.intermediate // self.tensor, model.top_k * model.expert_size
        )
        width = 2 * model.hidden + self.matrices * inner
        return tokens * width * PLAIN_BYTES
