"""Validation of a topology file: plain data to `Topology`, with all problems in one error.

Problems are collected with their places; pydantic's errors are rephrased in the terms of the file. The text of the
file is validated key by key before a topology is built.
"""

from __future__ import annotations

import re
import types
from dataclasses import field
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    TypeVar,
    Union,
    get_args,
    get_origin,
)

from pydantic import BaseModel, ValidationError

from clusim.base import limits
from clusim.base.errors import InputError, TopologyError
from clusim.base.limits import printable
from clusim.base.records import dataclass
from clusim.topology.keys import did_you_mean
from clusim.topology.schema import Topology

if TYPE_CHECKING:
    from clusim.topology.yamltext import Document

KeyPath = tuple[str | int, ...]
Model = TypeVar("Model", bound=BaseModel)

MOST = 20
"""Most problems reported."""


OVERLAY_KEYS = {"name", "description", "base", "figures"}
"""Keys that an overlay may have; the others describe a system."""


def dotted_path(path: KeyPath) -> str:
    """Return a path in dotted notation: ``links[3].rate``."""
    text = ""
    for part in path:
        text += (
            f"[{part}]"
            if isinstance(part, int)
            else f".{part}"
            if text
            else str(part)
        )
    return printable(text, 120)


@dataclass(slots=True)
class Problems:
    """Problems found so far in the description called `where`."""

    where: str
    document: Document | None = None
    found: list[tuple[tuple[int, int], str]] = field(default_factory=list)

    def add(self, path: KeyPath, message: str, *, key: bool = False) -> None:
        """Add a problem of the value (or the key) at `path`."""
        name = dotted_path(path)
        place = (
            self.document.place(path, key=key)
            if self.document is not None
            else (0, 0)
        )
        self.found.append((place, f"{name}: {message}" if name else message))

    def raise_if_any(self) -> None:
        """Raise one `TopologyError` with a line per problem, in the order of the text."""
        if not self.found:
            return
        lines = []
        result = sorted(dict.fromkeys(self.found), key=lambda item: item[0])
        for (line, column), message in result[:MOST]:
            place = f"{self.where}:{line}:{column}" if line else self.where
            lines.append(printable(f"{place}: {message}", 400))
        more = len(result) - MOST
        if more > 0:
            lines.append(f"{self.where}: and {more} more")
        raise TopologyError("\n".join(lines))


def validate(data: Any, problems: Problems) -> Topology:
    """Return the validated description; raise `TopologyError` with every problem."""
    if not isinstance(data, dict):
        problems.add((), "must be a mapping with 'nodes' and 'links'")
        problems.raise_if_any()
    topology = validate_data(Topology, data, problems)
    keys = topology.model_fields_set
    if (topology.base is not None) != bool(topology.figures):
        problems.add((), "an overlay has a 'base' and its 'figures'; write both")
    for key in sorted(keys - OVERLAY_KEYS) if topology.base is not None else ():
        problems.add(
            (key,),
            "belongs to a complete system; put it into the file that 'base' names",
            key=True,
        )
    problems.raise_if_any()
    if topology.base is not None:
        return topology
    if topology.cluster is None and "nodes" not in keys:
        problems.add((), f"'nodes' is missing; {_example('nodes')}")
        problems.raise_if_any()
    elif topology.cluster is not None and keys & {"nodes", "links"}:
        problems.add(
            ("cluster",),
            "a file has either a cluster or nodes and links; remove one",
            key=True,
        )
        problems.raise_if_any()
    return topology


def validate_data(model: type[Model], data: Any, problems: Problems) -> Model:
    """Return the validated model of a file; raise `TopologyError` with every problem."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        for item in error.errors(include_url=False):
            _explain(model, item, problems)
        problems.raise_if_any()
        raise


def _explain(model: type[BaseModel], item: Any, problems: Problems) -> None:
    path = tuple(part for part in item["loc"] if part != "[key]")
    kind = item["type"]
    if kind == "extra_forbidden":
        hint = did_you_mean(str(path[-1]), _keys_at(model, path[:-1]))
        problems.add(path, f"unknown key{hint}", key=True)
    elif kind == "missing":
        problems.add(
            path[:-1], f"{path[-1]!r} is missing; {_example(str(path[-1]))}"
        )
    elif kind == "literal_error":
        words = re.findall("'([^']*)'", item["ctx"]["expected"])
        got = path[-1] if "[key]" in item["loc"] else item["input"]
        problems.add(
            path,
            f"{_show(got)} is not known{did_you_mean(str(got), words)}",
            key="[key]" in item["loc"],
        )
    elif kind == "unit":
        problems.add(path, item["msg"])
    elif path and path[-1] in ("from", "to") and isinstance(item["input"], list):
        problems.add(
            path, "a list: must be a node or a range of nodes, such as gpu1..3"
        )
    else:
        problems.add(path, f"{_show(item['input'])}: {_lower(item['msg'])}")


def _show(value: Any) -> str:
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    if value is None:
        return "nothing"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:56]}..."


def _lower(message: str) -> str:
    """Return pydantic's sentence as the second half of an error of clusim."""
    text = message.replace("Input should be", "must be").replace(
        "dictionary", "mapping"
    )
    text = text.partition(" or instance of ")[0]
    return text[:1].lower() + text[1:]


def _example(key: str) -> str:
    examples = {
        "nodes": "write for example nodes: {gpu0..7: {kind: gpu, chip: h100-sxm5}}",
        "kind": "set kind: gpu, host, memory, switch or nic",
        "xoff": "set the bytes at which it pauses",
        "max": "set the bytes from which on every packet is marked",
        "from": "name the node, or the range of nodes, the links start at",
        "to": "name the node, or the range of nodes, the links end at",
    }
    return examples.get(key, "set a value")


def _unwrap(annotation: Any) -> Any:
    """Strip ``Annotated`` and ``| None``."""
    while True:
        origin = get_origin(annotation)
        if origin is Annotated:
            annotation = get_args(annotation)[0]
        elif origin in (Union, types.UnionType):
            inner = [arg for arg in get_args(annotation) if arg is not type(None)]
            if len(inner) != 1:
                return annotation
            annotation = inner[0]
        else:
            return annotation


def _type_at(model: type[BaseModel], path: KeyPath) -> Any:
    """Return the type of a model at `path`."""
    current: Any = model
    for part in path:
        current = _unwrap(current)
        if isinstance(current, type) and issubclass(current, BaseModel):
            names = {
                info.alias or name: info.annotation
                for name, info in current.model_fields.items()
            }
            current = names.get(str(part))
        elif get_origin(current) in (dict, list):
            current = get_args(current)[-1]
        else:
            return None
    return _unwrap(current)


def _keys_at(model: type[BaseModel], path: KeyPath) -> list[str]:
    current = _type_at(model, path)
    if isinstance(current, type) and issubclass(current, BaseModel):
        return [info.alias or name for name, info in current.model_fields.items()]
    return []


MAX_FILE_BYTES = 64 * 2**20


def read_text(path: Path, where: str) -> str:
    """Return the text of a file, named `where` in errors."""
    try:
        return limits.read_text(
            path, MAX_FILE_BYTES, advice="is it a topology?", where=where
        )
    except InputError as error:
        raise TopologyError(str(error)) from None


def describe(text: str, where: str, default_name: str) -> tuple[Topology, Problems]:
    """Return the content of a YAML text, and the list of further problems."""
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
