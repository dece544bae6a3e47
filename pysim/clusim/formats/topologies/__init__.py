"""Topologies of other tools.

Formats: NCCL and RCCL XML, `nvidia-smi topo -m`, graphs, ASTRA-sim and SimAI files and others.

Every importer fills a description with the keys of topology files. Values that the file does not contain
are set from the hardware presets, and each is listed as an `Assumption`.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import TypedDict, Unpack

from clusim.base.errors import TopologyError
from clusim.base.limits import fail, printable
from clusim.formats.topologies.common import Assumption, Draft, Imported

__all__ = ["KINDS", "Assumption", "Imported", "detect", "import_file", "import_onto", "import_text"]

KINDS = {
    "nccl-xml": "NCCL or RCCL topology XML (NCCL_TOPO_DUMP_FILE)",
    "nccl-graph": "NCCL graph XML (NCCL_GRAPH_DUMP_FILE)",
    "lstopo": "hwloc's XML, as lstopo writes it",
    "smi": "nvidia-smi topo -m, or its p2p matrices",
    "smi-nvlink": "nvidia-smi nvlink -s, -c, -p or -R",
    "rocm-smi": "rocm-smi --showtopo",
    "graphml": "GraphML",
    "node-link": "networkx node-link JSON",
    "astra-sim": "ASTRA-sim network YAML or JSON",
    "simai": "SimAI or ns-3 topology text",
    "htsim": "htsim topology text (.topo)",
    "infragraph": "InfraGraph YAML or JSON",
}
"""Kinds of files, by the value of `--kind`."""

WITH_CPUS = ("nccl-xml", "nccl-graph", "lstopo", "smi", "smi-nvlink", "rocm-smi", "infragraph")
"""Kinds of files that either describe or omit the processors of a node."""


class Given(TypedDict, total=False):
    """Statements of the user about a file of another tool.

    Attributes
    ----------
    kind : str, optional
        Its kind, one of `KINDS`; by default detected from its content.
    chip : str, optional
        Model of its GPUs if the file does not name it, e.g. ``h100-sxm5``.
    cpu : str, optional
        Model of its processors, e.g. ``epyc-milan``. NUMA nodes of one socket (NPS, SNC) then form one
        processor.
    group : str, optional
        Number or name of the node to import from a file with several.
    """

    kind: str | None
    chip: str | None
    cpu: str | None
    group: str | None


def import_file(path: str | os.PathLike[str], **given: Unpack[Given]) -> Imported:
    """Read a file of another tool.

    Parameters
    ----------
    path : path-like
        The file.
    **given
        See `Given`.
    """
    name = os.fspath(path)
    text = _text(path)
    return import_text(text, printable(name, 200), **given)


def _text(path: str | os.PathLike[str]) -> str:
    """Return the content of a file."""
    from clusim.topology.validate import read_text

    name = os.fspath(path)
    if not name or "\0" in name:
        raise TopologyError(f"{printable(name)!r}: not the name of a file")
    try:
        return read_text(Path(name), printable(name, 200))
    except OSError as error:
        reason = (error.strerror or "error").lower()
        raise TopologyError(f"{printable(name, 200)}: cannot be read: {reason}") from None


def import_onto(path: str | os.PathLike[str], machine: str, *, chip: str | None = None) -> Imported:
    """Read a partial topology XML (of ``NCCL_TOPO_FILE``) and overlay it on a node.

    Parameters
    ----------
    machine : str
        A preset, a topology file or another XML: the existing hardware, and all values that the file omits.
    chip : str, optional
        As of `import_file`.
    """
    from clusim import topology
    from clusim.formats.topologies.nccl_dump import dump_system
    from clusim.formats.topologies.overlay import combine

    name = printable(os.fspath(path), 200)
    base = _text(machine) if Path(machine).suffix.lower() == ".xml" else ""
    if not base:
        base = dump_system(topology.load(machine))
    both = combine(_text(path), name, base, printable(machine, 100))
    result = import_text(both.text, name, kind="nccl-xml", chip=chip)
    result.data["sources"]["onto"] = printable(machine, 100)
    return replace(result, assumptions=(*both.differences, *result.assumptions))


def detect(text: str) -> str | None:
    """Return the kind of a file by its content, None if it is not in `KINDS`."""
    from clusim.formats.topologies.htsim import detect_kind

    return detect_kind(text)


def import_text(text: str, where: str, **given: Unpack[Given]) -> Imported:
    """Read the text of a file called `where`; see `import_file`."""
    kind, chip, cpu, group = (
        given.get("kind"),
        given.get("chip"),
        given.get("cpu"),
        given.get("group"),
    )
    if kind is not None and kind not in KINDS:
        raise TopologyError(f"{where}: no kind {printable(kind)!r}; there are {', '.join(KINDS)}")
    from clusim.formats.topologies.htsim import without_prompt
    from clusim.formats.topologies.identify import named_processor

    text = without_prompt(text)
    results = kind or detect(text)
    if results is None:
        if is_measured(text):
            what = "measurements of nvbandwidth, no topology: clusim topo check MACHINE --measured FILE"
            raise fail(where, 0, what)
        what = "empty" if not text.strip() else "not a topology that can be imported"
        raise fail(where, 0, f"{what}; the kinds are {', '.join(KINDS)}: name one with --kind")
    if cpu is not None and results not in WITH_CPUS:
        raise TopologyError(f"{where}: --cpu: {KINDS[results]} does not use processors; omit it")
    draft = Draft(where, _name(where), cpu=named_processor(cpu) if cpu is not None else None)
    if draft.cpu is not None:
        draft.source("cpu", f"{draft.cpu.name}, given with --cpu")
    draft.source("import", f"{KINDS[results]}: {Path(where).name}")
    _read(results, text, draft, chip, group)
    result = draft.finish(results, KINDS[results])
    if not result.counts["gpus"] and not result.counts["hosts"]:
        raise fail(where, 0, "names no GPU and no host; is it the topology of a machine?")
    return result


def is_measured(text: str) -> bool:
    """Return True if a text is output of nvbandwidth."""
    from clusim.formats.topologies.nvbandwidth import is_nvbandwidth

    return is_nvbandwidth(text)


def _read(kind: str, text: str, draft: Draft, chip: str | None, group: str | None) -> None:
    if group is not None and kind != "nccl-xml":
        raise fail(draft.where, 0, "the file does not have groups; omit the group")
    if kind in ("nccl-xml", "nccl-graph"):
        from clusim.formats.topologies.nccl_files import read_nccl

        read_nccl(kind, text, draft, chip, group)
    elif kind == "lstopo":
        from clusim.formats.topologies.lstopo import read_lstopo

        read_lstopo(text, draft, chip)
    elif kind == "smi-nvlink":
        from clusim.formats.topologies.smi_nvlink import read_nvlink

        read_nvlink(text, draft, chip)
    elif kind in ("smi", "rocm-smi"):
        from clusim.formats.topologies.smi_topo import read_smi

        read_smi(kind, text, draft, chip)
    elif kind in ("graphml", "node-link"):
        from clusim.formats.topologies.graphs import read_graph

        read_graph(kind, text, draft, chip)
    elif kind == "infragraph":
        from clusim.formats.topologies.infragraphwiring import read_infragraph

        read_infragraph(text, draft, chip)
    elif kind == "astra-sim":
        from clusim.formats.topologies.astra import read_astra

        read_astra(text, draft, chip)
    elif kind == "htsim":
        from clusim.formats.topologies.htsim import read_htsim

        read_htsim(text, draft, chip)
    else:
        from clusim.formats.topologies.simai import read_simai

        read_simai(text, draft, chip)


def _name(where: str) -> str:
    stem = re.sub(
        r"\.(xml|txt|json|ya?ml|graphml|topo|log)$", "", Path(where).name, flags=re.IGNORECASE
    )
    return printable(stem, 100) or "imported"
