"""Properties of all GPUs of an architecture: launch costs, CTA costs, peer access.

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
from dataclasses import dataclass

from clusim.base.errors import InputError
from clusim.hardware.datafiles import Entry, build
from clusim.hardware.figures import Figure, Preset, assumed, check_figures, published
from clusim.hardware.protocols import Pace, ideal_protocols, protocols

_UNITS = {
    "kernel_overhead": "s",
    "graph_node": "s",
    "stream_launch": "s",
    "kernel_floor": "s",
    "engine_start": "s",
    "kernels": "word",
    "steady": "1",
    "idle_power": "W",
    "flop_energy": "pJ",
    "p2p": "word",
}


_ENGINE_START = assumed(
    "0.6us", "a node of a graph on Hopper (simllm), whose kernels begin at once"
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
    engine_start: Figure = _ENGINE_START

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
    entry = dict(entry)
    pace, p2p = entry.pop("pace", {}), published(entry.pop("p2p", "write"), _P2P)
    try:
        table = ideal_protocols() if pace == "ideal" else protocols(name, build(Pace, pace))
        return build(Architecture, {**entry, "name": name}, protocols=table, p2p=p2p)
    except InputError as error:
        raise InputError(f"architectures.yaml: {name}: {error}") from None
