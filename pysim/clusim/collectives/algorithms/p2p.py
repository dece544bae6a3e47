"""Point to point: one send and receive, and the ring of send/recv pairs that nccl-tests measures.

**Hardware**: NCCL's ``sendrecv.h``: chunks of one step, sending and receiving in different warps of
a CTA, a message spread over several channels. **Model**: the same, as two programs. **Parameters**:
`Shape`.
"""

from __future__ import annotations

from clusim.collectives.entry import algorithm
from clusim.schedule.builder import CollectiveWriter
from clusim.schedule.ir import Prim
from clusim.topology.model import Fabric

SEND = Prim("send", send=0)
RECV = Prim("recv", recv=0)


@algorithm("send", "direct", default=True, channels="p2p")
def write_send(writer: CollectiveWriter, fabric: Fabric | None) -> None:
    """Write a message from position 0 to position 1."""
    for part in writer.parts():
        pipe = writer.connect(0, 1, part.channel)
        writer.program(0, part, [SEND], [pipe], name="send")
        writer.program(1, part, [RECV], [pipe], name="recv")


@algorithm("sendrecv", "direct", default=True, channels="p2p", growth="steps")
def write_sendrecv(writer: CollectiveWriter, fabric: Fabric | None) -> None:
    """Write everybody's message to the next position."""
    size = writer.size
    for part in writer.parts():
        pipes = [writer.connect(src, (src + 1) % size, part.channel) for src in range(size)]
        for position in range(size):
            writer.program(position, part, [SEND], [pipes[position]], name="send")
            writer.program(position, part, [RECV], [pipes[position - 1]], sm=0, name="recv")
