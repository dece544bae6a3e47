"""Other PCIe paths of a topology: redirected peer traffic (ACS), and NICs at a root complex.

**Hardware** Access Control Services (PCI Express Base Specification 5.0, section 6.12) make the downstream ports of a
PCIe switch send peer requests and completions upstream; they return from the root complex over the same uplink. NCCL
and ``nvidia-smi topo -m`` do not detect this. NCCL's troubleshooting guide lists ACS as a cause of low bandwidth.
**Model** Each PCIe switch becomes two. Upward packets pass the first, which routes to its uplink only;
downward packets pass the second, `down_name`. The uplink therefore carries peer data twice, once per
direction, and downward writes have the peer payload of the root complex. Data to a NIC (completions of its
reads) and from it (posted writes) then share uplinks, with separate credits, as PCI Express requires: data
from a NIC use the second virtual channel. With common buffers, NICs that send to each other in a ring of
nodes would wait for each other. NCCL plans for the original topology, and path classes are the original
topology's (`clusim.topology.rails.path_type`).
**Not modelled** ACS on some ports only, and address translation (IOMMU; ATS, with which packets take the direct path
again); downward writes from host memory also have the peer payload.
**Parameters** `Fabric.acs`, `Node.peer_payload_bytes`.
"""

from __future__ import annotations

from dataclasses import replace

from clusim.base.errors import InputError
from clusim.topology.model import Fabric, Link
from clusim.topology.node import NETWORK, Node
from clusim.topology.packets import NO_LIMIT, Format

_FAR = 1 << 30


def down_name(switch: str) -> str:
    """Return the name of the half of a PCIe switch that downward packets pass."""
    return f"{switch}.down"


def redirect_peers(fabric: Fabric) -> Fabric:
    """Return the topology with redirected peer packets if `Fabric.acs` is set, otherwise `fabric`.

    Links, nodes and wires keep their indices; the halves of switches and their links follow. The result is cached.
    """
    if not fabric.acs:
        return fabric
    cached: Fabric | None = fabric.cache.get("redirected")
    if cached is None:
        cached = fabric.cache["redirected"] = _split(fabric)
    return cached


def acs_on(fabric: Fabric) -> Fabric:
    """Return a topology with ACS; raise `InputError` without a PCIe switch."""
    result = replace(fabric, acs=True)
    redirect_peers(result)
    return result


def downward_wires(fabric: Fabric) -> dict[int, int]:
    """Return the replacements of downward wires: wire of `fabric` -> wire of `redirect_peers`."""
    result: dict[int, int] = {}
    num_used, first = 0, sum(2 * link.count for link in fabric.links)
    for link in redirect_peers(fabric).links[: len(fabric.links)]:
        if link.routed != (True, True):
            old = 1 if link.routed[0] else 0
            for number in range(link.count):
                result[num_used + 2 * number + old] = first + 2 * number
            first += 2 * link.count
        num_used += 2 * link.count
    return result


def _split(fabric: Fabric) -> Fabric:
    depth, place = _depths(fabric), _places(fabric)
    split = {
        node.name
        for node in fabric.nodes
        if node.tier == "pcie" and node.name in depth
    }
    if not split:
        raise InputError(
            f"acs on: {fabric.name} lacks PCIe switches below a root complex"
        )
    formats = dict(fabric.formats)
    links: list[Link] = []
    added: list[Link] = []
    for link in fabric.links:
        a_depth, b_depth = depth.get(link.a, _FAR), depth.get(link.b, _FAR)
        if link.cls != "pcie" or not split & {link.a, link.b} or a_depth == b_depth:
            links.append(link)
            continue
        low, high = (link.a, link.b) if a_depth > b_depth else (link.b, link.a)
        upward = (low == link.a, low == link.b)
        from_nic = fabric.nodes[fabric.node_index[low]].kind == "nic"
        dateline = upward if from_nic else link.dateline
        links.append(replace(link, routed=upward, dateline=dateline))
        form = _peer_format(
            formats[link.format], fabric.nodes[fabric.node_index[place[high]]]
        )
        formats[form.name] = form
        a, b = (down_name(name) if name in split else name for name in (high, low))
        added.append(replace(link, a=a, b=b, format=form.name, routed=(True, False)))
    halves = [
        replace(node, name=down_name(node.name), half_of=node.name)
        for node in fabric.nodes
        if node.name in split
    ]
    return replace(
        fabric,
        nodes=(*fabric.nodes, *halves),
        links=(*links, *added),
        formats=formats,
        acs=False,
        num_vcs=max(2, fabric.num_vcs),
    )


def _peer_format(form: Format, root: Node) -> Format:
    """Return a packet format whose writes have at most the peer payload of a root complex."""
    limit = min(root.peer_payload_bytes or NO_LIMIT, form.limit_bytes[0])
    if limit == form.limit_bytes[0]:
        return form
    name = f"{form.name} of peers, {limit} B"
    return replace(form, name=name, limit_bytes=(limit, *form.limit_bytes[1:]))


def _depths(fabric: Fabric) -> dict[str, int]:
    """Return the number of PCIe links from the next root complex to each node."""
    neighbours: dict[str, list[str]] = {}
    for link in fabric.links:
        if link.cls == "pcie":
            neighbours.setdefault(link.a, []).append(link.b)
            neighbours.setdefault(link.b, []).append(link.a)
    depth = {node.name: 0 for node in fabric.nodes if node.tier == "root"}
    front = list(depth)
    switches = {node.name for node in fabric.nodes if node.tier == "pcie"}
    while front:
        reached = [
            (other, depth[name] + 1)
            for name in front
            for other in neighbours.get(name, ())
            if other not in depth
        ]
        depth |= dict(reached)
        front = [name for name in dict(reached) if name in switches]
    return depth


def rooted_nics(fabric: Fabric, *, remote: bool) -> Fabric:
    """Return a topology with all NICs at a root complex, as in a slot of a CPU.

    Parameters
    ----------
    remote : bool
        True: at the CPU that follows the nearest of their node; False: at the nearest.

    Raises
    ------
    InputError
        No NIC would move.
    """
    place = _places(fabric)
    roots: dict[int, list[str]] = {}
    for node in fabric.nodes:
        if node.tier == "root" and node.zone != NETWORK:
            roots.setdefault(node.zone, []).append(node.name)
    nics = {node.name: node for node in fabric.nodes if node.kind == "nic"}
    links = []
    for link in fabric.links:
        nic = next((name for name in (link.a, link.b) if name in nics), "")
        if link.cls == "pcie" and nic in place:
            goal = _root(nics[nic], place[nic], roots, remote)
            link = replace(link, b=goal) if link.a == nic else replace(link, a=goal)
        links.append(link)
    if tuple(links) == fabric.links:
        text = "nics remote" if remote else "nics rooted"
        raise InputError(
            f"{text}: no NIC of {fabric.name} would move to another CPU or PCIe port"
        )
    return replace(fabric, links=tuple(links))


def _root(nic: Node, nearest: str, roots: dict[int, list[str]], remote: bool) -> str:
    of_node = roots[nic.zone]
    return of_node[(of_node.index(nearest) + remote) % len(of_node)]


def _places(fabric: Fabric) -> dict[str, str]:
    """Return the root complex above each device and PCIe switch."""
    depth = _depths(fabric)
    result = {node.name: node.name for node in fabric.nodes if node.tier == "root"}
    links = [link for link in fabric.links if link.cls == "pcie"]
    ordered = sorted(
        links, key=lambda link: max(depth.get(link.a, _FAR), depth.get(link.b, _FAR))
    )
    for link in ordered:
        for low, high in ((link.a, link.b), (link.b, link.a)):
            if high in result and depth.get(low, 0) > depth[high]:
                result.setdefault(low, result[high])
    return result
