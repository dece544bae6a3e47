"""What a slice between machines waits for: counters and places that lie in the host's memory.

**Hardware** A CTA and the host's thread that serves its rank tell each other of steps through a FIFO in the host's
memory. Before a slice of Simple is copied, a GPU's thread loads from there how the step lies, and where, if buffers are
shared by connections, as those of sends and receives are; the fence of a sender waits until the size of the step is
written there (NCCL, ``src/device/prims_simple.h``: ``waitPeer``, ``postPeer``). **Model** Each of them takes a slice
the time in which a GPU reads the host's memory. The loads of a sender that receives in the same slice go on while it
waits for the data. **Not modelled** Loads that queue behind the data an adapter reads; the fences of LL128; gdrcopy,
with which counters lie in the GPU's memory. **Parameters** None of its own: the latency between GPU and host.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from clusim.schedule.ir import Connection, Instance

LOADS = 1
"""Loads of a step from the FIFO: how it lies."""

SHARED_LOADS = 1
"""Further loads where buffers are shared: where it lies."""

FENCES = 1
"""Fences of a sender behind its size."""


def host_trips(item: Instance, connections: Sequence[Connection], proxied: Container[int]) -> int:
    """Return how often a slice of a program waits for the host's memory, there and back.

    Parameters
    ----------
    connections : sequence of Connection
        Those of the schedule.
    proxied : container of int
        Which of them lead to another machine by a proxy.
    """
    if item.protocol != "simple":
        return 0
    far = [number for number in item.connections if number in proxied]
    if not far:
        return 0
    loads = LOADS + SHARED_LOADS * item.shared
    sends = any(connections[number].src == item.rank for number in far)
    if not sends:
        return loads
    receives = any(connections[number].dst == item.rank for number in item.connections)
    return FENCES + (0 if receives else loads)
