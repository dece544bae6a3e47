"""NCCL's decisions on a system, as data (`explain`) and as text (`render`).

They include the payload that every GPU and every NIC sends for a collective on NCCL's channels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from clusim.base.tables import spans, text_table
from clusim.base.terms.operations import (
    ALGORITHMS,
    PROTOCOLS,
    Algorithm,
    Collective,
    bus_factor,
)
from clusim.base.terms.times import MODEL
from clusim.base.units import format_ranges, format_size
from clusim.nccl.communicator import Communicator, NcclPlan
from clusim.nccl.connect import Channel
from clusim.nccl.explainjson import (
    AdapterJson,
    ChoiceJson,
    ExplainJson,
    GraphJson,
    SwitchPointJson,
    SymmetricChoiceJson,
    TreeJson,
)
from clusim.nccl.graph import Graph
from clusim.nccl.symmetric import pick, why_not
from clusim.nccl.symmetriccosts import SymmetricCall


@dataclass(frozen=True, slots=True)
class RankTraffic:
    """Payload sent [bytes].

    Attributes
    ----------
    gpu_bytes : tuple of float
        Least and most that a GPU sends to GPUs of its node, or to its NVLink switch.
    adapter_bytes : tuple of float or None
        Least and most that a NIC sends to other nodes; None on one node.
    """

    gpu_bytes: tuple[float, float]
    adapter_bytes: tuple[float, float] | None = None


def traffic(
    comm: Communicator, collective: Collective, plan: NcclPlan
) -> RankTraffic | None:
    """Return the traffic of GPUs and NICs, None for an algorithm whose traffic is not derived."""
    algorithm, size = plan.selection.algorithm, float(plan.selection.num_bytes)
    n = comm.group.num_ranks
    if algorithm is Algorithm.NVLS and comm.group.num_nodes == 1:
        # Every GPU sends its data to the switch, and its head's share of the results.
        share = size / n
        if collective is Collective.ALLREDUCE:
            return RankTraffic((size + share, size + share))
        only = size if collective is Collective.REDUCESCATTER else share
        return RankTraffic((only, only))
    if algorithm not in (Algorithm.RING, Algorithm.TREE):
        return None
    inside = [0.0] * n
    outside: dict[tuple[int, int], float] = {
        (number, index): 0.0
        for number, machine in enumerate(comm.machines)
        for index in range(len(machine.adapters))
    }
    shares = [float(part.num_bytes) for part in plan.parts]
    total = sum(shares) or 1.0
    channels = comm.channels[: plan.num_channels]
    weights = [share / total for share in shares] or [1 / len(channels)] * len(
        channels
    )
    for channel, weight in zip(channels, weights, strict=False):
        if algorithm is Algorithm.RING:
            adapters = channel.ring_adapters
            per_hop = size * bus_factor(collective.operation, n) * weight
            hops = [
                (rank, channel.ring[(place + 1) % n], per_hop)
                for place, rank in enumerate(channel.ring)
            ]
            if collective in (Collective.BROADCAST, Collective.REDUCE):
                hops = hops[:-1]
        else:
            adapters = channel.tree_adapters
            hops = [
                (rank, other, size * weight)
                for rank, parent in enumerate(channel.parent)
                for other in (
                    (parent, *channel.children[rank])
                    if parent >= 0
                    else channel.children[rank]
                )
            ]
        for sender, receiver, amount in hops:
            number = comm.machine_of[sender]
            if comm.machine_of[receiver] == number:
                inside[sender] += amount
            else:
                outside[number, adapters[number][1]] += amount
    if comm.group.num_nodes == 1:
        return RankTraffic((min(inside), max(inside)))
    used = list(outside.values())
    return RankTraffic((min(inside), max(inside)), (min(used), max(used)))


SIZES = tuple(1 << power for power in range(3, 34, 2))
"""8 B to 8 GiB."""

_GRAPHS = (
    ("ring", Algorithm.RING),
    ("tree", Algorithm.TREE),
    ("nvls", Algorithm.NVLS),
    ("collnet chain", Algorithm.COLLNET_CHAIN),
    ("collnet direct", Algorithm.COLLNET_DIRECT),
)


def explain(
    comm: Communicator,
    collective: Collective,
    sizes: Sequence[int] = SIZES,
    *,
    faults: Sequence[str] = (),
    notes: Sequence[str] | None = None,
) -> ExplainJson:
    """Return graphs, channels, costs and choices of a communicator, ready for JSON.

    Parameters
    ----------
    faults : sequence of str
        Faults, as text.
    notes : sequence of str or None
        Notes on the plans; None selects the communicator's notes.
    """
    group, table = comm.group, comm.table
    return {
        "topology": comm.name,
        "nccl_version": str(comm.version),
        "library": comm.library,
        "collective": collective.value,
        "includes": MODEL,
        "num_ranks": group.num_ranks,
        "num_nodes": group.num_nodes,
        "compute_capability": group.lowest_capability,
        "cpu": group.cpu_vendor,
        "ignored_env": list(comm.settings.without_effect),
        "plugin_env": list(comm.settings.by_plugin),
        "faults": list(faults),
        "notes": list(comm.notes if notes is None else notes),
        "adapters": _adapters(comm),
        "graphs": {
            name: _graph(comm.graphs[algorithm]) for name, algorithm in _GRAPHS
        },
        "channels": {
            "coll": comm.num_channels,
            "collnet": comm.collnet_channels,
            "nvls": comm.nvls_channels,
            "p2p": comm.p2p_channels,
            "p2p_per_peer": comm.p2p_per_peer,
        },
        "rings": [list(channel.ring) for channel in comm.channels],
        "ring_adapters": [
            [list(p) for p in channel.ring_adapters] for channel in comm.channels
        ],
        "trees": [_tree(channel) for channel in comm.channels],
        "nvls_heads": [list(ranks) for ranks in comm.nvls_heads]
        if comm.nvls_channels
        else [],
        "costs": [
            {
                "algorithm": algorithm.value,
                "protocol": protocol.value,
                "latency_us": round(cost.latency_us, 4),
                "bandwidth_GBps": round(cost.bandwidth_GBps, 4),
                "why_not": cost.why_not,
            }
            for algorithm in ALGORITHMS
            for protocol in PROTOCOLS
            for cost in [table.cost(collective, algorithm, protocol)]
        ],
        "choices": [_choice(comm, collective, size) for size in sizes],
        "switch_points": switch_points(comm, collective),
        "symmetric": _symmetric(comm, collective, sizes),
    }


def _symmetric(
    comm: Communicator, collective: Collective, sizes: Sequence[int]
) -> list[SymmetricChoiceJson] | None:
    """Return NCCL's choice for symmetric buffers, or the reason for none; None if they are not symmetric."""
    if not comm.settings.symmetric:
        return None
    result: list[SymmetricChoiceJson] = []
    for size in sizes:
        call = SymmetricCall(collective, size)
        reason = why_not(comm, call)
        if reason:
            result.append({"size_bytes": size, "why_not": reason})
            continue
        picked = pick(comm, call)
        times = {
            name: round(time_us, 3) for name, time_us in picked.times_us.items()
        }
        result.append(
            {
                "size_bytes": size,
                "kernel": picked.kernel.name,
                "algorithm": picked.kernel.algorithm,
                "channels": picked.blocks,
                "model_us": times,
            }
        )
    return result


def _adapters(comm: Communicator) -> list[AdapterJson]:
    system = comm.systems[0]
    result: list[AdapterJson] = []
    for net in system.adapters:
        gpu = system.local_gpu(net)
        result.append(
            {
                "name": net.name,
                "fabric_nodes": list(net.members),
                "speed_GBps": net.speed_GBps,
                "gpu": gpu.index if gpu is not None else None,
            }
        )
    return result


def _graph(graph: Graph) -> GraphJson:
    return {
        "pattern": graph.pattern.name.lower(),
        "channels": graph.num_channels,
        "intra_GBps": graph.intra_GBps,
        "inter_GBps": graph.inter_GBps,
        "type_intra": graph.type_intra.name,
        "type_inter": graph.type_inter.name,
        "cross_nic": graph.cross_nic,
        "same_channels": graph.same_channels,
        "log_line": graph.line(),
    }


def _tree(channel: Channel) -> TreeJson:
    return {
        "root": channel.parent.index(-1),
        "parent": list(channel.parent),
        "children": [list(below) for below in channel.children],
    }


def _choice(comm: Communicator, collective: Collective, size: int) -> ChoiceJson:
    plan = comm.plan(collective, size)
    chosen, sent = plan.selection, traffic(comm, collective, plan)
    algbw = size / chosen.time_us / 1000 if chosen.time_us else 0.0
    return {
        "size_bytes": size,
        "algorithm": chosen.algorithm.value,
        "protocol": chosen.protocol.value,
        "channels": plan.num_channels,
        "threads": chosen.threads.num_threads,
        "chunk_bytes": plan.chunks.chunk_bytes,
        "model_time_us": round(chosen.time_us, 3),
        "model_busbw_GBps": round(
            algbw * bus_factor(collective.operation, comm.group.num_ranks), 3
        ),
        "gpu_bytes": sent.gpu_bytes[1] if sent else None,
        "adapter_bytes": sent.adapter_bytes[1]
        if sent and sent.adapter_bytes
        else None,
        "why": chosen.why,
        "why_channels": chosen.threads.why,
        "why_chunk": plan.chunks.why,
    }


LEAST_BYTES, MOST_BYTES = 8, 1 << 33
"""Sizes between which choices are listed [bytes]."""


def switch_points(
    comm: Communicator, collective: Collective
) -> list[SwitchPointJson]:
    """Return the sizes from which another algorithm or protocol is taken, to the byte."""

    def name(size: int) -> str:
        chosen = comm.select(collective, comm.table.regular_bytes(size))
        return f"{chosen.algorithm.value} {chosen.protocol.value}"

    grid = [LEAST_BYTES]
    while grid[-1] < MOST_BYTES:
        grid.append(min(MOST_BYTES, max(grid[-1] + 1, grid[-1] * 9 // 8)))
    points: list[SwitchPointJson] = [
        {"from_bytes": LEAST_BYTES, "choice": name(LEAST_BYTES)}
    ]
    for small, large in pairwise(grid):
        last = points[-1]["choice"]
        if name(large) == last:
            continue
        below, above = small, large
        while above - below > 1:
            middle = (below + above) // 2
            below, above = (
                (middle, above) if name(middle) == last else (below, middle)
            )
        points.append({"from_bytes": above, "choice": name(above)})
        if points[-1]["choice"] != name(large):
            points.append({"from_bytes": large, "choice": name(large)})
    return points


# ---------------------------------------------------------------------------- text


def render(data: ExplainJson, *, max_ranks: int = 32) -> str:
    """Return the result of `explain` as text for people."""
    return "\n".join(_lines(data, max_ranks))


def _lines(data: ExplainJson, max_ranks: int) -> Iterator[str]:
    nodes = data["num_nodes"]
    where = "1 node" if nodes == 1 else f"{nodes} nodes"
    yield f"{data['library']}, {data['collective']} on {data['topology']}: {data['num_ranks']} GPUs, {where}"
    yield ""
    yield "graphs inside a node"
    for name, graph in data["graphs"].items():
        if graph["channels"]:
            yield f"  {name:<14} {graph['log_line']}"
    yield from _channel_lines(data)
    yield "rings"
    yield from _group_texts([_order(ring, max_ranks) for ring in data["rings"]])
    yield "trees (root, and parent of each rank)"
    yield from _group_texts([_tree_text(tree, max_ranks) for tree in data["trees"]])
    if data["nvls_heads"]:
        heads = ", ".join(
            _order(ranks, 8) for ranks in data["nvls_heads"][:max_ranks]
        )
        yield f"NVLS heads\n  {heads}"
    yield ""
    yield from _cost_lines(data)
    yield ""
    yield from _choice_lines(data)
    yield from _symmetric_lines(data["symmetric"] or ())
    for fault in data["faults"]:
        yield f"fault: {fault}"
    for note in data["notes"]:
        yield f"note: {note}"


def _channel_lines(data: ExplainJson) -> Iterator[str]:
    """Yield the numbers of channels, the NICs of a node, and the variables of the network plugin."""
    counts = data["channels"]
    yield "channels"
    yield (
        f"  {counts['coll']} ring channels (coll), {counts['nvls']} NVLS channels,"
        f" {counts['p2p']} p2p channels, {counts['p2p_per_peer']} per peer"
    )
    if data["adapters"] and data["num_nodes"] > 1:
        yield "NICs of a node"
        for net in data["adapters"]:
            first, last = net["fabric_nodes"][0], net["fabric_nodes"][-1]
            which = first if first == last else f"{first}..{last}"
            gpu_text = (
                f"GPU {net['gpu']}" if net["gpu"] is not None else "no dedicated GPU"
            )
            yield f"  {net['name']:<7} {which:<18} {net['speed_GBps']:g} GB/s, next to {gpu_text}"
    if data["plugin_env"]:
        yield "set by the network plugin"
        yield f"  {' '.join(data['plugin_env'])}"


def _choice_lines(data: ExplainJson) -> Iterator[str]:
    """Yield the choices by size, with the limits of their channels, and the sizes at which they change."""
    yield f"choice by size (lowest time in {MODEL}, not simulated; next: second lowest)"
    titles = (
        "size",
        "algorithm",
        "proto",
        "ch",
        "thr",
        "chunk",
        "model us",
        "busbw",
        "sent/GPU",
        "sent/NIC",
    )
    layout = "  {:>..}  {:<..} {:<..}" + " {:>..}" * 7 + "  {}"
    yield from text_table(
        layout, [(*titles, "next"), *map(_choice_cells, data["choices"])]
    )
    limits = spans((c["size_bytes"], c["why_channels"]) for c in data["choices"])
    reasons = [row for row in limits if row[1] != "all channels"]
    if reasons:
        yield "channels and threads"
        yield from text_table("  {:<19}  {}", reasons)
    yield "switch points"
    for point in data["switch_points"]:
        yield f"  from {point['from_bytes']:>11} B ({_size(point['from_bytes'])}): {point['choice']}"


def _symmetric_lines(rows: Sequence[SymmetricChoiceJson]) -> Iterator[str]:
    if rows:
        yield "with symmetric buffers, instead of the above (time: NCCL's cost model)"
    for row in rows:
        if "why_not" in row:
            yield f"  {_size(row['size_bytes']):>9}  as above: {row['why_not']}"
            continue
        kernel, channels, times = row["kernel"], row["channels"], row["model_us"]
        alternatives = ", ".join(
            f"{name} {us:.1f}" for name, us in times.items() if name != kernel
        )
        yield (
            f"  {_size(row['size_bytes']):>9}  {kernel:<26} {channels:>3} CTAs"
            f" {times[kernel]:>10.1f} us"
            + (f"  (of {alternatives})" if alternatives else "")
        )


def _choice_cells(c: ChoiceJson) -> tuple[str, ...]:
    sent = (c["gpu_bytes"], c["adapter_bytes"])
    return (
        _size(c["size_bytes"]),
        c["algorithm"],
        c["protocol"],
        str(c["channels"]),
        str(c["threads"]),
        _size(c["chunk_bytes"]),
        *(
            f"{c[name]:.1f}" if c[name] else "-"
            for name in ("model_time_us", "model_busbw_GBps")
        ),
        *("-" if count is None else _size(count) for count in sent),
        c["why"].removeprefix("next: "),
    )


def _cost_lines(data: ExplainJson) -> Iterator[str]:
    yield "cost table: latency us / bandwidth GB/s"
    yield f"  {'':<14} {'LL':>15} {'LL128':>15} {'Simple':>15}"
    costs = data["costs"]
    for start in range(0, len(costs), 3):
        row = costs[start : start + 3]
        reasons = {cost["why_not"] for cost in row if cost["why_not"]}
        if all(cost["why_not"].startswith("no ") for cost in row):
            continue
        cells = [
            f"{cost['latency_us']:.1f}/{cost['bandwidth_GBps']:.1f}"
            if cost["bandwidth_GBps"]
            else "-"
            for cost in row
        ]
        note = "; ".join(
            sorted(reason for reason in reasons if not reason.startswith("no "))
        )
        yield (
            f"  {row[0]['algorithm']:<14} "
            + " ".join(f"{cell:>15}" for cell in cells)
            + (f"  ({note})" if note else "")
        )


def _size(number: float) -> str:
    return format_size(round(number))


def _group_texts(texts: list[str]) -> Iterator[str]:
    """Yield each different text once, with the channels it is for."""
    places: dict[str, list[int]] = {}
    for channel, text in enumerate(texts):
        places.setdefault(text, []).append(channel)
    for text, channels in places.items():
        yield f"  {format_ranges(channels):<11} {text}"


def _order(ranks: Sequence[int], limit: int) -> str:
    text = " ".join(str(rank) for rank in ranks[:limit])
    return text + (f" ... ({len(ranks)})" if len(ranks) > limit else "")


def _tree_text(tree: TreeJson, limit: int) -> str:
    links = [
        f"{rank}>{parent}"
        for rank, parent in enumerate(tree["parent"][: limit + 1])
        if parent >= 0
    ]
    more = " ..." if len(tree["parent"]) > limit + 1 else ""
    return f"root {tree['root']}: {' '.join(links)}{more}"
