"""Files of data: YAML to plain data.

YAML 1.2: ``no`` is a word, ``312e12`` a number. Keys are text, numbers included.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Hashable, Iterator, Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar, cast

from clusim.base import resources
from clusim.base.errors import InputError
from clusim.base.kept import PACKAGE, SampleCache

Entry = Mapping[str, Any]
"""A section of a file: plain data by key."""


@cache
def _loader() -> type[Any]:
    """Return the reader of YAML 1.2 scalars, for which a repeated key is an error."""
    import yaml

    class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
        yaml_implicit_resolvers: ClassVar[
            dict[str, list[tuple[str, re.Pattern[str]]]]
        ] = {}

        def construct_mapping(
            self, node: Any, deep: bool = False
        ) -> dict[Hashable, Any]:
            """Return a mapping without repeated keys."""
            keys = [key.value for key, _ in node.value]
            for key in keys:
                if keys.count(key) > 1:
                    raise yaml.YAMLError(f"duplicate key {key!r}")
            return cast("dict[Hashable, Any]", super().construct_mapping(node, deep))

    for tag, pattern, first in (
        ("bool", r"true|false", "tf"),
        ("null", r"null|~|", ["n", "~", ""]),
        ("int", r"[-+]?[0-9]+|0x[0-9a-fA-F]+", "-+0123456789"),
        (
            "float",
            r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?",
            "-+.0123456789",
        ),
    ):
        Loader.add_implicit_resolver(
            f"tag:yaml.org,2002:{tag}", re.compile(rf"^(?:{pattern})$"), first
        )
    return Loader


def read(path: Path) -> dict[str, Any]:
    """Read a file; the command line caches shipped files, as the parser lasts longer than a small run.

    Raises
    ------
    InputError
        A file that cannot be read, is not valid YAML or is not a mapping, with its name.
    """
    if not resources.cached or PACKAGE not in path.parents:
        return _read(path)
    stored, question = SampleCache(), ("data", path.relative_to(PACKAGE).as_posix())
    result: dict[str, Any] | None = stored.get(question)
    if result is None:
        result = _read(path)
        stored.put(question, result)
    return result


def _read(path: Path) -> dict[str, Any]:
    import yaml

    try:
        data = yaml.load(path.read_text(encoding="utf-8"), Loader=_loader())
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise InputError(f"{path.name}: {' '.join(str(error).split())}") from None
    if not isinstance(data, dict):
        raise InputError(f"{path.name}: not a mapping of keys to values")
    result: dict[str, Any] = json.loads(json.dumps(data))
    return result


K = TypeVar("K")
V = TypeVar("V")


class OnDemand(Mapping[K, V], Generic[K, V]):
    """Table that is read when it is first used: most commands need one GPU of sixty.

    Parameters
    ----------
    read_all : callable
        Returns the complete table.
    read_one : callable or None
        Returns the value of a name without the rest, or raises KeyError; None if only the complete table shows it.
    """

    def __init__(
        self,
        read_all: Callable[[], dict[K, V]],
        read_one: Callable[[K], V | None] = lambda _: None,
    ) -> None:
        self._read_all, self._read_one = read_all, read_one

    @cached_property
    def _all(self) -> dict[K, V]:
        return self._read_all()

    def __getitem__(self, name: K) -> V:
        """Return a value."""
        if "_all" not in vars(self):
            alone = self._read_one(name)
            if alone is not None:
                return alone
        return self._all[name]

    def __iter__(self) -> Iterator[K]:
        """Iterate over the names in the order of the table."""
        return iter(self._all)

    def __repr__(self) -> str:
        """Return the table as a dictionary's text."""
        return repr(self._all)

    def __len__(self) -> int:
        """Return the number of names."""
        return len(self._all)

    def __reversed__(self) -> Iterator[K]:
        """Iterate in the reverse order."""
        return reversed(self._all)


def mapping(key: str, value: Any) -> dict[str, Any]:
    """Return a value that must be a mapping; raises `InputError` with its key otherwise."""
    if not isinstance(value, dict):
        raise InputError(f"{key} is {value!r}; it must be a mapping")
    return value


def pci_id(text: object) -> tuple[int, int]:
    """Return vendor and device of ``10de:20b2``."""
    match = re.fullmatch(r"([0-9a-fA-F]{4}):([0-9a-fA-F]{4})", str(text))
    if match is None:
        raise InputError(
            f"{text!r} is not a PCI identity; write vendor:device, as 10de:20b2"
        )
    return int(match[1], 16), int(match[2], 16)
