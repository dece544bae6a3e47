"""Gates of schedules: strict priority and deficit round robin of classes. Packets last 1000 ps.

A packet granted at its source at t reaches the switch at t + 1100. Its wire to the receiver is granted anew every
1000 ps from 1100 on; what is granted there at t is complete at t + 2010.
"""

from __future__ import annotations

import pytest

from support.gates import assert_messages_at
from support.images import ImageBuilder

SLOTS = 1100
COMPLETE = 2010


def two_classes(sizes: tuple[int, int], packets: tuple[int, int], **schedule: tuple[int, ...]):
    """Two endpoints send messages of classes 0 and 1 at once, over a switch to a third."""
    builder = ImageBuilder(nvc=2)
    a, b, c = (builder.endpoint() for _ in range(3))
    switch = builder.switch()
    for place in (a, b, c):
        builder.link(place, switch)
    if schedule:
        builder.rows["wires"][5]["schedule"] = builder.schedule(**schedule)
    for vc, (place, size, count) in enumerate(zip((a, b), sizes, packets, strict=True)):
        builder.source(place, [(0, (size - 1) * count, c)], vc=vc, packet_bytes=size - 1)
    return builder


def granted_at(slot: int) -> int:
    """Return when a message is complete whose last packet leaves the switch in a slot."""
    return SLOTS + 1000 * slot + COMPLETE


@pytest.mark.parametrize(
    ("schedule", "slots"),
    [
        ({}, (18, 19)),  # alternately
        ({"priority": (1, 0)}, (19, 9)),  # the second first
        ({"priority": (0, 1)}, (9, 19)),
    ],
)
def test_strict_priority_starves_the_other_class(engine, schedule, slots):
    assert_messages_at(
        engine, two_classes((100, 100), (10, 10), **schedule), *map(granted_at, slots)
    )


@pytest.mark.parametrize(
    ("quantum", "slots"),
    [
        ((300, 100), (15, 23)),  # b, then three of a and one of b each: the twelfth of a in slot 15
        ((100, 300), (23, 14)),  # three of b and one of a each
        ((100, 100), (23, 22)),  # alternately, from b on
    ],
)
def test_classes_share_by_their_quanta(engine, quantum, slots):
    builder = two_classes((100, 100), (12, 12), quantum=quantum)
    assert_messages_at(engine, builder, *map(granted_at, slots))


def test_classes_share_bytes_and_not_packets(engine):
    # The second class sends two packets of 50 bytes for each of 100 bytes, from 1100 on: its last ends at 20100.
    builder = two_classes((100, 50), (10, 20), quantum=(100, 100))
    assert_messages_at(engine, builder, 20_100 + COMPLETE, 20_100 + 1010)


def test_a_class_that_lacks_a_quantum_saves_for_a_packet(engine):
    # The first class sends when it has had ten turns: after ten packets of the second one each, in slots 10 and 21.
    builder = two_classes((100, 100), (2, 20), quantum=(10, 100))
    assert_messages_at(engine, builder, granted_at(21), granted_at(20))
