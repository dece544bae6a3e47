"""An attempt of the graph search: a node as arrays, and the conditions, for the engine's `attempt`.

`clusim.nccl.search` decides about the conditions. csrc/channels.c builds the channels.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from clusim.base.records import dataclass
from clusim.engine.channels import NETS, attempt
from clusim.nccl.constants import Path, Pattern, path_types, peer_overhead, since
from clusim.nccl.graph import Graph
from clusim.nccl.system import Device, Route, System

HEADS = (Pattern.NVLS, Pattern.COLLNET_DIRECT)


@dataclass(slots=True)
class GraphDraft:
    """Conditions under which channels are built; see `Graph`."""

    pattern: Pattern
    intra: float = 0.0
    inter: float = 0.0
    type_intra: Path = Path.LOC
    type_inter: Path = Path.PIX
    same: bool = True
    cross: int = 0
    least: int = 1
    most: int = 1
    collective: bool = False


class Builder:
    """Attempts on one node."""

    def __init__(self, system: System) -> None:
        self.system = system
        self._node = _node(system)
        self._adapters: dict[Path, dict[str, Any]] = {}
        self._peer = dict(
            zip(
                ("peer_times", "peer_over"),
                peer_overhead(system.version),
                strict=True,
            )
        )

    def attempt(
        self, draft: GraphDraft, best: Graph, steps: int
    ) -> tuple[Graph, int]:
        """Return the best channels after an attempt of `steps`, `best` itself if it was in vain, and the steps left."""
        system = self.system
        if draft.type_inter not in self._adapters:
            self._adapters[draft.type_inter] = _adapters_to_try(
                system, draft.type_inter
            )
        conditions = {
            **{
                name: getattr(draft, name)
                for name in ("intra", "inter", "least", "most", "cross")
            },
            **{
                name: int(getattr(draft, name))
                for name in ("pattern", "type_intra", "type_inter")
            },
            **{"same": int(draft.same), "collective": int(draft.collective)},
            "first_net_only": int(since(system.version, "doubled channels")),
            "penalises_crossing": int(
                not since(system.version, "no penalty for crossing NICs")
            ),
            "compares_heads": int(since(system.version, "nvls compares bandwidth")),
            **self._peer,
        }
        conditions_met = {
            **{
                "intra": best.intra_GBps,
                "inter": best.inter_GBps,
                "cross": best.cross_nic,
            },
            **{
                "pattern": int(best.pattern),
                "num_channels": best.num_channels,
                "hops": best.hops,
            },
        }
        node = {**self._node, **self._adapters[draft.type_inter]}
        result, steps_left = attempt(node, conditions, conditions_met, steps)
        if result is None:
            return best, steps_left
        heads = draft.pattern in HEADS
        graph = Graph(
            draft.pattern,
            len(result.orders),
            draft.intra,
            draft.inter,
            draft.type_intra,
            draft.type_inter,
            draft.same,
            draft.cross,
            result.latency_us if system.adapters else 0.0,
            tuple(order[:1] for order in result.orders) if heads else result.orders,
            result.ends if system.adapters else (),
            result.hops,
        )
        return graph, steps_left


def _node(system: System) -> dict[str, Any]:
    """Return the arrays of ``clusim_channels_node`` that no attempt changes."""
    gpus, nets = system.gpus, system.adapters
    devices = [*gpus, *nets, *([system.switch] if system.switch is not None else [])]
    rates = np.zeros(system.num_links, np.float32)
    for device in (*gpus, *system.cpus, *system.others, *nets):
        for link in device.links:
            rates[link.number] = link.rate
    paths = np.full((len(devices), len(devices), 4), -1, np.int32)
    links: list[tuple[int, int, int]] = []
    number = {device: i for i, device in enumerate(devices)}
    for (a, b), route in system.routes.items():
        if a in number and b in number and route.type < Path.DIS:
            narrow = int(_is_narrow(a, route))
            paths[number[a], number[b]] = (
                len(links),
                route.hops,
                int(route.type),
                narrow,
            )
            links += _links(a, route)
    return {
        **{
            "num_gpus": len(gpus),
            "num_nets": len(nets),
            "num_links": system.num_links,
        },
        **{"has_switch": int(system.switch is not None), "link_rates": rates},
        **{"paths": paths, "links": np.array(links or [(0, 0, 0)], np.int32)},
        **_nets(system),
        **_choices(system),
    }


def _links(start: Device, route: Route) -> list[tuple[int, int, int]]:
    """Return number, opposite link if it is charged, and whether PCIe, of every link of a path.

    A GPU before Ampere that receives from a host or a NIC loses an eighth in the other direction.
    """
    return [
        (
            link.number,
            link.back
            if link.remote.kind == "gpu"
            and link.remote.capability < 80
            and start.kind != "gpu"
            else -1,
            int(link.kind == "pci"),
        )
        for link in route.links
    ]


def _is_narrow(start: Device, route: Route) -> bool:
    return (
        route.type == Path.PHB
        and start.kind == "gpu"
        and any(
            link.remote.kind == "cpu" and link.remote.cpu.vendor == "intel"
            for link in route.links
        )
    )


def _nets(system: System) -> dict[str, Any]:
    """Return figures of the NICs, and the GPUs to which they have the widest and shortest path."""
    nets = np.zeros(max(1, len(system.adapters)), NETS)
    starts = np.zeros((max(1, len(system.adapters)), len(system.gpus)), np.uint8)
    for net in system.adapters:
        routes = [(system.route(net, gpu), gpu.index) for gpu in system.gpus]
        keys = {
            i: (route.rate, -route.hops)
            for route, i in routes
            if route is not None and route.hops
        }
        best = max(keys.values(), default=(0.0, 0))
        for index, key in keys.items():
            starts[net.index, index] = key == best
        head = system.local_gpu(net)
        nets[net.index] = (
            net.speed_GBps,
            net.latency_us,
            best[0],
            net.port,
            -1 if head is None else head.index,
            net.collective,
        )
    return {"nets": nets, "starts": starts}


def _choices(system: System) -> dict[str, Any]:
    """Return the GPUs to try after each GPU, best first: without a NIC behind, and for every NIC."""
    first, choices = [0], []
    for gpu in system.gpus if system.switch is None else []:
        for net in (None, *system.adapters):
            ranked = _rank(system, gpu, net)
            kinds = {
                key: i for i, key in enumerate({item[:2]: None for item in ranked})
            }
            choices += [(item[-1], kinds[item[:2]]) for item in ranked]
            first.append(len(choices))
    return {
        "choices_first": first,
        "choices": np.array(choices or [(0, 0)], np.int32),
    }


def _rank(
    system: System, gpu: Device, net: Device | None
) -> list[tuple[int, int, int]]:
    """Return rate and length of the paths to all other GPUs, and their numbers, best first."""
    count = len(system.gpus)
    scored = []
    for distance in range(1, count):
        other = system.gpus[(gpu.index + distance) % count]
        route = system.route(gpu, other)
        if route is None or not route.hops:
            continue
        score = [0, 0, 0]
        back = system.route(net, other) if net is not None else None
        if back is not None:
            pcie = min(
                (link.rate for link in other.links if link.kind == "pci"),
                default=0.0,
            )
            score = [-int(back.rate), -int(pcie), back.hops]
        scored.append((*score, -int(route.rate), route.hops, distance, other.index))
    return [(rate, hops, index) for *_, rate, hops, _, index in sorted(scored)]


def _adapters_to_try(system: System, longest: Path) -> dict[str, Any]:
    """Return the NICs to try of all GPUs, then of each GPU, within a path type."""
    candidates = [
        _find_adapters(system, gpu, longest) for gpu in (None, *system.gpus)
    ]
    first = np.cumsum([0, *map(len, candidates)])
    return {
        "nets_first": first,
        "nets_to_try": [i for nets in candidates for i in nets] or [0],
    }


def _find_adapters(system: System, gpu: Device | None, longest: Path) -> list[int]:
    """Return NICs: first the local NICs of the GPUs, then the others by distance."""
    gpus = system.gpus if gpu is None else [gpu]
    chosen: dict[int, None] = {}
    first: dict[int, Device] = {}
    open_gpus = list(gpus)
    for channel in range(len(system.adapters)):
        for one in list(open_gpus):
            net = system.local_adapter(one, channel)
            if net is None or (channel and first.get(one.index) is net):
                open_gpus.remove(one)
                continue
            first.setdefault(one.index, net)
            chosen.setdefault(net.index)
        if not open_gpus:
            break
    for kind in path_types(system.version):
        if kind > longest:
            break
        for one in gpus:
            for net in system.adapters:
                route = system.route(one, net)
                if route is not None and route.type == kind:
                    chosen.setdefault(net.index)
    limit = (system.settings.netdevs_policy or 0) * len(gpus) or None
    return list(chosen)[:limit]
