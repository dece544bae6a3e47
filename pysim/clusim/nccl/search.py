"""The graph search: rings, trees, NVLS heads and CollNet heads inside a node.

For a bandwidth per channel, a kind of path and a rule for NICs, channels are built one after the other, depth
first: from a NIC (or the first GPU) over all GPUs and back, taking bandwidth from every link passed. When no more
fit, the result is compared with the best so far. `search` then relaxes one condition after the other: different
orders, simpler trees, longer paths, other NICs, less bandwidth; at last it raises the bandwidth of the channels it
has. The order of the attempts and the limits on their number are NCCL's (src/graph/search.cc, 2.8 to 2.30), because
they decide which of many equal solutions is found.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from clusim.nccl.builder import HEADS, Builder, GraphDraft
from clusim.nccl.constants import (
    MAX_DIRECT_HEADS,
    MAX_NVLS_HEADS,
    Path,
    Pattern,
    max_channels,
    path_types,
    since,
    speeds,
)
from clusim.nccl.graph import Graph
from clusim.nccl.rccl import SPEEDS
from clusim.nccl.system import System

_SAME_STEPS, _STEPS, _ALL_STEPS = 1 << 8, 1 << 14, 1 << 19


def _totals(system: System) -> tuple[float, float]:
    """Return the fastest possible channel and the total send bandwidth of a GPU [GB/s]."""
    if not system.adapters and len(system.gpus) == 1:
        return 5000.0, 5000.0
    goals = system.adapters or system.gpus
    fastest = total = 0.0
    for gpu in system.gpus:
        rates = [
            r.rate for goal in goals if (r := system.route(gpu, goal)) and r.hops
        ]
        fastest = max(fastest, *rates, 0.0)
        nvlink = sum(link.rate for link in gpu.links if link.kind == "nvl")
        pcie = max(
            (link.rate for link in gpu.links if link.kind in ("pci", "c2c")),
            default=0.0,
        )
        total = max(total, nvlink, pcie)
    return fastest, total


def _path_range(system: System, to_net: bool) -> tuple[Path, Path]:
    goals = system.adapters if to_net else system.gpus
    kinds = [
        route.type
        for gpu in system.gpus
        for goal in goals
        if goal is not gpu and (route := system.route(gpu, goal)) is not None
    ]
    if not kinds:
        return Path.LOC, Path.SYS
    return min(kinds), max(kinds)


def _split_sockets(system: System) -> bool:
    """Return True if NVLink joins the GPUs of each socket but not the sockets."""
    if len(system.cpus) != 2 or len(system.gpus) < 3:
        return False
    domains: list[set[int]] = []
    for gpu in system.gpus:
        local_gpus = {
            other.index
            for other in system.gpus
            if other is gpu
            or ((r := system.route(gpu, other)) and r.type == Path.NVL)
        }
        if local_gpus not in domains:
            domains.append(local_gpus)
    return len(domains) == 2 and all(len(domain) > 1 for domain in domains)


def search(
    system: System,
    pattern: Pattern,
    *,
    min_channels: int = 1,
    channel_limit: int | None = None,
    collective: bool = False,
) -> Graph:
    """Return the channels of a pattern.

    Parameters
    ----------
    least, most : int
        Required and largest allowed number of channels; None is half of a communicator's maximum.
    collective : bool
        Only NICs whose network reduces.
    """
    channel_limit = channel_limit or max_channels(system.version) // 2
    if pattern is Pattern.NVLS:
        channel_limit = min(MAX_NVLS_HEADS, len(system.gpus))
        if system.switch is None or system.capabilities[0] < 90:
            return Graph(pattern)
        if not system.adapters:
            min_channels = channel_limit
    elif pattern is Pattern.COLLNET_DIRECT:
        channel_limit = min(MAX_DIRECT_HEADS + 1, len(system.gpus))
    if len(system.gpus) == 1 and pattern is not Pattern.RING:
        pattern = Pattern.TREE
    if pattern is Pattern.RING and _split_sockets(system) and channel_limit >= 2:
        min_channels = max(min_channels, 2)
    result = _Plan(system, pattern, min_channels, channel_limit, collective).run()
    if not result.num_channels and not collective and pattern not in HEADS:
        order = tuple(range(len(system.gpus)))
        ends = ((0, 0),) if system.adapters else ()
        kind = Path.SYS
        return Graph(pattern, 1, 0.1, 0.1, kind, kind, True, 0, 0.0, (order,), ends)
    return result


class _Plan:
    """The order of the attempts."""

    def __init__(
        self,
        system: System,
        pattern: Pattern,
        min_channels: int,
        channel_limit: int,
        collective: bool,
    ) -> None:
        self.system, self.pattern = system, pattern
        self.fastest, self.total = _totals(system)
        self.speeds = (
            speeds(
                system.capabilities[0], system.version, inter=bool(system.adapters)
            )
            if system.settings.library is None
            else SPEEDS
        )
        crossing = pattern in (
            Pattern.RING,
            Pattern.BALANCED_TREE,
            Pattern.SPLIT_TREE,
        )
        self.crossing = (
            system.settings.cross_nic if crossing and len(system.adapters) > 1 else 0
        )
        self.best = Graph(pattern)
        self.draft = GraphDraft(
            pattern, least=min_channels, most=channel_limit, collective=collective
        )
        self.builder = Builder(system)
        self.draft.same = self.try_same = pattern is not Pattern.NVLS
        self.draft.cross = 1 if self.crossing == 1 else 0
        self.steps_left = _ALL_STEPS
        self._set_paths()

    def _set_paths(self) -> None:
        system = self.system
        alone = len(system.gpus) == 1
        self.least_intra, self.most_intra = (
            (Path.LOC, Path.SYS) if alone else _path_range(system, False)
        )
        self.least_inter, self.most_inter = Path.PIX, Path.SYS
        if system.adapters:
            self.least_inter, self.most_inter = _path_range(system, True)
            self.most_intra = self.most_inter
        if not since(system.version, "min/max path types"):
            self.least_intra, self.most_intra = (
                Path.LOC if alone else Path.NVL,
                Path.SYS,
            )
            self.least_inter, self.most_inter = Path.PIX, Path.SYS
        self.draft.type_intra, self.draft.type_inter = (
            self.least_intra,
            self.least_inter,
        )
        types = path_types(system.version)
        self.after = {a: b for a, b in pairwise(types)}

    def _first_speed(self) -> int:
        total = self.total
        count = len(self.system.gpus)
        if count > 1 and self.pattern is not Pattern.RING:
            total *= count / (count - 1)
        index = 0
        while index < len(self.speeds) - 1 and (
            self.speeds[index] > self.fastest
            or self.speeds[index] * self.draft.least > total
        ):
            index += 1
        return index

    def _attempt(self) -> int:
        """Build channels under the conditions of the draft; return the steps that are left."""
        steps = _SAME_STEPS if self.draft.same else _STEPS
        self.steps_left -= steps
        self.best, steps_left = self.builder.attempt(self.draft, self.best, steps)
        return steps_left

    def _enough(self) -> bool:
        return self.best.num_channels * self.best.inter_GBps >= self.total

    def run(self) -> Graph:
        """Return the best channels."""
        index = self._first_speed()
        while True:
            self.draft.intra = self.draft.inter = self.speeds[index]
            if self._at_speed():
                break
            has_slower = index < len(self.speeds) - 1
            close = not self.best.num_channels or (
                has_slower and self.speeds[index + 1] / self.best.inter_GBps > 0.49
            )
            if not (has_slower and close):
                break
            index += 1
        return self._faster(self._duplicate_channels())

    def _at_speed(self) -> bool:
        """Try everything at one bandwidth; return whether the search is over."""
        draft = self.draft
        while True:
            steps_left = self._attempt()
            if steps_left == -1 or self._enough():
                return True
            over_amd = (
                self.system.cpu.vendor == "amd" and draft.type_intra == Path.SYS
            )
            if draft.same and not over_amd:
                draft.same = False
                continue
            draft.same = self.try_same
            self.steps_left += max(0, steps_left)
            if self.steps_left < 0 and self.best.num_channels:
                return True
            if (
                self._simpler_tree()
                or self._longer_paths()
                or self._other_adapters()
            ):
                continue
            return False

    def _simpler_tree(self) -> bool:
        draft = self.draft
        if (
            self.system.capabilities[0] >= 90
            and draft.pattern is Pattern.BALANCED_TREE
        ):
            draft.pattern = Pattern.TREE
            return True
        draft.pattern = self.pattern
        return False

    def _longer_paths(self) -> bool:
        draft, best = self.draft, self.best
        longest = draft.type_inter if self.system.adapters else self.most_intra
        if draft.type_intra < longest and (
            not best.num_channels or draft.type_intra < best.type_intra
        ):
            draft.type_intra = self.after[draft.type_intra]
            return True
        draft.type_intra = self.least_intra
        if (
            self.system.adapters
            and draft.type_inter < self.most_inter
            and (
                not best.num_channels
                or draft.type_inter < best.type_inter
                or draft.type_inter < Path.PXN
            )
        ):
            draft.type_inter = self.after[draft.type_inter]
            return True
        draft.type_inter = self.least_inter
        return False

    def _other_adapters(self) -> bool:
        draft = self.draft
        if (
            self.crossing == 2
            and draft.cross == 0
            and self.pattern
            in (
                Pattern.RING,
                Pattern.BALANCED_TREE,
            )
        ):
            draft.cross = (
                2 if since(self.system.version, "crossing as a last resort") else 1
            )
            return True
        draft.cross = 1 if self.crossing == 1 else 0
        return False

    def _duplicate_channels(self) -> Graph:
        """Return the best channels doubled at half the bandwidth, if one CTA could not drive the full rate."""
        best, capability = self.best, self.system.capabilities[0]
        count = best.num_channels
        if (
            not count
            or best.pattern is Pattern.NVLS
            or best.intra_GBps < 25
            or (capability > 80 and best.intra_GBps < 50 and count > 4)
            or not since(self.system.version, "channels duplicated by the search")
        ):
            return best
        count_doubled = min(2 * count, self.draft.most)
        parts = -(-count_doubled // count)
        more = count_doubled - count
        return replace(
            best,
            num_channels=count_doubled,
            intra_GBps=best.intra_GBps / parts,
            inter_GBps=best.inter_GBps / parts,
            orders=best.orders + best.orders[:more],
            adapters=best.adapters + best.adapters[:more],
        )

    def _faster(self, best: Graph) -> Graph:
        """Return channels of the same number at a higher bandwidth, if there are any."""
        self.best = best
        if not best.num_channels:
            return best
        index = 0
        while index < len(self.speeds) - 1 and self.speeds[index] > best.inter_GBps:
            index += 1
        draft = self.draft
        draft.pattern, draft.same, draft.cross = (
            best.pattern,
            best.same_channels,
            best.cross_nic,
        )
        draft.type_intra, draft.type_inter = best.type_intra, best.type_inter
        draft.intra = draft.inter = self.speeds[index]
        draft.least = best.num_channels
        steps_left = -1
        while steps_left != 0 and index > 0:
            best = self.best
            if draft.pattern is Pattern.RING:
                index -= 1
                draft.intra = draft.inter = self.speeds[index]
            elif draft.pattern is Pattern.NVLS:
                if not (
                    draft.inter == best.inter_GBps and draft.inter < draft.intra * 2
                ):
                    break
                index -= 1
                draft.most = draft.least
                draft.inter = self.speeds[index]
            elif draft.intra == best.intra_GBps and draft.intra < draft.inter * 2:
                index -= 1
                draft.intra = self.speeds[index]
            else:
                break
            steps_left = self._attempt()
        return self.best
