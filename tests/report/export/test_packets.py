"""Packets by columns are those that are made one by one, and cost no call of a function each."""

from __future__ import annotations

import struct
from functools import partial
from io import BytesIO

import numpy as np
import pytest

from clusim.report.export import perfetto_packets
from clusim.report.export.perfetto_packets import PacketWriter, TrackEvent
from support.work import calls_of

EVENTS = [
    TrackEvent(1, "forward", "kernel", b""),
    TrackEvent(300, "all-reduce", "program", b"\x22\x00" * 90),
]


def test_numbers_of_an_array_are_encoded_as_each_is() -> None:
    values = [0, 1, 127, 128, 255, 256, 2**14 - 1, 2**14, 2**21, 2**35, 2**56, 2**63 - 1]
    assert perfetto_packets.pb_varints(np.array(values)) == [
        perfetto_packets.pb_varint(value) for value in values
    ]
    assert perfetto_packets.pb_varints(np.zeros(0, np.int64)) == []


def test_reals_of_an_array_are_encoded_as_each_is() -> None:
    values = [0.0, -1.5, 1e300, 0.1]
    assert [
        perfetto_packets.pb_varint(44 << 3 | 1) + own
        for own in perfetto_packets.pb_reals(np.array(values))
    ] == [perfetto_packets.pb_varint(44 << 3 | 1) + struct.pack("<d", value) for value in values]


@pytest.mark.parametrize("time_ps", [0, 127_000, 10**6, 10**13])
def test_slices_by_columns_are_those_written_one_by_one(time_ps: int) -> None:
    which = np.array([0, 1, 1, 0, 1])
    start = time_ps + np.array([0, 5, 200, 999, 10**9]) * 1000
    end = start + np.array([1, 0, 500, 10**8, 0]) * 1000
    outs = BytesIO(), BytesIO()
    columns, single = map(PacketWriter, outs)
    for writer in (columns, single):
        for event in EVENTS:  # Names first, which `slices` sends before all.
            writer.name(2, event.name)
            writer.name(1, event.category)
    columns.slices(EVENTS, which, start, end)
    for event, low, high in zip(which.tolist(), start.tolist(), end.tolist(), strict=True):
        single.slice(EVENTS[event], low, high)
    assert outs[0].getvalue() == outs[1].getvalue()
    assert columns.counts == single.counts


def test_a_thousand_times_the_slices_and_samples_are_no_more_calls() -> None:
    found = []
    for count in (10, 10_000):
        writer, times = PacketWriter(BytesIO()), np.arange(count + 1) * 10**6
        which = np.arange(count) % 2
        slices = partial(writer.slices, EVENTS, which, times[:-1], times[1:])
        samples = partial(writer.samples, 7, times, np.arange(count) * 1.0)
        found.append((calls_of(slices), calls_of(samples)))
    few, many = found
    assert many[0] <= few[0] + 20  # Longer times have a byte more, which is a turn more.
    assert many[1] <= few[1] + 20
