"""SimAI workloads as written by AICB: parameters, number of layers, one line per layer.

Times are ns, sizes those of complete buffers. The tensor-parallel group (``model_parallel_NPU_group``) communicates in
the forward pass and for input gradients, the data-parallel group for weight gradients; ``_EP`` and ``_DP_EP`` mark
groups of experts. One step is read; all ranks do the same work. AICB's CSV workloads are read by `aicb`.
"""

from __future__ import annotations

from clusim.base.limits import MOST_RANKS
from clusim.formats.recordings import aicb
from clusim.formats.recordings.layers import (
    WEIGHT,
    LayerTable,
    TableLayer,
)
from clusim.formats.recordings.model import MOST_BYTES, Recording
from clusim.formats.recordings.source import Paths, only_file

_POLICIES = ("HYBRID_TRANSFORMER_FWD_IN_BCKWD", "HYBRID_TRANSFORMER")


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
    name = only_file(paths, "a SimAI workload")
    if aicb.is_csv(name):
        return aicb.read_csv(name, num_ranks, calls)
    table = _Table(name, calls)
    ranks = table.divide(num_ranks)
    for key in ("checkpoints", "checkpoint_initiates"):
        if table.parameter(10**9, key):
            table.skipped[f"{key}: SimAI runs no layers again"] += 1
    table.transformer(set(), set())
    return table.recording("simai", ranks, table.strides)


class _Table(LayerTable):
    """Layers of a file, and the sizes of groups."""

    def divide(self, given: int | None) -> int:
        """Divide the ranks into groups; return their number."""
        if self.words[0] not in _POLICIES:
            raise self.bad(
                1,
                f"{self.words[0][:40]!r}; a SimAI workload begins with {' or '.join(_POLICIES)}"
                " (--kind astra reads the others)",
            )
        ranks = self.parameter(MOST_RANKS, "all_gpus") or given
        if ranks is None:
            raise self.bad(1, "no all_gpus; set --topology and --nodes: all their GPUs are used")
        if not self.parameter(MOST_RANKS, "all_gpus"):
            self.assumed.append(
                f"no all_gpus in the file: all {ranks} GPUs of the topology are used"
            )
        tp = self.parameter(MOST_RANKS, "model_parallel_NPU_group")
        if tp is None:
            self.assumed.append("no model_parallel_NPU_group in the file: 1")
        tp = max(1, tp or 1)
        ep = max(1, self.parameter(MOST_RANKS, "ep", "expert_parallel_npu_group") or 1)
        pp = max(1, self.parameter(MOST_RANKS, "pp") or 1)
        if ranks % (tp * pp):
            raise self.bad(
                1,
                f"model_parallel_NPU_group {tp} x pp {pp}: must divide the {ranks} ranks",
            )
        dp = ranks // (tp * pp)
        if dp % ep:
            raise self.bad(
                1,
                f"ep {ep}: must divide the {dp} data-parallel ranks ({ranks} ranks /"
                f" model_parallel_NPU_group {tp} / pp {pp})",
            )
        if pp > 1:
            self._pipeline(pp)
        self.strides = aicb.expert_strides(tp, dp, ep)
        return ranks

    def _pipeline(self, pp: int) -> None:
        ga = self.parameter(10**9, "ga") or 1
        num_bytes = self.parameter(MOST_BYTES, "pp_comm") or 0
        self.assumed.append(
            f"pp: {pp}: the file has the layers of one stage; all stages run them at the same time, without the"
            f" messages between them ({num_bytes} bytes each) and without the bubble, which adds about"
            f" {(pp - 1) / ga:.0%} with {ga} micro-batches"
        )

    def role(self, layer: TableLayer, part: int) -> str:
        suffix = layer.parts[part].suffix
        if suffix:
            return {"EP": "ep", "DP_EP": "dp_ep"}.get(suffix, "")
        return "dp" if part == WEIGHT else "tp"
