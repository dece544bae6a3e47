"""Workloads of SimAI and AICB: layers as text, or a sequence of communication and computation as CSV.

**Text** has parameters, the number of layers, and one line per layer. Times are ns, sizes those of complete buffers.
The tensor-parallel group (``model_parallel_NPU_group``) communicates in the forward pass and for input gradients, the
data-parallel group for weight gradients; ``_EP`` and ``_DP_EP`` mark groups of experts. One step is read.

**CSV** is executed by AICB on GPUs: each step waits for the one before. Sizes are the total sizes of buffers. The file
contains the sizes of groups and the number of ranks, as their product or in a line ``[rank0 ~ rank127]`` above the
titles. Older files without sizes of groups use the topology and the file's name (``_tp2_``). Workloads with pipeline
stages are rejected.

All ranks do the same work.
"""

from __future__ import annotations

import csv
import re
from math import prod
from pathlib import PurePath
from typing import Any

from clusim.base.errors import InputError
from clusim.base.limits import MOST_RANKS
from clusim.base.terms.operations import OPERATIONS, ROOTED
from clusim.formats.recordings.model import (
    ABSENT,
    MOST_BYTES,
    PS_PER_NS,
    EventKind,
    Recording,
)
from clusim.formats.recordings.source import Paths, head, lines, only_file
from clusim_formats.recordings.layers import (
    MAX_NS,
    WEIGHT,
    LayerTable,
    RankStep,
    Strides,
    TableLayer,
)

_POLICIES = ("HYBRID_TRANSFORMER_FWD_IN_BCKWD", "HYBRID_TRANSFORMER")

COLUMNS = "comm_type,comm_group,"

_OPERATIONS = {
    name: item.name for item in OPERATIONS.values() for name in item.torch
}
_GROUPS = {
    "tp_group": "tp",
    "dp_group": "dp",
    "ep_group": "ep",
    "ep_dp_group": "dp_ep",
}
_RANKS = re.compile(r"\[\s*rank0\s*~\s*rank([0-9]{1,9})\s*\]\s*")
_IN_NAME = re.compile(r"(?<![a-z])(tp|ep)[_-]?([0-9]{1,6})(?![0-9])")
_SHAPE = re.compile(r"[(\[]\s*([0-9]{1,9}(?:\s*,\s*[0-9]{1,9})*)\s*,?\s*[)\]]")
MAX_FLOPS = 10**18


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
    if COLUMNS.encode() in head(name)[: 1 << 14]:
        return _Commands(name, num_ranks, calls).read()
    table = _Table(name, calls)
    ranks = table.divide(num_ranks)
    for key in ("checkpoints", "checkpoint_initiates"):
        if table.parameter(10**9, key):
            table.found.skipped[f"{key}: SimAI runs no layers again"] += 1
    table.transformer(set(), set())
    return table.recording(ranks, table.strides)


def _strides(tp: int, dp: int, ep: int) -> Strides:
    """Return groups of neighbours that are tensor-parallel, then experts, then replicas."""
    return {
        "tp": (1, tp),
        "dp": (tp, dp),
        "ep": (tp, ep),
        "dp_ep": (tp * ep, dp // ep),
    }


class _Table(LayerTable):
    """Layers of a file, and the sizes of groups."""

    kind = "simai"

    def divide(self, num_ranks: int | None) -> int:
        """Divide the ranks into groups; return their number."""
        if self.words[0] not in _POLICIES:
            raise self.bad(
                1,
                f"{self.words[0][:40]!r}; a SimAI workload begins with {' or '.join(_POLICIES)}"
                " (--kind astra reads the others)",
            )
        ranks = self.parameter(MOST_RANKS, "all_gpus") or num_ranks
        if ranks is None:
            raise self.bad(
                1, "no all_gpus; set --topology and --nodes: all their GPUs are used"
            )
        if not self.parameter(MOST_RANKS, "all_gpus"):
            self.found.assume(
                f"no all_gpus in the file: all {ranks} GPUs of the topology are used"
            )
        tp = self.parameter(MOST_RANKS, "model_parallel_NPU_group")
        if tp is None:
            self.found.assume("no model_parallel_NPU_group in the file: 1")
        tp = max(1, tp or 1)
        ep = max(
            1, self.parameter(MOST_RANKS, "ep", "expert_parallel_npu_group") or 1
        )
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
        self.strides = _strides(tp, dp, ep)
        return ranks

    def _pipeline(self, pp: int) -> None:
        ga = self.parameter(10**9, "ga") or 1
        num_bytes = self.parameter(MOST_BYTES, "pp_comm") or 0
        self.found.assume(
            f"pp: {pp}: the file has the layers of one stage; all stages run them at the same time, without the"
            f" messages between them ({num_bytes} bytes each) and without the bubble, which adds about"
            f" {(pp - 1) / ga:.0%} with {ga} micro-batches"
        )

    def role(self, layer: TableLayer, part: int) -> str:
        suffix = layer.parts[part].suffix
        if suffix:
            return {"EP": "ep", "DP_EP": "dp_ep"}.get(suffix, "")
        return "dp" if part == WEIGHT else "tp"


class _Commands(RankStep):
    """Events of one rank, and the sizes of groups read so far; `ranks` is 0 if unknown."""

    kind = "simai"

    def __init__(self, name: str, num_ranks: int | None, calls: int | None) -> None:
        super().__init__(name, calls)
        self.given, self.ranks = num_ranks, 0
        self.sizes: dict[str, int] = {}
        self.titles: list[str] = []

    def read(self) -> Recording:
        """Read the file."""
        for line, text in lines(self.name):
            if text.startswith("["):
                match = _RANKS.fullmatch(text)
                if match is None or self.titles or self.ranks:
                    raise self.bad(
                        line,
                        "stages of a pipeline are not read; generate a workload for SimAI instead",
                    )
                self.ranks = min(int(match[1]) + 1, MOST_RANKS + 1)
            elif text.strip():
                self._line(line, text)
        tp, dp = self.sizes.get("tp", 1), self.sizes.get("dp", 1)
        ep, dp_ep = self.sizes.get("ep", 1), self.sizes.get("dp_ep", 1)
        dp = max(dp, ep * dp_ep)
        if self.ranks and "dp" not in self.sizes and self.ranks % tp == 0:
            dp = max(dp, self.ranks // tp)
        if dp % ep or tp * dp > MOST_RANKS or (self.ranks and tp * dp != self.ranks):
            limit = (
                f"the {self.ranks} ranks of its first line"
                if self.ranks
                else f"at most {MOST_RANKS}"
            )
            raise InputError(
                f"{self.name}: groups of {tp} (tp), {dp} (dp) and {ep} (ep) ranks; ep must divide dp, and tp x dp be"
                f" {limit}"
            )
        self.found.assume(
            f"{tp * dp} ranks: tensor-parallel groups of {tp} x data-parallel groups of {dp}"
        )
        strides = {**_strides(tp, dp, ep), "all ranks": (1, tp * dp)}
        return self.recording(tp * dp, strides)

    def _line(self, line: int, text: str) -> None:
        try:
            values = next(csv.reader([text], strict=True))
        except csv.Error as error:
            raise self.bad(line, f"not a line of a CSV file ({error})") from None
        if self.titles:
            self._row(line, dict(zip(self.titles, values, strict=False)))
            return
        self.titles = values
        if not text.startswith(COLUMNS) or "msg_size" not in values:
            raise self.bad(
                line, f"the titles must begin with {COLUMNS} and name msg_size"
            )
        if "comm_group_size" not in values:
            self._sizes_from_elsewhere(line)

    def _sizes_from_elsewhere(self, line: int) -> None:
        """Set the sizes of groups that are missing in the file from its name and the topology."""
        ranks = self.ranks or self.given
        if ranks is None:
            problem = "no column comm_group_size; set --topology and --nodes: all their GPUs are used"
            raise self.bad(line, problem)
        named = {
            word: int(n)
            for word, n in _IN_NAME.findall(PurePath(self.name).name.lower())
        }
        tp, ep = named.get("tp", 1), named.get("ep", 1)
        if tp < 1 or ep < 1 or ranks % (tp * ep):
            raise self.bad(
                line,
                f"groups of {tp} (tp) and {ep} (ep), from the file's name, do not divide {ranks} ranks",
            )
        self.sizes = {"tp": tp, "dp": ranks // tp, "ep": ep}
        self.found.assume(
            f"no sizes of groups in the file: {ranks} ranks of the topology, groups of {tp} (tp) and {ep} (ep)"
            f" {'from the name of the file' if named else 'by default'}"
        )

    def _row(self, line: int, row: dict[str, str]) -> None:
        word = row.get("comm_type", "").removeprefix("CommType.")
        if word == "epoch_end":
            return
        if word in ("isend", "irecv"):
            raise self.bad(
                line,
                "messages of a pipeline are not read; generate a workload for SimAI instead",
            )
        if word == "computation":
            self._computation(line, row)
        elif word in _OPERATIONS:
            self._communication(line, row, _OPERATIONS[word])
        else:
            self.found.skipped[f"communications {word[:40]}"] += 1

    def _number(self, line: int, row: dict[str, str], key: str, limit: int) -> int:
        text = row.get(key, "").removesuffix(".0")
        if not text.isdecimal() or len(text) > 18 or int(text) > limit:
            raise self.bad(
                line,
                f"{key} {row.get(key, '')[:40]!r}: must be a number from 0 to {limit}",
            )
        return int(text)

    def _communication(self, line: int, row: dict[str, str], operation: str) -> None:
        group = row.get("comm_group", "").removeprefix("CommGroup.")
        role = _GROUPS.get(group, "all ranks" if operation == "barrier" else "")
        size = self._number(line, row, "msg_size", MOST_BYTES)
        if size == 0 and operation != "barrier":
            self.found.skipped["communications of 0 bytes"] += 1
            return
        if not role:
            alone = (
                group in ("pp_group", "ep_tp_group")
                and row.get("comm_group_size") == "1"
            )
            group_words = (
                "in groups of one rank" if alone else f"of groups {group[:40]!r}"
            )
            self.found.skipped[f"communications {group_words}"] += 1
            return
        if role != "all ranks":
            has_size = (
                row.get("comm_group_size", "None") == "None" and role in self.sizes
            )
            ranks = (
                self.sizes[role]
                if has_size
                else self._number(line, row, "comm_group_size", MOST_RANKS)
            )
            if ranks < 1 or self.sizes.setdefault(role, ranks) != ranks:
                raise self.bad(
                    line,
                    f"{group} of {ranks} ranks; it had {self.sizes.get(role, 0)} before",
                )
            if ranks < 2:
                self.found.skipped["communications in groups of one rank"] += 1
                return
        root = 0 if operation in ROOTED else ABSENT
        name = row.get("stage", "") or operation
        self._follow(
            "collective",
            role,
            name,
            line,
            operation=operation,
            bytes=size,
            root=root,
        )

    def _computation(self, line: int, row: dict[str, str]) -> None:
        stage = row.get("stage", "") or "computation"
        time = row.get("_elapsed_time", "")
        if time not in ("", "None"):
            duration_ps = (
                self._number(line, row, "_elapsed_time", MAX_NS) * PS_PER_NS
            )
            if duration_ps:
                self._follow(
                    "compute", "compute", stage, line, duration_ps=duration_ps
                )
            return
        shapes = [
            [int(n) for n in shape[1].split(",")]
            for shape in _SHAPE.finditer(row.get("msg_size", ""))
        ]
        flops = 2 * prod(shapes[0]) * shapes[1][-1] if len(shapes) == 2 else 0
        if not 0 < flops <= MAX_FLOPS:
            self.found.skipped[
                "computations without a time or the shapes of two matrices"
            ] += 1
            return
        self._follow(
            "compute", "compute", stage, line, flops=flops, dtype="bfloat16"
        )

    def _follow(
        self, kind: EventKind, stream: str, name: str, line: int, **fields: Any
    ) -> None:
        """Add an event after the previous one."""
        self.now = (self.add(kind, stream, name, line, **fields),)
