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
from clusim.formats.topologies.kinds import (
    KINDS,
    all_kinds,
    detect,
    detect_extension,
    is_nvbandwidth,
    kind_named,
    reader,
    without_prompt,
)

__all__ = [
    "KINDS",
    "Assumption",
    "Imported",
    "all_kinds",
    "detect",
    "detect_extension",
    "import_file",
    "import_onto",
    "import_text",
]


class Given(TypedDict, total=False):
    """Statements of the user about a file of another tool.

    Attributes
    ----------
    kind : str, optional
        Its kind, one of `all_kinds`; by default detected from its content.
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
    return read_text(Path(name), printable(name, 200))


def import_onto(
    path: str | os.PathLike[str], machine: str, *, chip: str | None = None
) -> Imported:
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


def import_text(text: str, where: str, **given: Unpack[Given]) -> Imported:
    """Read the text of a file called `where`; see `import_file`."""
    from clusim.formats.topologies.identify import named_processor

    name, cpu, group = given.get("kind"), given.get("cpu"), given.get("group")
    if name is not None and name not in KINDS and name not in all_kinds():
        kinds = ", ".join(all_kinds())
        raise TopologyError(
            f"{where}: no kind {printable(name)!r}; there are {kinds}"
        )
    text = without_prompt(text)
    name = name or detect(text)
    if name is None and is_nvbandwidth(text):
        message = "measurements of nvbandwidth, no topology: clusim topo check TOPOLOGY --measured FILE"
        raise fail(where, 0, message)
    name = name or detect_extension(text)
    if name is None:
        message = (
            "empty" if not text.strip() else "not a topology that can be imported"
        )
        kinds = ", ".join(all_kinds())
        raise fail(
            where, 0, f"{message}; the kinds are {kinds}: name one with --kind"
        )
    kind = kind_named(name)
    if cpu is not None and not kind.with_cpus:
        raise TopologyError(
            f"{where}: --cpu: {kind.title} does not use processors; omit it"
        )
    draft = Draft(where, _name(where), chip=given.get("chip") or "", group=group)
    if cpu is not None:
        draft.cpu = named_processor(cpu)
        draft.source("cpu", f"{draft.cpu.name}, given with --cpu")
    draft.source("import", f"{kind.title}: {Path(where).name}")
    if group is not None and name != "nccl-xml":
        raise draft.fail("the file does not have groups; omit the group")
    reader(name, where)(text, draft)
    result = draft.finish(name, kind.title)
    if not result.counts["gpus"] and not result.counts["hosts"]:
        raise draft.fail("names no GPU and no host; is it the topology of a node?")
    return result


def _name(where: str) -> str:
    stem = re.sub(
        r"\.(xml|txt|json|ya?ml|graphml|topo|log)$",
        "",
        Path(where).name,
        flags=re.IGNORECASE,
    )
    return printable(stem, 100) or "imported"
