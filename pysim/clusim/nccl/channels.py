"""Numbers of channels of a communicator: of collectives, and of sends and receives."""

from __future__ import annotations

from clusim.nccl.constants import Path, max_channels, since
from clusim.nccl.env import Settings
from clusim.nccl.graph import Graph, RankGroup
from clusim.nccl.system import System


def num_channels(
    group: RankGroup, ring: Graph, chain: Graph, system: System, searched: int
) -> int:
    """Return the channels of the communicator: searched, doubled, then limited by the settings."""
    version, settings = system.version, system.settings
    if settings.library is not None:
        count = settings.library.channels(group.num_ranks, group.num_nodes, searched)
        return _limit_channels(
            count, settings, settings.library.most[group.num_nodes > 1]
        )
    limit = max_channels(version)
    count = min(limit, 2 * searched)
    collnet = (
        group.collnet
        and settings.collnet_enable
        and group.num_ranks > group.num_nodes
    )
    if collnet and chain.intra_GBps > chain.inter_GBps:
        count = min(limit, count + count // 2)
    if (
        since(version, "doubled channels")
        and group.lowest_capability >= 90
        and group.num_nodes > 1
        and ring.intra_GBps > 45
        and count < 16
    ):
        count *= 2
    return _limit_channels(count, settings, limit)


def _limit_channels(count: int, settings: Settings, limit: int) -> int:
    """Return a number of channels within the limits of the settings."""
    count = min(count, settings.max_nchannels or limit, settings.max_ctas or limit)
    return min(
        limit, max(count, settings.min_nchannels or 1, settings.min_ctas or 1)
    )


def _up(number: int) -> int:
    return 1 << (number - 1).bit_length()


def p2p_channels(system: System, group: RankGroup, count: int) -> tuple[int, int]:
    """Return the channels of send and receive, in all and for one peer; powers of two."""
    library = system.settings.library
    one, factor = (2, 1) if library is None else library.lanes
    per_peer = count
    for a in system.gpus:
        for b in system.gpus:
            route = system.route(a, b)
            if a is b or route is None:
                continue
            lanes = 2
            if route.type <= Path.NVB:
                link = system.link_GBps(a)
                lanes = one * max(1, int(route.rate / link + 1e-6))
            per_peer = min(per_peer, lanes)
    late = since(system.version, "p2p channels by NICs")
    if group.num_nodes > 1:
        lanes = 2
        if late:
            rates = [
                r.rate
                for n in system.adapters
                if (r := system.route(system.gpus[0], n))
            ]
            nearest_nics = len(system.nearest(system.gpus[0], system.adapters))
            lanes = max(nearest_nics, -(-int(max(rates, default=0.0)) // 14), 2)
        elif (
            since(system.version, "p2p channels by ranks")
            and 2 * group.num_ranks > 4 * count
        ):
            lanes = 1
        per_peer = min(per_peer, lanes)
    total, per_peer = _up(count), _up(per_peer)
    if library is not None:
        total = min(total, library.most[1])
        per_peer = min(total, per_peer * (factor if group.num_nodes == 1 else 1))
    if group.num_nodes > 1 and late:
        while per_peer > 1 and per_peer * -(-group.num_ranks // 8) > total:
            per_peer //= 2
    return total, per_peer
