"""Tells recordings apart by what is in them, and finds the reader of each format."""

from __future__ import annotations

import re
from collections.abc import Callable
from glob import escape
from importlib import import_module
from pathlib import Path
from typing import Final

from clusim.errors import InputError
from clusim.formats.recordings.model import Recording
from clusim.formats.recordings.source import head, natural, parts

__all__ = ["KINDS", "LOGS", "PLANS", "kind_of", "reader"]

LOGS: Final = {
    "nccl-log": "what NCCL_DEBUG=INFO prints, of NCCL or RCCL",
    "nccl-tests": "what nccl-tests prints, as measurements",
}
"""Kinds `clusim.formats.logs` reads -> what they are."""

KINDS: Final = {
    "kineto": "PyTorch profiler (Kineto) traces, one .json[.gz] per rank",
    "chakra": "Chakra execution traces, one .et per rank",
    "goal": "GOAL schedules of LogGOPSim and ATLAHS",
    "astra": "text workloads of ASTRA-sim 1",
    "simai": "workloads of SimAI and AICB",
    "inspector": "JSON of NCCL's Inspector plugin",
    "profiler": "chrome trace of NCCL's example profiler plugin",
}
"""Kinds with a module of the same name in this package that has ``read(paths) -> Recording`` -> what they are."""

PLANS: Final = {
    "msccl": "MSCCL algorithm, XML",
    "mscclpp": "MSCCL++ execution plan, JSON",
}
"""Kinds that are algorithms and no recordings -> what they are; `clusim.plans` reads them."""

_PATTERNS: Final[tuple[tuple[str, bytes], ...]] = (
    ("msccl", rb"\A(?:<\?xml[^>]*>)?(?>\s+|<!--.*?-->)*+<algo\s"),
    ("chakra", rb'\A\s*\{\s*"schema"\s*:\s*"\d+\.\d+\.\d+(?:-chakra[\d.]*)?"\s*,\s*"pid"'),
    ("kineto", rb'"(?:traceEvents|baseTimeNanoseconds|deviceProperties|distributedInfo)"\s*:'),
    ("inspector", rb'"(?:coll_perf|inspector_output_format_version)"\s*:'),
    ("mscclpp", rb'\A\s*\{(?=.*"(?:protocol|collective)"\s*:)(?=.*"(?:gpus|colltype|num_threads_per_block)"\s*:)'),
    ("profiler", rb'\A\s*\[?\s*\{.{0,2000}?"cat"\s*:\s*"(?:GROUP|COLL|P2P|PROXY|NET|KERNEL)\w*"'),
    ("kineto", rb'\A\s*\[\s*\{.{0,2000}?"ph"\s*:'),
    ("goal", rb"\A(?>\s+|/\*.*?\*/|//[^\n]*\n|#[^\n]*\n)*+num_ranks\s+\d+"),
    ("simai", rb"\A\s*HYBRID_TRANSFORMER_FWD_IN_BCKWD[ \t]+(?:model_parallel_NPU_group|all_gpus|ep|pp)\s*:"),
    ("simai", rb"\A\s*(?:\[[^\n]*\n)?\s*comm_type,comm_group,comm_group_size,msg_size"),
    ("astra", rb"\A\s*(?:MICRO|DATA|MODEL|HYBRID_\w+|CUSTOMIZED|DISTRIBUTED_\w+|TRANSFORMER_\w+)[^\n]*\n\s*\d+\s*\n"),
    ("nccl-log", rb"NCCL (?:INFO|WARN|CALL)|NCCL version|RCCL version"),
    ("nccl-tests", rb"out-of-place|algbw|nThread \d+ nGpus \d+"),
)  # fmt: skip
"""What begins a file of a kind, in the order in which it is tried."""


def kind_of(path: str) -> str:
    """Return the kind of a file, or of the files of a directory; a text of unknown kind is taken for a log.

    Raises
    ------
    InputError
        There is no such file, it is empty, or it is of no kind.
    """
    if path == "-":
        return "nccl-log"
    if not Path(path).exists() and any(Path(path).parent.glob(f"{escape(Path(path).name)}*.et")):
        return "chakra"
    data, name = _beginning(path)
    if not data:
        raise InputError(f"{path}: is empty")
    for kind, pattern in _PATTERNS:
        if re.search(pattern, data, re.DOTALL):
            return kind
    if _is_chakra(name, data):
        return "chakra"
    if b"\0" in data[:4096]:
        raise InputError(f"{path}: binary data of no known kind; --kind is one of {_all_kinds()}")
    if data.lstrip()[:1] in (b"{", b"[") and name.lower().endswith((".json", ".json.gz")):
        raise InputError(f"{path}: JSON of no known kind; --kind is one of {_all_kinds()}")
    return "nccl-log"


def reader(kind: str) -> Callable[..., Recording]:
    """Return what reads files of a kind of `KINDS`."""
    module = import_module(f"clusim.formats.recordings.{kind}")
    found: Callable[..., Recording] = module.read
    return found


def _all_kinds() -> str:
    return ", ".join(sorted({*LOGS, *KINDS, *PLANS}))


def _beginning(path: str) -> tuple[bytes, str]:
    """Return the first bytes of a file, or of the first file in a directory or archive, and its name."""
    if Path(path).is_dir():
        inside = sorted(
            (str(p) for p in Path(path).iterdir() if p.is_file() and p.name[0] != "."), key=natural
        )
        if not inside:
            raise InputError(f"{path}: is a directory without files")
        first_name = next((name for name in inside if name.endswith(".et")), inside[0])
        return head(first_name), first_name
    data = head(path)
    if data[257:262] == b"ustar":
        inside_of = iter(parts(path, lambda name: True))
        first = next(inside_of)
        first = next((part for part in inside_of if part.name.endswith(".et")), first)
        return first.data[: 1 << 16], first.name
    return data, path


def _is_chakra(name: str, data: bytes) -> bool:
    """Return whether a file is a Chakra trace: messages with their lengths, the first the metadata."""
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
