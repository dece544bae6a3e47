"""Adaptation of PyTorch to tensors on a GPU without data: files, moves of modules, operators of a CUDA build."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils.weak import TensorWeakRef


def rebuilt(
    sizes: Sequence[int],
    strides: Sequence[int],
    dtype: torch.dtype,
    device: str,
    grad: bool,
) -> torch.Tensor:
    """Return a tensor without data, as `torch.load` reads it from a file that `torch.save` wrote."""
    result = torch.empty_strided(
        tuple(sizes), tuple(strides), dtype=dtype, device=device
    )
    return result.requires_grad_(grad)


def _tensor_description(tensor: FakeTensor, _protocol: object) -> Any:
    """Return the description of a tensor without data for a file."""
    form = (
        tuple(tensor.shape),
        tuple(tensor.stride()),
        tensor.dtype,
        str(tensor.device),
    )
    return rebuilt, (*form, tensor.requires_grad)


def install_saving() -> None:
    """Let `torch.save` and `torch.load` pass tensors without data."""
    FakeTensor.__reduce_ex__ = _tensor_description
    torch.serialization.add_safe_globals([rebuilt])


def install_kernels() -> None:
    """Register operators with a CUDA kernel and a substitute by other operators.

    A CPU build lacks the kernel; autograd would call the substitute, ten operators for an RMS norm.
    """
    global _KERNELS
    _KERNELS = torch.library.Library("aten", "IMPL", "CUDA")
    for name in _SUBSTITUTED:
        _KERNELS.impl(name, _never)


_SUBSTITUTED = (
    "silu_backward",
    "mish_backward",
    "native_channel_shuffle",
    "_fused_rms_norm",
)
"""Operators with kernels for CUDA and ``CompositeImplicitAutograd`` (``native_functions.yaml``)."""

_KERNELS: torch.library.Library | None = None
"""Registrations, in force with this object."""


def _never(*_given: Any, **_more: Any) -> Any:
    """Kernel of CUDA tensors, without data."""
    raise AssertionError("operators on CUDA tensors are intercepted")


def install_moves() -> None:
    """Let a tensor of the host become one of the GPU when its data are replaced, as ``Module.to`` does.

    A parameter stays the same object for modules that share it and for optimizers, with the attributes that FSDP1 and
    programs add to it. FSDP1 with ``CPUOffload`` moves it between the passes of a step: each pass finds the tensor of
    autograd's graph again (`_other`), and the gradient of that tensor is the parameter's.
    """
    data = torch._C.TensorBase.data
    with FakeTensorMode():
        state = vars(torch.empty(0)).keys()

    def replace(tensor: torch.Tensor, value: torch.Tensor) -> None:
        if value is tensor or isinstance(value, FakeTensor) == isinstance(
            tensor, FakeTensor
        ):
            data.__set__(tensor, value)
            return
        grad, parameter = (
            tensor.requires_grad,
            isinstance(tensor, torch.nn.Parameter),
        )
        other = _other(tensor)
        if other is None:
            other = data.__get__(
                value
            )  # not `detach`: later changes of `value` would count as its own
        else:
            data.__set__(other, value)
        of_kind, before = vars(other), vars(tensor)
        attributes = {name: item for name, item in of_kind.items() if name in state}
        attributes |= {
            name: item for name, item in before.items() if name not in state
        }
        tensor.__class__, other.__class__ = other.__class__, tensor.__class__
        tensor.__dict__, other.__dict__ = attributes, before
        torch._C._swap_tensor_impl(tensor, other)
        tensor.requires_grad_(grad)
        tensor._other = TensorWeakRef(other)
        if parameter:
            tensor._is_param = True  # an instance of Parameter for isinstance

    torch.Tensor.data = property(data.__get__, replace)
    torch.Tensor.grad = property(_gradient, _set_gradient, _GRADIENT.__delete__)
    torch.nn.Module._apply = _apply


_GRADIENT = torch._C.TensorBase.grad


def _other(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the tensor that a moved tensor was before its last move, if autograd still refers to it."""
    reference = vars(tensor).get("_other")
    return None if reference is None else reference()


def _gradient(tensor: torch.Tensor) -> torch.Tensor | None:
    gradient = _GRADIENT.__get__(tensor)
    if gradient is not None or (other := _other(tensor)) is None:
        return gradient
    return _GRADIENT.__get__(other)


def _set_gradient(tensor: torch.Tensor, gradient: torch.Tensor | None) -> None:
    """Set the gradient of a tensor, or of the one on the gradient's device that it was before a move."""
    other = _other(tensor)
    if other is not None:
        _GRADIENT.__set__(other, None)
        if gradient is not None and isinstance(gradient, FakeTensor) != isinstance(
            tensor, FakeTensor
        ):
            tensor, other = other, tensor
            _GRADIENT.__set__(other, None)
    _GRADIENT.__set__(tensor, gradient)


def _apply(module: Any, function: Callable[[Any], Any], recurse: bool = True) -> Any:
    """Replacement for ``Module._apply``, which would create a parameter per module of a shared tensor."""
    done: set[int] = set()
    for part in module.modules() if recurse else (module,):
        for key, parameter in part._parameters.items():
            if parameter is None or id(parameter) in done:
                continue
            with torch.no_grad():
                value = function(parameter)
                gradient = (
                    None if parameter.grad is None else function(parameter.grad)
                )
                faked = isinstance(value, FakeTensor) or isinstance(
                    parameter, FakeTensor
                )
                if faked or torch._has_compatible_shallow_copy_type(
                    parameter, value
                ):
                    parameter.data = value
                else:
                    part._parameters[key] = torch.nn.Parameter(
                        value, parameter.requires_grad
                    )
                part._parameters[key].grad = gradient
            done.add(id(part._parameters[key]))
        for key, buffer in part._buffers.items():
            if buffer is not None:
                part._buffers[key] = function(buffer)
    return module
