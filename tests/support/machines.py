"""What is known of the shipped machines, written by hand from documents and dumps, not from the presets."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["MACHINES", "Machine", "Pairs"]

QUADS = [(a, b) for q in (0, 4) for a in range(q, q + 4) for b in range(a + 1, q + 4)]
DGX_1P = dict.fromkeys(QUADS, 1) | {(i, i + 4): 1 for i in range(4)}
DGX_1V = {
    (0, 1): 1,
    (0, 2): 1,
    (0, 3): 2,
    (0, 4): 2,
    (1, 2): 2,
    (1, 3): 1,
    (1, 5): 2,
    (2, 3): 2,
    (2, 6): 1,
    (3, 7): 1,
    (4, 5): 1,
    (4, 6): 1,
    (4, 7): 2,
    (5, 6): 2,
    (5, 7): 1,
    (6, 7): 2,
}  # nvidia-smi topo -m of a DGX-1 with V100

Pairs = dict[tuple[str, str], int]


def mesh(pairs: dict[tuple[int, int], int]) -> Pairs:
    return {(f"gpu{a}", f"gpu{b}"): n for (a, b), n in pairs.items()}


def full(gpus: int, count: int) -> Pairs:
    return mesh({(a, b): count for a in range(gpus) for b in range(a + 1, gpus)})


def switched(gpus: int, counts: list[int]) -> Pairs:
    return {(f"gpu{g}", f"nvswitch{s}"): n for g in range(gpus) for s, n in enumerate(counts)}


DGX_2 = {(f"gpu{g}", f"nvswitch{s + 6 * (g // 8)}"): 1 for g in range(16) for s in range(6)} | {
    (f"nvswitch{s}", f"nvswitch{s + 6}"): 8 for s in range(6)
}
HGX_A100 = switched(8, [2] * 6)
HGX_H100 = switched(8, [5, 4, 4, 5])
HGX_B200 = switched(8, [9, 9])


@dataclass(frozen=True)
class Machine:
    """What is known of a machine: GPU graph, and per GPU the adapters below its own switch and its socket."""

    gpus: Pairs
    rate_GBps: float
    per_gpu: int
    p2p: str
    rings: int
    nics: list[list[int]]
    sockets: list[int]
    slot: str
    adapter: tuple[str, float]
    network: tuple[str, str]


def pairs(count: int) -> list[list[int]]:
    """Two adapters for each pair of GPUs."""
    return [[2 * (g // 2), 2 * (g // 2) + 1] for g in range(count)]


def own(count: int, each: int = 1) -> list[list[int]]:
    """`each` adapters of its own for every GPU."""
    return [[each * g + i for i in range(each)] for g in range(count)]


HALVES = [0] * 4 + [1] * 4
RAIL, TREE, FLY = "rail", "fat-tree", "dragonfly"
NDR = ("infiniband", 50.0)
# GPU links; GB/s; links per GPU; p2p; ring channels; nearest adapters; socket of each GPU; slot; adapter; network
MACHINES = {
    "dgx-1p": Machine(
        mesh(DGX_1P),
        20,
        4,
        "write",
        8,
        [[g // 2] for g in range(8)],
        HALVES,
        "pcie-gen3-x16",
        ("infiniband", 12.5),
        (RAIL, "ib-edr"),
    ),
    "dgx-1v": Machine(
        mesh(DGX_1V),
        25.78125,
        6,
        "write",
        12,
        [[g // 2] for g in range(8)],
        HALVES,
        "pcie-gen3-x16",
        ("infiniband", 12.5),
        (RAIL, "ib-edr"),
    ),
    "aws-p3dn": Machine(
        mesh(DGX_1V),
        25.78125,
        6,
        "write",
        12,
        [[0]] * 8,
        HALVES,
        "pcie-gen3-x16",
        ("efa", 12.5),
        (TREE, "efa-100"),
    ),
    "azure-ndv2": Machine(
        mesh(DGX_1V),
        25.78125,
        6,
        "write",
        12,
        [[0]] * 8,
        HALVES,
        "pcie-gen3-x16",
        ("infiniband", 12.5),
        (TREE, "ib-edr"),
    ),
    "dgx-2": Machine(
        DGX_2,
        25.78125,
        6,
        "write",
        12,
        [[g // 2] for g in range(16)],
        [0] * 8 + [1] * 8,
        "pcie-gen3-x16",
        ("infiniband", 12.5),
        (RAIL, "ib-edr"),
    ),
    "dgx-a100": Machine(
        HGX_A100,
        25,
        12,
        "read",
        24,
        pairs(8),
        HALVES,
        "pcie-gen4-x16",
        ("infiniband", 25.0),
        (RAIL, "ib-hdr"),
    ),
    "azure-ndv4": Machine(
        HGX_A100,
        25,
        12,
        "read",
        24,
        pairs(8),
        HALVES,
        "pcie-gen4-x16",
        ("infiniband", 25.0),
        (RAIL, "ib-hdr"),
    ),
    "aws-p4d": Machine(
        HGX_A100,
        25,
        12,
        "read",
        24,
        [[g // 2] for g in range(8)],
        HALVES,
        "pcie-gen3-x16",
        ("efa", 12.5),
        (TREE, "efa-100"),
    ),
    **{
        name: Machine(
            HGX_H100, 25, 18, "write", 24, own(8), HALVES, "pcie-gen5-x16", NDR, (RAIL, "ib-ndr")
        )
        for name in ("dgx-h100", "dgx-h200", "hgx-h100-ndr", "azure-ndv5")
    },
    "hgx-h800": Machine(
        switched(8, [2] * 4),
        25,
        8,
        "write",
        16,
        own(8),
        HALVES,
        "pcie-gen5-x16",
        NDR,
        (RAIL, "ib-ndr"),
    ),
    "aws-p5": Machine(
        HGX_H100,
        25,
        18,
        "write",
        24,
        own(8, 4),
        HALVES,
        "pcie-gen5-x16",
        ("efa", 12.5),
        (TREE, "efa-100"),
    ),
    "aws-p5en": Machine(
        HGX_H100,
        25,
        18,
        "write",
        24,
        own(8, 2),
        HALVES,
        "pcie-gen5-x16",
        ("efa", 25.0),
        (TREE, "efa-200"),
    ),
    "gcp-a3-mega": Machine(
        HGX_H100,
        25,
        18,
        "write",
        24,
        pairs(8),
        HALVES,
        "pcie-gen5-x16",
        ("roce", 25.0),
        (RAIL, "roce-200"),
    ),
    "hgx-b200": Machine(
        HGX_B200, 50, 18, "write", 32, own(8), HALVES, "pcie-gen5-x16", NDR, (RAIL, "ib-ndr")
    ),
    "hgx-b300": Machine(
        HGX_B200,
        50,
        18,
        "write",
        32,
        own(8),
        HALVES,
        "pcie-gen6-x16",
        ("infiniband", 100.0),
        (RAIL, "ib-xdr"),
    ),
    "aws-p6-b200": Machine(
        HGX_B200,
        50,
        18,
        "write",
        32,
        own(8),
        HALVES,
        "pcie-gen5-x16",
        ("efa", 50.0),
        (TREE, "efa-400"),
    ),
    "gb200-nvl72": Machine(
        switched(72, [1] * 18),
        50,
        18,
        "write",
        32,
        pairs(72),
        [g // 2 for g in range(72)],
        "nvlink-c2c",
        NDR,
        (RAIL, "ib-ndr"),
    ),
    "a100x4-mesh": Machine(
        full(4, 4),
        25,
        12,
        "read",
        24,
        [[0, 1, 2, 3]] * 4,
        [0] * 4,
        "pcie-gen4-x16",
        ("slingshot", 25.0),
        (FLY, "slingshot-200"),
    ),
    "polaris": Machine(
        full(4, 4),
        25,
        12,
        "read",
        24,
        [[0, 1]] * 4,
        [0] * 4,
        "pcie-gen4-x16",
        ("slingshot", 25.0),
        (FLY, "slingshot-200"),
    ),
    **{
        name: Machine(
            full(4, 6),
            25,
            18,
            "write",
            24,
            own(4),
            [0, 1, 2, 3],
            "nvlink-c2c",
            ("slingshot", 25.0),
            (FLY, "slingshot-200"),
        )
        for name in ("gh200x4-mesh", "alps-gh200")
    },
    "a100-pcie-nvlink-pair": Machine(
        mesh({(0, 1): 12}),
        25,
        12,
        "read",
        24,
        [[0]] * 2,
        [0, 0],
        "pcie-gen4-x16",
        ("infiniband", 25.0),
        (TREE, "ib-hdr"),
    ),
    "a100-pcie-x8": Machine(
        {},
        0,
        0,
        "write",
        2,
        [[0]] * 8,
        HALVES,
        "pcie-gen4-x16",
        ("infiniband", 25.0),
        (TREE, "ib-hdr"),
    ),
    "rtx3090x8-edr56": Machine(
        {},
        0,
        0,
        "write",
        2,
        [[0]] * 8,
        HALVES,
        "pcie-gen4-x16",
        ("infiniband", 6.8175),
        (TREE, "ib-fdr"),
    ),
    "rtx4090x8-pcie": Machine(
        {},
        0,
        0,
        "write",
        2,
        [[0]] * 8,
        HALVES,
        "pcie-gen4-x16",
        ("roce", 12.5),
        (TREE, "roce-100"),
    ),
    "mi300x": Machine(
        full(8, 1),
        64,
        7,
        "write",
        28,
        own(8),
        HALVES,
        "pcie-gen5-x16",
        ("roce", 50.0),
        (RAIL, "roce-400"),
    ),
}
