"""Gates of machines and their networks: packet limits, bridges, targets, zones, staged connections.

Defaults as in `test_gates`: 99 + 1 bytes at 10 ps per byte, 1000 ps of propagation, 100 ps from a packet's head to the
next output, so that every node in between adds 1100 ps to the 2010 ps of one hop.
"""

from __future__ import annotations

import pytest

from clusim.engine.abi import NONE, Kind
from support.gates import assert_messages_at, assert_records_at, counters, finish
from support.images import NETWORK, ImageBuilder, Place, prim

HOP = 1100


def test_a_wire_with_a_limit_cuts_packets(engine):
    builder = ImageBuilder()
    builder.format(limit=40)
    a, b = builder.endpoint(), builder.endpoint()
    there = builder.link(a, b)
    builder.source(a, [(0, 99, b)])
    sim = assert_messages_at(engine, builder, 410 + 410 + 200 + 1010)  # 40, 40 and 19 bytes
    assert counters(sim, there, "packets", "grants", "bytes", "payload") == (3, 1, 102, 99)


def test_a_limit_above_the_packet_size_changes_nothing(engine):
    builder = ImageBuilder()
    builder.format(limit=128)
    a, b = builder.endpoint(), builder.endpoint()
    there = builder.link(a, b)
    builder.source(a, [(0, 198, b)], burst=2)
    sim = assert_messages_at(engine, builder, 2000 + 1010)
    assert counters(sim, there, "packets", "grants", "bytes") == (2, 1, 200)


def test_a_wire_without_a_limit_joins_what_the_one_before_cut(engine):
    builder = ImageBuilder()
    small, large = builder.format(limit=40), builder.format(header=5)
    a, b, switch = builder.endpoint(), builder.endpoint(), builder.switch()
    first = builder.link(a, switch, format=small)
    second = builder.link(switch, b, format=large)
    builder.source(a, [(0, 99, b)])
    # 102 bytes, then 104; the head decides when the second wire starts.
    sim = assert_messages_at(engine, builder, HOP + 1040 + 1010)
    assert counters(sim, first, "packets", "bytes") == (3, 102)
    assert counters(sim, second, "packets", "bytes") == (1, 104)


def test_a_limit_of_requests_multiplies_their_headers(engine):
    builder = ImageBuilder()
    builder.format(header=8, limit={Kind.READ_REQ: 30})
    a, b = builder.endpoint(), builder.endpoint()
    builder.link(a, b)
    conn = builder.conn(a, b, "read", packet_bytes=92)
    builder.run_alone(a, prim("send", send=0), conns=(conn,), length=92)
    reader = builder.run_alone(b, prim("recv", recv=0), conns=(conn,), length=92)
    request = 4 * 80 + 1000
    sim = assert_records_at(engine, builder, reader, request + 20 + 1000 + 1000 + 30)
    assert counters(sim, 1, "packets", "bytes") == (4, 32)
    assert counters(sim, 0, "packets", "bytes") == (1, 100)


def test_control_bytes_are_owed_for_every_packet_of_the_wire(engine):
    builder = ImageBuilder()
    builder.format(limit=40, control=10 * 256)
    a, b = builder.endpoint(), builder.endpoint()
    builder.link(a, b)
    builder.source(a, [(0, 99, b)])
    builder.source(b, [(2020, 99, a)])  # when a's packet arrives: 30 bytes go in front
    sim = assert_messages_at(engine, builder, 2030, 2020 + (30 + 102) * 10 + 1010)
    assert counters(sim, 1, "control_bytes") == (30,)


def fetcher(bridge: bool = True, **fields) -> tuple[ImageBuilder, Place, Place, Place]:
    """Return a - NIC - b; FETCH has 11 bytes of header and at most 50 of payload, WRITE 1 and 99."""
    builder = ImageBuilder()
    builder.format(header={Kind.FETCH: 11}, limit={Kind.FETCH: 50}, **fields)
    a, b, nic = builder.endpoint(inject_256=256), builder.endpoint(), builder.nic()
    builder.rows["nodes"][nic.node]["flags"] = 2 * bridge
    builder.link(a, nic)
    builder.link(nic, b)
    return builder, a, b, nic


def test_a_bridge_makes_a_write_of_a_fetch(engine):
    builder, a, b, nic = fetcher()
    builder.source(a, [(0, 99, b)], vias=[(nic, NONE)])
    # 121 bytes; the tail is at the NIC at 2210, and goes out as 100 bytes at 2210 + 90 - 1000.
    sim = assert_messages_at(engine, builder, 1300 + 1000 + 1010)
    assert counters(sim, 0, "packets", "bytes", "payload") == (2, 121, 99)
    assert counters(sim, 2, "packets", "bytes", "payload") == (1, 100, 99)
    assert sim.mem_bytes_256().tolist() == [99 * 256, 99 * 256]


def test_without_a_bridge_a_fetch_stays_one(engine):
    builder, a, b, nic = fetcher(bridge=False)
    builder.source(a, [(0, 99, b)], vias=[(nic, NONE)])
    sim = assert_messages_at(engine, builder, 1000 + 110 + 90 + 1210 + 1010)  # from its header on
    assert counters(sim, 2, "packets", "bytes", "payload") == (2, 121, 99)


def test_only_a_first_via_makes_a_fetch(engine):
    builder, a, b, nic = fetcher()
    builder.source(a, [(0, 99, b)], vias=[(NONE, nic)])
    sim = assert_messages_at(engine, builder, HOP + 2010)
    assert counters(sim, 0, "packets", "bytes") == (1, 100)


def test_a_fetch_owes_as_a_fetch_where_it_becomes_a_write(engine):
    builder, a, b, nic = fetcher(control={Kind.FETCH: 512, Kind.WRITE: 256})
    builder.source(a, [(0, 99, b)], vias=[(nic, NONE)])
    builder.source(b, [(5000, 99, a)])  # long after: what is owed has drained
    sim = assert_messages_at(engine, builder, 3310, 5000 + HOP + 2010)
    assert counters(sim, 1, "control_bytes") == (2 * 2,)
    assert counters(sim, 3, "control_bytes") == (1,)


def bypass() -> tuple[ImageBuilder, Place, Place, Place, Place]:
    """Return a - switch - b with two NICs on the switch."""
    builder = ImageBuilder()
    a, b, switch = builder.endpoint(), builder.endpoint(), builder.switch()
    nics = builder.nic(), builder.nic()
    for place in (a, b, *nics):
        builder.link(place, switch)
    return builder, a, b, *nics


@pytest.mark.parametrize(
    ("vias", "nodes"),
    [((None, None), 1), ((0, None), 3), ((None, 1), 3), ((0, 0), 3), ((0, 1), 5), ((1, 0), 5)],
)
def test_a_packet_is_steered_over_its_vias(engine, vias, nodes):
    builder, a, b, *nics = bypass()
    builder.source(
        a, [(0, 99, b)], vias=[tuple(NONE if via is None else nics[via] for via in vias)]
    )
    assert_messages_at(engine, builder, nodes * HOP + 2010)


def test_every_message_has_its_own_vias(engine):
    builder, a, b, nic, _ = bypass()
    builder.source(a, [(0, 99, b), (0, 99, b)], vias=[(nic, NONE), (NONE, NONE)])
    sim = finish(engine, builder)
    assert sim.message_times().tolist() == [3 * HOP + 2010, 1000 + HOP + 2010]


def test_a_connection_is_steered_over_its_vias(engine):
    builder, a, b, nic, _ = bypass()
    conn = builder.conn(a, b, via_first=nic)
    sender = builder.run_alone(a, prim("send", send=0), conns=(conn,))
    receiver = builder.run_alone(b, prim("recv", recv=0), conns=(conn,))
    assert_records_at(engine, builder, sender, 1000)
    assert_records_at(engine, builder, receiver, 3 * HOP + 2010)


def cluster(wide_stride: int) -> tuple[ImageBuilder, list[Place], list[Place]]:
    """Return three machines of one endpoint and one NIC, on one switch of the network."""
    builder = ImageBuilder()
    net = builder.switch(zone=NETWORK)
    gpus = [builder.endpoint(zone=zone) for zone in range(3)]
    nics = [builder.nic(zone=zone, wide_stride=wide_stride) for zone in range(3)]
    for gpu, nic in zip(gpus, nics, strict=True):
        builder.link(gpu, nic)
        builder.link(nic, net)
    return builder, gpus, nics


@pytest.mark.parametrize("wide_stride", [0, 1])
def test_packets_cross_machines_by_local_and_wide_routes(engine, wide_stride):
    builder, gpus, nics = cluster(wide_stride)
    for i in range(3):
        after = (i + 1) % 3
        builder.source(gpus[i], [(0, 99, gpus[after])], vias=[(nics[i], nics[after])])
    assert_messages_at(engine, builder, *[3 * HOP + 2010] * 3)


def staged(parallel: int = 1, **conn) -> tuple[ImageBuilder, list[Place], int]:
    """Return a = m = b with parallel links, and a connection from a to b with its data in m."""
    builder = ImageBuilder()
    a, b, m = builder.endpoint(), builder.endpoint(), builder.endpoint()
    for ends in ((a, m), (m, b)):
        for _ in range(parallel):
            builder.link(*ends)
    return builder, [a, b, m], builder.conn(a, b, stage=m.ep, **conn)


READ = 10 + 1000 + 20 + 1000 + 1000 + 30  # request of one byte, memory, response


def test_a_staged_connection_writes_and_reads(engine):
    builder, (a, b, _), conn = staged(tail_ps=500, head_ps=70)
    builder.rows["conns"][conn]["slots"] = 1
    there = builder.run_alone(a, prim("send", send=0, repeat=2), conns=(conn,))
    here = builder.run_alone(b, prim("recv", recv=0, repeat=2), conns=(conn,))
    first = 2010 + 500 + READ
    second = first + 70 + 2010 + 500 + READ  # the slot is free when the READ is done
    sim = assert_records_at(engine, builder, here, first, second)
    assert (
        counters(sim, 0, "payload", "grants") == counters(sim, 2, "payload", "grants") == (198, 2)
    )
    assert_records_at(engine, builder, there, 1000, first + 70 + 1000)
    assert sim.mem_bytes_256().tolist() == [0, 198 * 256, 2 * 198 * 256]


def test_the_two_halves_of_a_staged_connection_count_apart(engine):
    builder, (a, b, _), conn = staged(parallel=2, key=1)
    builder.run_alone(a, prim("send", send=0), conns=(conn,))
    builder.run_alone(b, prim("recv", recv=0), conns=(conn,))
    sim = finish(engine, builder)
    # Wires 0, 2 to the memory, 5, 7 for requests: both begin at number 1.
    grants = [counters(sim, wire, "grants")[0] for wire in (0, 2, 4, 6, 5, 7)]
    assert grants == [0, 1, 0, 1, 0, 1]


def test_a_staged_read_can_feed_a_write_of_the_same_slice(engine):
    builder, (a, b, _), conn = staged()
    c = builder.endpoint()
    builder.link(b, c)
    onward = builder.conn(b, c)
    builder.run_alone(a, prim("send", send=0), conns=(conn,))
    middle = builder.run_alone(b, prim("recvCopySend", recv=0, send=1), conns=(conn, onward))
    last = builder.run_alone(c, prim("recv", recv=0), conns=(onward,))
    assert_records_at(engine, builder, middle, 2010 + READ + 1000)
    assert_records_at(engine, builder, last, 2010 + READ + 2010)


def test_a_sync_primitive_on_a_staged_connection_moves_nothing(engine):
    builder, (a, b, _), conn = staged()
    builder.run_alone(a, prim("send", send=0, flags=1), conns=(conn,), length=0)
    here = builder.run_alone(b, prim("recv", recv=0, flags=1), conns=(conn,), length=0)
    assert_records_at(engine, builder, here, 0)


def test_writes_to_a_stage_go_over_the_vias(engine):
    builder = ImageBuilder()
    a, b, m = builder.endpoint(), builder.endpoint(), builder.endpoint()
    switch, nic = builder.switch(), builder.nic()
    for place in (a, b, m, nic):
        builder.link(place, switch)
    conn = builder.conn(a, b, stage=m.ep, via_first=nic)
    builder.run_alone(a, prim("send", send=0), conns=(conn,))
    here = builder.run_alone(b, prim("recv", recv=0), conns=(conn,))
    read = READ + 2 * HOP  # each way crosses the switch
    assert_records_at(engine, builder, here, 3 * HOP + 2010 + read)
