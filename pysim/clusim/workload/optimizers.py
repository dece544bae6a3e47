"""Optimisers: what they keep per parameter, and the memory traffic of a step.

**Hardware** A fused kernel that reads gradients and states and writes states and weights once: memory-bound.
**Model** The same. Before it the gradients are swept for their norm, clipped and cleared (Adam), and unscaled and
checked for overflow (fp16), each a pass of its own. In mixed precision weights and gradients have 16 bits and
the optimiser keeps 32-bit copies.

Four accountings of Adam in mixed precision are in use. *2 + 2 + 12* (ZeRO, arXiv 1910.02054): 16-bit weights and
gradients, and 12 bytes of 32-bit weights, momentum and variance. *2 + 2 + 16* adds a 32-bit copy of the gradients
into which microbatches are accumulated (DeepSpeed with ``fp32`` accumulation); `gradient_bits` 32 chooses it. Where
products add to that copy themselves (Megatron-LM) there are no 16-bit gradients: *2 + 4 + 12*. Where the optimiser
makes the copy, of what it steps alone, it is one of its states, and ZeRO cuts it with them: *2 + 2 + 16*, ``4 + 16/N``
with ZeRO 1 on N ranks.
"""

from __future__ import annotations

from dataclasses import dataclass

from clusim.base.errors import InputError
from clusim.workload.kernels import Kernel, Precision

_MOMENTS = {"sgd": 0, "momentum": 1, "adam": 2}
OPTIMIZERS = tuple(_MOMENTS)
"""Names of the optimisers."""


@dataclass(frozen=True, slots=True)
class Optimizer:
    """Memory of one parameter [bytes].

    Attributes
    ----------
    weight, gradient : int
        As the model computes with them.
    main_gradient : int
        Further 32-bit copy of the gradient; 0 is none.
    state : int
        32-bit weights and moments.
    sweeps : int
        Times that a gradient is read or written besides: norm, clipping, clearing, unscaling.
    """

    name: str
    weight: int
    gradient: int
    main_gradient: int
    state: int
    sweeps: int = 0

    @property
    def total(self) -> int:
        """All of them together [bytes]."""
        return self.weight + self.gradient + self.main_gradient + self.state

    @property
    def reduced(self) -> int:
        """Element of the gradients that ranks reduce [bytes]."""
        return self.main_gradient or self.gradient

    def kernel(self, parameters: int) -> Kernel:
        """Return the kernel of a step over so many parameters."""
        touched = self.reduced * (1 + self.sweeps) + 2 * self.state + self.weight
        if not self.state:
            touched = self.reduced * (1 + self.sweeps) + 2 * self.weight
        return Kernel(self.name, bytes=parameters * touched)


def find_optimizer(
    name: str, precision: Precision, gradient_bits: int = 16, *, copied_by_step: bool = False
) -> Optimizer:
    """Return the optimiser called `name` for a run in `precision`.

    With `copied_by_step` the 32-bit copy of the gradients is one of its states.
    """
    if name not in _MOMENTS:
        raise InputError(f"optimizer {name!r}: unknown; use one of {', '.join(OPTIMIZERS)}")
    if gradient_bits not in (16, 32):
        raise InputError(f"gradient_bits {gradient_bits}: must be 16 or 32")
    mixed = precision.bytes < 4
    state = 4 * _MOMENTS[name] + (4 if mixed else 0)
    main = 4 if mixed and gradient_bits == 32 else 0
    if copied_by_step:
        state, main = state + main, 0
    # Adam comes with a norm (read), clipping (read, write) and clearing (write); fp16 is unscaled (read, write).
    sweeps = 4 * (name == "adam") + 2 * (precision.name == "fp16")
    return Optimizer(name, precision.bytes, precision.bytes, main, state, sweeps)
