"""From a fabric and a schedule to an image; which granularity, and buffers that hold its bursts.

Granularity ``auto``: exact packets as long as the run's packet-hops are estimated at `EXACT_HOPS`
or fewer; else the smallest power of two of packets per burst that gets the estimate to
`TARGET_HOPS`, but on no connection more than 1/`SLICE_SHARE` of its mean slice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clusim.errors import InputError, ScheduleError
from clusim.fabric.arrays import FabricArrays
from clusim.fabric.model import Fabric
from clusim.image import Image
from clusim.lowering.faults import Fault, lower_faults
from clusim.lowering.links import LinkLowering, Traffic, least_buffer
from clusim.lowering.programs import ProgramLowering
from clusim.schedule.ir import Schedule

__all__ = ["EXACT_HOPS", "SLICE_SHARE", "TARGET_HOPS", "Lowered", "lower"]

EXACT_HOPS = 32_000_000
"""Packet-hops up to which ``auto`` simulates exact packets."""

TARGET_HOPS = 16_000_000
"""Hops of bursts that ``auto`` aims at otherwise: about a second."""

SLICE_SHARE = 24
"""``auto`` makes no burst larger than this fraction of the mean slice of its connection."""

MAX_BURST_BYTES = 1 << 30
"""Coarsest granularity that can be asked for [bytes]."""

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Lowered:
    """An image, and what was decided while making it.

    Attributes
    ----------
    granularity : str
        ``packet`` if every burst is one packet, else ``burst``.
    requested : str
        What was asked for: ``auto``, ``packet`` or a size in bytes.
    burst : int
        Packets of the largest burst.
    burst_bytes : tuple of int
        Least and greatest payload of a burst over the data connections [bytes].
    packet_hops : int
        Estimated packet-hops of the run in exact packets.
    grant_hops : int
        The same in bursts: what the engine has to simulate.
    """

    image: Image
    wire_names: list[str]
    wire_class: list[str]
    granularity: str
    requested: str
    burst: int
    burst_bytes: tuple[int, int]
    packet_hops: int
    grant_hops: int

    def describe(self) -> str:
        """Say in one line how finely the run is simulated."""
        if self.granularity == "packet":
            return f"exact packets ({self.packet_hops:,} packet-hops estimated)"
        low, high = self.burst_bytes
        size = f"{high}" if low == high else f"{low} to {high}"
        return f"bursts of {size} B ({self.requested}; {self.packet_hops:,} packet-hops as {self.grant_hops:,})"


def lower(
    fabric: Fabric,
    schedule: Schedule,
    granularity: str | int = "auto",
    seed: int = 0,
    faults: Iterable[Fault] = (),
) -> Lowered:
    """Lower `schedule` onto `fabric`.

    Parameters
    ----------
    granularity : str or int
        ``"packet"``, ``"auto"`` or the size of a burst [bytes].
    seed : int
        Seed of whatever is random in the run (packet replays).
    faults : iterable of Fault
        What breaks when.

    Raises
    ------
    ScheduleError
        The schedule cannot run on this fabric: a missing path, protocol or reduction unit, too many CTAs.
    """
    if schedule.num_ranks > fabric.num_ranks:
        raise ScheduleError(
            f"{schedule.name}: needs {schedule.num_ranks} ranks; {fabric.name} has {fabric.num_ranks}"
        )
    links, programs = LinkLowering(fabric, schedule), ProgramLowering(fabric, schedule)
    cut = _cut(links, schedule, granularity)
    image = Image(
        nvc=fabric.num_vcs,
        seed=seed,
        **_fabric_arrays(links.arrays, cut.used()),
        **links.connection_arrays(cut.packets, cut.bursts),
        **programs.program_arrays(),
        faults=lower_faults(links.arrays, faults),
    )
    return _lowered(image, links.arrays, cut, str(granularity))


def _lowered(image: Image, arrays: FabricArrays, cut: _Cut, requested: str) -> Lowered:
    used = cut.used()
    sizes = [packet * burst for packet, burst in used] or [0]
    hops = cut.hops()
    return Lowered(
        image=image,
        wire_names=arrays.wire_names,
        wire_class=arrays.wire_class,
        granularity="burst" if any(burst > 1 for _, burst in used) else "packet",
        requested=requested,
        burst=max((burst for _, burst in used), default=1),
        burst_bytes=(min(sizes), max(sizes)),
        packet_hops=sum(hops),
        grant_hops=sum(-(-count // burst) for count, burst in zip(hops, cut.bursts, strict=True)),
    )


@dataclass(slots=True)
class _Cut:
    """How the traffic of every connection is cut: payload limit [bytes] and packets per burst."""

    traffic: Sequence[Traffic]
    packets: Sequence[int]
    bursts: Sequence[int]

    def hops(self) -> list[int]:
        """Return the exact packet-hops of every connection."""
        pairs = zip(self.traffic, self.packets, strict=True)
        return [item.packets(packet) * item.hops for item, packet in pairs]

    def used(self) -> list[tuple[int, int]]:
        """Return the (payload limit, burst) that occur on wires."""
        rows = zip(self.packets, self.bursts, self.traffic, strict=True)
        return sorted({(packet, burst) for packet, burst, item in rows if item.wire_bytes})


def _cut(links: LinkLowering, schedule: Schedule, granularity: str | int) -> _Cut:
    """Choose the packets per burst of every connection."""
    packets = [links.packet_bytes(connection) for connection in schedule.connections]
    cut = _Cut(links.traffic(), packets, [1] * len(packets))
    if isinstance(granularity, int):
        if granularity < 1:
            raise InputError(f"granularity {granularity}: must be at least 1 byte")
        if granularity > MAX_BURST_BYTES:
            raise InputError(f"granularity {granularity}: too coarse; at most 1 GiB")
        cut.bursts = [max(1, granularity // packet) for packet in packets]
    elif granularity == "auto":
        cut.bursts = _automatic(cut)
    elif granularity != "packet":
        raise InputError(
            f"granularity {granularity!r}: unknown; use packet, auto or a size in bytes"
        )
    return cut


def _automatic(cut: _Cut) -> list[int]:
    """Return the bursts that the rule of this module chooses."""
    hops = cut.hops()
    most = [_largest(item, packet) for item, packet in zip(cut.traffic, cut.packets, strict=True)]
    burst = 1
    if sum(hops) <= EXACT_HOPS:
        return [1] * len(hops)
    while burst < max(most, default=1) and _total(hops, most, burst) > TARGET_HOPS:
        burst *= 2
    return [min(burst, limit) for limit in most]


def _total(hops: Sequence[int], most: Sequence[int], burst: int) -> int:
    return sum(count // min(burst, limit) for count, limit in zip(hops, most, strict=True))


def _largest(item: Traffic, packet_bytes: int) -> int:
    """Return the largest power of two of packets that is at most 1/`SLICE_SHARE` of a mean slice."""
    if not item.slices:
        return 1
    packets = item.wire_bytes // (item.slices * packet_bytes * SLICE_SHARE)
    return 1 << (max(1, packets).bit_length() - 1)


def _fabric_arrays(arrays: FabricArrays, used: Sequence[tuple[int, int]]) -> dict[str, Array]:
    """Return the fabric's part of the image; what holds bursts is enlarged where it is too small."""
    return {
        "nodes": arrays.nodes,
        "endpoints": arrays.endpoints,
        "formats": arrays.formats,
        "routes": arrays.routes,
        "wires": _wires(arrays, used),
        "units": _units(arrays, used),
    }


def _wires(arrays: FabricArrays, used: Sequence[tuple[int, int]]) -> Array:
    """Return the wires with receive buffers that hold enough of the largest bursts."""
    wires = arrays.wires.copy()
    for index, row in enumerate(arrays.formats):
        flit = int(row["flit_bytes"])
        header = int(max(row["header_bytes"]))
        sizes = (burst * (-(-(header + packet) // flit) * flit) for packet, burst in used)
        rooms = (least_buffer(burst, size) for (_, burst), size in zip(used, sizes, strict=True))
        own = wires["format"] == index
        least = np.uint64(max(rooms, default=0))
        wires["buffer_bytes"][own] = np.maximum(wires["buffer_bytes"][own], least)
    return wires


def _units(arrays: FabricArrays, used: Sequence[tuple[int, int]]) -> Array:
    """Return the reduction units with capacity for enough of the largest bursts."""
    units = arrays.units.copy()
    least = max((least_buffer(burst, packet * burst) for packet, burst in used), default=0)
    units["capacity_bytes"] = np.maximum(units["capacity_bytes"], np.uint64(least))
    return units
