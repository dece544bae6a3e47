"""Topology by name, by file or by generator specification -> `Fabric`."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from clusim import resources
from clusim.errors import TopologyError
from clusim.fabric.model import Fabric

__all__ = ["load", "loads"]

MAX_FILE_BYTES = 64 * 2**20


def load(name_or_path: str | os.PathLike[str]) -> Fabric:
    """Return the fabric called or described by `name_or_path`.

    A shipped preset (``dgx-a100``), a YAML file (anything with a directory or a suffix, or an existing file), or a
    generator specification (``fat-tree:k=8``).
    """
    name = os.fspath(name_or_path)
    shown = _printable(name)
    if not name or "\0" in name:
        raise TopologyError(f"topology {shown!r}: not a name; give a preset or a file")
    from clusim.fabric.generators import GENERATORS, generate, is_generator

    if is_generator(name):
        return generate(name)
    preset = resources.find_topology(name)
    if preset is not None:
        return _load_file(preset, preset.name)
    path = Path(name)
    if os.sep in name or path.suffix in (".yaml", ".yml") or os.path.exists(name):
        return _load_file(path, shown)
    from clusim.fabric.problems import did_you_mean

    hint = did_you_mean(name.partition(":")[0], [*resources.shipped_topologies(), *GENERATORS])
    raise TopologyError(f"topology {shown!r}: no such preset or file{hint}")


def loads(text: str, where: str = "<text>", *, default_name: str = "custom") -> Fabric:
    """Return the fabric described by a YAML text; `where` is its name in errors."""
    from clusim.fabric.assemble import assemble
    from clusim.fabric.check import raise_on_errors
    from clusim.fabric.problems import Problems
    from clusim.fabric.validate import validate
    from clusim.fabric.yamltext import parse

    document = parse(text, where)
    problems = Problems(where, document)
    for (line, column), message in document.problems:
        problems.found.append(((line, column), message))
    data = document.data
    topology = validate(data, problems)
    problems.raise_if_any()
    if topology.name is None:
        topology = topology.model_copy(update={"name": default_name})
    fabric = assemble(topology, problems, source_text=text)
    raise_on_errors(fabric, where)
    return fabric


def _load_file(path: Path, where: str) -> Fabric:
    try:
        text = _read(path, where)
    except OSError as error:
        reason = (error.strerror or "error").lower()
        raise TopologyError(
            f"{where}: cannot be read: {reason}; give a readable YAML file"
        ) from None
    return loads(text, where, default_name=_printable(path.stem))


def _read(path: Path, where: str) -> str:
    mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        raise TopologyError(f"{where}: is a directory; give a YAML file")
    if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
        raise TopologyError(f"{where}: is no regular file; give a YAML file")
    with path.open("rb") as file:
        data = file.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise TopologyError(f"{where}: larger than {MAX_FILE_BYTES >> 20} MiB; is it a topology?")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise TopologyError(f"{where}:{line}:1: not UTF-8 text; give a YAML file") from None


def _printable(text: str) -> str:
    shown = "".join(c if c.isprintable() else "?" for c in text)
    return shown if len(shown) <= 200 else f"{shown[:197]}..."
