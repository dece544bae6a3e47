"""Kinds of topology files: title, reader and detection by content."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from importlib import import_module
from typing import Final

from clusim.base.extensions import Extension, find_extension, further_extensions
from clusim.base.records import dataclass
from clusim.formats.topologies.common import Draft
from clusim.formats.topologies.smi_nvlink import GPU_LINE, LINK_LINE


@dataclass(frozen=True, slots=True)
class TopologyKind:
    """A kind of files.

    Attributes
    ----------
    title : str
        The kind in words.
    read_by : str
        Module of this package and function that fills a `Draft` from a text; without a module, a function of the
        extension in the distribution ``clusim-formats``.
    with_cpus : bool
        True if such files either describe or omit the processors of a node.
    claims : callable or None
        Of an extension: True for the text of such a file.
    """

    title: str
    read_by: str = ""
    with_cpus: bool = False
    claims: Callable[[str], bool] | None = None


BY_NAME: Final = {
    "nccl-xml": TopologyKind(
        "NCCL or RCCL topology XML (NCCL_TOPO_DUMP_FILE)", "nccl_xml:read_nccl", True
    ),
    "nccl-graph": TopologyKind(
        "NCCL graph XML (NCCL_GRAPH_DUMP_FILE)", "nccl_graph:read_nccl_graph", True
    ),
    "lstopo": TopologyKind("hwloc's XML, as lstopo writes it", "read_lstopo", True),
    "smi": TopologyKind(
        "nvidia-smi topo -m, or its p2p matrices", "smi_topo:read_smi", True
    ),
    "smi-nvlink": TopologyKind(
        "nvidia-smi nvlink -s, -c, -p or -R", "smi_nvlink:read_nvlink", True
    ),
    "rocm-smi": TopologyKind("rocm-smi --showtopo", "smi_topo:read_rocm", True),
    "graphml": TopologyKind("GraphML", "read_graphml"),
    "node-link": TopologyKind("networkx node-link JSON", "read_node_link"),
    "astra-sim": TopologyKind("ASTRA-sim network YAML or JSON", "read_astra"),
    "simai": TopologyKind("SimAI or ns-3 topology text", "read_simai"),
    "htsim": TopologyKind("htsim topology text (.topo)", "read_htsim"),
    "infragraph": TopologyKind("InfraGraph YAML or JSON", "read_infragraph", True),
}
"""Kinds of files, by the value of ``--kind``."""

KINDS: Final = {name: kind.title for name, kind in BY_NAME.items()}
"""Titles of clusim's kinds; `all_kinds` includes those of extensions."""


def all_kinds() -> dict[str, str]:
    """Return the titles of all kinds, those of extensions included."""
    return KINDS | {name: kind_named(name).title for name in _extensions()}


def _extensions() -> dict[str, Extension]:
    """Return the extensions that add a kind: modules with `KIND` and ``read(text, draft)``."""
    return further_extensions("clusim.topologies", BY_NAME)


def kind_named(name: str) -> TopologyKind:
    """Return a kind of `all_kinds`."""
    if name in BY_NAME:
        return BY_NAME[name]
    kind: TopologyKind = _extensions()[name].attribute("KIND", TopologyKind)
    return kind


def reader(name: str, where: str) -> Callable[[str, Draft], None]:
    """Return the function of a kind of `all_kinds` that fills a `Draft` from the text of a file `where`."""
    if name not in BY_NAME:
        return _extensions()[name].function("read")
    module, _, function = BY_NAME[name].read_by.rpartition(":")
    if not module:
        subject = f"{where}: {BY_NAME[name].title}"
        return find_extension("clusim.topologies", name, subject).function(function)
    read: Callable[[str, Draft], None]
    read = getattr(import_module(f"{__package__}.{module}"), function)
    return read


def is_nvbandwidth(text: str) -> bool:
    """Return True if a text is output of nvbandwidth, measurements and not a topology."""
    return _BANDWIDTH_JSON.match(text) is not None or (
        BANDWIDTH_TEST.search(text) is not None and "bandwidth (GB/s)" in text
    )


def detect_extension(text: str) -> str | None:
    """Return the kind of an extension that claims a text, None if there is none."""
    for name, extension in _extensions().items():
        claims = kind_named(name).claims
        if claims is not None and extension.guard(claims)(text):
            return name
    return None


_TAG = re.compile(r"<\s*([A-Za-z][A-Za-z0-9_.:-]*)")
_ROOTS = {
    "system": "nccl-xml",
    "graphs": "nccl-graph",
    "graphml": "graphml",
    "topology": "lstopo",
}
_RANK = re.compile(r"\[[0-9]+,[0-9]+\]<[a-z]+>:")
_SMI_FRONT = r"^(?:\[[0-9]+,[0-9]+\]<[a-z]+>:|[0-9]{1,5}: |[>|#]+ )?(?:[^\S\n]|\x1b\[[0-9;]*m)*GPU0"
_SMI_HEAD = re.compile(_SMI_FRONT + r"(?:\x1b\[[0-9;]*m|\s)(?!\s*X\b)", re.MULTILINE)
_SMI_ROW = re.compile(_SMI_FRONT + r"(?:\x1b\[[0-9;]*m)*\s+X\b", re.MULTILINE)
_HTSIM_HEAD = re.compile(
    r"^[^\S\n]*(?:nodes|tiers|podsize)[^\S\n]+[0-9]+[^\S\n]*$", re.I | re.M
)
_KEY = re.compile(r"(?:^|[{,])[ \t-]*([a-z0-9_]+):", re.MULTILINE)
_INFRAGRAPH = {"components", "instances", "ep1", "connections"}
_BANDWIDTH_JSON = re.compile(r'\A\s*\{\s*"nvbandwidth"\s*:')
BANDWIDTH_TEST = re.compile(r"^Running (\w{1,80})\.\s*$", re.M)
"""First line of a test in the output of nvbandwidth."""
_PASTED = re.compile(r"<(system|graphs|topology)\b.*</\1>", re.DOTALL)


def without_prompt(text: str) -> str:
    """Return the XML of a text pasted with a prompt or fence, on its lines; else the text."""
    if text.lstrip("\ufeff \t\r\n").startswith(("<", "{", "[")):
        return text
    match = _PASTED.search(text)
    return (
        "\n" * text.count("\n", 0, match.start()) + match[0] + "\n"
        if match
        else text
    )


def detect(text: str) -> str | None:
    """Return the kind of a file by its content, None if it is not in `KINDS`."""
    head = without_prompt(text).lstrip("\ufeff \t\r\n")
    if head.startswith("<"):
        return _of_xml(head)
    if head.startswith(("{", "[")) and not _RANK.match(head):
        return _of_json(text)
    if re.search(r"(Weight|Hops|Link Type) between two GPUs", text):
        return "rocm-smi"
    title = _SMI_HEAD.search(text)
    if title and (
        _SMI_ROW.search(text) or re.match(r"\s*GPU1\b", text[title.end() :])
    ):
        return "smi"
    if LINK_LINE.search(text) and GPU_LINE.search(text):
        return "smi-nvlink"
    if re.search(r"^[^\S\n]*npus_count[^\S\n]*:", text, re.MULTILINE):
        return "astra-sim"
    if len(_INFRAGRAPH & set(_KEY.findall(text))) > 1:
        return "infragraph"
    if len(_HTSIM_HEAD.findall(text[:10_000])) > 1:
        return "htsim"
    return "simai" if _is_simai(text) else None


def _of_xml(head: str) -> str | None:
    match = _TAG.search(
        re.sub(r"<!--.*?(-->|$)", " ", head[:200_000], flags=re.DOTALL)
    )
    return _ROOTS.get(match[1].lower()) if match else None


def _of_json(text: str) -> str | None:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(data, dict):
        return None
    if isinstance(data.get("nodes"), list) and ("links" in data or "edges" in data):
        return "node-link"
    inner = data.get("infrastructure", data)
    if isinstance(inner, dict) and (
        {"devices", "instances"} <= set(inner)
        or {"components", "edges"} <= set(inner)
    ):
        return "infragraph"
    astra = {"topologies-per-dim", "units-count", "npus_count", "npus-count"}
    return "astra-sim" if astra & set(data) else None


def _is_simai(text: str) -> bool:
    rows = [line.split() for line in text.splitlines()[:8] if line.strip()]
    if not rows or len(rows[0]) not in (3, 5, 6):
        return False
    return all(word.isdecimal() for word in rows[0][:5])
