"""Data of collectives, added in the order of the simulated algorithm.

Sums of floats depend on the order of additions. They are performed by the programs of NCCL's plan (`Executor`): along
rings and trees, in switches in the order of NVLS. Other operations do not depend on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import numpy as np

from clusim.base.arrays import Array
from clusim.base.terms.dtypes import REDUCTIONS
from clusim.schedule.dtypes import ELEMENTS, combine, divide
from clusim.schedule.executor import Executor
from clusim.schedule.semantics import run_untimed
from clusim.shim.calls import SCALED, NcclCall
from clusim.shim.elements import element_type
from clusim.simulation.nccl_choice import nccl_choice
from clusim.simulation.request import Request

EXECUTED_BYTES = 1 << 28
"""Maximum sum of all ranks' inputs that programs reduce slice by slice; larger data, and 8-bit floats,
are reduced in rank order."""


def scale_inputs(calls: Sequence[NcclCall], inputs: Sequence[Array]) -> list[Array]:
    """Return the inputs, multiplied by the factors of the ranks if the reduction has them."""
    if calls[0].redop != SCALED:
        return list(inputs)
    kind = element_type(calls[0].dtype.name)
    result = []
    for call, values in zip(calls, inputs, strict=True):
        bits = np.frombuffer(call.scalar.to_bytes(8, "little"), np.uint8)
        factor = bits[: kind.size_bytes].view(kind.storage)
        result.append(combine(kind, "prod", values, factor))
    return result


def reduce_inputs(
    calls: Sequence[NcclCall], inputs: Sequence[Array], request: Request
) -> list[Array]:
    """Return the reduced elements that each rank gets: the vector, or its block of a reduce-scatter."""
    kind = element_type(calls[0].dtype.name)
    redop = "sum" if calls[0].redop == SCALED else REDUCTIONS[calls[0].redop]
    inputs = scale_inputs(calls, inputs)
    count, ranks = calls[0].count, len(calls)
    ordered = kind.is_float and kind.name in ELEMENTS and redop not in ("max", "min")
    if ordered and sum(values.nbytes for values in inputs) <= EXECUTED_BYTES:
        outputs = _execute_programs(inputs, request)
        if outputs is not None:
            return outputs
    total = reduce(lambda left, right: combine(kind, redop, left, right), inputs)
    if redop == "avg":
        total = divide(kind, total, ranks)
    if calls[0].operation == "reduce_scatter":
        return [total[rank * count : (rank + 1) * count] for rank in range(ranks)]
    return [total] * ranks


def _execute_programs(
    inputs: Sequence[Array], request: Request
) -> list[Array] | None:
    """Return the outputs of NCCL's programs; None if their blocks differ from the call's."""
    schedule = nccl_choice(request).schedule()
    call = schedule.calls[0]
    scatters = request.operation == "reduce_scatter"
    if call.bytes != inputs[0].nbytes or (
        scatters and call.block_bytes * len(inputs) != call.bytes
    ):
        return None
    ranks = request.setup.comm.ranks
    buffers = {
        rank: values.copy() for rank, values in zip(ranks, inputs, strict=True)
    }
    executor = Executor(schedule, [[buffers[rank] for rank in call.ranks]])
    run_untimed(executor)
    outputs = {rank: executor.output(0, rank) for rank in call.ranks}
    if not scatters:
        return [outputs[rank] for rank in ranks]
    count = len(inputs[0]) // len(inputs)
    place = {rank: position for position, rank in enumerate(call.ranks)}
    return [
        outputs[rank][place[rank] * count : (place[rank] + 1) * count]
        for rank in ranks
    ]
