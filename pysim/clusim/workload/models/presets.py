"""Models by name, with dimensions of papers and published configurations; LSTM and DLRM.

**Recurrent networks**: LSTM cells between an embedding and a head, over a sequence of tokens.
**Hardware** cuDNN multiplies the inputs of all steps at once; the recurrent product and the cell wait
for the previous step. Backwards likewise, with the weight gradients of all steps at the end. Layers of
several GPUs work as a wave over (layer, time): the sequence is split into pieces, and a layer processes
a piece while the next one processes the previous piece. **Model** The same; two biases per layer as in
cuDNN. **Not modelled** Waves over layers of one GPU; persistent kernels, which keep recurrent weights
in registers; dropout.

**DLRM** (arXiv 1906.00091): embedding tables distributed over the ranks, dense layers on all. **Model**
Each rank looks up its tables for the complete batch; an all-to-all provides every rank with all tables
for its part of the batch, during the bottom layers. A second all-to-all returns the gradient. Tables are on
one rank each, in their order, as many on each rank as on any other or one more (``get_split_lengths`` of the
reference implementation): ranks with one more look up, send and keep more. **Not modelled** Sizes of rows
in that placement; caches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import ceil
from pathlib import Path
from typing import Literal

from clusim.base.datafiles import OnDemand, read
from clusim.base.errors import InputError
from clusim.topology.keys import did_you_mean
from clusim.workload.kernels import Gemm
from clusim.workload.layers import (
    Activations,
    Layer,
    Shard,
    Step,
    Tensor,
    linear,
    memory_kernel,
)
from clusim.workload.models.parts import LayeredModel, Recorder, loss_gradients
from clusim.workload.models.transformer import Transformer
from clusim.workload.models.transformer_sizes import Latent
from clusim.workload.models.vision import Perceptron, ResNet

CRITEO = (
    39884406,
    39043,
    17289,
    7420,
    20263,
    3,
    7120,
    1543,
    63,
    38532951,
    2953546,
    403346,
    10,
    2208,
    11938,
    155,
    4,
    976,
    14,
    39979771,
    25641295,
    39664984,
    585935,
    12972,
    108,
    36,
)
"""Rows of the tables of the Criteo terabyte data set, at most 40 million each, as in MLPerf."""


@dataclass(frozen=True, slots=True)
class Dlrm(LayeredModel):
    """DLRM, by default as in MLPerf; `pooling` rows are looked up per table and sample.

    `tables` are ``whole``, or cut so that all ranks have the same part of all tables (``even``).
    """

    name: str = "dlrm"
    dense: int = 13
    bottom: tuple[int, ...] = (512, 256, 128)
    top: tuple[int, ...] = (1024, 1024, 512, 256, 1)
    embedding: int = 128
    rows: tuple[int, ...] = CRITEO
    pooling: int = 1
    tables: Literal["whole", "even"] = "whole"

    unit = "samples"

    @property
    def layers(self) -> int:
        """Layers that a pipeline can divide."""
        return 1

    def samples(self, shard: Shard) -> int:
        """Return the samples of a rank's microbatch."""
        return shard.batch

    def build(self, shard: Shard) -> list[Layer]:
        """Return the layers of a rank.

        The `shard.expert` ranks share the tables. Work of the lookup is computed for a rank with the mean
        number of tables, scaled by `table_loads`; memory is the fullest rank's.
        """
        if shard.tensor > 1 or shard.context > 1:
            raise InputError(
                f"{self.name}: only data and table (expert) parallelism"
            )
        b, n, e = shard.batch, shard.expert, shard.precision.bytes
        tables, width = len(self.rows), self.embedding
        if tables < n:
            raise InputError(
                f"{self.name}: {tables} tables cannot be spread over {n} ranks"
            )
        rec = Recorder(shard)
        # A rank looks up tables / n tables for the batch of all n ranks.
        pooled = b * tables * width
        back = 2 * pooled * self.pooling
        rec.memory("lookup", pooled * self.pooling, pooled, back, inside="expert")
        if n > 1:
            rec.start(
                "expert",
                "alltoall",
                -(-pooled * e // (16 * n)) * 16 * n,
                -(-pooled * e // (16 * n)) * 16 * n,
                "pooled",
            )
        touched = ceil(pooled * self.pooling * max(self.table_loads(n)))
        tensors = [Tensor("tables", self._most_rows(n) * width, True, touched)]
        tensors += self._stack(rec, b, (self.dense, *self.bottom), "bottom")
        if n > 1:
            rec.finish("pooled")
        pairs = tables + 1
        rec.memory(
            "interaction",
            b * pairs * width,
            b * (pairs * (pairs - 1) // 2 + width),
            2 * b * pairs * width,
        )
        tensors += self._stack(
            rec, b, (pairs * (pairs - 1) // 2 + width, *self.top), "top"
        )
        kept_bytes = b * (pairs * width * 2 + sum(self.bottom) + sum(self.top)) * e
        return [
            rec.layer(
                "dlrm", "dlrm", tensors, 0, Activations(kept_bytes, kept_bytes)
            )
        ]

    def table_loads(self, ranks: int) -> list[float]:
        """Return the tables of each rank relative to the mean."""
        if self.tables == "even":
            return [1.0] * ranks
        return [len(part) * ranks / len(self.rows) for part in self._parts(ranks)]

    def _parts(self, ranks: int) -> list[tuple[int, ...]]:
        """Return the rows of the uncut tables of each rank; the first ranks have one table more."""
        per_rank, more = divmod(len(self.rows), ranks)
        ends = [*accumulate(per_rank + (rank < more) for rank in range(ranks))]
        return [self.rows[low:high] for low, high in pairwise([0, *ends])]

    def _most_rows(self, ranks: int) -> int:
        """Return the rows of the fullest rank."""
        if self.tables == "even":
            return -(-sum(self.rows) // ranks)
        return max(map(sum, self._parts(ranks)))

    @staticmethod
    def _stack(
        rec: Recorder, batch: int, sizes: tuple[int, ...], name: str
    ) -> list[Tensor]:
        tensors = []
        for index, (inner, outer) in enumerate(pairwise(sizes)):
            rec.linear(f"{name} {index}", Gemm(1, batch, outer, inner))
            rec.memory(
                f"{name} {index} activation",
                batch * outer,
                batch * outer,
                3 * batch * outer,
            )
            tensors += [
                Tensor(f"{name} {index}", inner * outer),
                Tensor(f"{name} {index} bias", outer),
            ]
        return tensors


GATES = 4
"""Products of an LSTM cell: input, forget and output gate, and candidate."""


@dataclass(frozen=True, slots=True)
class Recurrent(LayeredModel):
    """Language model of LSTM layers."""

    name: str = "lstm"
    layers: int = 2
    hidden: int = 1500
    vocab: int = 10_000

    unit = "tokens"

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
        cell = memory_kernel(
            "cell", b * (2 * wide + h), b * (wide + 2 * h), shard.precision.bytes
        )
        undone = memory_kernel(
            "cell backward",
            b * (wide + 4 * h),
            b * (wide + h),
            shard.precision.bytes,
        ).as_part("input")
        one: list[Step] = [forward, cell]
        two: list[Step] = [undone, back]
        for _ in range(shard.sequence):
            rec.pair(one, two)
        shapes = [
            ("inputs", wide * h),
            ("recurrent", wide * h),
            ("biases", 2 * wide),
        ]
        size, e = tokens * h, shard.precision.bytes
        # Inputs, gates and states; outputs are the inputs of the next layer.
        kept_bytes = (2 * size + tokens * wide) * e
        tensors = [Tensor(*shape) for shape in shapes]
        return rec.layer(
            "lstm", "block", tensors, size * e, Activations(kept_bytes, size * e)
        )

    def _head(self, shard: Shard) -> Layer:
        rec, tokens, e = Recorder(shard), self.samples(shard), shard.precision.bytes
        rec.linear("head", Gemm(1, tokens, self.vocab, self.hidden))
        logits = tokens * self.vocab
        rec.memory("cross entropy", 2 * logits, logits, 2 * logits)
        kept_bytes = tokens * self.hidden * e + logits * 4
        tensors = [
            Tensor("head", self.vocab * self.hidden),
            Tensor("head bias", self.vocab),
        ]
        acts = Activations(
            kept_bytes, kept_bytes, gradients=loss_gradients(logits, shard)
        )
        return rec.layer("head", "head", tensors, 0, acts)


Model = Transformer | Perceptron | ResNet | Dlrm | Recurrent


def _transformers() -> list[Transformer]:
    """Return the models of ``transformers.yaml``."""
    data = read(Path(__file__).with_name("transformers.yaml"))
    result = []
    for name, entry in data["models"].items():
        keys = data["families"].get(entry.pop("family", ""), {}) | entry
        heads, hidden = keys["heads"], keys["hidden"]
        usual = {
            "kv_heads": heads,
            "head_size": hidden // heads,
            "intermediate": 4 * hidden,
        }
        latent = Latent(**keys.pop("latent")) if "latent" in keys else None
        result.append(Transformer(name, **(usual | keys), latent=latent))
    return result


def _by_name() -> dict[str, Model]:
    models: list[Model] = [
        Perceptron("mlp"),
        ResNet(),
        *_transformers(),
        Dlrm(),
        Recurrent(),
    ]
    return {model.name: model for model in models}


MODELS: Mapping[str, Model] = OnDemand(_by_name)
"""Models by name."""


def find_model(name: str) -> Model:
    """Return the model called `name`."""
    if name not in MODELS:
        raise InputError(f"model {name!r}: unknown{did_you_mean(name, MODELS)}")
    return MODELS[name]
