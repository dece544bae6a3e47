"""Recurrent networks: layers of LSTM cells between an embedding and a head, over a sequence of tokens.

**Hardware** cuDNN multiplies the inputs of all steps at once; the recurrent product and the cell wait
for the previous step. Backwards likewise, with the weight gradients of all steps at the end. Layers of
several GPUs work as a wave over (layer, time): the sequence is split into pieces, and a layer processes
a piece while the next one processes the previous piece.
**Model** The same; two biases per layer as in cuDNN. **Not modelled** Waves over layers of one GPU;
persistent kernels, which keep recurrent weights in registers; dropout.
"""

from __future__ import annotations

from dataclasses import dataclass

from clusim.base.errors import InputError
from clusim.workload.kernels import Gemm
from clusim.workload.layers import Activations, Layer, Shard, Step, Tensor, linear, memory_kernel
from clusim.workload.models.parts import Recorder

GATES = 4
"""Products of an LSTM cell: input, forget and output gate, and candidate."""


@dataclass(frozen=True, slots=True)
class Recurrent:
    """Language model of LSTM layers."""

    name: str = "lstm"
    layers: int = 2
    hidden: int = 1500
    vocab: int = 10_000

    unit = "tokens"

    @property
    def parameters(self) -> int:
        """Number of parameters of the model."""
        return sum(layer.parameters for layer in self.build(Shard()))

    def samples(self, shard: Shard) -> int:
        """Return the tokens of a microbatch."""
        return shard.batch * shard.sequence

    def build(self, shard: Shard) -> list[Layer]:
        """Return the layers of a rank: embedding, cells, head; cells are one object."""
        if shard.tensor > 1 or shard.expert > 1 or shard.context > 1:
            raise InputError(f"{self.name}: only data and pipeline parallelism")
        cells = self._cells(shard)
        return [self._embedding(shard), *[cells] * self.layers, self._head(shard)]

    def _embedding(self, shard: Shard) -> Layer:
        rec, size = Recorder(shard), self.samples(shard) * self.hidden
        rec.memory("embedding", size, size, 2 * size)
        table = Tensor("embedding", self.vocab * self.hidden)
        handed = size * shard.precision.bytes
        return rec.layer("embedding", "embedding", [table], handed, Activations())

    def _cells(self, shard: Shard) -> Layer:
        rec, h, b = Recorder(shard), self.hidden, shard.batch
        tokens, wide = self.samples(shard), GATES * self.hidden
        rec.linear("inputs", Gemm(1, tokens, wide, h))
        # Weight gradient over all steps, after the last of their backward passes.
        rec.pair([], [linear("recurrent", shard, Gemm(1, tokens, wide, h))[2]])
        forward, back, _ = linear("recurrent", shard, Gemm(1, b, wide, h))
        # Reads both products and the cell's state, writes gates, state and output; backwards their gradients.
        cell = memory_kernel("cell", b * (2 * wide + h), b * (wide + 2 * h), shard.precision.bytes)
        undone = memory_kernel(
            "cell backward", b * (wide + 4 * h), b * (wide + h), shard.precision.bytes
        ).as_part("input")
        one: list[Step] = [forward, cell]
        two: list[Step] = [undone, back]
        for _ in range(shard.sequence):
            rec.pair(one, two)
        shapes = [("inputs", wide * h), ("recurrent", wide * h), ("biases", 2 * wide)]
        size, e = tokens * h, shard.precision.bytes
        # Inputs, gates and states; outputs are the inputs of the next layer.
        kept = (2 * size + tokens * wide) * e
        tensors = [Tensor(*shape) for shape in shapes]
        return rec.layer("lstm", "block", tensors, size * e, Activations(kept, kept, size * e))

    def _head(self, shard: Shard) -> Layer:
        rec, tokens, e = Recorder(shard), self.samples(shard), shard.precision.bytes
        rec.linear("head", Gemm(1, tokens, self.vocab, self.hidden))
        logits = tokens * self.vocab
        rec.memory("cross entropy", 2 * logits, logits, 2 * logits)
        kept = tokens * self.hidden * e + logits * 4
        tensors = [Tensor("head", self.vocab * self.hidden), Tensor("head bias", self.vocab)]
        return rec.layer("head", "head", tensors, 0, Activations(kept, kept, kept))
