"""Process groups of a simulated rank: collectives and messages of ``torch.distributed``.

**Model** All ranks do the same work at the same time: a call starts when this rank issues it. Known values are summed
and gathered as if equal on all ranks. A process group is not connected; its store is in memory.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.testing._internal.distributed.fake_pg import FakeProcessGroup
from torch.utils._pytree import tree_leaves

from clusim.base.errors import InputError
from clusim.base.terms.dtypes import DTYPES
from clusim.base.terms.operations import OPERATIONS, find_operation
from clusim.programs.clock import IssuedCall, Mark
from clusim.programs.operators import SimulatedOperators

_FORMS = re.compile(r"_(?:coalesced|into_tensor|base|single|tensor|out)(?=_|$)")
"""Endings of the names of operators that move the same data in another form."""


@cache
def operation_of(name: str) -> str:
    """Return the collective of an operator of ``c10d`` or ``_c10d_functional``; empty for others."""
    word = _FORMS.sub("", name).strip("_")
    found = find_operation(word)
    return "barrier" if word == "barrier" else "" if found is None else found.name


_REDUCTIONS = ("sum", "avg", "prod", "min", "max", "sum", "sum", "sum", "sum")
"""Reductions in the order of ``c10d::ReduceOp::RedOpType``; logical reductions move as many bytes as a sum."""

BARRIER_BYTES = 4
"""A barrier of NCCL is an all-reduce of one element."""


class EndedWork(dist._Work):  # type: ignore[misc]
    """Work of a call with a known end."""

    def __init__(self, results: Sequence[torch.Tensor], waited: Callable[[], None]) -> None:
        super().__init__()
        self._waited = waited
        self._future = torch.futures.Future()
        self._future.set_result(list(results))

    def wait(self, timeout: Any = None) -> bool:
        """Let the current stream wait."""
        self._waited()
        return True

    def is_completed(self) -> bool:
        """Return True."""
        return True

    def get_future(self) -> Any:
        """Return the results."""
        return self._future


class SimulatedGroups:
    """Handler of collectives.

    Parameters
    ----------
    operators : SimulatedOperators
        With the clock and the known values.
    """

    def __init__(self, operators: SimulatedOperators) -> None:
        self.operators, self.clock = operators, operators.clock
        self._open: set[EndedWork] = set()
        self._ends: dict[int, tuple[StorageWeakRef, Mark]] = {}

    def __call__(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Handle an operator of ``c10d`` or ``_c10d_functional``."""
        name = func._schema.name.split("::")[-1]
        given = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | kwargs
        functional = func.namespace == "_c10d_functional"
        if name == "wait_tensor":
            self._wait_for(args[0])
            return args[0]
        if name in ("send", "recv_", "recv_any_source_"):
            raise InputError(
                f"torch.distributed.{name.strip('_')}: ranks that differ are not simulated"
            )
        if not operation_of(name):
            return NotImplemented
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        group = self._group(given)
        on_gpu = any(isinstance(t, FakeTensor) for t in tensors) or (
            name == "barrier" and "nccl" in dist.get_backend(group)
        )
        outputs = self._outputs(func, args, kwargs, given) if functional else []
        written = outputs or self._written(name, given)
        self._values(name, given, written, group.size())
        mark = self._call(name, given, tensors, group, written) if on_gpu else Mark()
        if name == "barrier":
            self.clock.synchronise([mark])
        if functional:
            for tensor in outputs:
                storage = tensor.untyped_storage()
                self._ends[storage._cdata] = StorageWeakRef(storage), mark
            return outputs if "coalesced" in name else outputs[0]
        return self._answer(func, written, mark)

    def _call(
        self, name: str, given: Any, tensors: Any, group: Any, written: Sequence[torch.Tensor]
    ) -> Mark:
        operation = operation_of(name)
        ranks = tuple(dist.get_process_group_ranks(group))
        inputs = [t for t in tensors if all(t is not other for other in written)]
        larger = max(_bytes(inputs), _bytes(written))
        dtype = str(tensors[0].dtype).removeprefix("torch.") if tensors else "int32"
        redop = _redop(given)
        if operation == "barrier":
            operation, larger, dtype = "allreduce", BARRIER_BYTES, "int32"
        root = given.get("root_rank", -1)
        call = IssuedCall(
            *(operation, larger, ranks),
            dtype=DTYPES[dtype].moved if dtype in DTYPES else "uint8",
            redop=redop,
            root=root if isinstance(root, int) else -1,
        )
        return self.clock.call(self.operators.stream(), call)

    @staticmethod
    def _group(given: Any) -> Any:
        named = given.get("group_name") or given.get("process_group")
        if isinstance(named, str):
            return dist.distributed_c10d._resolve_process_group(named)
        return named if isinstance(named, dist.ProcessGroup) else dist.ProcessGroup.unbox(named)

    def _outputs(self, func: Any, args: Any, kwargs: Any, given: Any) -> list[torch.Tensor]:
        """Return the results of a functional collective without data."""
        if "out" in given:
            return [given["out"]]
        with self.operators.fake:
            result = func(*args, **kwargs)
        outputs = list(tree_leaves(result))
        self.operators.allocated(outputs)
        return outputs

    @staticmethod
    def _written(name: str, given: Any) -> list[torch.Tensor]:
        """Return the tensors that a call in place writes."""
        for key in ("output_tensors", "output_tensor", "outputs", "output"):
            if given.get(key) is not None:
                return [t for t in tree_leaves(given[key]) if isinstance(t, torch.Tensor)]
        tensors = given.get("tensors", given.get("inputs"))
        return [t for t in tree_leaves(tensors) if isinstance(t, torch.Tensor)]

    def _values(self, name: str, given: Any, written: Sequence[torch.Tensor], size: int) -> None:
        """Set the values of results as if the inputs were equal on all ranks."""
        operation = operation_of(name)
        sources = [
            t
            for key in ("input_tensors", "input_tensor", "inputs", "input", "tensors")
            for t in tree_leaves(given.get(key))
            if isinstance(t, torch.Tensor)
        ]
        for at, target in enumerate(written):
            if operation == "broadcast" or not sources:
                continue
            source = sources[min(at, len(sources) - 1)] if len(sources) > 1 else sources[0]
            value = self._value(source)
            if value is None:
                if isinstance(target, FakeTensor):
                    self.operators.known.forget([target])
                continue
            self._set(target, self._combined(operation, value, target, given, size))

    def _value(self, tensor: torch.Tensor) -> torch.Tensor | None:
        if not isinstance(tensor, FakeTensor):
            return tensor.detach().clone()
        value = self.operators.known.view(tensor)
        return None if value is None else value.clone()

    @staticmethod
    def _combined(
        operation: str, value: torch.Tensor, target: torch.Tensor, given: Any, size: int
    ) -> torch.Tensor | None:
        flat, count = value.reshape(-1), target.numel()
        if OPERATIONS[operation].reduces:
            if _redop(given) == "sum":
                flat = flat * size
            flat = flat[:count]
        elif flat.numel() < count:
            flat = flat.repeat(count // max(1, flat.numel()))
        if flat.numel() < count:
            return None
        return flat[:count].reshape(target.shape)

    def _set(self, target: torch.Tensor, value: torch.Tensor | None) -> None:
        known = self.operators.known
        if not isinstance(target, FakeTensor):
            if value is not None:
                target.detach().copy_(value)
            return
        view = known.view(target)
        if value is None:
            known.forget([target])
        elif view is not None:
            view.copy_(value)
        elif target.storage_offset() == 0:
            known.put(target, value)

    def _answer(self, func: Any, written: Sequence[torch.Tensor], mark: Mark) -> Any:
        """Return the tensors and the work of an operator of ``c10d``."""
        stream = self.operators.stream

        def waited() -> None:
            self.clock.wait(stream(), mark)
            self._open.discard(work)

        # PyTorch keeps only the C++ part of a Python object.
        work = EndedWork(written, waited)
        self._open.add(work)
        returns = func._schema.returns
        if len(returns) == 1:
            return work.boxed()
        kind = str(returns[0].type)
        if kind.startswith("List[List"):
            return [list(written)], work.boxed()
        return (list(written) if kind.startswith("List") else written[0]), work.boxed()

    def _wait_for(self, tensor: torch.Tensor) -> None:
        found = self._ends.pop(tensor.untyped_storage()._cdata, None)
        if found is not None and not found[0].expired():
            self.clock.wait(self.operators.stream(), found[1])


def _redop(given: Any) -> str:
    """Return the reduction of a call in this project's words."""
    asked = given.get("reduce_op")
    if asked is None:
        return "sum"
    if isinstance(asked, str):
        return asked.lower().replace("product", "prod")
    return _REDUCTIONS[int(asked.op())] if hasattr(asked, "op") else "sum"


def _bytes(tensors: Sequence[torch.Tensor]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


class _Simulated(type):
    """Type of replacements; all unconnected groups are instances."""

    def __instancecheck__(cls, instance: object) -> bool:
        """Return True for a group without a connection."""
        return isinstance(instance, FakeProcessGroup)


class _Unconnected(metaclass=_Simulated):
    """Replacement for ``ProcessGroupNCCL`` and ``ProcessGroupGloo``."""

    class Options:
        """Options of a group; they change no time."""

        def __init__(self, *_given: Any, **_more: Any) -> None:
            self._timeout = dist.distributed_c10d.default_pg_timeout

    def __new__(cls, _store: Any, rank: int, size: int, *_given: Any, **_more: Any) -> Any:
        """Return a group without a connection."""
        return FakeProcessGroup._create_internal(rank, size, FakeProcessGroup.Options())


def install(world_size: int, rank: int) -> None:
    """Replace the back ends of ``torch.distributed`` by unconnected groups."""
    module = dist.distributed_c10d
    store = dist.HashStore()

    module.ProcessGroupNCCL = module.ProcessGroupGloo = _Unconnected
    module._NCCL_AVAILABLE = True
    module.default_pg_nccl_timeout = module.default_pg_timeout
    # Times of CUDA events in C++, which only statistics of DistributedDataParallel read.
    dist.Logger.set_runtime_stats_and_log = lambda self: None
    FakeProcessGroup._set_sequence_number_for_group = lambda self: None
    FakeProcessGroup.options = property(lambda self: _Unconnected.Options())
    started = module.init_process_group

    def init_process_group(backend: Any = None, *_given: Any, **more: Any) -> None:
        wanted = int(more.get("world_size", -1) or -1)
        size = wanted if wanted > 0 else world_size
        if size > world_size:
            raise InputError(f"init_process_group: {size} ranks; the system has {world_size} GPUs")
        # A group with a device would be split, which unconnected groups are not.
        kept = {k: v for k, v in more.items() if k in ("timeout", "group_name")}
        prefix = dist.PrefixStore("default", store)
        started(backend, store=prefix, rank=rank, world_size=size, **kept)

    for place in (dist, module, dist.device_mesh):
        if getattr(place, "init_process_group", None) is started:
            place.init_process_group = init_process_group
    dist.TCPStore = module.TCPStore = lambda *_given, **_more: store
