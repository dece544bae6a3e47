"""Counts and sizes around 2^31 and 2^32: exact on both engines, or refused by both in the same words."""

from __future__ import annotations

import numpy as np
import pytest

from clusim.base.errors import ScheduleError
from clusim.engine.abi import Stop
from clusim.engine.image import Image
from clusim.engine.ranges import OFFSET_END_BYTES, PACKETS_END, SLICES_END, WIRE_BYTES_END
from clusim.engine.reference import ReferenceSimulation
from support.images import ImageBuilder, Place, prim

EDGES = [edge + d for edge in (2**31, 2**32) for d in (-1, 0, 1)]
BURST = 2**27  # packets of one byte and one of header: 2^28 bytes on a wire


def _pair(**wire: int) -> tuple[ImageBuilder, Place, Place]:
    b = ImageBuilder()
    a, c = b.endpoint(inject_256=256), b.endpoint(mem_cost16=3)
    b.link(a, c, **wire)
    return b, a, c


def _same(image: Image, compiled):
    """Run on both engines, compare, and return one of the two."""
    sims = ReferenceSimulation(image), compiled(image)
    assert [sim.run() for sim in sims] == [Stop.DONE, Stop.DONE]
    assert sims[0].fingerprint() == sims[1].fingerprint()
    for read in ("wires", "message_times", "records", "mem_bytes_256"):
        assert np.array_equal(getattr(sims[0], read)(), getattr(sims[1], read)()), read
    for sim in sims:
        sim.check_conservation()
    return sims[1]


@pytest.mark.parametrize("size_bytes", EDGES)
def test_a_message_of_many_exact_packets_is_counted_exactly(compiled, size_bytes):
    b, a, c = _pair()
    b.source(a, [(0, size_bytes, c)], packet_bytes=1, burst=BURST)
    sim = _same(b.build(), compiled)
    wire = sim.wires()[0]
    assert (wire["packets"], wire["payload"], wire["bytes"]) == (
        size_bytes,
        size_bytes,
        2 * size_bytes,
    )
    assert wire["grants"] == -(-size_bytes // BURST)
    # 20 ps per packet on the wire. The memory takes 2^27 * 3 / 2^16 ps for a full burst, and only then the last.
    full_bytes = (wire["grants"] - 1).item() * BURST
    accepted_ps = max(20 * size_bytes + 1000, 20 * full_bytes + 1000 + 6144)
    assert sim.now_ps == accepted_ps + 10
    assert sim.mem_bytes_256().tolist() == [256 * size_bytes] * 2


@pytest.mark.parametrize("size_bytes", EDGES)
def test_a_chunk_of_many_bytes_moves_exactly(compiled, size_bytes):
    b, a, c = _pair()
    conn = b.conn(a, c, packet_bytes=2**20, burst=2**8)
    fields = {"length": size_bytes, "chunk_bytes": size_bytes, "slices": 2, "limit": 2**40}
    b.run_alone(a, prim("send", send=0), conns=(conn,), **fields)
    b.run_alone(c, prim("recv", recv=0), conns=(conn,), **fields)
    assert _same(b.build(), compiled).wires()["payload"][0] == size_bytes


@pytest.mark.parametrize("offset", [*EDGES, 2**61])
def test_chunks_far_inside_a_buffer_have_their_size(compiled, offset):
    """Piece q of mode 1 is cut at `limit`, which lies in the middle of the second."""
    b, a, c = _pair()
    conn = b.conn(a, c, packet_bytes=1000)
    fields = {"length": 3000, "chunk_bytes": 3000, "offset": offset, "stride": offset // 2}
    fields["limit"] = offset + offset // 2 + 1500
    for place, kind in ((a, {"send": 0}), (c, {"recv": 0})):
        template = b.template(
            *(prim(next(iter(kind)), base=q, **kind) for q in (0, 1)), nchunks=2, mode=1
        )
        b.instance(b.task(), place, template, (conn,), **fields)
    if 2 * (offset // 2) + offset + 6000 < OFFSET_END_BYTES:
        sim = _same(b.build(), compiled)
        assert sim.wires()["payload"][0] == 3000 + 1500
    else:
        _refused(b.build(), compiled, "instances\\[0\\]: chunks at or beyond 2\\^62 bytes")


@pytest.mark.parametrize("key", [2**31 - 1, 2**31, 2**32 - 2, 2**32 - 1])
def test_packet_numbers_go_round_at_their_end(compiled, key):
    b, a, c = _pair()
    b.link(a, c)
    b.link(a, c)
    b.source(a, [(0, 99 * 9, c), (5, 99 * 4, c)], key=key)
    conn = b.conn(a, c, key=key)
    b.run_alone(a, prim("send", send=0), conns=(conn,), length=99 * 7, slices=2)
    b.run_alone(c, prim("recv", recv=0), conns=(conn,), length=99 * 7, slices=2)
    assert _same(b.build(), compiled).wires()["payload"].sum() == 99 * 20


def _refused(image: Image, compiled, words: str) -> None:
    said = []
    for engine in (ReferenceSimulation, compiled):
        with pytest.raises(ScheduleError, match=words) as caught:
            engine(image)
        said.append(str(caught.value))
    assert said[0] == said[1]


def _starts_alike(image: Image, compiled) -> None:
    sims = ReferenceSimulation(image), compiled(image)
    assert sims[0].run(until_ps=5000) == sims[1].run(until_ps=5000)
    assert np.array_equal(sims[0].wires(), sims[1].wires())
    assert sims[0].wires()["packets"][0] > 0


def _messages(size_bytes: int, **fields: int) -> Image:
    b, a, c = _pair()
    b.source(a, [(0, size_bytes, c)], **fields)
    return b.build()


def _sender(packet_bytes: int, **fields: int) -> Image:
    b, a, c = _pair()
    conn = b.conn(a, c, packet_bytes=packet_bytes, slots=64)
    b.run_alone(a, prim("send", send=0), conns=(conn,), **fields)
    return b.build()


def test_a_transfer_has_fewer_than_2_to_the_32_packets(compiled):
    _starts_alike(_messages(PACKETS_END - 1, packet_bytes=1), compiled)
    _starts_alike(_messages(7 * PACKETS_END - 7, packet_bytes=7), compiled)
    _refused(
        _messages(PACKETS_END, packet_bytes=1),
        compiled,
        "messages\\[0\\]: 4294967296 packets; at most",
    )
    _refused(
        _messages(4294967300, packet_bytes=1),
        compiled,
        "4294967300 packets; at most 2\\^32-1: larger",
    )
    _starts_alike(_sender(1, length=PACKETS_END - 1, limit=2**40), compiled)
    _refused(
        _sender(1, length=PACKETS_END + 3, limit=2**40),
        compiled,
        "instances\\[0\\]: 4294967299 packets",
    )
    two = {"length": PACKETS_END + 3, "limit": 2**40, "slices": 2}
    _starts_alike(_sender(1, **two), compiled)


def test_a_burst_has_fewer_than_2_to_the_29_bytes_on_a_wire(compiled):
    most = WIRE_BYTES_END // 2 - 1
    _starts_alike(_messages(100, packet_bytes=1, burst=most), compiled)
    words = "sources\\[0\\]: a burst of 2\\^29 bytes or more on a wire"
    _refused(_messages(100, packet_bytes=1, burst=most + 1), compiled, words)


@pytest.mark.parametrize("fault", [False, True])
def test_the_least_packet_lasts_a_picosecond_at_least(compiled, fault):
    """16 B: the header of a packet without payload."""

    def image(num: int) -> Image:
        b = ImageBuilder()
        a, c = b.endpoint(), b.endpoint()
        b.link(a, c, format=b.format(header=16))
        b.source(a, [(0, 170, c)], packet_bytes=1)
        if fault:
            b.fault(0, wire=0, num=num, den=1)
        else:
            b.rows["wires"][0].update(rate_num=num, rate_den=1)
        return b.build()

    _starts_alike(image(16), compiled)
    table = "faults" if fault else "wires"
    _refused(
        image(17), compiled, f"{table}\\[0\\]: a packet would last less than 1 ps; a lower rate"
    )


def test_an_instance_has_fewer_than_2_to_the_32_slices(compiled):
    _starts_alike(_sender(16, length=SLICES_END - 1, chunk_bytes=1), compiled)
    words = "instances\\[0\\]: 2\\^32 slices or more"
    _refused(_sender(16, length=SLICES_END, chunk_bytes=1), compiled, words)


def test_a_pausing_wire_never_runs_out_of_room(compiled):
    """Its sender counts no credit: whatever went over it before, the receiver alone stops it."""
    b, a, c = _pair(buffer_bytes=2**30, xoff_bytes=2**29, xon_bytes=2**28)
    b.source(a, [(0, 2**36, c)], packet_bytes=2**20, burst=2**8)
    assert _same(b.build(), compiled).wires()["pauses"][0] == 0
