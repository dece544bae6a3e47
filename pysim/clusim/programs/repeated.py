"""Operators with arguments of forms that an earlier call had: results and prices without PyTorch's rules for shapes.

A training step calls the same operators once per layer and microbatch. Shapes of results and prices depend on forms: of
a tensor, on its shape, strides, element type and device; of other arguments, on their values. Views have the storage of
their argument, and PyTorch computes them each time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    FakeTensor,
    FakeTensorMode,
    in_kernel_invocation_manager,
)
from torch.utils._pytree import tree_leaves, tree_map

from clusim.formats.recordings.model import OperatorCall

Form = tuple[Any, ...]
"""Forms of arguments."""

Launched = tuple[OperatorCall, int, bool]
"""Kernel of an operator: its price [ps], and True if that is measured."""

_VALUES = {
    int,
    float,
    bool,
    str,
    complex,
    type(None),
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
}
"""Types of arguments whose values are their forms."""

_FIXED = (
    torch.Tag.inplace_view,
    torch.Tag.data_dependent_output,
    torch.Tag.dynamic_output_shape,
)
"""Operators with these tags have other results for arguments of the same forms."""


class _WithoutFormError(Exception):
    """An argument of another type."""


def form_of(
    args: Any, kwargs: Mapping[str, Any]
) -> tuple[Form | None, list[torch.Tensor]]:
    """Return the form of the arguments of an operator, and their tensors; the form is None for unusual arguments."""
    tensors: list[torch.Tensor] = []
    try:
        form = _form(args, tensors)
        if kwargs:
            form = (form, *kwargs, _form(kwargs.values(), tensors))
    except _WithoutFormError:
        leaves = tree_leaves((args, kwargs))
        return None, [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    return form, tensors


def _form(given: Any, tensors: list[torch.Tensor]) -> Form:
    """Return the form of arguments, and append their tensors."""
    parts: list[Any] = []
    for item in given:
        kind = item.__class__
        if kind in _VALUES:
            parts.append((kind, item))
        elif isinstance(item, FakeTensor):
            if item.layout is not torch.strided or item.dtype.is_complex:
                raise _WithoutFormError
            tensors.append(item)
            parts.append((item.shape, item.stride(), item.dtype, item.fake_device))
        elif isinstance(item, torch.Tensor):
            tensors.append(item)
            parts.append((kind, item.shape, item.dtype))
        elif isinstance(item, list | tuple):
            parts.append((kind, *_form(item, tensors)))
        else:
            raise _WithoutFormError
    return tuple(parts)


@dataclass(slots=True)
class OperatorTraits:
    """Properties of an operator for all arguments.

    Attributes
    ----------
    name, qualified : str
        Name without and with its name space.
    view, in_place : bool
        A result has the storage of an argument; a result is an argument.
    writes : bool
        It writes an argument.
    repeats : bool
        Forms of results follow from forms of arguments.
    shares : bool
        It only changes the shape and strides of an argument.
    lists : bool
        It only writes the tensors of lists, which keep their forms.
    """

    name: str
    qualified: str
    view: bool
    in_place: bool
    writes: bool
    repeats: bool
    shares: bool
    lists: bool

    @classmethod
    def of(cls, func: Any) -> OperatorTraits:
        """Return the properties of an operator."""
        qualified = str(func._schema.name)
        name = qualified.split("::")[-1]
        results = [
            r.alias_info for r in func._schema.returns if r.alias_info is not None
        ]
        arguments = [
            a.alias_info for a in func._schema.arguments if a.alias_info is not None
        ]
        view = any(not info.is_write for info in results)
        writes = any(info.is_write for info in arguments)
        repeats = not any(tag in func.tags for tag in _FIXED) and name not in (
            "resize_",
            "set_",
        )
        # Composite operators may return their argument, or a copy.
        is_composite = func.has_kernel_for_dispatch_key(
            torch._C.DispatchKey.CompositeImplicitAutograd
        )
        shares = (
            repeats
            and not writes
            and not is_composite
            and (view or name == "_unsafe_view")
        )
        lists = name.startswith("_foreach_") and writes and not func._schema.returns
        return cls(
            name, qualified, view, bool(results), writes, repeats, shares, lists
        )


@dataclass(frozen=True, slots=True)
class NewTensor:
    """Shape, strides, element type and device of a result with a new storage."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    def made(self, mode: FakeTensorMode) -> FakeTensor:
        """Return a new tensor."""
        empty = torch.empty_strided(
            self.shape, self.stride, dtype=self.dtype, device="meta"
        )
        return FakeTensor(mode, empty, self.device)

    @classmethod
    def of(cls, tensor: Any) -> NewTensor | None:
        """Return the form of a tensor that fills its storage; None for other results."""
        if not isinstance(tensor, FakeTensor) or tensor.constant is not None:
            return None
        if (
            tensor.layout is not torch.strided
            or tensor.dtype.is_complex
            or tensor.is_neg()
        ):
            return None
        pairs = zip(tensor.shape, tensor.stride(), strict=True)
        elements = (
            1 + sum((size - 1) * stride for size, stride in pairs)
            if tensor.numel()
            else 0
        )
        filled = (
            tensor.untyped_storage().nbytes() == elements * tensor.element_size()
        )
        if not filled or tensor.storage_offset():
            return None
        return cls(
            tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.fake_device
        )


@dataclass(frozen=True, slots=True)
class RepeatedCall:
    """Results of an operator for arguments of some forms, and its kernel.

    Attributes
    ----------
    results : tuple or None
        Of each result: the form of a new tensor, the number of the argument that it is, or None if it is absent. None
        if the forms of the arguments do not determine the results.
    container : type or None
        Type of several results; None is a single one.
    """

    results: tuple[NewTensor | int | None, ...] | None = None
    container: Callable[[Any], Any] | None = None
    launched: Launched | None = None

    def made(
        self, tensors: Sequence[torch.Tensor], mode: FakeTensorMode
    ) -> list[torch.Tensor | None]:
        """Return the results for these arguments."""
        assert self.results is not None, "results are determined"
        return [
            form.made(mode)
            if isinstance(form, NewTensor)
            else form
            if form is None
            else tensors[form]
            for form in self.results
        ]

    def result(self, made: Sequence[torch.Tensor | None]) -> Any:
        """Return the results as the operator does."""
        return made[0] if self.container is None else self.container(made)


@dataclass(slots=True)
class DispatchedOperator:
    """An operator with its arguments, and the tensors among them."""

    func: Any
    args: Any
    kwargs: Mapping[str, Any]
    tensors: list[torch.Tensor]
    traits: OperatorTraits

    @property
    def given(self) -> dict[str, Any]:
        """Arguments by name."""
        names = (argument.name for argument in self.func._schema.arguments)
        return dict(zip(names, self.args, strict=False)) | dict(self.kwargs)

    @property
    def written(self) -> list[torch.Tensor]:
        """CUDA tensors among the arguments that it writes."""
        given = self.given
        arguments = (
            a for a in self.func._schema.arguments if a.alias_info is not None
        )
        names = [a.name for a in arguments if a.alias_info.is_write]
        leaves = tree_leaves([given.get(name) for name in names])
        return [leaf for leaf in leaves if isinstance(leaf, FakeTensor)]

    def called(self, change: Callable[[Any], Any]) -> Any:
        """Return the result with changed arguments."""
        return self.func(
            *tree_map(change, self.args), **tree_map(change, dict(self.kwargs))
        )

    def view_result(self, mode: FakeTensorMode) -> Any:
        """Return the result of an operator that only changes the shape and strides of its argument."""
        device = self.tensors[0].fake_device
        with in_kernel_invocation_manager(mode):
            result = self.func(*self.args, **self.kwargs)
        if isinstance(result, torch.Tensor):
            return FakeTensor(mode, result, device)
        return type(result)([FakeTensor(mode, part, device) for part in result])

    def call_of(self, result: Any, launched: Launched | None) -> RepeatedCall:
        """Return this call and its result for repeated ones."""
        numbers = {id(tensor): number for number, tensor in enumerate(self.tensors)}
        twice = self.traits.writes and len(numbers) < len(self.tensors)
        if twice or any(
            not isinstance(t, FakeTensor) and t.dim() > 0 for t in self.tensors
        ):
            return RepeatedCall()
        several = result is None or isinstance(result, tuple | list)
        used = {tensor.untyped_storage()._cdata for tensor in self.tensors}
        forms: list[NewTensor | int | None] = []
        for part in (result or ()) if several else (result,):
            form = (
                None if part is None else numbers.get(id(part), NewTensor.of(part))
            )
            if isinstance(form, NewTensor):
                storage = part.untyped_storage()._cdata
                if storage in used:
                    return RepeatedCall()
                used.add(storage)
            elif form is None and part is not None:
                return RepeatedCall()
            forms.append(form)
        container = (
            (lambda made: None)
            if result is None
            else type(result)
            if several
            else None
        )
        return RepeatedCall(tuple(forms), container, launched)
