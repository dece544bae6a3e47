"""GPUs: all parameters of a chip, read from its file in ``hardware/gpus``.

**Hardware** A packet for an SM's store crosses the chip to the L2 slice that owns the address; a remote
load costs an L2 or HBM access at the far end. FIFOs of collectives stay in L2 as far as they fit.
**Model** Fixed latencies after the wire, one memory server per GPU, and a share of communication bytes
that reaches HBM.
**Not modelled** L2 partitions, banks, row buffers, TLBs; AMD's chiplets: an MI300X is one chip with one
memory.
**Parameters** `FIGURES`, by the keys of a topology file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Literal, get_args

from clusim.base.errors import InputError
from clusim.base.units import parse_size
from clusim.hardware.architecture import Architecture
from clusim.hardware.datafiles import Entry, build, figures, mapping, pci_id
from clusim.hardware.figures import (
    Figure,
    Preset,
    assumed,
    calibrated,
    check_figures,
    published,
)
from clusim.hardware.pcie import GENERATIONS, x16_rate

Form = Literal["sxm", "superchip", "card", "oam", "apu"]
"""Form factors of GPUs.

NVIDIA's module, on one board with its CPU, on a PCIe card, OCP's module, with CPU cores.
"""

FIGURES: dict[str, str] = {
    "compute_capability": "1",
    "sms": "SMs or CUs",
    "cta_slots": "CTAs",
    "memory": "B",
    "power": "W",
    "memory_rate": "B/s",
    "memory_efficiency": "1",
    "memory_per_delivered": "1",
    "memory_per_read": "1",
    "memory_per_injected": "1",
    "peak_flops": "FLOP/s",
    "gemm_fraction": "1",
    "links": "links",
    "peer_access": "true or false",
    "pcie_rate": "B/s",
    "write_latency": "s",
    "read_latency": "s",
    "response_latency": "s",
    "memory_quantum": "s",
}
"""GPU parameters by the keys of a topology file, with their units (1 is a plain number)."""

_OPTIONAL = ("pcie_rate", "power")
_IDENTITY = {"name", "products", "names", "machines", "pci_ids", "gfx", "stands_for", "usual"}
"""Fields that identify a chip; a file with ``base`` does not inherit them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One kind of GPU.

    Attributes
    ----------
    name : str
        Name in topology files, and of its file.
    architecture : Architecture
        Common properties of the family: protocols, launch costs.
    figures : Preset
        Figures of the chip, by the keys of `FIGURES`.
    form : str
        Form factor.
    model : str
        Common name regardless of memory size, used to match logs with systems.
    products : tuple of str
        Names in drivers, nvidia-smi and logs, the most common first.
    names : tuple of str
        Other complete names of the product; see `clusim.hardware.catalogs.gpus` for matching.
    machines : tuple of str
        Patterns of system names (as in file names) with this GPU; the longest match wins.
    pci_ids : tuple of (int, int)
        PCI vendor and device numbers.
    gfx : tuple of str
        AMD's architecture numbers.
    usual : bool
        True if it is the default for its compute capability (or gfx number).
    stands_for : tuple of str
        Roles it fills if a file does not name the GPU: ``switch:N``, ``mesh:N``, ``pair:N`` and ``xgmi:N``
        with N links per GPU to switches, to other GPUs, to the only other one; ``card:N`` of PCIe generation
        N; ``anything``.
    pcie : int
        Generation of its x16 interface.
    link, switch : str
        Types of its GPU-to-GPU links and of the NVSwitches of its usual node; may be empty.
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
        """Check the figures; `preset` contains the figures that topology files may set."""
        if self.form not in get_args(Form):
            raise InputError(
                f"form is {self.form!r}; it must be one of {', '.join(get_args(Form))}"
            )
        check_figures(self.figures, FIGURES, _OPTIONAL)
        for key in ("sms", "links"):
            if type(self.figures[key].value) is not int:
                raise InputError(f"{key}: {self.figures[key].value!r} must be a whole number")
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
        """True if the GPU supports reductions inside NVSwitches (NVLS)."""
        return self.link.startswith("nvlink") and 90 <= self.compute_capability < 120

    @property
    def soldered(self) -> bool:
        """True if all links are always connected (modules, and GPUs attached to switches)."""
        return bool(self.planes) or self.form == "sxm"

    def all_figures(self) -> Iterator[Figure]:
        """Yield every figure of the chip."""
        yield from self.preset.values()


_STEP = (
    "split of a remote store, SM to peer L2 visible, 450-600 ns in total: egress 150-200, SerDes 2 x 50,"
    " NVSwitch 100-150, L2 write 100; adds up to the 0.6 us of the row Ring LL NVLink of NCCL's latencies"
    " (hwLatencies, src/graph/tuning.cc)"
)
_TRAFFIC = "memory_traffic"
"""Key of a file for the three figures ``memory_per_*``, where they are equal."""


def _latencies(link: str) -> dict[str, Figure]:
    """Return the memory latencies of a chip.

    NVLink latencies are those on which NCCL's latencies were measured.
    """
    step = calibrated("100ns", _STEP, "nccl-tuning")
    if not link.startswith("nvlink"):
        step = assumed("100ns", f"as of GPUs with NVLinks: {_STEP}")
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


def _cta_slots(sms: Figure) -> Figure:
    if not isinstance(sms.value, int) or isinstance(sms.value, bool):
        raise InputError(f"sms: {sms.value!r} is no whole number of SMs or CUs")
    return assumed(
        min(sms.value, 256),
        "as many concurrent CTAs of collectives as SMs; NCCL uses up to 64 channels",
    )


def _pcie_rate(generation: object) -> Figure:
    if not isinstance(generation, int) or generation not in GENERATIONS:
        raise InputError(
            f"pcie is {generation!r}; it must be a generation, {min(GENERATIONS)} to {max(GENERATIONS)}"
        )
    return published(x16_rate(generation, 16), f"PCIe Gen{generation} x16")


def gpu_of(
    name: str, entry: Entry, families: Mapping[str, Architecture], base: Gpu | None = None
) -> Gpu:
    """Return the GPU of a file; missing figures are those of `base` or the defaults.

    Raises
    ------
    InputError
        Unknown and missing keys, values of another type, figures without unit or source; the message names
        the key.
    """
    entry = dict(entry)
    texts = mapping("sources", entry.pop("sources", {}))
    sources = {str(key): str(text) for key, text in texts.items()}
    given = mapping("figures", entry.pop("figures", {}))
    without = [key for key, value in given.items() if value is None]
    own = figures({key: item for key, item in given.items() if item is not None}, sources)
    if _TRAFFIC in own:
        traffic = own.pop(_TRAFFIC)
        own |= dict.fromkeys((key for key in FIGURES if key.startswith("memory_per_")), traffic)
    if "sms" in own:
        own.setdefault("cta_slots", _cta_slots(own["sms"]))
    if base is None:
        usual = {
            **_latencies(str(entry.get("link", ""))),
            "pcie_rate": _pcie_rate(entry.get("pcie", 4)),
        }
    else:
        usual = dict(base.figures)
    merged = {key: figure for key, figure in {**usual, **own}.items() if key not in without}
    entry["figures"] = {key: merged.pop(key) for key in FIGURES if key in merged} | merged
    if "pci_ids" in entry:
        if not isinstance(entry["pci_ids"], list):
            raise InputError(f"pci_ids is {entry['pci_ids']!r}; it must be a list")
        entry["pci_ids"] = tuple(map(pci_id, entry["pci_ids"]))
    if base is not None:
        inherited = {item.name for item in fields(Gpu) if item.init} - _IDENTITY
        entry = {**{key: getattr(base, key) for key in inherited}, **entry}
    if not isinstance(entry.get("architecture"), Architecture):
        family = str(entry.get("architecture"))
        if family not in families:
            raise InputError(f"architecture is {family!r}; it must be one of {', '.join(families)}")
        entry["architecture"] = families[family]
    return build(Gpu, {**entry, "name": name})
