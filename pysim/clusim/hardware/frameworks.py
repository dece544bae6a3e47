"""Host-thread costs of issuing a training step, by framework.

**Hardware** A thread calls operators in sequence; each selects its kernel, saves inputs of the backward
pass, and enqueues a launch on the GPU. The backward pass is a second walk, by the autograd engine.
Recomputation saves and restores the state of random numbers around repeated operators. Compilers fuse
operators and launch from generated code; a CUDA graph is one launch; XLA launches from C++.
**Model** A time per operator, by pass; per collective and message; per tensor of the optimiser; per
microbatch and per step. An operator here is a kernel of the layer tables, with the views, copies and
Python around it.
**Not modelled** Garbage collection, the allocator, other threads on the core. **Parameters** The fields
of `Framework`, in ``frameworks.yaml``, on a core of EPYC Rome; `Cpu.pace` is the relative speed of other cores.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from clusim.base.datafiles import read
from clusim.base.records import dataclass
from clusim.hardware.figures import (
    Figure,
    Sourced,
    assumed,
    build,
    check_figures,
    published,
)

Waits = Literal["step", "receive", "pass"]
"""Synchronisations of the host with its GPU.

Before and after the optimizer; also after every receive from another stage; also at the end of every
pass of a microbatch.
"""

LAUNCH_QUEUE: Figure = published(
    1024,
    "launches in a CUDA stream until a launch blocks (NVIDIA developer forums, CUDA 12)",
)
"""Kernels that a host can be ahead of its GPU."""

CONTEXT: Figure = assumed(
    "500MiB",
    "PyTorch on CUDA from 11.7 on, which loads kernels at their first call: 0.29 GB after one operator"
    " (pytorch, pull request 86509), 0.43 GB without any on an RTX 6000 Ada (unsloth-zoo, pull request 1053),"
    " about 0.4 GB (pytorch, issue 109888); with all kernels, as before, 0.67 to 1.7 GB",
    bounds=["0.29GB", "1.7GB"],
)
"""GPU memory of a process outside its allocator: CUDA context and loaded kernels."""

BLAS_HANDLES: Figure = published(
    2,
    "PyTorch has a handle of cuBLAS per thread and stream: forward pass and autograd's thread",
)
"""Handles with a workspace."""

FRAGMENTED: Figure = assumed(
    0.03,
    "shapes stay the same from step to step; the published plan of Llama 3 405B, which ran, leaves room for 0.04;"
    " up to 0.3 if states are also transient (GMLake, arXiv 2401.08156)",
    bounds=[0.0, 0.3],
)
"""Gaps of a caching allocator, as a fraction of activations and transient memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework(Sourced):
    """Costs of a framework's host thread [s].

    Attributes
    ----------
    operator, again, node : Figure
        An operator of the forward pass; additional time if it is repeated in the backward pass; a kernel of
        the backward pass.
    collective, message : Figure
        Enqueueing a collective; a send and receive between stages.
    tensor : Figure
        A parameter tensor, in the step of the optimiser.
    microbatch, step : Figure
        Everything else of a microbatch (its data, loss, schedule) and of a step (norm, learning rate, log).
    whole : bool
        True if passes are launched as one, so that `operator`, `again` and `node` apply to a pass.
    unfused : int
        Operators of a softmax of scores whose shape the fused kernel does not support; 1 is always fused.
    waits : str
        Point at which the host waits for its GPU.
    sums : bool
        True if automatic differentiation accumulates gradients with separate kernels.
    eager : bool
        True if kernels that move data are PyTorch's, not those of a library or a compiler.
    """

    name: str
    operator: Figure
    again: Figure
    node: Figure
    collective: Figure
    message: Figure
    tensor: Figure
    microbatch: Figure
    step: Figure
    whole: bool = False
    unfused: int = 1
    waits: Waits = "step"
    sums: bool = False
    eager: bool = False

    def __post_init__(self) -> None:
        """Check units and sources."""
        costs = dict(self.named_figures())
        check_figures(costs, dict.fromkeys(costs, "s"))


FRAMEWORKS: dict[str, Framework] = {
    name: build(Framework, entry, name=name)
    for name, entry in read(Path(__file__).with_name("frameworks.yaml")).items()
}
"""Frameworks by name."""
