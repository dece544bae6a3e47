"""Text of a topology file and its data, validated key by key before a topology is built."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import TYPE_CHECKING

from clusim.base.errors import TopologyError
from clusim.base.files import note_input

if TYPE_CHECKING:
    from clusim.topology.schema import Topology
    from clusim.topology.validate import Problems

MAX_FILE_BYTES = 64 * 2**20


def read_text(path: Path, where: str, *, is_input: bool = True) -> str:
    """Return the text of a file, named `where` in errors.

    Directories, devices and too large files are rejected.

    Parameters
    ----------
    is_input : bool
        True if the result depends on the file, so that it must not be overwritten while in use.
    """
    mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        raise TopologyError(f"{where}: is a directory; give a YAML file")
    if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
        raise TopologyError(f"{where}: is no regular file; give a YAML file")
    if is_input:
        note_input(path)
    with path.open("rb") as file:
        data = file.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise TopologyError(f"{where}: larger than {MAX_FILE_BYTES >> 20} MiB; is it a topology?")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise TopologyError(f"{where}:{line}:1: not UTF-8 text; give a YAML file") from None


def describe(text: str, where: str, default_name: str) -> tuple[Topology, Problems]:
    """Return the content of a YAML text, and the list of further problems."""
    from clusim.topology.validate import Problems, validate
    from clusim.topology.yamltext import parse

    document = parse(text, where)
    problems = Problems(where, document)
    for (line, column), message in document.problems:
        problems.found.append(((line, column), message))
    topology = validate(document.data, problems)
    problems.raise_if_any()
    if topology.name is None:
        topology = topology.model_copy(update={"name": default_name})
    return topology, problems
