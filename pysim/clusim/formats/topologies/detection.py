"""Detection of a file's kind by its content."""

from __future__ import annotations

import json
import re

from clusim.formats.topologies.htsim import HEAD_LINE
from clusim.formats.topologies.smi_nvlink import GPU_LINE, LINK_LINE

_ROOT = re.compile(r"<\s*([A-Za-z][A-Za-z0-9_.:-]*)")
_ROOTS = {
    "system": "nccl-xml",
    "graphs": "nccl-graph",
    "graphml": "graphml",
    "topology": "lstopo",
}
_TAGGED = re.compile(r"\[[0-9]+,[0-9]+\]<[a-z]+>:")
_SMI_FRONT = r"^(?:\[[0-9]+,[0-9]+\]<[a-z]+>:|[0-9]{1,5}: |[>|#]+ )?(?:[^\S\n]|\x1b\[[0-9;]*m)*GPU0"
_SMI_HEAD = re.compile(_SMI_FRONT + r"(?:\x1b\[[0-9;]*m|\s)(?!\s*X\b)", re.MULTILINE)
_SMI_ROW = re.compile(_SMI_FRONT + r"(?:\x1b\[[0-9;]*m)*\s+X\b", re.MULTILINE)


_KEY = re.compile(r"(?:^|[{,])[ \t-]*([a-z0-9_]+):", re.MULTILINE)
_INFRAGRAPH = {"components", "instances", "ep1", "connections"}
_PASTED = re.compile(r"<(system|graphs|topology)\b.*</\1>", re.DOTALL)


def without_prompt(text: str) -> str:
    """Return the XML of a text pasted with a prompt or fence, on its lines; else the text."""
    if text.lstrip("\ufeff \t\r\n").startswith(("<", "{", "[")):
        return text
    match = _PASTED.search(text)
    return "\n" * text.count("\n", 0, match.start()) + match[0] + "\n" if match else text


def detect_kind(text: str) -> str | None:
    """Return the kind, None if it is unknown."""
    head = without_prompt(text).lstrip("\ufeff \t\r\n")
    if head.startswith("<"):
        return _of_xml(head)
    if head.startswith(("{", "[")) and not _TAGGED.match(head):
        return _of_json(text)
    if re.search(r"(Weight|Hops|Link Type) between two GPUs", text):
        return "rocm-smi"
    title = _SMI_HEAD.search(text)
    if title and (_SMI_ROW.search(text) or re.match(r"\s*GPU1\b", text[title.end() :])):
        return "smi"
    if LINK_LINE.search(text) and GPU_LINE.search(text):
        return "smi-nvlink"
    if re.search(r"^[^\S\n]*npus_count[^\S\n]*:", text, re.MULTILINE):
        return "astra-sim"
    if len(_INFRAGRAPH & set(_KEY.findall(text))) > 1:
        return "infragraph"
    if len(HEAD_LINE.findall(text[:10_000])) > 1:
        return "htsim"
    return "simai" if _is_simai(text) else None


def _of_xml(head: str) -> str | None:
    for match in _ROOT.finditer(_uncommented(head[:200_000])):
        tag = match[1].lower()
        return _ROOTS.get(tag)
    return None


def _uncommented(text: str) -> str:
    return re.sub(r"<!--.*?(-->|$)", " ", text, flags=re.DOTALL)


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
        {"devices", "instances"} <= set(inner) or {"components", "edges"} <= set(inner)
    ):
        return "infragraph"
    astra = {"topologies-per-dim", "units-count", "npus_count", "npus-count"}
    return "astra-sim" if astra & set(data) else None


def _is_simai(text: str) -> bool:
    rows = [line.split() for line in text.splitlines()[:8] if line.strip()]
    if not rows or len(rows[0]) not in (3, 5, 6):
        return False
    return all(word.isdecimal() for word in rows[0][: min(5, len(rows[0]))])
