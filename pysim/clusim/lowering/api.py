"""Lowering of a topology and a schedule to an image; its granularity and buffers.

At any granularity, bursts are no larger than the buffers shared by reads and writes allow
(`clusim.lowering.buffers`), except by the factors of `clusim.lowering.grain` where the run would be too long.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from operator import floordiv

import numpy as np

from clusim.base.arrays import Array
from clusim.base.errors import InputError, ScheduleError
from clusim.base.records import dataclass
from clusim.engine.abi import ConnKind
from clusim.engine.image import Image
from clusim.lowering.buffers import (
    BURSTS_PER_BUFFER,
    Packets,
    crowded_senders,
    growth,
    largest_bursts,
    roomy_units,
    roomy_wires,
    shared_formats,
    unblocked_bursts,
)
from clusim.lowering.controls import put_policies
from clusim.lowering.faults import (
    Fault,
    dead_wires,
    lower_faults,
    without_wires,
    worn_wires,
)
from clusim.lowering.grain import (
    COARSE,
    FACTORS,
    MOST_HOPS,
    QUICK,
    SLICE_SHARE,
    STEP,
    Grain,
    automatic,
    check_granularity,
    name_of,
    power_below,
    rule_of,
)
from clusim.lowering.hops import CarriedTraffic, Leg
from clusim.lowering.links import LinkLowering
from clusim.lowering.programs import ProgramLowering
from clusim.schedule.ir import Schedule
from clusim.topology.arrays import FabricArrays, arrays_of
from clusim.topology.model import Fabric


@dataclass(frozen=True, slots=True)
class Lowered:
    """An image and the decisions of its lowering.

    Attributes
    ----------
    grain : Grain
        Granularity.
    owner : list of int
        Connection of the schedule of each connection of the image; the schedule's connections are the first rows.
    proxy_of : list of int
        Instance of the schedule for which each further instance of the image is a proxy.
    least_ps : int
        Lower bound of the time of any run [ps]: the bytes received by each endpoint at the rate of all its wires.
    """

    image: Image
    grain: Grain
    owner: Sequence[int] = ()
    proxy_of: Sequence[int] = ()
    least_ps: int = 0


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
        ``"packet"``, a key of `clusim.lowering.grain.RULES` or the size of a burst [bytes].
    seed : int
        Seed of all randomness of the run: packet replays and the hashed paths of flows.
    faults : iterable of Fault
        Faults of the run, with their times.

    Raises
    ------
    ScheduleError
        The schedule cannot run on this topology: a missing path, protocol or reduction unit, too many CTAs.
    """
    arrays, faults_list = arrays_of(fabric), list(faults)
    if schedule.num_ranks > arrays.num_ranks:
        raise ScheduleError(
            f"{schedule.name}: needs {schedule.num_ranks} ranks; {fabric.name} has {arrays.num_ranks}"
        )
    dead = dead_wires(arrays, faults_list)
    _check_alive(arrays, schedule, dead)
    links = LinkLowering(without_wires(arrays, dead), schedule, seed)
    programs = ProgramLowering(links)
    cut = _cut(links, granularity)
    packets = cut.distinct_packets()
    shared = shared_formats(arrays, links.legs)
    wires = roomy_wires(arrays, worn_wires(arrays, faults_list), packets, shared)
    image = Image(
        nvc=links.spreads.num_vcs,
        seed=seed,
        endpoints=programs.endpoints(cut.traffic),
        formats=arrays.formats,
        targets=links.arrays.targets,
        routes=links.arrays.routes,
        wires=wires,
        units=roomy_units(arrays, packets),
        **put_policies(
            links.arrays,
            wires,
            links.connection_arrays(cut.packets, cut.bursts),
        ),
        **programs.program_arrays(),
        faults=lower_faults(arrays, faults_list),
    )
    single = [item._replace(burst=1) for item in packets]
    exact = (
        wires
        if single == packets
        else roomy_wires(arrays, worn_wires(arrays, faults_list), single)
    )
    return Lowered(
        image,
        cut.grain(cut.word or str(granularity), growth(wires, exact)),
        owner=links.owner,
        proxy_of=[item.instance for item in programs.proxies],
        least_ps=_least_ps(image, arrays.wires, cut.traffic),
    )


def _least_ps(
    image: Image, nominal: Array, traffic: Sequence[CarriedTraffic]
) -> int:
    """Return a lower bound of any run [ps]: bytes of each endpoint over all its wires."""
    conns = image.conns
    moves = (conns["kind"] == ConnKind.WRITE) | (conns["kind"] == ConnKind.READ)
    moves &= conns["src"] != conns["dst"]
    carried = np.array([item.wire_bytes for item in traffic], np.float64)
    return arriving_ps(image, nominal, conns["dst"][moves], carried[moves])


def arriving_ps(
    image: Image, nominal: Array, endpoint: Array, size_bytes: Array
) -> int:
    """Return the least busy time of the wires into endpoints [ps]."""
    count = len(image.endpoints)
    come = np.bincount(endpoint, size_bytes, count)
    rates = np.bincount(
        nominal["dst"], nominal["rate_num"] / nominal["rate_den"], len(image.nodes)
    )
    rate = rates[image.endpoints["node"]]
    return int(
        np.divide(come, rate, out=np.zeros(count), where=rate > 0).max(initial=0.0)
    )


def _check_alive(
    arrays: FabricArrays, schedule: Schedule, dead: Sequence[int]
) -> None:
    """Reject a schedule that uses a rank with all links down from the start."""
    if not dead:
        return
    linked = set(np.delete(arrays.wires["src"], dead).tolist())
    for rank in sorted({instance.rank for instance in schedule.instances}):
        if arrays.node_of(rank) not in linked:
            raise InputError(
                f"rank {rank} ({arrays.fabric.ranks[rank]}) is down from the start; leave it out of the group"
            )


@dataclass(slots=True)
class _Cut:
    """Cut of every connection's traffic: its leg, packets per burst, and packet-hops in exact packets.

    `least_hops` are the burst-hops in the largest bursts that the rule allows without loss of accuracy; `word` is the
    granularity if it is finer than the requested one.
    """

    traffic: Sequence[CarriedTraffic]
    legs: Sequence[Leg]
    hops: Sequence[int]
    bursts: list[int]
    least_hops: int = 0
    word: str = ""

    @property
    def packets(self) -> list[int]:
        """Payload limit of the packets of every connection [bytes]."""
        return [leg.packet_bytes for leg in self.legs]

    def distinct_packets(self) -> list[Packets]:
        """Return the distinct (payload limit, burst, formats) of connections with traffic."""
        rows = zip(self.legs, self.bursts, self.traffic, strict=True)
        kinds = {
            Packets(leg.packet_bytes, burst, leg.forms)
            for leg, burst, item in rows
            if item.wire_bytes
        }
        return sorted(
            kinds,
            key=lambda item: (item.packet_bytes, item.burst, sorted(item.forms)),
        )

    def grain(self, requested: str, buffer_growth: float) -> Grain:
        """Return the granularity of the run."""
        used = self.distinct_packets()
        sizes = [item.packet_bytes * item.burst for item in used] or [0]
        return Grain(
            requested,
            max((item.burst for item in used), default=1),
            (min(sizes), max(sizes)),
            sum(self.hops),
            sum(
                -(-count // burst)
                for count, burst in zip(self.hops, self.bursts, strict=True)
            ),
            self.least_hops,
            buffer_growth,
        )


def _cut(links: LinkLowering, granularity: str | int) -> _Cut:
    """Choose the packets per burst of every connection of the image."""
    traffic, legs = links.traffic(), links.leg_of
    pairs = zip(traffic, legs, strict=True)
    hops = [item.packets(leg.packet_bytes) * item.hops for item, leg in pairs]
    cut = _Cut(traffic, legs, hops, [1] * len(legs))
    word = check_granularity(granularity)
    if word == "packet":
        return cut
    # A named rule is for connections with payload only.
    is_size = isinstance(word, int)
    moving = [
        number for number, item in enumerate(traffic) if is_size or item.slices
    ]

    crowded = _find_crowded(links, moving)

    def limits(factor: int, word: str | int = word) -> list[int]:
        # Bursts of more than the last of `FACTORS` times the limit stall in the buffer.
        share = BURSTS_PER_BUFFER // min(factor, FACTORS[-1])
        of_leg = largest_bursts(links.arrays, links.legs, share)
        most_of_leg = _limit_bursts(links, word, crowded)
        result = []
        for number, code in zip(moving, links.codes[moving].tolist(), strict=True):
            leg = links.legs[code]
            if isinstance(word, int):
                limit = max(1, word // leg.packet_bytes)
            else:
                limit = _largest(
                    traffic[number], leg, SLICE_SHARE // _factor(leg, word, factor)
                )
            result.append(
                min(limit, *filter(None, (of_leg[code], most_of_leg[code])), limit)
            )
        return result

    moving_hops = [hops[number] for number in moving]
    bursts = automatic(moving_hops, limits, word)
    burst_hops = sum(map(floordiv, moving_hops, bursts))
    if name_of(word) == STEP and crowded and burst_hops > MOST_HOPS:
        # Too much work without larger buffers, which have a larger error limit.
        crowded = frozenset()
        bursts = automatic(moving_hops, limits, word)
        cut.word = str(word).replace(STEP, COARSE)
    if name_of(word) == COARSE:
        # Long runs are in complete slices with both.
        step = str(word).replace(COARSE, STEP)
        long = _is_in_slices(step, burst_hops)
        if long and bursts == automatic(
            moving_hops, partial(limits, word=step), step
        ):
            cut.word = step
    for number, burst in zip(moving, bursts, strict=True):
        cut.bursts[number] = burst
    if not is_size:
        cut.least_hops = sum(
            -(-count // limit)
            for count, limit in zip(moving_hops, limits(1), strict=True)
        )
    return cut


def _is_in_slices(step: str, burst_hops: int) -> bool:
    """Return True if a run with these burst-hops is in bursts of complete slices."""
    rule = rule_of(step)
    return rule is not None and burst_hops > (rule.slices_hops or 0)


def _find_crowded(links: LinkLowering, moving: Sequence[int]) -> frozenset[int]:
    """Return the endpoints of `crowded_senders` among connections with payload."""
    conns = [links.schedule.connections[links.owner[number]] for number in moving]
    ends = ((item.src, item.dst) for item in conns)
    return crowded_senders(
        zip((links.leg_of[number] for number in moving), ends, strict=True)
    )


def _limit_bursts(
    links: LinkLowering, word: str | int, crowded: frozenset[int]
) -> Sequence[int | None]:
    """Return the limit of `unblocked_bursts` of every leg; `crowded` are the senders that ``step`` limits."""
    name = name_of(word)
    if isinstance(name, int):
        return [None] * len(links.legs)
    senders = crowded if name == STEP else frozenset[int]()
    if name in ("auto", QUICK):
        senders = frozenset(leg.src for leg in links.legs)
    return unblocked_bursts(links.arrays, links.legs, senders)


def _factor(leg: Leg, word: str, factor: int) -> int:
    """Return the factor by which bursts of a leg may exceed their limit.

    In-switch reductions never do with ``auto`` and ``quick``: requests and sums share the wires of a switch, so that
    larger bursts stall them (-6% of the time of 4 GiB over 8 H100 with four times the limit). With ``step`` they do not
    grow to complete slices.
    """
    name = name_of(word)
    if leg.kind != ConnKind.MULTIMEM or name not in ("auto", QUICK, STEP):
        return factor
    return min(factor, FACTORS[-1]) if name == STEP else 1


def _largest(item: CarriedTraffic, leg: Leg, share: int) -> int:
    """Return the largest power of two of packets that is at most 1/`share` of a mean slice."""
    return power_below(item.wire_bytes // (item.slices * leg.packet_bytes * share))
