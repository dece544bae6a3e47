"""Use of an imported node: number of channels, rings on direct links, peer-to-peer paths.

Topology files do not contain these; NCCL determines them at run time. Rings are searched such that no
two of the rings share a wire, as in NCCL's search on meshes.
"""

from __future__ import annotations

from collections import Counter

from clusim.formats.topologies.common import Draft
from clusim.hardware import gpu

MAX_RING_GPUS = 32
MAX_STEPS = 60_000
"""Maximum steps of the search, which then keeps the rings found until then."""

Capacity = Counter[tuple[int, int]]
"""Number of unused links by source and target GPU."""


def set_usage(draft: Draft, gpus: list[str], chip: str) -> None:
    """Set channels, rings and peer-to-peer level of a node with these GPUs."""
    index = {name: number for number, name in enumerate(gpus)}
    mesh: Capacity = Counter()
    switched = False
    for link in draft.links:
        a, b = link["from"], link["to"]
        if a in index and b in index:
            mesh[index[a], index[b]] += int(link.get("count", 1))
            mesh[index[b], index[a]] += int(link.get("count", 1))
        switched = switched or b.startswith("nvswitch")
    rings = find_rings(len(gpus), mesh) if mesh and len(gpus) <= MAX_RING_GPUS else []
    if switched:
        links = gpu(chip).links
        _channels(draft, 24 if links >= 8 else 12, "what NCCL uses with NVSwitches")
    elif rings:
        draft.settings["rings"] = rings
        draft.assume(
            "rings",
            f"{len(rings)}, along the direct links of GPUs",
            "found as NCCL does; the file has none",
        )
        _channels(draft, min(32, 2 * len(rings)), "two for each ring, as NCCL does")
    elif mesh and len(gpus) == 2:
        _channels(draft, min(32, 2 * mesh[0, 1]), "two for each link, as NCCL does")
    else:
        _channels(draft, 2, "what NCCL uses over PCIe")
    _peer_level(draft, gpus, chip)


def _channels(draft: Draft, count: int, why: str) -> None:
    draft.settings["channels"] = {"default": count}
    draft.assume("channels", str(count), why)


def _peer_level(draft: Draft, gpus: list[str], chip: str) -> None:
    roots = {str(keys["switch"]) for name, keys in draft.nodes.items() if name.startswith("cpu")}
    if not gpu(chip).figures["peer_access"].value:
        draft.settings["p2p_level"] = "nvl"
        draft.assume(
            "peer to peer",
            "over NVLink only",
            "NVIDIA's driver has none over PCIe for GeForce cards",
        )
    elif len(gpus) <= 2 and roots and all(root.startswith("epyc") for root in roots):
        draft.settings["p2p_level"] = "sys"
        draft.assume(
            "peer to peer", "over any path", "NCCL's default for two GPUs on AMD processors"
        )


def find_rings(count: int, mesh: Capacity) -> list[list[int]]:
    """Return rings through all of `count` GPUs without a shared wire, each with its reverse."""
    if count < 3:
        return []
    left = Counter(mesh)
    rings: list[list[int]] = []
    steps = MAX_STEPS
    while steps > 0 and 2 * len(rings) < 64:
        ring, steps = _cycle(count, left, steps)
        if not ring:
            break
        for path in (ring, [ring[0], *reversed(ring[1:])]):
            rings.append(path)
            for a, b in zip(path, [*path[1:], path[0]], strict=True):
                left[a, b] -= 1
    return rings


def _cycle(count: int, left: Capacity, steps: int) -> tuple[list[int], int]:
    """Return a cycle through all GPUs, and the remaining steps.

    Depth-first search within `steps` that prefers the links with the most remaining capacity.
    """
    near = {
        a: sorted((b for b in range(count) if left[a, b] > 0), key=lambda b: (-left[a, b], b))
        for a in range(count)
    }
    path, choices, used = [0], [iter(near[0])], {0}
    while path:
        steps -= 1
        if steps <= 0:
            return [], 0
        if len(path) == count and left[path[-1], 0] > 0:
            return path, steps
        following = next((b for b in choices[-1] if b not in used), None)
        if following is None:
            choices.pop()
            used.discard(path.pop())
        else:
            path.append(following)
            used.add(following)
            choices.append(iter(near[following]))
    return [], steps
