"""Multilayer perceptron and ResNet-50.

**Model** Convolutions are matrix products over the output pixels, which read every input pixel once;
normalisation and activation move memory. Batch normalisation over several ranks gathers mean, deviation
and count of every channel before it normalises, and sums two gradients of each channel backwards, as in
PyTorch's SyncBatchNorm.

**Kept activations** are the tensors that PyTorch's autograd saves: the input of a convolution, the input of
a batch normalisation (the convolution's output) with 32-bit mean and deviation of each channel, the output
of an activation in place, which is the next convolution's input, and 64-bit indices of the maximum of a
pooling window. A sum saves nothing, so normalised values that are only added are freed.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from clusim.base.errors import InputError
from clusim.workload.kernels import Gemm
from clusim.workload.layers import Activations, Comm, Layer, Shard, Tensor
from clusim.workload.models.parts import LayeredModel, Recorder


@dataclass(frozen=True, slots=True)
class Perceptron(LayeredModel):
    """Linear layers with activations in between.

    With tensor parallelism they alternate between columns and rows.
    """

    name: str
    sizes: tuple[int, ...] = (784, 512, 256, 10)
    bias: bool = True

    unit = "samples"

    @property
    def layers(self) -> int:
        """Layers that a pipeline can divide."""
        return len(self.sizes) - 1

    def samples(self, shard: Shard) -> int:
        """Return the samples of a microbatch."""
        return shard.batch

    def build(self, shard: Shard) -> list[Layer]:
        """Return the layers of a rank."""
        result = []
        for index, (inner, outer) in enumerate(pairwise(self.sizes)):
            rec, m, t, e = (
                Recorder(shard),
                shard.batch,
                shard.tensor,
                shard.precision.bytes,
            )
            rows = t > 1 and index % 2 == 1 and shard.style == "paired"
            if rows:
                rec.row(
                    f"fc{index}",
                    m,
                    outer,
                    shard.cut(inner, t, "tensor parallelism: inner size"),
                )
            else:
                local_size = shard.cut(outer, t, "tensor parallelism: layer size")
                alike = index > 0 and shard.style != "paired"
                rec.column(f"fc{index}", m, local_size, inner, cut=alike)
            wide = outer if rows else outer // t
            rec.memory("activation", m * wide, m * wide, 3 * m * wide)
            weights = inner * outer // t
            tensors = [Tensor(f"fc{index}", weights)] + [
                Tensor(f"bias{index}", wide)
            ] * self.bias
            gathered = shard.style == "column" and index > 0
            kept_bytes = m * (inner // t if rows or gathered else inner) * e
            acts = Activations(kept_bytes + m * wide * e, kept_bytes)
            result.append(
                rec.layer(f"fc{index}", "linear", tensors, m * wide * e, acts)
            )
        return result


@dataclass(frozen=True, slots=True)
class ResNet(LayeredModel):
    """ResNet with bottleneck blocks; `image` is the side of a square image [pixels]."""

    name: str = "resnet-50"
    blocks: tuple[int, ...] = (3, 4, 6, 3)
    image: int = 224
    classes: int = 1000

    unit = "samples"

    @property
    def layers(self) -> int:
        """Layers that a pipeline can divide."""
        return sum(self.blocks)

    def samples(self, shard: Shard) -> int:
        """Return the images of a microbatch."""
        return shard.batch

    def build(self, shard: Shard) -> list[Layer]:
        """Return the layers of a rank: stem, bottleneck blocks, classifier."""
        if shard.tensor > 1 or shard.expert > 1 or shard.context > 1:
            raise InputError(f"{self.name}: only data and pipeline parallelism")
        side = self.image // 4
        result = [self._stem(shard)]
        channels = 64
        for stage, count in enumerate(self.blocks):
            width = 64 << stage
            for index in range(count):
                stride = 2 if stage and not index else 1
                result.append(self._bottleneck(shard, channels, width, side, stride))
                side, channels = side // stride, 4 * width
        rec = Recorder(shard)
        rec.memory(
            "pool",
            shard.batch * channels * side * side,
            shard.batch * channels,
            shard.batch * channels * side * side,
        )
        rec.linear("classifier", Gemm(1, shard.batch, self.classes, channels))
        tensors = [
            Tensor("classifier", channels * self.classes),
            Tensor("classifier bias", self.classes),
        ]
        kept_bytes = shard.batch * channels * shard.precision.bytes
        result.append(
            rec.layer(
                "classifier", "head", tensors, 0, Activations(kept_bytes, kept_bytes)
            )
        )
        return result

    def _stem(self, shard: Shard) -> Layer:
        rec, half = Recorder(shard), self.image // 2
        tensors: list[Tensor] = []
        kept_bytes = _convolve(rec, tensors, _Conv("conv1", 3, 64, 7, half, 2))
        pixels = shard.batch * 64 * half * half
        rec.memory("pool", pixels, pixels / 4, 2 * pixels)
        e = shard.precision.bytes
        images, pooled = shard.batch * 3 * self.image**2 * e, pixels // 4
        kept_bytes += images + pooled * (e + INDEX_BYTES)
        return rec.layer(
            "stem", "stem", tensors, pooled * e, Activations(kept_bytes, images)
        )

    def _bottleneck(
        self, shard: Shard, channels: int, width: int, side: int, stride: int
    ) -> Layer:
        rec, out = Recorder(shard), side // stride
        tensors: list[Tensor] = []
        kept_bytes = _convolve(
            rec, tensors, _Conv("conv1", channels, width, 1, side)
        )
        kept_bytes += _convolve(
            rec, tensors, _Conv("conv2", width, width, 3, out, stride)
        )
        kept_bytes += _convolve(
            rec, tensors, _Conv("conv3", width, 4 * width, 1, out)
        )
        if channels != 4 * width or stride > 1:
            short = _Conv("shortcut", channels, 4 * width, 1, out, stride)
            kept_bytes += _convolve(rec, tensors, short, active=False)
        pixels, e = shard.batch * 4 * width * out * out, shard.precision.bytes
        rec.memory("add", 2 * pixels, pixels, 2 * pixels)
        acts = Activations(kept_bytes, shard.batch * channels * side * side * e)
        return rec.layer(f"bottleneck {width}", "block", tensors, pixels * e, acts)


class _Conv(NamedTuple):
    """Convolution of `into` to `out` channels with a square kernel.

    Its output has `side` x `side` pixels.
    """

    name: str
    into: int
    out: int
    kernel: int
    side: int
    stride: int = 1


INDEX_BYTES = 8
"""Index of the maximum of a pooling window."""


def _convolve(
    rec: Recorder, tensors: list[Tensor], conv: _Conv, *, active: bool = True
) -> int:
    """Add convolution, normalisation and, if `active`, activation; return the bytes kept."""
    name, into, out, kernel, side, stride = conv
    shard = rec.shard
    pixels, window = shard.batch * side * side, into * kernel * kernel
    moved = pixels * stride * stride * into + window * out + pixels * out
    rec.linear(name, Gemm(1, pixels, out, window), elements=moved)
    _normalise(rec, f"{name} norm", pixels * out, out)
    tensors += [
        Tensor(name, into * out * kernel * kernel),
        Tensor(f"{name} norm", 2 * out),
    ]
    statistics = 2 * 4 * out
    return (2 if active else 1) * pixels * out * shard.precision.bytes + statistics


def _normalise(rec: Recorder, name: str, elements: int, channels: int) -> None:
    """Add batch normalisation and activation, with the exchange of ranks that share samples."""
    ranks, single = rec.shard.norm, 4
    if ranks == 1:
        rec.memory(name, 2 * elements, elements, 4 * elements)
        return
    rec.memory(f"{name} statistics", elements, 0, 2 * elements)
    exchanged_bytes = ranks * (2 * channels + 1) * single
    summed = Comm(
        "norm", "allreduce", 2 * channels * single, f"{name} gradient", part="input"
    )
    rec.pair([Comm("norm", "all_gather", exchanged_bytes, name)], [summed])
    rec.memory(name, elements, elements, 2 * elements)
