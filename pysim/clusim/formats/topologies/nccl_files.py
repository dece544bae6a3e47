"""NCCL's XML files: which of the two kinds it is, and the way from there to nodes and links."""

from __future__ import annotations

from clusim.formats.topologies.common import Draft
from clusim.formats.topologies.nccl_graph import read_graphs
from clusim.formats.topologies.nccl_xml import read_system
from clusim.formats.topologies.wiring import wire_machine
from clusim.formats.values import fail, printable
from clusim.formats.xmltext import parse_xml

_ROOTS = {"nccl-xml": "system", "nccl-graph": "graphs"}


def read_nccl(kind: str, text: str, draft: Draft, chip: str | None, group: str | None) -> None:
    """Fill `draft` from a topology or graph XML."""
    root = parse_xml(text, draft.where)
    if root.tag != _ROOTS[kind]:
        raise fail(
            draft.where,
            root.line,
            f"the root element is <{printable(root.tag)}>; {kind} has <{_ROOTS[kind]}>",
        )
    if kind == "nccl-xml":
        draft.settings["description"] = "imported from NCCL topology XML"
        wire_machine(read_system(root, draft, text, group), draft, chip)
    else:
        draft.settings["description"] = "rebuilt from the channels of an NCCL graph"
        read_graphs(root, draft, chip)
