"""Gates of host threads and of pieces that others cut otherwise. Defaults as in `test_gates`."""

from __future__ import annotations

import pytest

from support.gates import assert_records_at
from support.images import ImageBuilder, Place, prim

PS = 65536  # 1 ps per byte as a cost16


def pieces(repeat: int, sender: dict[str, int], receiver: dict[str, int], **conn) -> ImageBuilder:
    """Return a that sends pieces of 99 bytes to b, each cut as they say."""
    builder = ImageBuilder()
    a, b = builder.endpoint(), builder.endpoint()
    builder.link(a, b)
    index = builder.conn(a, b, **conn)
    builder.run_alone(a, prim("send", send=0, repeat=repeat), conns=(index,), **sender)
    builder.run_alone(b, prim("recv", recv=0, repeat=repeat), conns=(index,), **receiver)
    return builder


WHOLE = {"slices": 4, "slice_min": 99}  # all bytes are in the first of four slices


@pytest.mark.parametrize(("slots", "third"), [(11, 2010 + 700 + 1000), (12, 3000)])
def test_the_last_slice_with_bytes_takes_the_slots_of_those_without(engine, slots, third):
    builder = pieces(3, WHOLE, WHOLE, slots=slots, head_ps=700)
    assert_records_at(engine, builder, 0, 1000, 2000, third)


def test_a_receiver_of_whole_pieces_waits_for_all_slices(engine):
    cut = {"slices": 3, "slice_min": 1}  # 48, 48 and 3 bytes, with a header of 1 each
    builder = pieces(1, cut, {"slices": 1, "slots_per_slice": 3})
    assert_records_at(engine, builder, 0, 490, 980, 1020)
    assert_records_at(engine, builder, 1, 1020 + 1010)


def test_a_sender_of_whole_pieces_lets_all_slices_go_on(engine):
    cut = {"slices": 3, "slice_min": 1}
    builder = pieces(1, {"slices": 1, "slots_per_slice": 3}, cut)
    builder.cost(fixed_ps=300)
    builder.rows["costs"].pop(0)
    assert_records_at(engine, builder, 1, 2310 + 300, 2310 + 600, 2310 + 900)


def hosts(threads: tuple[int, ...], **endpoint: int) -> ImageBuilder:
    """Return an endpoint for each of `threads`, with a copy that takes 300 ps and 2 ps per byte of 99."""
    builder = ImageBuilder()
    places: list[Place] = [builder.endpoint(**endpoint) for _ in threads]
    builder.link(places[0], places[1])
    builder.cost(fixed_ps=300, after_ps=50, copy=2 * PS)
    task = builder.task()
    for place, thread in zip(places, threads, strict=True):
        builder.instance(task, place, builder.template(prim("copy", repeat=2)), thread=thread)
    return builder


def test_a_thread_does_one_slice_after_the_other(engine):
    builder = hosts((0, 0))
    # 498 ps each, and 50 ps before the next; who was first is first again.
    assert_records_at(engine, builder, 0, 498, 498 + 2 * 548)
    assert_records_at(engine, builder, 1, 498 + 548, 498 + 3 * 548)


def test_threads_work_side_by_side(engine):
    builder = hosts((0, 1))
    for instance in (0, 1):
        assert_records_at(engine, builder, instance, 498, 498 + 548)


def test_a_thread_is_as_slow_as_the_endpoint_of_its_instance(engine):
    builder = hosts((0, 0), slow_1024=2048)
    assert_records_at(engine, builder, 0, 996, 996 + 2 * 1096)


@pytest.mark.parametrize(("slices", "empty"), [(1, 0), (2, 1), (4, 3)])
def test_a_thread_serves_empty_slices_as_messages(engine, slices, empty):
    """All bytes are in the first slice; the thread's fixed and later work of the others follows it."""
    builder = ImageBuilder()
    places = [builder.endpoint() for _ in range(2)]
    builder.link(places[0], places[1])
    builder.cost(fixed_ps=300, after_ps=50, copy=2 * PS)
    task = builder.task()
    template = builder.template(prim("copy", repeat=2))
    builder.instance(task, places[0], template, thread=0, slices=slices, slice_min=99)
    assert_records_at(engine, builder, 0, 498, 498 + 50 + empty * (300 + 50) + 498)


def test_a_thread_has_done_its_work_before_the_data_move(engine):
    builder = ImageBuilder()
    a, b = builder.endpoint(), builder.endpoint()
    builder.link(a, b)
    index = builder.conn(a, b)
    builder.cost(fixed_ps=300, send=20 * PS)
    builder.run_alone(a, prim("send", send=0), conns=(index,), length=198, thread=a.ep)
    builder.run_alone(b, prim("recv", recv=0), conns=(index,), length=198)
    # Twice the wire's time for a byte, but two packets of 1000 ps one behind the other.
    assert_records_at(engine, builder, 0, 300 + 198 * 20 + 2000)
