"""Process groups of a simulated rank: collectives and messages of ``torch.distributed``.

**Model** A call starts when its last running rank has issued it. Results with known inputs are computed from the
values of the running ranks; a rank that does not run has the values of its representative. Process groups are not
connected.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.testing._internal.distributed.fake_pg import FakeProcessGroup
from torch.utils._pytree import tree_leaves

from clusim.base.errors import InputError
from clusim.base.terms.dtypes import DTYPES
from clusim.programs.arguments import (
    needs_all_ranks,
    operation_of,
    reduction_of,
    source_tensors,
    split_sizes,
    tensor_bytes,
)
from clusim.programs.data import RealData
from clusim.programs.failures import program_line
from clusim.programs.issued import IssuedCall, Mark
from clusim.programs.operators import SimulatedOperators
from clusim.programs.values import (
    MovedCall,
    decode_tensors,
    encode_tensors,
    results_of,
)

BARRIER_BYTES = 4
"""A barrier of NCCL is an all-reduce of one element."""


class EndedWork(dist._Work):  # type: ignore[misc]
    """Work of a call with a known end."""

    def __init__(
        self,
        results: Sequence[torch.Tensor],
        waited: Callable[[], None],
        taken: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__()
        self._waited, self._taken = waited, taken
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
        """Return the results; the stream waits when it uses them, since C++ waits for futures unseen."""
        self._taken()
        return self._future


class SimulatedGroups:
    """Handler of collectives and messages.

    Parameters
    ----------
    operators : SimulatedOperators
        With the clock and the known values.
    rank : int
        The rank that runs.

    Attributes
    ----------
    bound : bool
        Process groups are bound to a device: messages outside batches use the communicator of their group.
    """

    def __init__(self, operators: SimulatedOperators, rank: int) -> None:
        self.operators, self.clock, self.rank = operators, operators.clock, rank
        self.data: RealData | None = None
        self.bound = False
        self._connected: set[tuple[int, ...]] = set()
        self._copies: dict[str, int] = {}
        self._open: dict[int, EndedWork] = {}
        self._numbers = itertools.count()
        self._ends: dict[int, tuple[StorageWeakRef, Callable[[], None]]] = {}
        self._launch: (
            tuple[AbstractContextManager[None], list[Callable[[], None]]] | None
        ) = None
        self._launched: list[int] = []

    def __call__(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Handle an operator of ``c10d`` or ``_c10d_functional``."""
        name = func._schema.name.split("::")[-1]
        arguments = (
            dict(zip((a.name for a in func._schema.arguments), args, strict=False))
            | kwargs
        )
        functional = func.namespace == "_c10d_functional"
        if name == "_wrap_tensor_autograd":
            # It waits for the tensor itself, when it is used.
            return AsyncCollectiveTensor(args[0])
        if name == "wait_tensor":
            self._wait_for(args[0])
            return args[0]
        if name == "recv_any_source_":
            raise InputError(
                "torch.distributed.recv from any source is not simulated; name the source"
            )
        operation = {"send": "send", "recv_": "recv"}.get(name) or operation_of(name)
        if not operation:
            return NotImplemented
        leaves = tree_leaves((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        if any(tensor.layout is not torch.strided for tensor in tensors):
            raise InputError(
                f"{name} of sparse tensors: NCCL moves dense tensors only; use sparse=False, and sparse gradients"
                " outside DistributedDataParallel"
            )
        group = self._group(arguments)
        outputs = self._outputs(func, args, kwargs, arguments) if functional else []
        changed = outputs or (
            [] if operation == "send" else self._output_tensors(arguments)
        )
        on_gpu = any(isinstance(t, FakeTensor) for t in tensors) or (
            operation == "barrier" and "nccl" in dist.get_backend(group)
        )
        ranks = tuple(dist.get_process_group_ranks(group))
        call = self._unplaced_call(operation, arguments, tensors, changed)
        call = replace(
            call, ranks=ranks, timed=on_gpu, number=self._number(group, ranks)
        )
        call = self._with_ends(call, arguments)
        if call.operation == "alltoall" and call.timed:
            call = replace(call, splits=split_sizes(arguments, changed))
        if self.data is not None:
            self._connect(ranks)
            moved = self.data.start(func, arguments, ranks, outputs)
            waited = self._issue(call, {}, [], moved)
        else:
            waited = self._issue(call, arguments, changed)
        if operation == "barrier":
            waited()
            self.clock.synchronise([self.clock.mark(self.operators.stream())])
        if functional:
            for tensor in outputs:
                storage = tensor.untyped_storage()
                self._ends[storage._cdata] = StorageWeakRef(storage), waited
            return outputs if "coalesced" in name else outputs[0]
        return self._answer(func, changed, waited)

    @staticmethod
    def _unplaced_call(
        operation: str, given: Any, tensors: Any, written: Any
    ) -> IssuedCall:
        """Return a call of unknown ranks."""
        inputs = [t for t in tensors if all(t is not other for other in written)]
        larger = max(tensor_bytes(inputs), tensor_bytes(written))
        dtype = str(tensors[0].dtype).removeprefix("torch.") if tensors else "int32"
        if operation == "barrier":
            operation, larger, dtype = "allreduce", BARRIER_BYTES, "int32"
        moved = DTYPES[dtype].carrier if dtype in DTYPES else "uint8"
        return IssuedCall(
            operation, larger, (), moved, reduction_of(given), where=program_line()
        )

    def _with_ends(self, call: IssuedCall, given: Any) -> IssuedCall:
        """Return a call with its root, or the ends of a message."""
        position, tag = (
            call.ranks.index(self.rank),
            0 if call.timed else given.get("tag", 0),
        )
        shared = self.bound or self._launch is not None
        if call.operation == "send":
            return replace(
                call, root=position, peer=given["dst"], tag=tag, shared=shared
            )
        if call.operation == "recv":
            return replace(
                call, root=given["src"], peer=position, tag=tag, shared=shared
            )
        root = given.get("root_rank", given.get("src", -1))
        return replace(call, root=root) if isinstance(root, int) else call

    def _issue(
        self,
        call: IssuedCall,
        given: Any,
        written: Sequence[torch.Tensor],
        arrived: Callable[[], None] = lambda: None,
    ) -> Callable[[], None]:
        """Issue a call; return the function that waits for it and sets the values of its results.

        `arrived` is called by the first wait.
        """
        sources = source_tensors(given)
        values = (
            None if call.operation == "recv" else [self._value(t) for t in sources]
        )
        moved = MovedCall(
            call.operation,
            call.redop,
            call.ranks.index(self.rank),
            call.root,
            len(sources),
            tuple(given.get("input_split_sizes") or ()),
        )
        present = [] if values is None else [v for v in values if v is not None]
        unknown = values is None or len(present) < len(values)
        captures = self.clock.captured is not None
        sent = (
            None if unknown or captures else (encode_tensors(present), moved.splits)
        )
        if call.timed:
            mark = self.clock.call(self.operators.stream(), call, sent)
        else:
            mark = self.clock.meet(call, sent) if len(call.ranks) > 1 else Mark()
        if written and (
            captures or written[0] is not (sources[0] if sources else None)
        ):
            simulated = [t for t in written if isinstance(t, FakeTensor)]
            self.operators.known.forget(simulated)
        # Values of other ranks are requested only if they may determine a result.
        arrives = (
            self.data is not None
            or not call.timed
            or (bool(written) and not (unknown and needs_all_ranks(call.operation)))
        )
        asks = mark.call >= 0 and arrives
        if written and not asks:
            self._set(moved, [sent] * len(call.ranks), written)
        closing = [arrived]

        def waited() -> None:
            while closing:
                parts = self.clock.values(mark) if asks else {}
                closing.pop()()
                if parts and written:
                    self._set(
                        moved, [parts.get(rank) for rank in call.ranks], written
                    )
            if call.timed:
                self.clock.wait(self.operators.stream(), mark)

        if self._launch is not None:
            self._launch[1].append(waited)
        return waited

    def _connect(self, ranks: tuple[int, ...]) -> None:
        """Wait until all ranks of a group connect it, which blocks their processes."""
        if ranks not in self._connected and len(ranks) > 1:
            self._connected.add(ranks)
            mark = self.clock.meet(
                IssuedCall("connect", 0, ranks, timed=False, tag=-1), None
            )
            if mark.call >= 0:
                self.clock.values(mark)

    def launch(self) -> None:
        """Begin a group of calls that are launched together."""
        self._launch = self.clock.bunch(), []
        self._launch[0].__enter__()

    def launched(self) -> EndedWork:
        """End a group of calls; return its work."""
        assert self._launch is not None, "launch() precedes"
        (context, waits), self._launch = self._launch, None
        while self._launched:  # callers wait for the group's work instead
            self._open.pop(self._launched.pop(), None)
        context.__exit__(None, None, None)

        def waited() -> None:
            for wait in waits:
                wait()

        return EndedWork((), waited)

    def _number(self, group: Any, ranks: tuple[int, ...]) -> int:
        """Return the number of a group among groups of equal ranks; all ranks create them in equal order."""
        name = group.group_name
        if name not in self._copies:
            groups = dist.distributed_c10d._world.pg_map
            equal = (
                g for g in groups if tuple(dist.get_process_group_ranks(g)) == ranks
            )
            names = [g.group_name for g in equal]
            self._copies[name] = names.index(name) if name in names else 0
        return self._copies[name]

    @staticmethod
    def _group(given: Any) -> Any:
        named = given.get("group_name") or given.get("process_group")
        if isinstance(named, str):
            return dist.distributed_c10d._resolve_process_group(named)
        return (
            named
            if isinstance(named, dist.ProcessGroup)
            else dist.ProcessGroup.unbox(named)
        )

    def _outputs(
        self, func: Any, args: Any, kwargs: Any, given: Any
    ) -> list[torch.Tensor]:
        """Return the results of a functional collective without data."""
        if "out" in given:
            return [given["out"]]
        with self.operators.fake:
            result = func(*args, **kwargs)
        outputs = list(tree_leaves(result))
        self.operators.allocated(outputs)
        return outputs

    @staticmethod
    def _output_tensors(given: Any) -> list[torch.Tensor]:
        """Return the tensors that a call in place writes."""
        for key in ("output_tensors", "output_tensor", "outputs", "output"):
            if given.get(key) is not None:
                return [
                    t for t in tree_leaves(given[key]) if isinstance(t, torch.Tensor)
                ]
        tensors = given.get("tensors", given.get("inputs"))
        return [t for t in tree_leaves(tensors) if isinstance(t, torch.Tensor)]

    def _value(self, tensor: torch.Tensor) -> torch.Tensor | None:
        if not isinstance(tensor, FakeTensor):
            return tensor.detach()
        return self.operators.known.view(tensor)

    def _set(
        self, moved: MovedCall, sent: Sequence[Any], written: Sequence[torch.Tensor]
    ) -> None:
        """Set the values of results from the values that each rank sent."""
        values_of = self.operators.known
        distinct = {
            id(s): None if s is None else (decode_tensors(s[0]), s[1]) for s in sent
        }
        parts = [distinct[id(s)] for s in sent]
        for target, value in zip(
            written, results_of(moved, parts, len(written)), strict=True
        ):
            flat = None
            if value is not None and value.numel() >= target.numel():
                flat = value.reshape(-1)[: target.numel()].reshape(target.shape)
            if not isinstance(target, FakeTensor):
                if flat is not None:
                    target.detach().copy_(flat)
                continue
            view = values_of.view(target)
            if flat is None:
                values_of.forget([target])
            elif view is not None:
                view.copy_(flat)
            elif target.storage_offset() == 0:
                values_of.put(target, flat)

    def _answer(
        self, func: Any, written: Sequence[torch.Tensor], waited: Any
    ) -> Any:
        """Return the tensors and the work of an operator of ``c10d``."""

        number = next(self._numbers)  # a reference to the work would be a cycle

        def closed() -> None:
            waited()
            self._open.pop(number, None)

        def taken() -> None:
            for tensor in written:
                if isinstance(tensor, FakeTensor):
                    storage = tensor.untyped_storage()
                    self.operators.arriving[storage._cdata] = (
                        StorageWeakRef(storage),
                        closed,
                    )

        # PyTorch keeps only the C++ part of a Python object.
        self._open[number] = work = EndedWork(written, closed, taken)
        if self._launch is not None:
            self._launched.append(number)
        returns = func._schema.returns
        if len(returns) == 1:
            return work.boxed()
        kind = str(returns[0].type)
        if kind.startswith("List[List"):
            return [list(written)], work.boxed()
        return (
            list(written) if kind.startswith("List") else written[0]
        ), work.boxed()

    def _wait_for(self, tensor: torch.Tensor) -> None:
        end = self._ends.pop(tensor.untyped_storage()._cdata, None)
        if end is not None and not end[0].expired():
            end[1]()


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

    def __new__(
        cls, _store: Any, rank: int, size: int, *_given: Any, **_more: Any
    ) -> Any:
        """Return a group without a connection."""
        return FakeProcessGroup._create_internal(
            rank, size, FakeProcessGroup.Options()
        )


def install(groups: SimulatedGroups, world_size: int, store: Any) -> None:
    """Replace the back ends of ``torch.distributed`` by unconnected groups, which share a store."""
    module, rank, numbers = dist.distributed_c10d, groups.rank, itertools.count()
    dist.ProcessGroup._start_coalescing = lambda self, device: groups.launch()
    dist.ProcessGroup._end_coalescing = lambda self, device: groups.launched()
    FakeProcessGroup.supports_coalescing = property(lambda self: True)

    module.ProcessGroupNCCL = module.ProcessGroupGloo = _Unconnected
    module._NCCL_AVAILABLE = True
    module.default_pg_nccl_timeout = module.default_pg_timeout
    # Statistics of DistributedDataParallel use CUDA events and connected groups of gloo in C++.
    dist.Logger.set_runtime_stats_and_log = lambda self: None
    dist.Logger.set_construction_data_and_log = lambda self, *given: None
    FakeProcessGroup._set_sequence_number_for_group = lambda self: None
    FakeProcessGroup._set_default_timeout = lambda self, timeout: None
    FakeProcessGroup.options = property(lambda self: _Unconnected.Options())
    started = module.init_process_group

    def init_process_group(backend: Any = None, *_given: Any, **more: Any) -> None:
        wanted = int(more.get("world_size", -1) or -1)
        size = wanted if wanted > 0 else world_size
        if size > world_size:
            raise InputError(
                f"init_process_group: {size} ranks; the system has {world_size} GPUs"
            )
        if rank >= size:
            raise SystemExit(0)  # a rank that the job does not have
        # A bound device would split communicators, which unconnected groups cannot.
        groups.bound = more.get("device_id") is not None
        options = {k: v for k, v in more.items() if k in ("timeout", "group_name")}
        prefix = dist.PrefixStore(f"default {next(numbers)}", store)
        started(backend, store=prefix, rank=rank, world_size=size, **options)

    split = module.split_group

    def split_group(
        parent_pg: Any = None, split_ranks: Any = None, *_given: Any, **_more: Any
    ) -> Any:
        of = dist.get_process_group_ranks(parent_pg)
        new_groups = [
            dist.new_group([of[position] for position in part])
            for part in split_ranks
        ]
        return next(
            (group for group in new_groups if isinstance(group, dist.ProcessGroup)),
            None,
        )

    for place in (dist, module, dist.device_mesh):
        for name, before, after in (
            ("init_process_group", started, init_process_group),
            ("split_group", split, split_group),
        ):
            if getattr(place, name, None) is before:
                setattr(place, name, after)
    dist.TCPStore = module.TCPStore = lambda *_given, **_more: store
