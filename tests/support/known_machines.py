"""What is known of the shipped machines, written by hand from documents and dumps, not from the presets."""

from __future__ import annotations

from dataclasses import dataclass, replace

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

FRONTIER = {
    **dict.fromkeys([(0, 1), (2, 3), (4, 5), (6, 7)], 4),
    **dict.fromkeys([(0, 6), (2, 4)], 2),
    **dict.fromkeys([(0, 2), (1, 3), (1, 5), (3, 7), (4, 6), (5, 7)], 1),
}  # the node diagram of OLCF's user guide

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
HALVES = (0,) * 4 + (1,) * 4


@dataclass(frozen=True)
class Machine:
    """A machine.

    Attributes
    ----------
    gpus : dict
        Links between GPUs and their switches; each of `rate_GBps`, `per_gpu` of them on every GPU, or by rank.
    p2p, rings : str and int
        How GPUs exchange data, and the channels of a ring.
    nics : tuple of tuple of int
        The adapters nearest to each GPU.
    sockets : tuple of int
        The CPU of each GPU.
    slot : str
        Type of link a GPU has to its host; two with a blank between them where it has both.
    network : tuple
        Kind, link type, class and rate [GB/s] of what joins such machines.
    warnings : int
        Warnings of a check, for machines whose GPUs have different links.
    """

    gpus: Pairs
    rate_GBps: float
    per_gpu: int | tuple[int, ...]
    p2p: str
    rings: int
    nics: tuple[tuple[int, ...], ...]
    sockets: tuple[int, ...]
    slot: str
    network: tuple[str, str, str, float]
    warnings: int = 0

    def links_of(self, rank: int) -> int:
        """Return the links of a GPU to others."""
        return self.per_gpu if isinstance(self.per_gpu, int) else self.per_gpu[rank]


def shared(count: int, gpus: int, nics: int) -> tuple[tuple[int, ...], ...]:
    """Return `nics` adapters for each `gpus` consecutive GPUs of `count`."""
    return tuple(tuple(g // gpus * nics + i for i in range(nics)) for g in range(count))


EDR = ("ib-edr", "infiniband", 12.5)
HDR = ("ib-hdr", "infiniband", 25.0)
NDR = ("ib-ndr", "infiniband", 50.0)
XDR = ("ib-xdr", "infiniband", 100.0)
SLINGSHOT = ("dragonfly", "slingshot-200", "slingshot", 25.0)
GEN3, GEN4, GEN5, GEN6 = (f"pcie-gen{generation}-x16" for generation in (3, 4, 5, 6))

DGX1V = Machine(
    mesh(DGX_1V), 25.78125, 6, "write", 12, shared(8, 2, 1), HALVES, GEN3, ("rail", *EDR)
)
A100 = Machine(HGX_A100, 25, 12, "read", 24, shared(8, 2, 2), HALVES, GEN4, ("rail", *HDR))
H100 = Machine(HGX_H100, 25, 18, "write", 24, shared(8, 1, 1), HALVES, GEN5, ("rail", *NDR))
B200 = Machine(HGX_B200, 50, 18, "write", 32, shared(8, 1, 1), HALVES, GEN5, ("rail", *NDR))
NV4 = Machine(full(4, 4), 25, 12, "read", 24, shared(4, 4, 4), (0,) * 4, GEN4, SLINGSHOT)
NV6 = Machine(
    full(4, 6), 25, 18, "write", 18, shared(4, 1, 1), (0, 1, 2, 3), "nvlink-c2c", SLINGSHOT
)
BOX = Machine({}, 0, 0, "write", 2, shared(8, 8, 1), HALVES, GEN4, ("fat-tree", *HDR))

MACHINES = {
    "dgx-1p": replace(DGX1V, gpus=mesh(DGX_1P), rate_GBps=20, per_gpu=4, rings=8),
    "dgx-1v": DGX1V,
    "aws-p3dn": replace(DGX1V, nics=shared(8, 8, 1), network=("fat-tree", "efa-100", "efa", 12.5)),
    "azure-ndv2": replace(DGX1V, nics=shared(8, 8, 1), network=("fat-tree", *EDR)),
    "dgx-2": replace(DGX1V, gpus=DGX_2, nics=shared(16, 2, 1), sockets=(0,) * 8 + (1,) * 8),
    "dgx-a100": A100,
    "azure-ndv4": A100,
    "hgx-a100-hdr4": replace(A100, nics=shared(8, 2, 1)),
    "oci-b4": replace(A100, nics=shared(8, 2, 4), network=("fat-tree", "roce-100", "roce", 12.5)),
    "aws-p4d": replace(
        A100, nics=shared(8, 2, 1), slot=GEN3, network=("fat-tree", "efa-100", "efa", 12.5)
    ),
    "dgx-h100": H100,
    "dgx-h200": H100,
    "hgx-h100-ndr": H100,
    "azure-ndv5": H100,
    "hgx-h200-bf3": replace(H100, network=("rail", "roce-400", "roce", 50.0)),
    "hgx-h20": replace(H100, network=("rail", "roce-400", "roce", 50.0)),
    "hgx-h800": replace(H100, gpus=switched(8, [2] * 4), per_gpu=8, rings=16),
    "aws-p5": replace(H100, nics=shared(8, 1, 4), network=("fat-tree", "efa-100", "efa", 12.5)),
    "aws-p5en": replace(H100, nics=shared(8, 2, 4), network=("fat-tree", "efa-200", "efa", 25.0)),
    "gcp-a3-mega": replace(H100, nics=shared(8, 2, 2), network=("rail", "roce-200", "roce", 25.0)),
    "hgx-b200": B200,
    "hgx-b300": replace(B200, slot=GEN6, network=("rail", *XDR)),
    "aws-p6-b200": replace(
        B200, nics=shared(8, 2, 2), network=("fat-tree", "efa-400", "efa", 50.0)
    ),
    "aws-p6-b300": replace(
        B200, nics=shared(8, 1, 2), slot=GEN6, network=("fat-tree", "efa-400", "efa", 50.0)
    ),
    "gcp-a4": replace(B200, network=("rail", "roce-400", "roce", 50.0)),
    "gb200-nvl72": replace(
        B200,
        gpus=switched(72, [1] * 18),
        nics=shared(72, 2, 2),
        sockets=tuple(g // 2 for g in range(72)),
        slot="nvlink-c2c",
    ),
    "gb300-nvl72": replace(
        B200,
        gpus=switched(72, [1] * 18),
        nics=shared(72, 1, 1),
        sockets=tuple(g // 2 for g in range(72)),
        slot=f"nvlink-c2c {GEN6}",
        network=("rail", *XDR),
    ),
    "gcp-a4x-max": replace(
        B200,
        gpus=switched(72, [1] * 18),
        nics=shared(72, 1, 1),
        sockets=tuple(g // 2 for g in range(72)),
        slot=f"nvlink-c2c {GEN6}",
        network=("rail", "roce-800", "roce", 100.0),
    ),
    "vera-rubin-nvl72": replace(
        B200,
        gpus=switched(72, [1] * 36),
        per_gpu=36,
        rings=64,
        nics=shared(72, 2, 4),
        sockets=tuple(g // 2 for g in range(72)),
        slot="nvlink-c2c",
        network=("rail", *XDR),
    ),
    "a100x4-mesh": NV4,
    "polaris": replace(NV4, nics=shared(4, 4, 2)),
    "gh200x4-mesh": NV6,
    "alps-gh200": NV6,
    "a100-pcie-nvlink-pair": Machine(
        full(2, 12), 25, 12, "read", 24, ((0,), (0,)), (0, 0), GEN4, ("fat-tree", *HDR)
    ),
    "a100-pcie-x8": BOX,
    "rtx3090x8-edr56": replace(BOX, network=("fat-tree", "ib-fdr", "infiniband", 6.8175)),
    "rtx4090x8-pcie": replace(BOX, network=("fat-tree", "roce-100", "roce", 12.5)),
    "l40s-x8": replace(BOX, nics=shared(8, 2, 1), network=("rail", "roce-200", "roce", 25.0)),
    "l20-x8": replace(BOX, nics=shared(8, 2, 1), network=("rail", "roce-200", "roce", 25.0)),
    "rtx5090x8-pcie": replace(BOX, slot=GEN5, network=("fat-tree", "roce-100", "roce", 12.5)),
    "dgx-spark": Machine(
        {}, 0, 0, "write", 4, ((0, 1),), (0,), "nvlink-c2c", ("rail", "roce-100", "roce", 12.5)
    ),
    "rtx-pro-6000-pcie5": replace(
        BOX,
        rings=4,
        nics=shared(8, 2, 1),
        slot=GEN5,
        network=("rail", "roce-400", "roce", 50.0),
    ),
    "rtx-pro-6000-x8": replace(
        BOX,
        rings=4,
        nics=shared(8, 2, 1),
        slot=GEN5,
        network=("rail", "roce-800", "roce", 100.0),
    ),
    "mi300x": replace(
        B200,
        gpus=full(8, 1),
        rate_GBps=64,
        per_gpu=7,
        rings=28,
        network=("rail", "roce-400", "roce", 50.0),
    ),
    "mi350x": replace(
        B200,
        gpus=full(8, 1),
        rate_GBps=76.8,
        per_gpu=7,
        rings=56,
        network=("rail", "roce-400", "roce", 50.0),
    ),
    "mi355x": replace(
        B200,
        gpus=full(8, 1),
        rate_GBps=76.8,
        per_gpu=7,
        rings=56,
        network=("rail", "roce-400", "roce", 50.0),
    ),
    "mi250x": Machine(
        mesh(FRONTIER),
        50,
        (7, 6) * 4,
        "write",
        16,
        shared(8, 2, 1),
        (0,) * 8,
        GEN4,
        SLINGSHOT,
        warnings=3,
    ),
}
