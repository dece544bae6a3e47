"""Interception of PyTorch's operators: host tensors are computed, CUDA tensors are priced.

**Hardware** An operator on CUDA tensors enqueues a kernel on the current stream and returns. Copies to pageable host
memory, and reads of values, wait for the stream. **Model** A CUDA tensor is a `FakeTensor`: shape, strides, element
type and device without data. Operators with one as input or result are priced and enqueued on the `RankClock`; all
others run on the CPU without virtual time. A value that is read and not known is a placeholder: 1.0, 1 or False.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from clusim.base.errors import InputError
from clusim.formats.recordings.model import OperatorCall
from clusim.programs.annotations import annotation_of
from clusim.programs.clock import RankClock
from clusim.programs.failures import program_line, remedy_for
from clusim.programs.known import LARGEST, KnownValues
from clusim.programs.layouts import layout
from clusim.programs.parts import (
    bytes_of,
    on_gpu,
    parts_of,
    same_shapes,
    shapes_of,
    without_data,
)
from clusim.programs.repeated import (
    DispatchedOperator,
    Form,
    Launched,
    OperatorTraits,
    RepeatedCall,
    form_of,
)
from clusim.workload.kernels import workspace_bytes
from clusim.workload.prices import PRODUCTS, Prices

aten = torch.ops.aten

_OURS = frozenset({torch.Tensor, torch.nn.Parameter, torch.nn.Buffer, FakeTensor})
"""Types without a separate dispatch."""

_NO_KERNEL = {
    "empty",
    "empty_like",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
    "detach",
    "resize_",
    "set_",
    "lift_fresh",
    "alias",
    "record_stream",
    "is_pinned",
    "_unsafe_view",
    "_reshape_alias",
    "_reshape_copy",
    "is_same_size",
    "device",
    "sym_size",
    "sym_stride",
    "sym_numel",
    "resize",
}
"""Operators that launch no kernel."""

_RANDOM = (
    "rand",
    "normal",
    "uniform",
    "bernoulli",
    "dropout",
    "multinomial",
    "exponential",
)
_OVERWRITES = ("copy_", "zero_", "fill_")
"""Operators whose result does not depend on the values that they overwrite."""

_NEW = {"empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided"}
"""Operators with a new result without values: its parts may become known."""

_COLLECTIVES = {"c10d", "_c10d_functional", "_dtensor"}
"""Name spaces of collectives."""

_IGNORED = {"prim", "profiler"}
"""Name spaces of operators without an effect in virtual time."""

_PRICED = {"aten", "prims", "fsdp", "c10d", "torchvision"}
"""Name spaces of operators that are priced by products or memory traffic; kernels of others are custom."""

_KEEPS = {"_amp_foreach_non_finite_check_and_unscale_"}
"""Operators that set a flag only if a value is not finite."""


def placeholder(dtype: torch.dtype) -> float | int | bool:
    """Return the value of an unknown element."""
    if dtype == torch.bool:
        return False
    return 1.0 if dtype.is_floating_point or dtype.is_complex else 1


class SimulatedOperators(TorchDispatchMode):  # type: ignore[misc]
    """Dispatch mode of a simulated rank.

    Parameters
    ----------
    collectives : callable
        Handler of operators of ``c10d`` and ``_c10d_functional``; returns `NotImplemented` for others.
    copy_Bps : float
        Copies between host and GPU [B/s].
    stream : callable
        Identifier of the current stream.
    complete : bool
        Compute the values of all tensors.
    """

    def __init__(
        self,
        clock: RankClock,
        prices: Prices,
        copy_Bps: float,
        stream: Callable[[], int],
        *,
        complete: bool = False,
    ) -> None:
        super().__init__()
        self.clock, self.prices, self.copy_Bps, self.stream = (
            clock,
            prices,
            copy_Bps,
            stream,
        )
        self.fake = FakeTensorMode(allow_non_fake_inputs=True)
        self.known = KnownValues(complete=complete)
        self.collectives: Callable[..., Any] = lambda *given: NotImplemented
        self.allocated: Callable[[Sequence[torch.Tensor]], None] = lambda tensors: (
            None
        )
        self.workspace: Callable[[int], None] = lambda size: None
        self._handles: set[tuple[int, int]] = set()
        self.arriving: dict[int, tuple[StorageWeakRef, Callable[[], None]]] = {}
        self._traits: dict[Any, OperatorTraits] = {}
        self._calls: dict[Form, RepeatedCall] = {}
        self._launched: Launched | None = None
        self._main = threading.get_ident()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run or price an operator."""
        kwargs = kwargs or {}
        if not _OURS.issuperset(types):
            return NotImplemented  # wrappers such as DTensor dispatch to their local tensors
        if (
            torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)
            is not None
        ):
            return func(
                *args, **kwargs
            )  # DTensor tries an operator on complete shapes
        form, tensors = form_of(args, kwargs)
        target = kwargs.get("device")
        to_gpu = target is not None and torch.device(target).type == "cuda"
        on_gpu = False
        for tensor in tensors:
            if isinstance(tensor, FakeTensor):
                on_gpu = True
                if tensor.fake_mode is not self.fake:
                    return func(*args, **kwargs)  # shapes only
            elif not to_gpu and tensor.is_meta:
                return func(*args, **kwargs)
        if func.namespace in _COLLECTIVES:
            result = self.collectives(func, args, kwargs)
            if result is not NotImplemented:
                return result
        if not (on_gpu or to_gpu) or func.namespace in _IGNORED:
            return func(*args, **kwargs)
        operator = DispatchedOperator(
            func, args, kwargs, tensors, self._traits_of(func)
        )
        if form is None or self.known.complete or self.known.written is not None:
            return self._device(operator)
        return self._repeat(
            operator, (func, form, torch.cuda.current_device() if to_gpu else 0)
        )

    def _traits_of(self, func: Any) -> OperatorTraits:
        """Return the properties of an operator."""
        traits = self._traits.get(func)
        if traits is None:
            traits = self._traits[func] = OperatorTraits.of(func)
        return traits

    def _repeat(self, operator: DispatchedOperator, key: Form) -> Any:
        """Return the result of an operator, by an earlier call with arguments of the same forms if there is one."""
        traits = operator.traits
        tensors = operator.tensors
        if traits.shares and len(tensors) == 1 and tensors[0].constant is None:
            self._issue()
            return operator.view_result(self.fake)
        if not traits.repeats or annotation_of(traits.qualified) is not None:
            return self._device(operator)
        key = (*key, torch.get_default_dtype(), _rounds(traits.name))
        earlier = self._calls.get(key)
        if earlier is None:
            self._launched = None
            result = self._device(operator)
            if self._unknowable(operator):
                self._calls[key] = operator.call_of(result, self._launched)
            return result
        if earlier.results is None:
            return self._device(operator)
        if self.arriving and earlier.launched is not None:
            self._arrive(tensors)
        repeated = earlier.made(tensors, self.fake)
        self._issue()
        self.allocated([tensor for tensor in repeated if tensor is not None])
        if earlier.launched is not None:
            call, time_ps, measured = earlier.launched
            self._reserve(call.name)
            where = "" if measured else program_line() or "unknown line"
            self.clock.kernel(self.stream(), call, time_ps, unpriced_at=where)
        result = earlier.result(repeated)
        self._keep(operator, result, None)
        return result

    def read(self, tensor: torch.Tensor, *, waits: bool = True) -> torch.Tensor:
        """Return the values of a device tensor on the host, after its stream if the host waits for it.

        Unknown values are placeholders.
        """
        if waits:
            self.clock.synchronise([self.clock.mark(self.stream())])
        value = self.known.view(tensor)
        if value is not None:
            return value.clone()
        self.clock.totals.placeholders[program_line()] += 1
        value = placeholder(tensor.dtype)
        return torch.full(
            tuple(tensor.shape), value, dtype=tensor.dtype, device="cpu"
        )

    def _device(self, operator: DispatchedOperator) -> Any:
        """Price an operator on CUDA tensors and return its result."""
        func, args, name = operator.func, operator.args, operator.traits.name
        if func is aten._local_scalar_dense.default:
            self._issue()
            return self.read(args[0]).item()
        if name in ("equal", "is_nonzero"):
            self._issue()
            views = [self.known.view(t) for t in operator.tensors]
            self.clock.synchronise([self.clock.mark(self.stream())])
            return (
                func(*views)
                if all(k is not None for k in views)
                else name == "equal"
            )
        target = operator.kwargs.get("device")
        if (
            name == "_to_copy"
            and target is not None
            and torch.device(target).type == "cpu"
        ):
            self._issue()
            self._copy(args[0])
            # PyTorch pins the memory of a result that the host does not wait for.
            value = self.read(args[0], waits=not operator.kwargs.get("non_blocking"))
            return value.to(operator.kwargs.get("dtype") or args[0].dtype)
        if name == "copy_" and not isinstance(args[0], FakeTensor):
            self._issue()
            self._copy(args[1])
            waits = not (operator.given.get("non_blocking") and args[0].is_pinned())
            return args[0].copy_(self.read(args[1], waits=waits))
        if self.arriving and name not in _NO_KERNEL and not operator.traits.view:
            self._arrive(operator.tensors)
        views = self._compute(operator)
        result = self._run_without_data(operator, views)
        self._charge(operator, result)
        self._keep(operator, result, views)
        return result

    def _arrive(self, tensors: Sequence[torch.Tensor]) -> None:
        """Let the stream wait for calls whose results an operator uses."""
        for tensor in tensors:
            for part in parts_of(tensor) if isinstance(tensor, FakeTensor) else ():
                arrival = self.arriving.pop(part.untyped_storage()._cdata, None)
                if arrival is not None and not arrival[0].expired():
                    arrival[1]()

    def _issue(self) -> None:
        self.clock.issue(backward=threading.get_ident() != self._main)

    def _copy(self, tensor: torch.Tensor) -> None:
        size = bytes_of(tensor)
        self.clock.kernel(
            self.stream(), "copy to host", round(size / self.copy_Bps * 1e12)
        )

    def _run_without_data(self, operator: DispatchedOperator, known: Any) -> Any:
        """Return the result without data."""
        if operator.traits.lists:
            return None
        try:
            with self.fake:
                result = operator.called(without_data)
            differ = self.known.complete and not same_shapes(result, known)
            return on_gpu(known, self.fake) if differ else result
        except (
            DynamicOutputShapeException,
            DataDependentOutputException,
            UnsupportedOperatorException,
            RuntimeError,  # NotImplementedError is one
        ) as error:
            remedy = remedy_for(error, operator)
            if remedy and known is not None:
                return on_gpu(known, self.fake)
            if remedy:
                raise InputError(
                    f"{program_line()}: {operator.traits.qualified}{remedy}"
                ) from None
            raise

    def _compute(self, operator: DispatchedOperator) -> Any:
        """Return the result with values if all inputs are known and small; None otherwise."""
        name, tensors = operator.traits.name, operator.tensors
        # A view sees the values of its storage. A graph may run again with others.
        if (
            operator.traits.view
            or self.known.written is not None
            or self._unknowable(operator)
        ):
            return None
        if name in _OVERWRITES and isinstance(operator.args[0], FakeTensor):
            self.known.begin(operator.args[0])
        values: dict[int, torch.Tensor] = {}
        for tensor in tensors:
            value = (
                self.known.view(tensor) if isinstance(tensor, FakeTensor) else tensor
            )
            if value is None:
                if self.known.complete:
                    raise InputError(
                        f"{name}: an input of {tuple(tensor.shape)} without data"
                    )
                return None
            values[id(tensor)] = value

        def on_host(leaf: Any) -> Any:
            if isinstance(leaf, torch.Tensor):
                return values[id(leaf)]
            return torch.device("cpu") if isinstance(leaf, torch.device) else leaf

        try:
            result = operator.called(on_host)
            return () if result is None else result  # lists of tensors in place
        except RuntimeError as error:
            if self.known.complete:
                raise InputError(
                    f"{name}: no data, as the CPU lacks it: {error}"
                ) from None
            return None  # the CPU lacks the kernel; wrong arguments fail in the fake mode

    def _unknowable(self, operator: DispatchedOperator) -> bool:
        """Return True if the forms of the arguments exclude that the values of the result are known."""
        name, tensors = operator.traits.name, operator.tensors
        if name in _NO_KERNEL:
            return True
        return not self.known.complete and (
            operator.func.namespace != "aten"
            or any(word in name for word in _RANDOM)
            or sum(map(bytes_of, tensors)) > LARGEST
            or (not tensors and _large(operator.args))
        )

    def _charge(self, operator: DispatchedOperator, result: Any) -> None:
        """Advance the host, and enqueue the kernel of an operator."""
        name, tensors = operator.traits.name, operator.tensors
        self._issue()
        outputs = [t for t in tree_leaves(result) if isinstance(t, FakeTensor)]
        if operator.traits.view:
            return
        self.allocated(outputs)
        if name in _NO_KERNEL:
            return
        outputs = (
            outputs or operator.written
        )  # lists of tensors, as of fused optimizers, are not returned
        from_host = [
            t for t in tensors if not isinstance(t, FakeTensor) and t.dim() > 0
        ]
        if name in ("_to_copy", "copy_") and from_host:
            size = sum(map(bytes_of, from_host))
            copy_ps = round(size / self.copy_Bps * 1e12)
            self.clock.kernel(self.stream(), "copy from host", copy_ps)
            if not operator.given.get("non_blocking"):
                self.clock.synchronise([self.clock.mark(self.stream())])
            return
        self._launch(operator, outputs)

    def _launch(
        self, operator: DispatchedOperator, outputs: Sequence[torch.Tensor]
    ) -> None:
        """Enqueue the kernel of an operator, by its annotation or its price."""
        name, stated = operator.traits.name, annotation_of(operator.traits.qualified)
        self._reserve(name)
        flags = (
            ("causal",)
            if "attention" in name and operator.given.get("is_causal")
            else ()
        )
        if _rounds(name):
            flags = (*flags, "tf32")
        flags = (*flags, *layout(name, operator.tensors, outputs))
        arguments = operator.args, operator.kwargs
        time_ps = stated.time_ps(*arguments) if stated is not None else None
        if time_ps is not None:
            self.clock.kernel(self.stream(), name, time_ps)
            return
        written = operator.written if operator.traits.writes else ()
        shapes = shapes_of(operator.tensors, outputs, written)
        work = stated.work(*arguments) if stated is not None else ()
        call = OperatorCall(name, *shapes, flags, work)
        price = self.prices.price(call)
        measured = price.measured and (
            stated is not None or operator.func.namespace in _PRICED
        )
        where = "" if measured else program_line() or "unknown line"
        self._launched = call, price.time_ps, measured
        self.clock.kernel(self.stream(), call, price.time_ps, unpriced_at=where)

    def _reserve(self, name: str) -> None:
        """Reserve the workspace of matrix products: cuBLAS has a handle per thread, PyTorch a workspace per stream."""
        handle = threading.get_ident(), self.stream()
        if name in PRODUCTS and handle not in self._handles:
            self._handles.add(handle)
            self.workspace(workspace_bytes(self.prices.endpoint))

    def _keep(self, operator: DispatchedOperator, result: Any, known: Any) -> None:
        """Record known values of new tensors, and drop the values of tensors written with unknown data."""
        if known is None:
            is_kept = (
                operator.traits.name in _KEEPS or operator.traits.name in _NO_KERNEL
            )
            if operator.traits.writes and not is_kept:
                self.known.forget(operator.written)
            if operator.traits.name == "_coalesce":  # unknown indices are distinct
                self.clock.totals.placeholders[program_line()] += 1
            if self.known.written is not None:
                return
            if operator.traits.name in _NEW and isinstance(result, FakeTensor):
                self.known.begin(result)
        elif not operator.traits.in_place and operator.func._schema.returns:
            for tensor, value in zip(
                tree_leaves(result), tree_leaves(known), strict=True
            ):
                if isinstance(tensor, FakeTensor) and same_shapes(tensor, value):
                    self.known.put(tensor, value)


def _rounds(name: str) -> bool:
    """Return True if the program allows TF32 for an operator."""
    if "convolution" in name:
        return bool(torch.backends.cudnn.allow_tf32)
    return "mm" in name and bool(torch.backends.cuda.matmul.allow_tf32)


def _large(args: Any) -> bool:
    """Return True if a new tensor of the size in the arguments is too large for known values."""
    sizes = next((a for a in args if isinstance(a, list | tuple)), [])
    count = prod(size if isinstance(size, int) else LARGEST for size in sizes)
    return count * 8 > LARGEST
