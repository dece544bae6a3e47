"""One-sided operations in a schedule under construction: puts and signals, and waits of a group for them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from clusim.collectives.algorithms.copyengines import (
    engine_shape,
    write_put,
    write_signal,
)
from clusim.collectives.api import Options, make_call
from clusim.schedule.builder import ProgramBuilder, Site
from clusim.schedule.collective_writer import CollectiveWriter, check_call
from clusim.schedule.ir import CollectiveCall, Task
from clusim.topology.model import Fabric


def put_call(
    target: Fabric | int, ends: tuple[int, int], bytes: int
) -> CollectiveCall:
    """Return the call of a put from the first to the second rank."""
    options: Options = {"ranks": ends, "dtype": "uint8"}
    return make_call(target, "send", "put", bytes, options)


def signal_call(target: Fabric | int, ends: tuple[int, int]) -> CollectiveCall:
    """Return the call of a signal of the first at the second rank."""
    call = CollectiveCall("barrier", 0, ends, "uint8", algorithm="signal")
    check_call(call, target if isinstance(target, int) else target.num_ranks)
    return call


def one_sided(
    builder: ProgramBuilder, call: CollectiveCall, stream: str, after: Iterable[int]
) -> tuple[int, int]:
    """Append a put or a signal: a task of the sender, and one of the receiver's memory in a separate stream."""
    rank, peer = call.ranks
    task = builder.task(
        Task("program", rank, stream, name=f"{call.algorithm} {peer}"), after
    )
    memory = builder.task(
        Task("program", peer, f"{stream} of {rank}", name=f"memory {rank}")
    )
    index = builder.call(call)
    for item in (task, memory):
        builder.assign(item, index)
    writer = CollectiveWriter(
        builder, call, engine_shape(call, None), (task, memory)
    )
    (write_put if call.algorithm == "put" else write_signal)(writer, None)
    return task, memory


def emit_puts(
    site: Site,
    target: Fabric,
    ranks: Sequence[int],
    puts: Sequence[tuple[int, int, int]],
) -> list[tuple[int, ...]]:
    """Append puts (source, target, bytes), which count in `ranks`; 0 bytes is a signal.

    Later tasks of the stream follow the rank's puts and the arrival of puts to it.

    Returns
    -------
    list of tuple of int
        Per rank its puts and the arrivals at it; of other ranks their dependencies.
    """
    after = [tuple(deps) for deps in site.after or [()] * len(ranks)]
    ended: dict[int, list[int]] = defaultdict(list)
    for source, sink, size in puts:
        ends = ranks[source], ranks[sink]
        call = put_call(target, ends, size) if size else signal_call(target, ends)
        task, memory = one_sided(site.builder, call, site.stream, after[source])
        ended[source].append(task)
        ended[sink].append(memory)
    for position, tasks in ended.items():
        site.builder.wait(
            ranks[position], (*after[position], *tasks), stream=site.stream
        )
    return [
        tuple(ended.get(position, after[position])) for position in range(len(ranks))
    ]
