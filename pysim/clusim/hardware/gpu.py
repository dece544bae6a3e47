"""A GPU as one object: everything known of a chip, as its file in `clusim.hardware.gpus` says it.

**Hardware** A packet for an SM's store crosses the chip to the L2 slice that owns the address; a remote load costs
an L2 or HBM access at the far end. Collectives keep their FIFOs in L2 as far as they fit.
**Model** Fixed latencies behind the wire, one memory server per GPU, and a share of communication bytes that
reaches HBM.
**Not modelled** L2 partitions, banks, row buffers, TLBs; AMD's chiplets: an MI300X is one chip with one memory.
**Parameters** `FIGURES`, by the keys of a topology file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from clusim.base.errors import InputError
from clusim.base.units import parse_size
from clusim.hardware.architecture import Architecture
from clusim.hardware.figures import (
    Figure,
    Preset,
    assumed,
    calibrated,
    check_figures,
    published,
)
from clusim.hardware.pcie import x16_rate

Form = Literal["sxm", "superchip", "card", "oam", "apu"]
"""Form factor: NVIDIA's module, on one board with its CPU, on a PCIe card, OCP's module, with CPU cores."""

FIGURES: dict[str, str] = {
    "compute_capability": "1",
    "sms": "SMs or CUs",
    "cta_slots": "CTAs",
    "memory": "B",
    "memory_rate": "B/s",
    "memory_efficiency": "1",
    "memory_quantum": "s",
    "memory_per_delivered": "1",
    "memory_per_read": "1",
    "memory_per_injected": "1",
    "write_latency": "s",
    "read_latency": "s",
    "response_latency": "s",
    "peak_flops": "FLOP/s",
    "gemm_fraction": "1",
    "power": "W",
    "links": "links",
    "peer_access": "true or false",
    "pcie_rate": "B/s",
}
"""Parameters of a GPU by the keys of a topology file, with the unit of each; 1 is a plain number."""

_OPTIONAL = ("pcie_rate", "power")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One kind of GPU.

    Attributes
    ----------
    name : str
        As topology files have it; its file has the same name with ``_`` for ``-``.
    architecture : Architecture
        What it has in common with others: protocols, launching.
    figures : Preset
        Its own figures, the keys of `FIGURES`.
    form : str
        How it is built in.
    model : str
        As people call it whatever its memory, by which logs are matched with machines.
    products : tuple of str
        Names as drivers, nvidia-smi and logs print them, the usual one first.
    names : tuple of str
        Other complete names of the product; `clusim.hardware.catalogs.names` has what follows from a name.
    machines : tuple of str
        Patterns of the names of systems that have it, as in names of files; the longest match wins.
    pci_ids : tuple of (int, int)
        PCI vendor and device numbers.
    gfx : tuple of str
        AMD's architecture numbers.
    usual : bool
        Whether it is what its compute capability (or its gfx number) means if nothing else is known.
    stands_for : tuple of str
        What it is taken for if a file does not name the GPU: ``switch:N``, ``mesh:N``, ``pair:N`` and ``xgmi:N`` with
        N links per GPU to switches, to other GPUs, to the only other one; ``card:N`` of PCIe generation N;
        ``anything``.
    pcie : int
        Generation of its x16 interface.
    link, switch : str
        Types of its GPU-to-GPU links and of the NVSwitches of its usual machine; empty: there are none.
    planes : tuple of int
        Links to each of those switches.
    cube_mesh : str
        Links of eight of them in a hybrid cube mesh, a pair of GPUs each.
    """

    name: str
    architecture: Architecture
    figures: Preset
    form: Form
    model: str
    products: tuple[str, ...]
    names: tuple[str, ...] = ()
    machines: tuple[str, ...] = ()
    pci_ids: tuple[tuple[int, int], ...] = ()
    gfx: tuple[str, ...] = ()
    usual: bool = False
    stands_for: tuple[str, ...] = ()
    pcie: int = 4
    link: str = ""
    switch: str = ""
    planes: tuple[int, ...] = ()
    cube_mesh: str = ""
    preset: Preset = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check the figures; `preset` has what a topology file's chip can say."""
        check_figures(self.figures, FIGURES, _OPTIONAL)
        if not self.products:
            raise InputError("products is empty; give the name that its driver prints")
        if bool(self.link) != bool(self.links):
            raise InputError(f"link is {self.link!r}, but the figure 'links' says {self.links}")
        family = published(self.architecture.name, f"architecture of {self.products[0]}")
        object.__setattr__(self, "preset", {"architecture": family, **self.figures})

    @property
    def links(self) -> int:
        """GPU-to-GPU links."""
        return int(str(self.figures["links"].value))

    @property
    def sms(self) -> int:
        """SMs or CUs."""
        return int(str(self.figures["sms"].value))

    @property
    def memory_GiB(self) -> float:
        """Memory size [GiB]."""
        return parse_size(str(self.figures["memory"].value)) / (1 << 30)

    @property
    def compute_capability(self) -> int:
        """CUDA compute capability times ten."""
        return round(10 * float(str(self.figures["compute_capability"].value)))

    @property
    def multicast(self) -> bool:
        """True if it can take part in reductions inside NVSwitches (NVLS)."""
        return self.link.startswith("nvlink") and 90 <= self.compute_capability < 120

    @property
    def soldered(self) -> bool:
        """True if all its links are always connected: modules, and what sits in front of switches."""
        return bool(self.planes) or self.form == "sxm"

    def variant(
        self, name: str, *, figures: Mapping[str, Figure], products: tuple[str, ...], **changes: Any
    ) -> Gpu:
        """Return a chip of the same family: what identifies this one is not inherited, figures not given are."""
        own: dict[str, Any] = {
            **dict.fromkeys(("names", "machines", "pci_ids", "gfx", "stands_for"), ()),
            "usual": False,
            **changes,
        }
        merged = {**self.figures, **figures}
        return replace(self, name=name, figures=merged, products=products, **own)

    def all_figures(self) -> Iterator[Figure]:
        """Yield every figure of its own."""
        yield from self.preset.values()


DRIVER = "the total that nvidia-smi prints, with ECC as delivered; data sheets round it"

CUDA = "NVIDIA, CUDA GPU compute capability (developer.nvidia.com/cuda-gpus)"

STAND_IN = assumed(
    8.0,
    "AMD has gfx numbers; NCCL's plan for an A100 stands in for RCCL's, whose tuner is another one",
)
"""Compute capability that NCCL's model takes AMD's chips for."""

NO_PEERS = published(
    False, "the driver gives GeForce cards no peer access over PCIe (cudaDeviceCanAccessPeer)"
)

COPIES = assumed(0.88, "copies reach 85 to 92% of the peak on cards that were measured")
"""Part of the memory rate that copies reach, on chips where nobody has measured it."""

GEMM = assumed(0.80, "between the A100 (0.87) and B200 (0.78), which were measured")
"""Part of the dense peak that large matrix products reach, on chips where nobody has measured it."""

MAMF = "largest matrix product rate found by search, ml-engineering accelerator benchmarks (MAMF)"

PEERS = published(True, "CUDA peer access over PCIe, data centre boards")

_LL_STEP = (
    "split of a remote store, SM to peer L2 visible, 450-600 ns in total: egress 150-200, SerDes 2 x 50,"
    " NVSwitch 100-150, L2 write 100; adds up to the 0.6 us of the row Ring LL NVLink of NCCL's latencies"
    " (hwLatencies, src/graph/tuning.cc)"
)
_RING_TRAFFIC = (
    "user-buffer traffic of a ring all-reduce: one read and one write of S per 2(n-1)/n S bytes sent and received,"
    " 4/7 at n = 8"
)

L2_HOLDS = "the FIFO slices under way stay in L2"
L2_PARTLY = (
    "plus 1/4: the FIFO slices under way (24 channels x 1-2 MiB) are about the size of L2 (40 MB)"
)
L2_SMALL = "plus 3/4: the FIFO slices under way exceed L2 several times (4 to 6 MB)"


def common(*, linked: bool = True) -> dict[str, Figure]:
    """Return what all GPUs have alike; `linked`: they have the NVLinks that NCCL's latencies are about."""
    step = calibrated("100ns", _LL_STEP, "nccl-tuning")
    if not linked:
        step = assumed("100ns", f"as of GPUs with NVLinks: {_LL_STEP}")
    return {
        "write_latency": step,
        "read_latency": assumed(
            "350ns",
            "remote load about twice a remote store; HBM 470-570 and L2 200-260 cycles at 1.4-1.8 GHz",
        ),
        "response_latency": step,
        "memory_quantum": assumed(
            "2us", "interval of re-sharing memory; short against kernels of 10 us and more"
        ),
    }


def units(count: int, source: str) -> dict[str, Figure]:
    """Return its SMs (or CUs), and how many CTAs of collectives they take."""
    return {
        "sms": published(count, source),
        "cta_slots": assumed(
            min(count, 256),
            "as many concurrent CTAs of collectives as SMs; NCCL uses up to 64 channels",
        ),
    }


def flops(source: str, **tera: float) -> Figure:
    """Return dense peaks by type [TFLOP/s]."""
    return published({kind: rate * 1e12 for kind, rate in tera.items()}, f"dense, {source}")


def pcie_rate(generation: int, lanes: int = 16) -> Figure:
    """Return the rate of the host interface."""
    return published(x16_rate(generation, lanes), f"PCIe Gen{generation} x{lanes}")


def traffic(share: float, why: str) -> dict[str, Figure]:
    """Return the share of communication bytes that reaches memory."""
    figure = assumed(share, f"{_RING_TRAFFIC}; {why}")
    return dict.fromkeys(("memory_per_delivered", "memory_per_read", "memory_per_injected"), figure)
