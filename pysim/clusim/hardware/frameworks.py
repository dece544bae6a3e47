"""Host-thread costs of issuing a training step, by framework.

**Hardware** A thread calls operators in sequence; each selects its kernel, saves inputs of the backward
pass, and enqueues a launch on the GPU. The backward pass is a second walk, by the autograd engine.
Recomputation saves and restores the state of random numbers around repeated operators. Compilers fuse
operators and launch from generated code; a CUDA graph is one launch; XLA launches from C++.
**Model** A time per operator, by pass; per collective and message; per tensor of the optimiser; per
microbatch and per step. An operator here is a kernel of the layer tables, with the views, copies and
Python around it.
**Not modelled** Garbage collection, the allocator, other threads on the core. **Parameters** The fields
of `Framework`, on a core of EPYC Rome; `Cpu.pace` is the relative speed of other cores.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Literal

from clusim.hardware.figures import Figure, assumed, calibrated, check_figures, published

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
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

    def named_figures(self) -> Iterator[tuple[str, Figure]]:
        """Yield names and figures."""
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, Figure):
                yield item.name, value

    def all_figures(self) -> Iterator[Figure]:
        """Yield every figure."""
        yield from (figure for _, figure in self.named_figures())


_ROWS = "hosts-vtrain"
_DECODE = (
    "8.4 ms for a decode step of Llama 3.1 8B in eager PyTorch on an H100 machine: 24 us for each of 11 kernels of 32"
    " layers (cloudai.pt), the same number of cycles on this core, and autograd's notes"
)

_PYTORCH = Framework(
    name="pytorch",
    operator=calibrated("40us", _DECODE, "host-operators"),
    again=assumed("4us", "states of random numbers, saved and restored once per layer: 50 us"),
    node=assumed("30us", "AddmmBackward0 needs two thirds of addmm's time per kernel (HTA's traces)"),
    collective=calibrated(
        "50us", "71 to 98 us for c10d's operators under a profiler (HTA's traces); half of such times is the profiler",
        "host-operators",
    ),
    message=assumed("60us", "as a collective"),
    tensor=assumed("4us", "lists of tensors (foreach) are walked in C++ a few times"),
    microbatch=assumed("1ms", "data, loss and the loop of the trainer"),
    step=assumed("3ms", "norm of the gradients, learning rate, callbacks and log"),
    sums=True,
    eager=True,
)  # fmt: skip

_LEGACY = Framework(
    name="megatron-deepspeed",
    operator=calibrated("70us", "3.0 ms a layer and microbatch of one sample without tensor parallelism", _ROWS),
    again=assumed("7us", "states of random numbers, saved and restored once per layer: 90 us"),
    node=assumed("57us", "four fifths of an operator, with which it was calibrated together"),
    collective=calibrated("60us", "rows with two tensor-parallel ranks need 0.35 ms more a layer, for 6", _ROWS),
    message=assumed("150us", "batched sends and receives, and a synchronisation"),
    tensor=calibrated("12us", "additional time per step of rows with more layers", _ROWS),
    microbatch=calibrated("1.5ms", "time of rows of 12 and 24 layers in addition to their layers", _ROWS),
    step=assumed("2ms", "loss scale, norm, learning rate and log"),
    unfused=6,
    waits="pass",
    sums=True,
    eager=True,
)  # fmt: skip

_MEGATRON = Framework(
    name="megatron",
    operator=assumed("55us", "between eager PyTorch and Megatron-DeepSpeed: Transformer Engine has fewer operators,"
                     " with more Python around each"),
    again=assumed("7us", "as Megatron-DeepSpeed"),
    node=assumed("42us", "as eager PyTorch, with hooks in Python"),
    collective=assumed("55us", "as eager PyTorch"),
    message=assumed("100us", "batched sends and receives"),
    tensor=assumed("3us", "fused optimiser on one buffer"),
    microbatch=assumed("1ms", "as eager PyTorch"),
    step=assumed("4ms", "norm, learning rate, log"),
    unfused=6,
    waits="receive",
    sums=True,
)  # fmt: skip

_COMPILED = Framework(
    name="torch-compile",
    operator=calibrated("13us", "9.1 us for the wrapper of a compiled kernel on GB200 (tritonbench), as many cycles on"
                        " this core", "host-operators"),
    again=assumed("1us", "random numbers are functional"),
    node=assumed("13us", "as operator: the backward pass is compiled too"),
    collective=assumed("50us", "as eager PyTorch"),
    message=assumed("60us", "as eager PyTorch"),
    tensor=assumed("4us", "as eager PyTorch"),
    microbatch=assumed("1ms", "as eager PyTorch"),
    step=assumed("3ms", "as eager PyTorch"),
)  # fmt: skip

_GRAPH = Framework(
    name="cuda-graph",
    operator=calibrated("30us", "25.6 us for a graph of 16 nodes with its synchronisation, 0.58 us a node (ocannl)",
                        "host-operators"),
    again=assumed("0us", "random numbers are inside the graph"),
    node=assumed("30us", "as operator"),
    collective=assumed("0us", "inside the graph"),
    message=assumed("100us", "as Megatron"),
    tensor=assumed("3us", "as Megatron"),
    microbatch=assumed("1ms", "as eager PyTorch"),
    step=assumed("4ms", "as Megatron"),
    whole=True,
    waits="step",
    sums=True,
)  # fmt: skip

_JAX = Framework(
    name="jax",
    operator=calibrated("3us", "2.7 to 3.3 us for a launch from C++ (tritonbench, ocannl)", "host-operators"),
    again=assumed("0us", "random numbers are functional"),
    node=assumed("3us", "as operator"),
    collective=assumed("10us", "enqueued from C++"),
    message=assumed("10us", "as a collective"),
    tensor=assumed("0us", "inside the program"),
    microbatch=assumed("0us", "inside the program"),
    step=assumed("1ms", "one call of Python, and the data"),
)  # fmt: skip

FRAMEWORKS: dict[str, Framework] = {
    item.name: item for item in (_PYTORCH, _MEGATRON, _LEGACY, _COMPILED, _GRAPH, _JAX)
}
"""Frameworks by name."""
