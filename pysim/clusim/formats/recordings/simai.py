"""SimAI workloads as written by AICB: parameters, number of layers, one line per layer.

Times are ns, sizes those of complete buffers. The tensor-parallel group (``model_parallel_NPU_group``) communicates in
the forward pass and for input gradients, the data-parallel group for weight gradients; ``_EP`` and ``_DP_EP`` mark
groups of experts. One step is read; all ranks do the same work. AICB's CSV workloads are read by `aicb`.
"""

from __future__ import annotations

from collections.abc import Sequence

from clusim.base.errors import InputError
from clusim.base.limits import MOST_RANKS
from clusim.formats.recordings import aicb
from clusim.formats.recordings.astra import WEIGHT, transformer
from clusim.formats.recordings.layers import (
    MAX_BYTES,
    LayerPart,
    LayerTable,
    RankStep,
    TableLayer,
    parameter,
    recording,
)
from clusim.formats.recordings.model import Recording
from clusim.formats.recordings.source import Paths, names_of

_POLICIES = ("HYBRID_TRANSFORMER_FWD_IN_BCKWD", "HYBRID_TRANSFORMER")
_SIZES = {
    "tp": ("model_parallel_NPU_group",),
    "ep": ("ep", "expert_parallel_npu_group"),
    "pp": ("pp",),
}


def read(
    paths: Paths,
    *,
    num_ranks: int | None = None,
    machine_ranks: int | None = None,
    calls: int | None = None,
) -> Recording:
    """Read a workload.

    Parameters
    ----------
    num_ranks, machine_ranks : int or None
        GPUs of the topology, which are the ranks if the file does not contain ``all_gpus``, and GPUs per node.
    calls : int or None
        Number of calls of each rank, from the start; all by default.

    Raises
    ------
    InputError
        The file is invalid, or the number of ranks is unknown.
    """
    names = names_of(paths)
    if len(names) != 1:
        raise InputError(f"{names[1]}: a SimAI workload is one file; use only {names[0]}")
    if aicb.is_csv(names[0]):
        return aicb.read_csv(names[0], num_ranks, calls)
    return _Reader(names[0], num_ranks).recording(calls)


class _Reader:
    """State of reading one file."""

    def __init__(self, name: str, num_ranks: int | None) -> None:
        self.name = name
        self.table = LayerTable(name)
        self.assumed: list[str] = []
        if self.table.words[0] not in _POLICIES:
            raise InputError(
                f"{name}:1: {self.table.words[0][:40]!r}; a SimAI workload begins with {' or '.join(_POLICIES)}"
                " (--kind astra reads the others)"
            )
        self.num_ranks = self._ranks(num_ranks)
        size = {what: self._size(what, keys) for what, keys in _SIZES.items()}
        self.tp, self.ep, self.pp = size["tp"], size["ep"], size["pp"]
        if self.num_ranks % (self.tp * self.pp):
            raise InputError(
                f"{name}:1: model_parallel_NPU_group {self.tp} x pp {self.pp}: must divide the {self.num_ranks} ranks"
            )
        self.dp = self.num_ranks // (self.tp * self.pp)
        if self.dp % self.ep:
            raise InputError(
                f"{name}:1: ep {self.ep}: must divide the {self.dp} data-parallel ranks ({self.num_ranks} ranks /"
                f" model_parallel_NPU_group {self.tp} / pp {self.pp})"
            )
        if self.pp > 1:
            self._pipeline()

    def _ranks(self, given: int | None) -> int:
        result = parameter(self.table, ["all_gpus"], MOST_RANKS)
        if result:
            return result
        if given is None:
            raise InputError(
                f"{self.name}:1: no all_gpus; set --topology and --nodes: all their GPUs are used"
            )
        self.assumed.append(f"no all_gpus in the file: all {given} GPUs of the topology are used")
        return given

    def _size(self, what: str, keys: tuple[str, ...]) -> int:
        result = parameter(self.table, keys, MOST_RANKS)
        if result is None and what == "tp":
            self.assumed.append("no model_parallel_NPU_group in the file: 1")
        return max(1, result or 1)

    def _pipeline(self) -> None:
        ga = parameter(self.table, ["ga"], 10**9) or 1
        num_bytes = parameter(self.table, ["pp_comm"], MAX_BYTES) or 0
        self.assumed.append(
            f"pp: {self.pp}: the file has the layers of one stage; all stages run them at the same time, without the"
            f" messages between them ({num_bytes} bytes each) and without the bubble, which adds about"
            f" {(self.pp - 1) / ga:.0%} with {ga} micro-batches"
        )

    def recording(self, calls: int | None) -> Recording:
        """Read the file."""
        sizes = {"tp": self.tp, "dp": self.dp, "ep": self.ep, "dp_ep": self.dp // self.ep}
        step = RankStep(self.table, sizes, gathers_parts=False, most=calls)
        for key in ("checkpoints", "checkpoint_initiates"):
            if parameter(self.table, [key], 10**9):
                self.table.skipped[f"{key}: SimAI runs no layers again"] += 1
        transformer(step, self.table, _role, set(), set())
        return recording("simai", step, self.num_ranks, self._group_of, self.assumed)

    def _group_of(self, role: str, rank: int) -> Sequence[int]:
        """Return the group of a rank: neighbours are tensor-parallel, then experts, then replicas."""
        stride, size = {
            "tp": (1, self.tp),
            "dp": (self.tp, self.dp),
            "ep": (self.tp, self.ep),
            "dp_ep": (self.tp * self.ep, self.dp // self.ep),
        }[role]
        first = rank // (stride * size) * (stride * size) + rank % stride
        return range(first, first + stride * size, stride)


def _role(layer: TableLayer, what: str, part: LayerPart) -> str:
    """Return the role of a communication's group; empty if the suffix is unknown."""
    if part.suffix:
        return {"EP": "ep", "DP_EP": "dp_ep"}.get(part.suffix, "")
    return "dp" if what == WEIGHT else "tp"
