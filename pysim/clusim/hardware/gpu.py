"""GPUs: all parameters of a chip, read from its file in ``hardware/gpus``.

**Hardware** A packet for an SM's store crosses the chip to the L2 slice that owns the address; a remote
load costs an L2 or HBM access at the far end. FIFOs of collectives stay in L2 as far as they fit.
**Model** Fixed latencies after the wire, one memory server per GPU; memory traffic follows from the
primitives and the size of L2 (`clusim.lowering.memory_traffic`).
**Not modelled** L2 partitions, banks, row buffers, TLBs; AMD's chiplets: an MI300X is one chip with one
memory.
**Parameters** `FIGURES`, by the keys of a topology file.

Properties of all GPUs of an architecture: launch costs, CTA costs, peer access.

**Hardware** A GPU starts the next kernel of its stream when the last has ended; a kernel of NCCL reads
its work before it moves data and flushes its counters afterwards. Per-slice CTA costs are in
`clusim.hardware.protocols`.
**Model** A fixed time per kernel, protocols with their rates and fixed costs, one direction for
point-to-point; energy per operation, which gives the clock under a power cap.
**Not modelled** Steppings, differences between the chips of an architecture.
**Parameters** The fields of `Architecture`; a section of ``architectures.yaml`` for each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field, fields, replace
from typing import Any, Literal, get_args

from clusim.base.datafiles import Entry, mapping, pci_id
from clusim.base.errors import InputError
from clusim.base.records import dataclass
from clusim.base.units import parse_size
from clusim.hardware.figures import (
    OPTIONAL,
    UNITS,
    Figure,
    Preset,
    assumed,
    build,
    calibrated,
    check_figures,
    figures,
    published,
)
from clusim.hardware.pcie import GENERATIONS, x16_rate
from clusim.hardware.protocols import Pace, ideal_protocols, protocols

_UNITS = UNITS["architecture"]


_ENGINE_START = assumed(
    "0.6us", "a node of a graph on Hopper (simllm), where kernels begin at once"
)
_BLAS_WORKSPACE = published(
    "8320KiB",
    "PyTorch, aten/src/ATen/cuda/CublasHandlePool.cpp: :4096:2:16:8, before Hopper",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """A family of GPUs.

    Attributes
    ----------
    name : str
        Name in topology files.
    kernel_overhead : Figure
        From the end of the steps of one kernel to the first step of the next one in the stream [s].
    graph_node, stream_launch : Figure
        Kernel launch in a CUDA graph, and in a stream; `kernel_overhead` includes the latter [s].
    kernel_floor : Figure
        Least time of a kernel in a stream of kernels [s].
    engine_start : Figure
        Fixed time of an inference engine's kernel in a CUDA graph, without barriers and data [s].
    blas_workspace : Figure
        Workspace that PyTorch gives to a handle of cuBLAS or hipBLAS [B].
    kernels : Figure
        Chip whose measured kernels (`clusim.hardware.kernels.measured_tables`) are used with each chip's
        figures.
    steady : Figure
        Part of the rate of short benchmarks that matrix products and attention keep in a long run at the
        same clock.
    idle_power : Figure
        Power without arithmetic: leakage, memory, links [W].
    flop_energy : Figure
        Energy of an operation of a dense matrix product of 16 bits at the clock of the peak rate [pJ].
    p2p : Figure
        ``read`` if NCCL's point-to-point connections over NVLink pull, ``write`` if they push.
    protocols : mapping
        CTA costs by protocol.
    nvlink : str
        NVLink type assumed for a chip without a known one; empty if there are no NVLinks.
    vendor : str
        Maker of the GPUs: ``nvidia`` or ``amd``.
    like : str
        Architecture whose figures are assumed, for GPUs without measurements; otherwise empty.
    """

    name: str
    kernel_overhead: Figure
    graph_node: Figure
    stream_launch: Figure
    kernel_floor: Figure
    kernels: Figure
    steady: Figure
    idle_power: Figure
    flop_energy: Figure
    p2p: Figure
    protocols: Mapping[str, Preset]
    nvlink: str = ""
    vendor: str = "nvidia"
    engine_start: Figure = _ENGINE_START
    blas_workspace: Figure = _BLAS_WORKSPACE
    like: str = ""

    def __post_init__(self) -> None:
        """Check units and sources."""
        check_figures({key: getattr(self, key) for key in _UNITS}, _UNITS)

    def named_figures(self) -> Iterator[tuple[str, Figure]]:
        """Yield names and figures that topology files omit, except those of protocols."""
        yield from ((key, getattr(self, key)) for key in _UNITS)

    def all_figures(self) -> Iterator[Figure]:
        """Yield every figure."""
        yield from (figure for _, figure in self.named_figures())
        for protocol in self.protocols.values():
            yield from protocol.values()


_P2P = "NCCL pulls only between two sm80 GPUs (ncclTopoCheckP2p), otherwise pushes"


def architecture_of(name: str, entry: Entry) -> Architecture:
    """Return the architecture of a section of ``architectures.yaml``.

    ``pace: ideal`` selects protocols without costs.

    Raises
    ------
    InputError
        Unknown and missing keys, figures without unit or source; the message names section and key.
    """
    entry = {key: value for key, value in entry.items() if key != "base"}
    pace, p2p = entry.pop("pace", {}), published(entry.pop("p2p", "write"), _P2P)
    try:
        source = entry.get("like", name)
        table = (
            ideal_protocols()
            if pace == "ideal"
            else protocols(source, build(Pace, pace))
        )
        result = build(
            Architecture, {**entry, "name": name}, protocols=table, p2p=p2p
        )
    except InputError as error:
        raise InputError(f"architectures.yaml: {name}: {error}") from None
    return _as_assumed(result) if result.like else result


def _as_assumed(item: Architecture) -> Architecture:
    """Return an architecture whose calibrated figures, those of `like`, are assumptions with equal bounds."""

    def guess(figure: Figure) -> Figure:
        return (
            figure.assumed_as(item.like.capitalize())
            if figure.mark == "calibrated"
            else figure
        )

    table = {
        name: {key: guess(figure) for key, figure in preset.items()}
        for name, preset in item.protocols.items()
    }
    assumptions: dict[str, Any] = {
        key: guess(figure) for key, figure in item.named_figures()
    }
    return replace(item, **assumptions, protocols=table)


Form = Literal["sxm", "superchip", "card", "oam", "apu"]
"""Form factors of GPUs.

NVIDIA's module, on one board with its CPU, on a PCIe card, OCP's module, with CPU cores.
"""

FIGURES = UNITS["gpu"]
"""GPU parameters by the keys of a topology file, with their units (1 is a plain number)."""

_IDENTITY = {
    "name",
    "products",
    "names",
    "machines",
    "pci_ids",
    "gfx",
    "stands_for",
    "usual",
}
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
        Other complete names of the product; see `clusim.hardware.catalog` for matching.
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
    processor : str
        Processor that the GPU of a superchip shares a coherent link with; may be empty.
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
    processor: str = ""
    preset: Preset = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check the figures; `preset` contains the figures that topology files may set."""
        if self.form not in get_args(Form):
            raise InputError(
                f"form is {self.form!r}; it must be one of {', '.join(get_args(Form))}"
            )
        check_figures(self.figures, FIGURES, OPTIONAL["gpu"])
        for key in ("sms", "links"):
            if type(self.figures[key].value) is not int:
                raise InputError(
                    f"{key}: {self.figures[key].value!r} must be an integer"
                )
        if not self.products:
            raise InputError(
                "products is empty; add the name that its driver prints"
            )
        if bool(self.link) != bool(self.links):
            raise InputError(
                f"link is {self.link!r}, but the figure 'links' is {self.links}"
            )
        family = published(
            self.architecture.name, f"architecture of {self.products[0]}"
        )
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
    def has_fixed_links(self) -> bool:
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
_STEP_BOUNDS = ["88ns", "118ns"]
"""Bounds of a part of the store, as the 450-600 ns of the sum of 510 ns."""


def _latencies(link: str) -> dict[str, Figure]:
    """Return the memory latencies of a chip.

    NVLink latencies are those on which NCCL's latencies were measured.
    """
    step = calibrated("100ns", _STEP, "nccl-tuning", bounds=_STEP_BOUNDS)
    if not link.startswith("nvlink"):
        step = assumed("100ns", f"as of GPUs with NVLinks: {_STEP}", _STEP_BOUNDS)
    return {
        "write_latency": step,
        "read_latency": assumed(
            "350ns",
            "remote load about twice a remote store; HBM 470-570 and L2 200-260 cycles at 1.4-1.8 GHz",
            ["260ns", "410ns"],
        ),
        "response_latency": step,
        "memory_quantum": assumed(
            "2us",
            "interval of re-sharing memory; short against kernels of 10 us and more",
        ),
    }


def _cta_slots(sms: Figure) -> Figure:
    if not isinstance(sms.value, int) or isinstance(sms.value, bool):
        raise InputError(
            f"sms: {sms.value!r} must be an integer number of SMs or CUs"
        )
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
    name: str,
    entry: Entry,
    families: Mapping[str, Architecture],
    base: Gpu | None = None,
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
    entries = mapping("figures", entry.pop("figures", {}))
    without = [key for key, value in entries.items() if value is None]
    given_figures = figures(
        {key: item for key, item in entries.items() if item is not None}, sources
    )
    if "sms" in given_figures:
        given_figures.setdefault("cta_slots", _cta_slots(given_figures["sms"]))
    usual = (
        _latencies(str(entry.get("link", "")))
        if base is None
        else dict(base.figures)
    )
    if base is None or "pcie" in entry:
        usual["pcie_rate"] = _pcie_rate(entry.get("pcie", 4))
    merged = {
        key: figure
        for key, figure in {**usual, **given_figures}.items()
        if key not in without
    }
    entry["figures"] = {
        key: merged.pop(key) for key in FIGURES if key in merged
    } | merged
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
            raise InputError(
                f"architecture is {family!r}; it must be one of {', '.join(families)}"
            )
        entry["architecture"] = families[family]
    return build(Gpu, {**entry, "name": name})
