"""How many bytes of payload every wire carries: the law of every algorithm, laid over the ways of every kind of fabric.

What a rank sends to another is derived in `support.collective_laws.sent_by_pair`, S being the size. The ways:

- star: a rank's wire to the switch carries all it sends, the wire back all that is sent to it.
- full mesh: the link between two ranks carries what they send each other, and nothing else.
- DGX-1: 16 pairs of GPUs have a link; the other 12 are two links apart. A message counts once for each link it takes.
- ring of routers: likewise, the shorter way round.
- PCIe tree: two switches of four GPUs each: the wires above a switch carry what leaves its four.
- machines: a NIC carries what leaves its GPU's machine.
"""

from __future__ import annotations

from collections import defaultdict

import pytest

import clusim
from support.collective_laws import moved, moved_by_class, run, sent_by_pair

KIB = 1024
CHANNELS = 6
SIZE = 8 * 6 * 16 * KIB
"""Whole 16-byte cells for 8 or 4 ranks, 6 channels and all halves of a butterfly."""

EXCHANGES = [
    ("allreduce", "oneshot"),
    ("allreduce", "twoshot"),
    ("allreduce", "oneshot-ll"),
    ("allreduce", "twoshot-ll"),
    ("allreduce", "oneshot-lamport"),
    ("allreduce", "oneshot-pull"),
    ("allreduce", "twoshot-pull"),
    ("allreduce", "ld-st"),
    ("reduce_scatter", "ll"),
    ("reduce_scatter", "ld"),
    ("all_gather", "ll"),
    ("all_gather", "st"),
    ("allreduce", "butterfly"),
    ("allreduce", "hierarchical"),
    ("allreduce", "naive"),
    ("allreduce", "driver"),
    ("reduce_scatter", "direct"),
    ("all_gather", "direct"),
    ("gather", "direct"),
    ("scatter", "direct"),
    ("alltoall", "direct"),
    ("sendrecv", "direct"),
]

RINGS = {"allreduce": 2 * 7 / 8, "reduce_scatter": 7 / 8, "all_gather": 7 / 8}
"""What a ring of 8 sends over each of its hops, as parts of S: n - 1 of n blocks, once or twice."""


def laws_of_sums(sent: dict[tuple[int, int], float]) -> tuple[dict[int, float], dict[int, float]]:
    """Return what every rank sends and receives in all."""
    out: dict[int, float] = defaultdict(float)
    into: dict[int, float] = defaultdict(float)
    for (a, b), part in sent.items():
        out[a] += part
        into[b] += part
    return out, into


def in_parts(found: dict[tuple[str, str], int]) -> dict[tuple[str, str], float]:
    """Return bytes as parts of the size."""
    return {ends: payload / SIZE for ends, payload in found.items()}


@pytest.mark.parametrize("pair", EXCHANGES, ids="/".join)
def test_a_switch_passes_on_what_ranks_send(pair: tuple[str, str]) -> None:
    result = run(("star:8", 1), *pair, SIZE, "packet", CHANNELS)
    out, into = laws_of_sums(sent_by_pair(*pair, 8, CHANNELS))
    wanted = {(f"host{rank}", "hub"): part for rank, part in out.items()}
    wanted |= {("hub", f"host{rank}"): part for rank, part in into.items()}
    assert in_parts(moved(result)) == pytest.approx(wanted)


@pytest.mark.covering
@pytest.mark.parametrize(
    ("name", "ranks", "node"),
    [("fully-connected:8", 8, "host"), ("mi300x", 8, "gpu"), ("a100x4-mesh", 4, "gpu")],
)
@pytest.mark.parametrize("pair", EXCHANGES, ids="/".join)
def test_a_mesh_carries_what_each_pair_sends(
    name: str, ranks: int, node: str, pair: tuple[str, str]
) -> None:
    result = run((name, 1), *pair, SIZE, "packet", CHANNELS)
    sent = sent_by_pair(*pair, ranks, CHANNELS)
    wanted = {(f"{node}{a}", f"{node}{b}"): part for (a, b), part in sent.items()}
    assert in_parts(moved(result)) == pytest.approx(wanted)


def dgx1_hops(a: int, b: int) -> int:
    """Two rings of four GPUs that all know each other, and each GPU its twin in the other four."""
    return 1 if a // 4 == b // 4 or a % 4 == b % 4 else 2


@pytest.mark.parametrize("pair", EXCHANGES, ids="/".join)
def test_a_hybrid_cube_mesh_takes_at_most_two_links(pair: tuple[str, str]) -> None:
    result = run(("dgx-1v", 1), *pair, SIZE, "packet", CHANNELS)
    sent = sent_by_pair(*pair, 8, CHANNELS)
    wanted = sum(part * dgx1_hops(a, b) for (a, b), part in sent.items())
    found = moved_by_class(result)
    assert set(found) == {"nvlink gpu->gpu"}
    assert found["nvlink gpu->gpu"] / SIZE == pytest.approx(wanted)


@pytest.mark.parametrize("pair", EXCHANGES, ids="/".join)
def test_a_ring_of_routers_takes_the_shorter_way(pair: tuple[str, str]) -> None:
    result = run(("ring:8", 1), *pair, SIZE, "packet", CHANNELS)
    sent = sent_by_pair(*pair, 8, CHANNELS)
    wanted = sum(part * min((b - a) % 8, (a - b) % 8) for (a, b), part in sent.items())
    found = in_parts(moved(result))
    between = sum(part for (a, b), part in found.items() if a[:6] == b[:6] == "router")
    assert between == pytest.approx(wanted)


@pytest.mark.parametrize("pair", EXCHANGES, ids="/".join)
def test_a_pcie_tree_crosses_the_sockets_with_what_leaves_four_gpus(pair: tuple[str, str]) -> None:
    result = run(("a100-pcie-x8", 1), *pair, SIZE, 1024, CHANNELS)
    sent = sent_by_pair(*pair, 8, CHANNELS)
    out, into = laws_of_sums(sent)
    found = in_parts(moved(result))
    for rank in range(8):
        switch = f"pcie{rank // 4}"
        assert found.get((f"gpu{rank}", switch), 0) == pytest.approx(out.get(rank, 0))
        assert found.get((switch, f"gpu{rank}"), 0) == pytest.approx(into.get(rank, 0))
    for far in (0, 1):
        crossing = sum(part for (a, b), part in sent.items() if a // 4 == far != b // 4)
        assert found.get((f"pcie{far}", f"cpu{far}"), 0) == pytest.approx(crossing)
        assert found.get((f"cpu{far}", f"cpu{1 - far}"), 0) == pytest.approx(crossing)


@pytest.mark.parametrize("operation", RINGS)
def test_rings_send_n_minus_1_blocks_over_every_hop(operation: str) -> None:
    star = in_parts(moved(run(("star:8", 1), operation, "ring", SIZE, "packet", CHANNELS)))
    assert len(star) == 16
    assert list(star.values()) == pytest.approx([RINGS[operation]] * 16)
    tree = in_parts(moved(run(("a100-pcie-x8", 1), operation, "ring", SIZE, 1024, CHANNELS)))
    assert tree["cpu0", "cpu1"] == pytest.approx(RINGS[operation])
    assert tree["cpu1", "cpu0"] == pytest.approx(RINGS[operation])


@pytest.mark.parametrize(
    ("name", "rings", "links"), [("fully-connected:8", 6, 48), ("mi300x", 7, 56), ("dgx-1v", 6, 32)]
)
def test_rings_of_a_mesh_share_its_links(name: str, rings: int, links: int) -> None:
    """Each directed link belongs to one ring, and each ring takes an even part of S over each of its 8 hops.

    K8 has three edge-disjoint cycles, used both ways (8 links idle); an MI300X seven directed ones, all 56 links; a
    DGX-1 three cycles both ways over all its 48 links, of which 16 pairs of nodes have one and 16 two.
    """
    size = SIZE * 7
    found = moved(run((name, 1), "allreduce", "ring", size, "packet", 2 * rings))
    assert len(found) == links
    assert sum(found.values()) / size == pytest.approx(8 * RINGS["allreduce"])
    per_link = RINGS["allreduce"] / rings
    parts = {round(payload / size / per_link, 3) for payload in found.values()}
    assert parts == ({1, 2} if name == "dgx-1v" else {1})


TREE_A = {4: 0, 2: 4, 6: 4, 1: 2, 3: 2, 5: 6, 7: 6}
"""In-order binary tree of 8 nodes, rooted at 0: child -> parent."""


@pytest.mark.parametrize(
    ("operation", "turns"), [("allreduce", "both"), ("broadcast", "down"), ("reduce", "up")]
)
def test_double_trees_send_half_of_the_data_over_each_edge(operation: str, turns: str) -> None:
    """Half of the channels use one tree, half the other; S/2 over each edge, up, down or both.

    The second tree of an all-reduce is the mirror image (7 - i); with a given root the other ranks move up by one
    instead (i mod 7 + 1), so that in both cases no rank forks twice.
    """
    move = {rank: 7 - rank if turns == "both" else rank and rank % 7 + 1 for rank in range(8)}
    trees = [TREE_A, {move[child]: move[parent] for child, parent in TREE_A.items()}]
    sent: dict[tuple[int, int], float] = defaultdict(float)
    for tree in trees:
        for child, parent in tree.items():
            if turns != "down":
                sent[child, parent] += 0.5
            if turns != "up":
                sent[parent, child] += 0.5
    out, into = laws_of_sums(sent)
    found = in_parts(moved(run(("star:8", 1), operation, "tree", SIZE, "packet", CHANNELS)))
    wanted = {(f"host{rank}", "hub"): part for rank, part in out.items()}
    wanted |= {("hub", f"host{rank}"): part for rank, part in into.items()}
    assert found == pytest.approx(wanted)
    assert max(wanted.values()) <= (2 if turns == "both" else 1)


@pytest.mark.parametrize("operation", ["broadcast", "reduce", "allreduce"])
@pytest.mark.parametrize("name", ["star:8", "star:5", "fat-tree:k=4", "dgx-h100"])
def test_trees_come_in_pairs_by_default(name: str, operation: str) -> None:
    """Nobody forks twice: no rank sends or gets more than S on the way down, 2S up and down."""
    found = clusim.collective(name, operation, "16MiB", "tree", granularity="coarse")
    assert found.call is not None
    assert found.call.channels % 2 == 0
    ends: dict[str, int] = defaultdict(int)
    payload = found.wires.counters["payload"].tolist()
    ranks = set(clusim.load(name).ranks)
    for wire, sent in zip(found.wires.names, payload, strict=True):
        for turn, end in zip(("out", "in"), wire.partition(".")[0].split("->"), strict=True):
            if end in ranks:
                ends[f"{turn} {end}"] += sent
    assert max(ends.values()) <= (2 if operation == "allreduce" else 1) * (16 << 20)


TWO_MACHINES = [
    # A block of S/16 for each of the 8 ranks of the other machine.
    ("alltoall", "direct", 16 * 8 / 16),
    ("all_gather", "direct", 16 * 8 / 16),
    ("reduce_scatter", "direct", 16 * 8 / 16),
    ("allreduce", "twoshot", 2 * 16 * 8 / 16),
    # A ring enters and leaves each machine once, with 2(n - 1)/n of its part of S.
    ("allreduce", "ring", 2 * 2 * 15 / 16),
    # Each GPU's eighth goes round a ring of two: half of it and half of it again.
    ("allreduce", "hierarchical", 16 * 2 * (1 / 2) / 8),
    # Each GPU's eighth goes up to the network's switches once.
    ("allreduce", "sharp", 16 / 8),
]


@pytest.mark.parametrize(("operation", "algorithm", "wanted"), TWO_MACHINES)
def test_nics_carry_what_leaves_a_machine(operation: str, algorithm: str, wanted: float) -> None:
    size = 2 * SIZE
    result = run(("dgx-a100", 2), operation, algorithm, size, 4096, 8)
    found = moved_by_class(result)
    assert found["infiniband nic->leaf"] / size == pytest.approx(wanted)
    assert found["infiniband leaf->nic"] / size == pytest.approx(wanted)


IN_SWITCH = [
    # up, down: flags carry nothing. A rank hands its S to the adder, an eighth for each head, and the head stores the
    # sum to all, itself included: S/8 up, S down; the sum it reads comes down as S/8.
    ("allreduce", "nvls", 1 + 1 / 8, 1 + 1 / 8),
    ("allreduce", "multimem", 1 + 1 / 8, 1 + 1 / 8),
    # Only the multicast: an eighth up, everybody's down.
    ("all_gather", "nvls", 1 / 8, 1),
    ("all_gather", "multimem", 1 / 8, 1),
    # Only the sum: everything up, an eighth down.
    ("reduce_scatter", "nvls", 1, 1 / 8),
]


@pytest.mark.parametrize(("operation", "algorithm", "up", "down"), IN_SWITCH)
def test_reducing_switches_take_the_vector_once(
    operation: str, algorithm: str, up: float, down: float
) -> None:
    result = run(("dgx-h100", 1), operation, algorithm, SIZE, "packet", 8)
    found = moved_by_class(result)
    assert found["nvlink gpu->switch"] / SIZE == pytest.approx(8 * up)
    assert found["nvlink switch->gpu"] / SIZE == pytest.approx(8 * down)


GATHERED = [("multimem", KIB * KIB), ("multimem", 8 * KIB * KIB), ("nvls", 2 * KIB * KIB)]
GATHERED += [("st", 2 * KIB * KIB), ("copy-engines", 2 * KIB * KIB)]


@pytest.mark.parametrize(("algorithm", "size"), GATHERED)
def test_a_gather_ends_after_the_last_store_has_arrived(algorithm: str, size: int) -> None:
    """Multicast brings a GPU all S, writes its peers' 7/8 S, each 128 B with a header of 16 B over 18 NVLinks."""
    result = run(("dgx-h100", 1), "all_gather", algorithm, size, "packet")
    into = size * (1 if algorithm in ("multimem", "nvls") else 7 / 8)
    assert moved_by_class(result)["nvlink switch->gpu"] == 8 * into
    assert result.time_ps >= into * (128 + 16) / 128 / (18 * 25e9) * 1e12
