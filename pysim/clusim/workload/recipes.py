"""FP8 recipes: the kernels that make 8-bit operands of 16-bit tensors, and what is kept and sent in 8 bits.

**Hardware** A product of 8 bits needs operands that were scaled and rounded: the activations before the forward
product, the gradients of the outputs before the products of the backward pass. The product for the weight gradient
runs along the tokens, so both are also written transposed (or, with scales per block, scaled along the other side).
**Model** The measured products of 8 bits hold the cast of their left operand: tables of serving engines time it with
the product. What a recipe adds is memory-bound: the other copy is written, unless one serves both ways; *current*
scaling reads the tensor once more for its largest element, where *delayed* scaling knows its scale from steps before;
scales per *block* of 128 or per 32 elements (MXFP8) are written beside. **Memory** As TransformerEngine 1.8 and 2.x
have it: a linear layer keeps its input in 8 bits, one way round, and its weights over the microbatches of a step: once
where products take an operand either way round (Blackwell, one scale per tensor), twice elsewhere and where each way
has scales of its own. Fused attention keeps its output in 16 bits; the layer behind it keeps that too (Megatron-LM's
``set_save_original_input``), or with delayed scales, which are not to be had again, an 8-bit copy. **Sent** With
sequence parallelism 8-bit tensors are gathered; MXFP8 gathers gradients both ways round. **Not modelled** Casts of
weights; casts fused into norms and activations; 8-bit exchanges of experts; layers kept in 16 bits at either end.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from clusim.workload.kernels import Kernel, Precision


@dataclass(frozen=True, slots=True)
class Recipe:
    """Conversion of tensors to 8-bit operands.

    Attributes
    ----------
    sweeps : int
        Times that a tensor is read for its largest element before it is cast.
    scale_bytes, weight_scale_bytes : float
        Scales written per element of an operand, and of a weight [bytes].
    both : bool
        Each way round has scales of its own, so that none can be made of the other.
    again : bool
        What was cast can be cast again later and be the same.
    """

    sweeps: int = 0
    scale_bytes: float = 0.0
    weight_scale_bytes: float = 0.0
    both: bool = False
    again: bool = True


RECIPES = {
    "delayed": Recipe(again=False),
    "current": Recipe(sweeps=1),
    "block": Recipe(scale_bytes=4 / 128, weight_scale_bytes=4 / 128**2, both=True),
    "mxfp8": Recipe(scale_bytes=1 / 32, weight_scale_bytes=1 / 32, both=True),
}
"""By the name that a precision has."""


def casts(kernel: Kernel, precision: Precision) -> list[Kernel]:
    """Return the kernels that a product needs besides: of its left operand, if it is the first to use that."""
    product = kernel.gemm
    if not precision.recipe or product is None or kernel.core or kernel.part == "weight":
        return []
    recipe, elements = RECIPES[precision.recipe], product.batch * product.m * product.k
    written = precision.gemm_bytes + recipe.scale_bytes
    bare = replace(kernel, flops=0, gemm=None, bytes=elements * precision.bytes)
    found = [replace(bare, name=f"{kernel.name} amax")] * recipe.sweeps
    if not _both_ways(precision):
        return found
    return [*found, replace(bare, name=f"{kernel.name} cast", bytes=round(elements * written))]


def _both_ways(precision: Precision) -> bool:
    """Return True if products need an operand written both ways round."""
    return precision.transposes or RECIPES[precision.recipe].both


def input_bytes(precision: Precision) -> float:
    """Return the bytes that a linear layer keeps of an element of its input."""
    if not precision.recipe:
        return precision.bytes
    return precision.gemm_bytes + RECIPES[precision.recipe].scale_bytes


def output_bytes(precision: Precision, *, fused: bool) -> float:
    """Return what is kept of an element that attention hands to a linear layer [bytes]; fused, it needs its output."""
    if not fused or not precision.recipe:
        return input_bytes(precision)
    again = RECIPES[precision.recipe].again
    return precision.bytes + (0.0 if again else input_bytes(precision))


def weight_bytes(precision: Precision) -> float:
    """Return the bytes of a weight's 8-bit copies; without a recipe there are none."""
    if not precision.recipe:
        return 0.0
    recipe = RECIPES[precision.recipe]
    ways = 2 if _both_ways(precision) else 1
    return ways * (precision.gemm_bytes + recipe.weight_scale_bytes)


def handed_bytes(precision: Precision) -> float:
    """Return what of a weight that is kept in 8 bits alone ranks gather behind the optimiser [bytes].

    Of MXFP8, which cannot be turned round, they gather 16 bits and cast them.
    """
    if precision.recipe == "mxfp8":
        return precision.bytes
    return precision.gemm_bytes + RECIPES[precision.recipe].weight_scale_bytes


def gathered_bytes(precision: Precision, *, gradients: bool = False) -> float:
    """Return what of an element ranks of the tensor dimension gather for a product [bytes].

    Parameters
    ----------
    gradients : bool
        It is for the products of the input and of the weight gradient, which want it either way round.
    """
    ways = 2 if gradients and precision.recipe == "mxfp8" else 1
    return ways * input_bytes(precision)
