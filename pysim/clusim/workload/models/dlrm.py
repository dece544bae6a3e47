"""DLRM: embedding tables spread over the ranks, dense layers on all of them (arXiv 1906.00091).

**Model** Each rank looks up its tables for the complete batch; an all-to-all provides every rank with
all tables for its part of the batch, during the bottom layers. A second all-to-all returns the gradient.
**Not modelled** Row-wise split tables, caches.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from clusim.base.errors import InputError
from clusim.workload.kernels import Gemm
from clusim.workload.layers import Activations, Layer, Shard, Tensor
from clusim.workload.models.parts import Recorder

CRITEO = (
    *(39884406, 39043, 17289, 7420, 20263, 3, 7120, 1543, 63, 38532951, 2953546, 403346, 10),
    *(2208, 11938, 155, 4, 976, 14, 39979771, 25641295, 39664984, 585935, 12972, 108, 36),
)
"""Rows of the tables of the Criteo terabyte data set, at most 40 million each, as in MLPerf."""


@dataclass(frozen=True, slots=True)
class Dlrm:
    """DLRM, by default as in MLPerf; `pooling` rows are looked up per table and sample."""

    name: str = "dlrm"
    dense: int = 13
    bottom: tuple[int, ...] = (512, 256, 128)
    top: tuple[int, ...] = (1024, 1024, 512, 256, 1)
    embedding: int = 128
    rows: tuple[int, ...] = CRITEO
    pooling: int = 1

    unit = "samples"

    @property
    def parameters(self) -> int:
        """Number of parameters of the model."""
        return sum(layer.parameters for layer in self.build(Shard()))

    @property
    def layers(self) -> int:
        """Layers that a pipeline can divide."""
        return 1

    def samples(self, shard: Shard) -> int:
        """Return the samples of a rank's microbatch."""
        return shard.batch

    def build(self, shard: Shard) -> list[Layer]:
        """Return the layers of a rank.

        The `shard.expert` ranks share the tables, each with the mean number of rows.
        """
        if shard.tensor > 1 or shard.context > 1:
            raise InputError(f"{self.name}: only data and table (expert) parallelism")
        b, n, e = shard.batch, shard.expert, shard.precision.bytes
        tables, width = len(self.rows), self.embedding
        if tables < n:
            raise InputError(f"{self.name}: {tables} tables cannot be spread over {n} ranks")
        rec = Recorder(shard)
        # A rank looks up tables / n tables for the batch of all n ranks.
        pooled = b * tables * width
        rec.memory("lookup", pooled * self.pooling, pooled, 2 * pooled * self.pooling)
        if n > 1:
            rec.start(
                "expert",
                "alltoall",
                -(-pooled * e // (16 * n)) * 16 * n,
                -(-pooled * e // (16 * n)) * 16 * n,
                "pooled",
            )
        tensors = [Tensor("tables", -(-sum(self.rows) // n) * width, True, pooled * self.pooling)]
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
        tensors += self._stack(rec, b, (pairs * (pairs - 1) // 2 + width, *self.top), "top")
        kept = b * (pairs * width * 2 + sum(self.bottom) + sum(self.top)) * e
        return [rec.layer("dlrm", "dlrm", tensors, 0, Activations(kept, kept, kept))]

    @staticmethod
    def _stack(rec: Recorder, batch: int, sizes: tuple[int, ...], name: str) -> list[Tensor]:
        tensors = []
        for index, (inner, outer) in enumerate(pairwise(sizes)):
            rec.linear(f"{name} {index}", Gemm(1, batch, outer, inner))
            rec.memory(
                f"{name} {index} activation", batch * outer, batch * outer, 3 * batch * outer
            )
            tensors += [
                Tensor(f"{name} {index}", inner * outer),
                Tensor(f"{name} {index} bias", outer),
            ]
        return tensors
