"""Memory traffic of PyTorch's CUDA kernels by operator.

**Hardware** An elementwise kernel reads inputs and writes outputs once, by vector loads of 16 bytes, if its tensors are
dense, equally ordered, and of one type. Otherwise elements are addressed singly: broadcast inputs, views, casts
other than 32 to 16 bits. Rows are read again for every pass: statistics of a batch norm, gradients of a norm's
weights, a softmax with rows beyond the caches. **Model** Bytes at the copy rate of a kind of kernel
(`clusim.hardware.kernels.fused.moved_s`), and elements that are addressed one by one at a rate per SM and clock.
Passes follow PyTorch's source (``aten/src/ATen/native/cuda``, release 2.11). Rates are means over kernels
measured on an H100 SXM (tests/workload/data/operators.csv); complete training steps are compared in
docs/accuracy-programs.md. **Not modelled** Data that is still in L2, which up to 24 MiB halves a kernel's time; sums
over rows, up to twice the time; pooling.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from clusim.formats.recordings.model import OperatorCall, TensorShape

STRIDED = "strided"
"""Flag of a call with views that lack vector loads."""

TRANSPOSED = "transposed"
"""Flag of a call with transposed reads."""

SINGLE_PER_CLOCK = 1.35
"""Elements per SM and clock without vector loads; calibrated: broadcast additions 1.47, views of heads 1.34, casts
from 16 to 32 bits 1.24."""

TRANSPOSED_PER_CLOCK = 0.5
"""Elements per SM and clock of transposed copies; calibrated: 0.48 to 0.53."""

STATISTICS_SHARE = 0.2
"""Rate of the statistics of a batch norm relative to copies; calibrated on the complete operator: Welford's update
divides for every element."""

LISTS_SHARE = {2: 0.78, 4: 0.92}
"""Rate of kernels on lists of tensors relative to copies, by bytes of an element; calibrated: four elements a load."""

HELD_ROW_BYTES = 110_000
"""Longest row of a softmax in L2 for its second pass; calibrated: two rows per SM, rows of 100 kB are
read once and rows of 122 kB two to three times."""

SOFTMAX_REGISTERS = 1024
"""Longest row in the registers of a warp [elements] (``SoftMax.cu``)."""

SORTED_BYTES = 58
"""Traffic equal to an element of an embedding's gradient [bytes]; calibrated: sorted indices, a warp per row."""

_BROADCAST = re.compile(
    r"^(add|sub|rsub|mul|div|where|maximum|minimum|pow|lerp|addcmul|addcdiv|eq|ne|[gl][te])_?$"
)
_COPIES = {"_to_copy", "copy_", "clone", "contiguous"}
_WRITES_ONLY = {
    "copy_",
    "fill_",
    "zero_",
    "zeros",
    "ones",
    "full",
    "normal_",
    "uniform_",
}
GATHERS = {"embedding", "index", "index_select", "gather"}
"""Operators with equal rows read and written."""
BAGS = "_embedding_bag"
"""Operators that add rows of a table, their backward pass included."""
_LISTS = re.compile(r"^_foreach_|^_fused_(adam|sgd|adagrad)|^_amp_foreach")
_BATCH = re.compile(r"batch_norm(?!.*(backward|elemt|update))")
_NORM = re.compile(r"(?<!batch_)norm(?!al)|batch_norm.*backward")
_ROWS = re.compile(r"softmax|cross_entropy|logsumexp")
_RANDOM = re.compile(r"dropout$|^(bernoulli|normal|uniform|exponential|rand)")
_NARROWING = {("float32", "float16"), ("float32", "bfloat16")}


@dataclass(frozen=True, slots=True)
class KernelTraffic:
    """Traffic of a kernel.

    Attributes
    ----------
    bytes : float
        At the rate of the kind [bytes].
    kind : str
        Word for `clusim.hardware.kernels.fused.kind_of`.
    singles : int
        Elements without vector loads.
    per_clock : float
        Their rate per SM and clock.
    """

    bytes: float
    kind: str = "copy"
    singles: int = 0
    per_clock: float = SINGLE_PER_CLOCK


def moved_bytes(call: OperatorCall) -> int:
    """Return the traffic of an operator if each tensor moves once [bytes]."""
    name, inputs, outputs = call.name, call.inputs, call.outputs
    written_bytes = sum(shape.bytes for shape in outputs)
    if name in _WRITES_ONLY:
        return written_bytes + sum(shape.bytes for shape in inputs[1:])
    if name in GATHERS:
        return 2 * written_bytes + sum(shape.bytes for shape in inputs[1:])
    if name.startswith(BAGS) and "backward" not in name:
        table, *indices = inputs
        row = table.sizes[-1] * table.element_bytes
        return (
            written_bytes
            + prod(indices[0].sizes) * row
            + sum(shape.bytes for shape in indices)
        )
    return written_bytes + sum(shape.bytes for shape in inputs)


def traffic_of(call: OperatorCall) -> KernelTraffic:
    """Return the traffic of an operator other than products and attention."""
    name, inputs = call.name, call.inputs
    moved = moved_bytes(call)
    if _LISTS.search(name) and inputs:
        return KernelTraffic(moved / LISTS_SHARE.get(inputs[0].element_bytes, 1.0))
    if name.startswith("nll_loss"):
        # One logit of a row is read; the gradient is filled with zeros first.
        return KernelTraffic(moved - max(shape.bytes for shape in inputs))
    if name.startswith("masked_fill") and not name.endswith("_"):
        return KernelTraffic(
            moved + 2 * inputs[0].bytes
        )  # a copy, which is filled in place
    if name == "embedding_dense_backward":
        return KernelTraffic(moved + SORTED_BYTES * prod(inputs[0].sizes))
    if name == f"{BAGS}_backward" and len(call.outputs) == 1:
        return KernelTraffic(
            moved + SORTED_BYTES * prod(inputs[1].sizes) * call.outputs[0].sizes[-1]
        )
    if _BATCH.search(name) and inputs:
        return KernelTraffic(moved + inputs[0].bytes / STATISTICS_SHARE)
    if _NORM.search(name):
        # Gradients of inputs and of weights are two kernels.
        again = sum(s.bytes for s in inputs[:2]) if "backward" in name else 0
        return KernelTraffic(moved + again, "norm")
    if _ROWS.search(name) and inputs:
        return _softmax(name, inputs, moved)
    return _elementwise(call, moved)


def _softmax(name: str, inputs: Sequence[TensorShape], moved: int) -> KernelTraffic:
    """Return the traffic of a softmax or a loss."""
    if name == "_softmax_backward_data":
        return KernelTraffic(
            2 * moved
        )  # the product of gradient and output is a kernel of its own
    row = inputs[0].sizes[-1] if inputs[0].sizes else 1
    if "backward" in name:
        return KernelTraffic(moved, "softmax")
    if row <= SOFTMAX_REGISTERS:
        return KernelTraffic(moved)
    if row * inputs[0].element_bytes > HELD_ROW_BYTES:
        return KernelTraffic(
            moved + 2 * inputs[0].bytes
        )  # largest element, sum, and result
    return KernelTraffic(moved, "softmax")


def _elementwise(call: OperatorCall, moved: int) -> KernelTraffic:
    """Return the traffic of an elementwise operator, and its elements without vector loads."""
    count = max((prod(shape.sizes) for shape in call.outputs), default=0)
    if TRANSPOSED in call.flags:
        return KernelTraffic(moved, singles=count, per_clock=TRANSPOSED_PER_CLOCK)
    single = STRIDED in call.flags
    if _BROADCAST.search(call.name):
        single = single or any(
            1 < prod(shape.sizes) < count for shape in call.inputs
        )
    if call.name in _COPIES and call.inputs and call.outputs:
        pair = call.inputs[-1].dtype, call.outputs[0].dtype
        single = single or (pair[0] != pair[1] and pair not in _NARROWING)
    kind = "dropout" if _RANDOM.search(call.name) else "copy"
    return KernelTraffic(moved, kind, singles=count if single else 0)
