"""Values of all tensors of a rank, moved among the processes of all ranks by gloo."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves, tree_map

from clusim.base.errors import InputError
from clusim.programs.known import KnownValues

TIMEOUT = timedelta(hours=24)
"""Longest wait for another rank, in real time."""

_GROUPS = ("process_group", "group_name")
"""Arguments of operators that name the group."""

_WRITTEN = (
    "output_tensors",
    "output_tensor",
    "outputs",
    "output",
    "tensors",
    "inputs",
)
"""Arguments that a call in place writes: the first that exists."""


class RealData:
    """Connected groups of gloo, created at their first call.

    Parameters
    ----------
    known : KnownValues
        Values of all tensors of the rank.
    store : Store
        Store of all ranks.
    """

    def __init__(self, known: KnownValues, rank: int, store: Any) -> None:
        self.known, self.rank, self.store = known, rank, store
        self.gloo = dist.ProcessGroupGloo
        self._groups: dict[tuple[int, ...], dist.ProcessGroup] = {}

    def _group(self, ranks: tuple[int, ...]) -> dist.ProcessGroup:
        if ranks not in self._groups:
            store = dist.PrefixStore(f"data {ranks}", self.store)
            position, size = ranks.index(self.rank), len(ranks)
            group = dist.ProcessGroup(store, position, size)
            kind = dist.ProcessGroup.BackendType.GLOO
            gloo = self.gloo(store, position, size, TIMEOUT)
            group._register_backend(torch.device("cpu"), kind, gloo)
            group._set_default_backend(kind)
            group._set_group_name(name := f"clusim {ranks}")
            torch._C._distributed_c10d._register_process_group(name, group)
            self._groups[ranks] = group
        return self._groups[ranks]

    def _value(self, leaf: Any) -> Any:
        if not isinstance(leaf, FakeTensor):
            return leaf
        value = self.known.view(leaf)
        if value is None:
            raise InputError(
                f"a collective has a tensor of {tuple(leaf.shape)} without data"
            )
        return value

    def start(
        self,
        func: Any,
        given: dict[str, Any],
        ranks: tuple[int, ...],
        outputs: list[torch.Tensor],
    ) -> Callable[[], None]:
        """Start a call with the values of its tensors; return the function that completes it.

        Parameters
        ----------
        outputs : list of Tensor
            Results of a functional collective; others write their arguments.
        """
        group = self._group(ranks)
        values = {key: tree_map(self._value, value) for key, value in given.items()}
        for key in _GROUPS:
            if key in values:
                values[key] = (
                    group.group_name
                    if isinstance(values[key], str)
                    else group.boxed()
                )
        mean = self._replace_mean(values)
        written = next(
            (values[key] for key in _WRITTEN if values.get(key) is not None), ()
        )
        result = (
            self._mean(func, values, group)
            if mean and not outputs
            else func(**values)
        )
        if outputs:
            return lambda: self._finish(result, outputs, len(ranks) if mean else 1)
        work = result[-1] if isinstance(result, tuple | list) else result
        work = work if isinstance(work, dist._Work) else dist._Work.unbox(work)

        def complete() -> None:
            work.wait()
            for target in tree_leaves(written) if mean else ():
                target.div_(len(ranks))

        return complete

    @staticmethod
    def _replace_mean(values: dict[str, Any]) -> bool:
        """Replace a mean, which gloo lacks, by a sum; return True if it was one."""
        redop = values.get("reduce_op")
        if isinstance(redop, str):
            values["reduce_op"] = "sum" if redop.lower() == "avg" else redop
            return redop.lower() == "avg"
        return redop is not None and int(redop.op()) == int(dist.ReduceOp.AVG)

    @staticmethod
    def _mean(func: Any, values: dict[str, Any], group: dist.ProcessGroup) -> Any:
        """Start the sum of a mean, as operators cannot be called with another reduction."""
        name = func._schema.name.split("::")[-1]
        if name == "allreduce_":
            options = dist.AllreduceOptions()
            options.reduceOp = dist.ReduceOp.SUM
            return group.allreduce(values["tensors"], options)
        if name == "_reduce_scatter_base_":
            options = dist.ReduceScatterOptions()
            options.reduceOp = dist.ReduceOp.SUM
            return group._reduce_scatter_base(
                values["output_tensor"], values["input_tensor"], options
            )
        raise InputError(f"{name}: means are not computed; use a sum")

    def _finish(
        self, result: Any, outputs: list[torch.Tensor], divisor: int
    ) -> None:
        for value, output in zip(tree_leaves(result), outputs, strict=True):
            done = torch.ops._c10d_functional.wait_tensor(value)
            self.known.put(output, done / divisor if divisor > 1 else done)
