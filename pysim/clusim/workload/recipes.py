"""FP8 recipes: casts of 16-bit tensors to 8-bit operands, and the 8-bit data kept and sent.

**Hardware** A product of 8 bits needs scaled and rounded operands: the activations before the forward
product, the gradients of the outputs before the products of the backward pass. The product for the
weight gradient runs along the tokens, so both are also written transposed (or, with scales per block,
scaled along the other side). **Model** The measured products of 8 bits include the cast of their left
operand: tables of serving engines time it with the product. The additional work of a recipe is
memory-bound: the other copy is written, unless one serves both orientations; *current* scaling reads the
tensor once more for its largest element, where *delayed* scaling uses a scale from previous steps;
scales per *block* of 128 or per 32 elements (MXFP8) are written with it. **Memory** As in
TransformerEngine 1.8 and 2.x: a linear layer keeps its input in 8 bits, in one orientation, and its
weights over the microbatches of a step: once if products accept an operand in either orientation
(Blackwell, one scale per tensor), otherwise, or if each orientation has separate scales, twice. Fused
attention keeps its output in 16 bits; the next layer keeps the same tensor (Megatron-LM's
``set_save_original_input``), or with delayed scales, which cannot be recovered, an 8-bit copy. **Sent**
With sequence parallelism 8-bit tensors are gathered; MXFP8 gathers gradients in both orientations. **Not
modelled** Casts of weights; casts fused into norms and activations; 8-bit exchanges of experts; layers
kept in 16 bits at either end.
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
        Reads of a tensor for its largest element before it is cast.
    scale_bytes, weight_scale_bytes : float
        Scales written per element of an operand, and of a weight [bytes].
    both : bool
        True if each orientation has separate scales, so that neither can be derived from the other.
    again : bool
        True if a later cast of the same tensor yields the same result.
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
"""Recipes by name, as in `Precision.recipe`."""


def casts(kernel: Kernel, precision: Precision) -> list[Kernel]:
    """Return the casts that a product needs: of its left operand, if this is its first use."""
    product = kernel.gemm
    if (
        not precision.recipe
        or product is None
        or kernel.core
        or kernel.part == "weight"
    ):
        return []
    recipe, elements = (
        RECIPES[precision.recipe],
        product.batch * product.m * product.k,
    )
    written_bytes = precision.gemm_bytes + recipe.scale_bytes
    bare = replace(kernel, flops=0, gemm=None, bytes=elements * precision.bytes)
    result = [replace(bare, name=f"{kernel.name} amax")] * recipe.sweeps
    if not _both_ways(precision):
        return result
    return [
        *result,
        replace(
            bare, name=f"{kernel.name} cast", bytes=round(elements * written_bytes)
        ),
    ]


def _both_ways(precision: Precision) -> bool:
    """True if products need an operand in both orientations."""
    return precision.transposes or RECIPES[precision.recipe].both


def input_bytes(precision: Precision) -> float:
    """Return the bytes that a linear layer keeps of an element of its input."""
    if not precision.recipe:
        return precision.bytes
    return precision.gemm_bytes + RECIPES[precision.recipe].scale_bytes


def output_bytes(precision: Precision, *, fused: bool) -> float:
    """Return the bytes kept per element between attention and a linear layer.

    Fused attention needs its output in the backward pass.
    """
    if not fused or not precision.recipe:
        return input_bytes(precision)
    again = RECIPES[precision.recipe].again
    return precision.bytes + (0.0 if again else input_bytes(precision))


def weight_bytes(precision: Precision) -> float:
    """Return the bytes of a weight's 8-bit copies; 0 without a recipe."""
    if not precision.recipe:
        return 0.0
    recipe = RECIPES[precision.recipe]
    copies = 2 if _both_ways(precision) else 1
    return copies * (precision.gemm_bytes + recipe.weight_scale_bytes)


def handed_bytes(precision: Precision) -> float:
    """Return the bytes gathered after the optimiser per weight that is kept only in 8 bits.

    MXFP8 weights, which cannot be transposed, are gathered in 16 bits and cast afterwards.
    """
    if precision.recipe == "mxfp8":
        return precision.bytes
    return precision.gemm_bytes + RECIPES[precision.recipe].weight_scale_bytes


def gathered_bytes(precision: Precision, *, gradients: bool = False) -> float:
    """Return the bytes per element that tensor ranks gather for a product.

    Parameters
    ----------
    gradients : bool
        The gather is for the products of the input and of the weight gradient, which need both orientations.
    """
    copies = 2 if gradients and precision.recipe == "mxfp8" else 1
    return copies * input_bytes(precision)
