"""From a fabric and a schedule to an image; which granularity, and buffers that hold its bursts.

Granularity ``auto``: exact packets as long as the run's packet-hops are estimated at `EXACT_HOPS`
or fewer; else the smallest power of two of packets per burst that gets the estimate to
`TARGET_HOPS`, but on no connection more than 1/`SLICE_SHARE` of its mean slice. Where that leaves more than
`MOST_HOPS` (rings over hundreds of ranks, whose slices are small), bursts grow on, to at most four times that share.
Whatever is asked for, bursts are no larger than buffers allow that reads and writes share (`clusim.lowering.buffers`),
but by the same factor where that would be more than `MOST_HOPS`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from clusim.errors import InputError, ScheduleError
from clusim.fabric.arrays import FabricArrays
from clusim.fabric.model import Fabric
from clusim.image import Image
from clusim.lowering.buffers import Packets, largest_bursts, roomy_units, roomy_wires
from clusim.lowering.faults import Fault, dead_wires, lower_faults, without_wires, worn_wires
from clusim.lowering.links import BURSTS_PER_BUFFER, LinkLowering, Traffic
from clusim.lowering.programs import ProgramLowering
from clusim.schedule.ir import Schedule

__all__ = ["EXACT_HOPS", "SLICE_SHARE", "TARGET_HOPS", "Lowered", "lower"]

EXACT_HOPS = 32_000_000
"""Packet-hops up to which ``auto`` simulates exact packets."""

TARGET_HOPS = 16_000_000
"""Hops of bursts that ``auto`` aims at otherwise: about a second."""

SLICE_SHARE = 24
"""``auto`` makes no burst larger than this fraction of the mean slice of its connection."""

MOST_HOPS = 150_000_000
"""Hops of bursts beyond which ``auto`` gives up some accuracy (1% for a ring over 256 ranks): a minute or two."""

FACTORS = (1, 2, 4)
"""By how much bursts may exceed their limits until the run has no more than `MOST_HOPS`."""

MAX_BURST_BYTES = 1 << 30
"""Coarsest granularity that can be asked for [bytes]."""


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
    owner : list of int
        Connection of the schedule each of the image's belongs to; the first ones are the schedule's own.
    proxy_of : list of int
        Instance of the schedule for which each of the image's further instances is a proxy.
    """

    image: Image
    wire_names: Sequence[str]
    wire_class: Sequence[str]
    granularity: str
    requested: str
    burst: int
    burst_bytes: tuple[int, int]
    packet_hops: int
    grant_hops: int
    owner: Sequence[int] = ()
    proxy_of: Sequence[int] = ()

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
    given = list(faults)
    arrays = fabric.lower()
    dead = dead_wires(arrays, given)
    _check_alive(fabric, schedule, dead)
    links = LinkLowering(fabric, schedule, without_wires(fabric, dead))
    programs = ProgramLowering(fabric, schedule, links)
    cut = _cut(links, granularity)
    packets = cut.used()
    image = Image(
        nvc=fabric.num_vcs,
        seed=seed,
        nodes=links.arrays.nodes,
        endpoints=programs.endpoints(),
        formats=arrays.formats,
        targets=links.arrays.targets,
        routes=links.arrays.routes,
        wires=roomy_wires(arrays, worn_wires(arrays, given), packets),
        units=roomy_units(arrays, packets),
        **links.connection_arrays(cut.packets, cut.bursts),
        **programs.program_arrays(),
        faults=lower_faults(arrays, given),
    )
    lowered = _lowered(image, arrays, cut, str(granularity))
    return replace(
        lowered, owner=links.owner, proxy_of=[item.instance for item in programs.proxies]
    )


def _check_alive(fabric: Fabric, schedule: Schedule, dead: Sequence[int]) -> None:
    """Refuse a schedule that uses a rank all of whose links are down from the start."""
    if not dead:
        return
    arrays = fabric.lower()
    alive = np.ones(len(arrays.wires), bool)
    alive[dead] = False
    linked = set(arrays.wires["src"][alive].tolist())
    for rank in sorted({instance.rank for instance in schedule.instances}):
        if arrays.node_of(rank) not in linked:
            raise InputError(
                f"rank {rank} ({fabric.ranks[rank]}) is down from the start; leave it out of the group"
            )


def _lowered(image: Image, arrays: FabricArrays, cut: _Cut, requested: str) -> Lowered:
    sizes = [item.packet_bytes * item.burst for item in cut.used()] or [0]
    hops = cut.hops()
    return Lowered(
        image=image,
        wire_names=arrays.wire_names,
        wire_class=arrays.wire_class,
        granularity="burst" if any(item.burst > 1 for item in cut.used()) else "packet",
        requested=requested,
        burst=max((item.burst for item in cut.used()), default=1),
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
    forms: Sequence[frozenset[int]]

    def hops(self) -> list[int]:
        """Return the exact packet-hops of every connection."""
        pairs = zip(self.traffic, self.packets, strict=True)
        return [item.packets(packet) * item.hops for item, packet in pairs]

    def used(self) -> list[Packets]:
        """Return the distinct (payload limit, burst, formats) of what moves over wires."""
        rows = zip(self.packets, self.bursts, self.forms, self.traffic, strict=True)
        found = {
            Packets(packet, burst, forms) for packet, burst, forms, item in rows if item.wire_bytes
        }
        return sorted(found, key=lambda item: (item.packet_bytes, item.burst, sorted(item.forms)))


def _cut(links: LinkLowering, granularity: str | int) -> _Cut:
    """Choose the packets per burst of every connection of the image."""
    packets = [leg.packet_bytes for leg in links.leg_of]
    forms = [leg.forms for leg in links.leg_of]
    cut = _Cut(links.traffic(), packets, [1] * len(packets), forms)
    if isinstance(granularity, int):
        if granularity < 1:
            raise InputError(f"granularity {granularity}: must be at least 1 byte")
        if granularity > MAX_BURST_BYTES:
            raise InputError(f"granularity {granularity}: too coarse; at most 1 GiB")
        cut.bursts = _forced(cut, links, [max(1, granularity // packet) for packet in packets])
    elif granularity == "auto":
        cut.bursts = _automatic(cut, links)
    elif granularity != "packet":
        raise InputError(
            f"granularity {granularity!r}: unknown; use packet, auto or a size in bytes"
        )
    return cut


def _within(links: LinkLowering, bursts: Sequence[int], factor: int) -> list[int]:
    """Return bursts no larger than shared buffers allow, `factor` times that at most."""
    share = BURSTS_PER_BUFFER // factor
    limits = largest_bursts(links.arrays, links.leg_of, links.fabric.window_bytes, share)
    return [
        burst if most is None else min(burst, most)
        for burst, most in zip(bursts, limits, strict=True)
    ]


def _forced(cut: _Cut, links: LinkLowering, asked: Sequence[int]) -> list[int]:
    """Return bursts of about the size that was asked for."""
    hops, found = cut.hops(), list(asked)
    for factor in FACTORS:
        found = _within(links, asked, factor)
        if _total(hops, found, max(found, default=1)) <= MOST_HOPS:
            break
    return found


def _automatic(cut: _Cut, links: LinkLowering) -> list[int]:
    """Return the bursts that the rule of this module chooses."""
    hops = cut.hops()
    burst = 1
    if sum(hops) <= EXACT_HOPS:
        return [1] * len(hops)
    rows = list(zip(cut.traffic, cut.packets, strict=True))
    for factor in FACTORS:
        share = SLICE_SHARE // factor
        most = _within(links, [_largest(item, packet, share) for item, packet in rows], factor)
        while burst < max(most, default=1) and _total(hops, most, burst) > TARGET_HOPS:
            burst *= 2
        if _total(hops, most, burst) <= MOST_HOPS:
            break
    return [min(burst, limit) for limit in most]


def _total(hops: Sequence[int], most: Sequence[int], burst: int) -> int:
    return sum(count // min(burst, limit) for count, limit in zip(hops, most, strict=True))


def _largest(item: Traffic, packet_bytes: int, share: int) -> int:
    """Return the largest power of two of packets that is at most 1/`share` of a mean slice."""
    if not item.slices:
        return 1
    packets = item.wire_bytes // (item.slices * packet_bytes * share)
    return 1 << (max(1, packets).bit_length() - 1)
