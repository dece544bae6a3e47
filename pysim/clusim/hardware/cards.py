"""GPUs on PCIe cards, and AMD's accelerators.

**Hardware** As in `chips`; consumer and workstation cards have GDDR memory, no or few NVLinks (a bridge between two
cards), and no GPUDirect.
**Model** As in `chips`.
**Not modelled** AMD's chiplets: an MI300X is one chip with one memory.
**Parameters** The figures below, by the keys of a topology file.
"""

from __future__ import annotations

from clusim.hardware.chips import (
    L2_HOLDS,
    L2_PARTLY,
    L2_SMALL,
    common,
    identity,
    pcie,
    traffic,
)
from clusim.hardware.figures import Figure, Preset, assumed, measured, published

__all__ = ["CARDS"]

_SHEET = "data sheet"

_NO_PEERS = published(
    False, "the driver gives GeForce cards no peer access over PCIe (cudaDeviceCanAccessPeer)"
)


def _card(
    name: str,
    kind: tuple[str, float, str],
    sms: int,
    memory: tuple[str, str],
    flops: dict[str, float],
    links: tuple[int, str],
    generation: int,
    *,
    efficiency: Figure | None = None,
    cache: tuple[float, str] = (1.32, L2_SMALL),
    peers: Figure | None = None,
    maker: str = "NVIDIA",
    units: str = "SMs",
    seen: str = _SHEET,
) -> Preset:
    """Return a card; `kind` is architecture, compute capability and size of memory, `seen` where its figures are."""
    return {
        **identity(*kind, peers=peers, sheet=f"{maker} {name}, {seen}"),
        "sms": published(sms, f"{maker} {name}, {seen}: {sms} {units}"),
        **common(min(sms, 256)),
        "memory_rate": published(memory[0], f"{maker} {name}, {memory[1]}, {seen}"),
        "memory_efficiency": efficiency
        or assumed(0.88, "copies reach 85 to 92% of the peak on cards that were measured"),
        **traffic(*cache),
        "peak_flops": published(
            {kind: tera * 1e12 for kind, tera in flops.items()}, f"{maker} {name}, dense, {seen}"
        ),
        "links": published(links[0], f"{maker} {name}: {links[1]}"),
        **pcie(generation),
    }


def _instinct(
    name: str,
    memory_size: str,
    cus: int,
    memory: tuple[str, str],
    flops: dict[str, float],
    links: tuple[int, str],
    generation: int,
    *,
    efficiency: Figure | None = None,
    cache: tuple[float, str] = (1.32, L2_SMALL),
    seen: str = _SHEET,
) -> Preset:
    """Return an accelerator of AMD, which has no CUDA compute capability."""
    card = _card(
        *(name, ("cdna", _STAND_IN, memory_size), cus, memory, flops, links, generation),
        efficiency=efficiency,
        cache=cache,
        peers=published(True, "ROCm: peer access over PCIe and xGMI"),
        maker="AMD",
        units="CUs",
        seen=seen,
    )
    return {
        **card,
        "architecture": published("cdna", f"AMD {name}; GCN 5 is taken as CDNA"),
        "compute_capability": assumed(
            _STAND_IN,
            "AMD's chips have gfx numbers; NCCL's plan for an A100 stands in for RCCL's, whose tuner is another one",
        ),
    }


_STAND_IN = 8.0
"""Compute capability that NCCL's model takes AMD's chips for."""

_NONE = (0, "no NVLink")
_BIG_L2 = (0.57, L2_HOLDS)
_A100_L2 = (0.82, L2_PARTLY)

CARDS: dict[str, Preset] = {
    "p100-pcie": _card(
        "P100 PCIe 16GB",
        ("pascal", 6.0, "16GiB"),
        56,
        ("732 GB/s", "4 stacks HBM2"),
        {"f32": 9.3, "f16": 18.7},
        _NONE,
        3,
    ),
    "v100-pcie": _card(
        "V100 PCIe",
        ("volta", 7.0, "32GiB"),
        80,
        ("900 GB/s", "4 stacks HBM2"),
        {"f32": 14, "f16": 112},
        _NONE,
        3,
    ),
    "t4": _card(
        "T4", ("volta", 7.5, "16GiB"), 40, ("320 GB/s", "GDDR6"), {"f32": 8.1, "f16": 65}, _NONE, 3
    ),
    "a100-pcie-40gb": _card(
        "A100 PCIe 40GB",
        ("ampere", 8.0, "40GiB"),
        108,
        ("1555 GB/s", "5 stacks HBM2"),
        {"f32": 19.5, "f16": 312, "bf16": 312},
        (12, "12 NVLink 3 links on three bridges to one other card"),
        4,
        cache=_A100_L2,
    ),
    "a100-pcie-80gb": _card(
        "A100 PCIe 80GB",
        ("ampere", 8.0, "80GiB"),
        108,
        ("1935 GB/s", "5 stacks HBM2e"),
        {"f32": 19.5, "f16": 312, "bf16": 312},
        (12, "12 NVLink 3 links on three bridges to one other card"),
        4,
        cache=_A100_L2,
    ),
    "a10": _card(
        "A10",
        ("ampere", 8.6, "24GiB"),
        72,
        ("600 GB/s", "GDDR6"),
        {"f32": 31.2, "f16": 125, "bf16": 125},
        _NONE,
        4,
    ),
    "a40": _card(
        "A40",
        ("ampere", 8.6, "48GiB"),
        84,
        ("696 GB/s", "GDDR6"),
        {"f32": 37.4, "f16": 149.7, "bf16": 149.7},
        (4, "4 NVLink links on a bridge, 56.25 GB/s per direction"),
        4,
    ),
    "rtx-a6000": _card(
        "RTX A6000",
        ("ampere", 8.6, "48GiB"),
        84,
        ("768 GB/s", "GDDR6"),
        {"f32": 38.7, "f16": 154.8, "bf16": 154.8},
        (4, "4 NVLink links on a bridge, 56.25 GB/s per direction"),
        4,
    ),
    "rtx-3090": _card(
        "GeForce RTX 3090",
        ("ampere", 8.6, "24GiB"),
        82,
        ("936 GB/s", "GDDR6X"),
        {"f32": 35.6, "f16": 71, "bf16": 71},
        (4, "4 NVLink links on a bridge, 56.25 GB/s per direction"),
        4,
        peers=_NO_PEERS,
    ),
    "rtx-4090": _card(
        "GeForce RTX 4090",
        ("ada", 8.9, "24GiB"),
        128,
        ("1008 GB/s", "GDDR6X"),
        {"f32": 82.6, "f16": 165.2, "bf16": 165.2, "f8": 330.3},
        _NONE,
        4,
        cache=_BIG_L2,
        peers=_NO_PEERS,
    ),
    "rtx-5090": _card(
        "GeForce RTX 5090",
        ("blackwell", 12.0, "32GiB"),
        170,
        ("1792 GB/s", "GDDR7"),
        {"f32": 104.8, "f16": 209.5, "bf16": 209.5, "f8": 419},
        _NONE,
        5,
        cache=_BIG_L2,
        peers=_NO_PEERS,
    ),
    "l4": _card(
        "L4",
        ("ada", 8.9, "24GiB"),
        58,
        ("300 GB/s", "GDDR6"),
        {"f32": 30.3, "f16": 121, "bf16": 121},
        _NONE,
        4,
        cache=_BIG_L2,
    ),
    "l20": _card(
        "L20",
        ("ada", 8.9, "48GiB"),
        92,
        ("864 GB/s", "GDDR6"),
        {"f32": 59.8, "f16": 119.5, "bf16": 119.5, "f8": 239},
        _NONE,
        4,
        cache=_BIG_L2,
    ),
    "l40s": _card(
        "L40S",
        ("ada", 8.9, "48GiB"),
        142,
        ("864 GB/s", "GDDR6"),
        {"f32": 91.6, "f16": 362, "bf16": 362, "f8": 733},
        _NONE,
        4,
        cache=_BIG_L2,
    ),
    "h100-pcie": _card(
        "H100 PCIe 80GB",
        ("hopper", 9.0, "80GiB"),
        114,
        ("2000 GB/s", "5 stacks HBM2e"),
        {"f32": 51, "f16": 756, "bf16": 756, "f8": 1513},
        (12, "12 NVLink 4 links on three bridges to one other card"),
        5,
        cache=_BIG_L2,
    ),
    "h100-nvl": _card(
        "H100 NVL",
        ("hopper", 9.0, "94GB"),
        132,
        ("3938 GB/s", "6 stacks HBM3"),
        {"f32": 60, "f16": 835, "bf16": 835, "f8": 1671},
        (12, "12 NVLink 4 links on three bridges to one other card"),
        5,
        cache=_BIG_L2,
    ),
    "mi50": _instinct(
        "Instinct MI50",
        "16GiB",
        60,
        ("1024 GB/s", "4 stacks HBM2"),
        {"f32": 13.3, "f16": 26.5},
        (2, "2 Infinity Fabric links"),
        4,
    ),
    "mi100": _instinct(
        "Instinct MI100",
        "32GiB",
        120,
        ("1229 GB/s", "4 stacks HBM2"),
        {"f32": 23.1, "f16": 184.6, "bf16": 92.3},
        (3, "3 Infinity Fabric links"),
        4,
    ),
    "mi250x-gcd": _instinct(
        "Instinct MI250X, one of two dies",
        "64GiB",
        110,
        ("1638 GB/s", "4 stacks HBM2e"),
        {"f32": 23.9, "f16": 191.5, "bf16": 191.5},
        (8, "8 Infinity Fabric links, four of them inside the package"),
        4,
    ),
    "mi300x": _instinct(
        "Instinct MI300X",
        "192GiB",
        304,
        ("5300 GB/s", "8 stacks HBM3"),
        {"f32": 163.4, "f16": 1307.4, "bf16": 1307.4, "f8": 2614.9},
        (7, "7 Infinity Fabric links to the other GPUs of the board"),
        5,
        efficiency=measured(
            0.78, "BabelStream on MI300X 4.0 to 4.3 of 5.3 TB/s (Chips and Cheese, AMD blogs)"
        ),
        cache=(0.57, "the FIFO slices under way stay in the 256 MB Infinity Cache"),
    ),
    "mi325x": _instinct(
        "Instinct MI325X",
        "256GiB",
        304,
        ("6000 GB/s", "8 stacks HBM3e"),
        {"f32": 163.4, "f16": 1307.4, "bf16": 1307.4, "f8": 2614.9},
        (7, "7 Infinity Fabric links to the other GPUs of the board"),
        5,
        cache=(0.57, "the FIFO slices under way stay in the 256 MB Infinity Cache"),
    ),
    "mi355x": _instinct(
        "Instinct MI355X",
        "288GiB",
        256,
        ("8000 GB/s", "8 stacks HBM3e"),
        {"f32": 157.3, "f16": 2500, "bf16": 2500, "f8": 5000},
        (7, "7 Infinity Fabric links to the other GPUs of the board"),
        5,
        cache=(0.57, "the FIFO slices under way stay in the 256 MB Infinity Cache"),
    ),
}
"""Cards and AMD accelerators by name."""

_TITAN_PEERS = assumed(False, "as GeForce cards with the same chip; NVLink bridges do give it")

CARDS |= {
    "v100-sxm3": {
        **_card(
            *("V100 SXM3 32GB", ("volta", 7.0, "32GiB"), 80, ("900 GB/s", "4 stacks HBM2")),
            {"f32": 15.7, "f16": 125},
            (6, "6 NVLink 2 links, one to each of the six NVSwitches of a DGX-2 board"),
            3,
            seen="nvidia-smi of a DGX-2 (32,768 MiB, 7.0); the GV100 of all V100",
        ),
        "memory_rate": assumed(
            "900 GB/s", "as V100 SXM2; no data sheet of the SXM3 module is public"
        ),
        "peak_flops": assumed(
            {"f32": 15.7e12, "f16": 125e12},
            "as V100 SXM2; NVIDIA gives 2 PFLOP/s for the 16 of a DGX-2, 125 TFLOP/s each",
        ),
    },
    "rtx-2080ti": _card(
        *("GeForce RTX 2080 Ti", ("volta", 7.5, "11GiB"), 68, ("616 GB/s", "GDDR6, 352 bit")),
        {"f32": 13.4, "f16": 53.8},
        (2, "2 NVLink 2 links on a bridge (Tom's Hardware, Turing explored)"),
        3,
        peers=_NO_PEERS,
        seen="reference clocks, f16 with f32 sums: Turing whitepaper as Tom's Hardware and Guru3D quote it",
    ),
    "titan-rtx": _card(
        *("TITAN RTX", ("volta", 7.5, "24GiB"), 72, ("672 GB/s", "GDDR6, 384 bit")),
        {"f32": 16.3, "f16": 130.5},
        (2, "2 NVLink 2 links on a bridge, 100 GB/s in both directions"),
        3,
        peers=_TITAN_PEERS,
        seen="Tom's Hardware and HotHardware of 2018-12; 130.5 as Quadro RTX 8000, the same chip and clock",
    ),
    "a30": {
        **_card(
            *("A30", ("ampere", 8.0, "24GiB"), 56, ("933 GB/s", "HBM2, 3072 bit at 1215 MHz")),
            {"f32": 10.3, "f16": 165, "bf16": 165},
            (4, ""),
            4,
            cache=_A100_L2,
            seen="device query (56 SMs of 8.0 at 1.44 GHz, 24,060 MiB, 24 MiB of L2); rates as A100 per SM and clock",
        ),
        "links": assumed(
            4, "200 GB/s in both directions over a bridge are said of it, 50 for each NVLink 3"
        ),
    },
    "rtx-6000-ada": _card(
        *("RTX 6000 Ada", ("ada", 8.9, "48GiB"), 142, ("960 GB/s", "GDDR6, 384 bit at 20 Gb/s")),
        {"f32": 91.1, "f16": 364.2, "bf16": 364.2, "f8": 728.5},
        (0, "no NVLink, as all of Ada"),
        4,
        cache=_BIG_L2,
        seen="PNY and grafikkarten.com of 2022-09 (142 SMs, 91.1 TFLOP/s); matrix rates 4 and 8 times that, as L40S",
    ),
    "l40": _card(
        *("L40", ("ada", 8.9, "48GiB"), 142, ("864 GB/s", "GDDR6")),
        {"f32": 90.5, "f16": 181, "bf16": 181, "f8": 362},
        (0, "no NVLink; PCIe Gen4 x16 is its only interface"),
        4,
        cache=_BIG_L2,
        seen="data sheet of L40 and L40S (181.05 dense, 362.1 sparse)",
    ),
    "h200-nvl": {
        **_card(
            *("H200 NVL", ("hopper", 9.0, "143771MiB"), 132, ("4800 GB/s", "6 stacks HBM3e")),
            {"f32": 60, "f16": 835, "bf16": 835, "f8": 1671},
            (18, ""),
            5,
            cache=_BIG_L2,
            seen="nvidia-smi (143,771 MiB, 9.0); 4.8 TB/s as H200 SXM with the same stacks",
        ),
        "peak_flops": assumed(
            {"f32": 60e12, "f16": 835e12, "bf16": 835e12, "f8": 1671e12},
            "as H100 NVL; a user reports 836 TFLOP/s of large products, so the peak may be higher",
        ),
        "links": assumed(18, "900 GB/s over bridges to one or three others are said of it"),
    },
    "rtx-pro-6000": _card(
        *("RTX PRO 6000 Blackwell", ("blackwell", 12.0, "96GiB"), 188),
        ("1792 GB/s", "GDDR7, 32 chips of 24 Gbit, 512 bit at 28 Gb/s"),
        {"f32": 125, "f16": 503.8, "bf16": 503.8, "f8": 1007.6},
        (0, "no NVLink"),
        5,
        cache=_BIG_L2,
        seen="NVIDIA's announcement of 2025-03 (188 SMs, 125 TFLOP/s, 4000 sparse f4) and hmc-tech.com for f16 and f8",
    ),
    "mi60": _instinct(
        *("Instinct MI60", "32GiB", 64, ("1024 GB/s", "4 stacks HBM2")),
        {"f32": 14.7, "f16": 29.5},
        (2, "2 Infinity Fabric links, 200 GB/s in both directions (AMD's announcement, 2018-11)"),
        4,
        seen="AMD's announcement of 2018-11 (AnandTech 13562, golem.de)",
    ),
    "mi210": _instinct(
        *("Instinct MI210", "64GiB", 104, ("1638 GB/s", "HBM2e, 4096 bit at 3.2 Gb/s")),
        {"f32": 22.6, "f16": 181, "bf16": 181},
        (3, "3 Infinity Fabric links (AnandTech 17326)"),
        4,
        seen="AMD's table of 2022-03 (AnandTech 17326)",
    ),
    "mi250-gcd": _instinct(
        *("Instinct MI250, one of two dies", "64GiB", 104),
        ("1638 GB/s", "HBM2e, 4096 bit at 3.2 Gb/s"),
        {"f32": 22.6, "f16": 181, "bf16": 181},
        (7, "6 Infinity Fabric links of the package, 3 for each die, and four inside it"),
        4,
        seen="half of AMD's table of 2022-03 (AnandTech 17326); MI250 microarchitecture (rocm.docs.amd.com)",
    ),
    "mi300a": {
        **_instinct(
            *("Instinct MI300A", "128GiB", 228, ("5300 GB/s", "8 stacks HBM3")),
            {"f32": 122.6, "f16": 980.6, "bf16": 980.6, "f8": 1961.2},
            (6, ""),
            5,
            cache=(0.57, "the FIFO slices under way stay in the 256 MB Infinity Cache"),
            seen="6 dies of 38 CUs, 5.3 TB/s (Chips and Cheese); rates as MI300X per CU at 2.1 GHz",
        ),
        "links": assumed(
            6, "four fully connected APUs of a node (arXiv 2508.11298), two links to each other one"
        ),
    },
}
