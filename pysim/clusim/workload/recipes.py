"""FP8 recipes: the kernels that make 8-bit operands of 16-bit tensors.

**Hardware** A product of 8 bits needs operands that were scaled and rounded: the activations before the forward
product, the gradients of the outputs before the products of the backward pass. The product for the weight gradient
runs along the tokens, so both are also written transposed (or, with scales per block, scaled along the other side).
**Model** The measured products of 8 bits hold the cast of their left operand: tables of serving engines time it with
the product. What a recipe adds is memory-bound: the other copy is written; *current* scaling reads the tensor once more
for its largest element, where *delayed* scaling knows its scale from steps before; scales per *block* of 128 or per 32
elements (MXFP8) are written beside. **Not modelled** Casts of weights, which frameworks keep over the microbatches
of a step; casts fused into norms and activations; 8-bit communication.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from clusim.workload.kernels import Kernel, Precision

__all__ = ["RECIPES", "Recipe", "casts"]


@dataclass(frozen=True, slots=True)
class Recipe:
    """How tensors become 8-bit operands.

    Attributes
    ----------
    sweeps : int
        Times that a tensor is read for its largest element before it is cast.
    scale_bytes : float
        Scales written per element of an operand [bytes].
    """

    sweeps: int = 0
    scale_bytes: float = 0.0


RECIPES = {
    "delayed": Recipe(),
    "current": Recipe(sweeps=1),
    "block": Recipe(scale_bytes=4 / 128),
    "mxfp8": Recipe(scale_bytes=1 / 32),
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
    return [*found, replace(bare, name=f"{kernel.name} cast", bytes=round(elements * written))]
