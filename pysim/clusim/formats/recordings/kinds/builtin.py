"""Recording formats that clusim reads: names, descriptions and first bytes."""

from __future__ import annotations

import re
from collections.abc import Callable

from clusim.formats.recordings.chakra_schema import JSON_GRAPH, JSON_NODE
from clusim.formats.recordings.model import LAST, RecordingKind

_POLICY = (
    rb"(?:MICRO|DATA|MODEL|HYBRID_\w+|CUSTOMIZED|DISTRIBUTED_\w+|TRANSFORMER_\w+)"
)

_SEPARATE = frozenset(
    ("astra", "deepspeed", "goal", "hlo", "jsonl", "profiler", "simai")
)
"""Kinds with a reader in the distribution ``clusim-formats``."""


def _is_chakra(name: str, data: bytes) -> bool:
    """Return True for a Chakra trace: messages after their lengths, first the metadata."""
    if name.endswith(".et"):
        return True
    if data.lstrip()[:1] in (b"{", b"["):
        return False
    size, shift = 0, 0
    for at in range(min(4, len(data))):
        size |= (data[at] & 0x7F) << shift
        shift += 7
        if data[at] < 0x80:
            # The metadata are a version in field 1, and attributes in field 2.
            return (
                at + 1 + size < len(data)
                and size > 2
                and data[at + 1] == 0x0A
                and b"\0" not in data[at + 2 : at + 8]
            )
    return False


def _is_dump(name: str, data: bytes) -> bool:
    """Return True if a file is a pickle with the keys of a dump."""
    pickled = data[:1] == b"\x80" and len(data) > 1 and 2 <= data[1] <= 5
    return (
        pickled
        and re.search(rb"entries|pg_config|collective_seq_id", data) is not None
    )


def _kind(
    name: str,
    description: str,
    *begins: tuple[int, bytes],
    looks_so: Callable[[str, bytes], bool] | None = None,
) -> RecordingKind:
    """Return the description of a kind, read by the module of its name or by an extension.

    `begins` are places among all kinds, and patterns.
    """
    read_by = f"clusim.formats.recordings.{name}"
    return RecordingKind(
        name, description, begins, looks_so, read_by, name in _SEPARATE
    )


# The order resolves ambiguity: NCCL logs may contain lines of DeepSpeed, traces of the PyTorch profiler may contain
# process groups, and workloads of SimAI and ASTRA-sim have the same first word. Only SimAI's have further keys.
KINDS = (
    _kind("astra", "text workloads of ASTRA-sim 1", (LAST, rb"\A\s*" + _POLICY + rb"[^\n]*\n\s*\d+\s*\n")),
    _kind(
        "chakra", "Chakra execution traces, one .et or .json per rank", (1, JSON_NODE), (1, JSON_GRAPH),
        (1, rb'\A\s*\{\s*"schema"\s*:\s*"\d+\.\d+\.\d+(?:-chakra[\d.]*)?"\s*,\s*"pid"'), looks_so=_is_chakra,
    ),
    _kind(
        "deepspeed", "logs of communication of DeepSpeed",
        (LAST, rb"\A(?!.*NCCL INFO).*(?:\| comm op: \w+ \| time \(ms\): |Comm\. Op\s+Message Size\s+Count)"),
    ),
    _kind(
        "flight", "dumps of PyTorch's flight recorder, nccl_trace_rank_*, pickle or JSON",
        (3, rb'\A\s*\{(?=.*"(?:pg_config|entries)"\s*:)(?=.*"(?:pg_status|entries|collective_seq_id)"\s*:)'),
        looks_so=_is_dump,
    ),
    _kind(
        "goal", "GOAL schedules of LogGOPSim and ATLAHS, text or binary", (0, rb"\A(?:\x7f\x10|\x26\x09)\0{6}"),
        (7, rb"\A(?>\s+|/\*.*?\*/|//[^\n]*\n|#[^\n]*\n)*+num_ranks\s+\d+"),
    ),
    _kind("hlo", "XLA HLO modules as text, one program for all devices", (1, rb"\A\s*HloModule\s+[\w.$-]+")),
    _kind(
        "inspector", "JSON of NCCL's Inspector plugin", (3, rb'"(?:coll_perf|inspector_output_format_version)"\s*:')
    ),
    _kind(
        "jsonl", "JSON lines of profiler plugins of NCCL: CoMMA, minimal-profiler", (3, rb'"comm_hash"\s*:\s*"0x'),
        (3, rb'"recordType"\s*:\s*"(?:event|state)"'),
    ),
    _kind(
        "kineto", "PyTorch profiler (Kineto) traces, one .json[.gz] per rank",
        (2, rb'"(?:traceEvents|baseTimeNanoseconds|deviceProperties|distributedInfo)"\s*:'),
        (6, rb'\A\s*\[\s*\{.{0,2000}?"ph"\s*:'),
    ),
    _kind(
        "nsys", "SQLite exports of Nsight Systems (nsys export --type sqlite)", (0, rb"\ASQLite format 3\0")
    ),
    _kind(
        "profiler", "chrome trace of NCCL's example profiler plugin",
        (5, rb'\A\s*\[?\s*\{.{0,2000}?"cat"\s*:\s*"(?:GROUP|COLL|P2P|PROXY|NET|KERNEL)\w*"'),
    ),
    _kind(
        "simai", "workloads of SimAI and AICB",
        (7, rb"\A\s*HYBRID_TRANSFORMER_FWD_IN_BCKWD[ \t]+(?:model_parallel_NPU_group|all_gpus|ep|pp)\s*:"),
        (7, rb"\A\s*HYBRID_TRANSFORMER[ \t][^\n]*?\b(?:all_gpus|ep|pp|vpp|ga|pp_comm)\s*:"),
        (7, rb"\A\s*(?:\[[^\n]*\n)?\s*comm_type,comm_group,(?:comm_group_size,)?msg_size"),
    ),
)  # fmt: skip
