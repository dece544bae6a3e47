"""Keys of a grid by block, and the values that they accept."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from clusim.base.errors import InputError
from clusim.base.terms.dtypes import DTYPES, find_dtype
from clusim.base.terms.operations import GRANULARITIES, WORDS
from clusim.base.units import parse_ranks
from clusim.nccl.constants import parse_version
from clusim.policies.choice import parse_policy
from clusim.simulation.api import as_bytes, parse_env_of
from clusim.training.request import FOLDS

Cell = str | int | float | bool | None
"""Value of a column."""

Value = tuple[Cell, Any]
"""Displayed value of a column, and its meaning."""

MOST = 1 << 31


@dataclass(frozen=True)
class Block:
    """Options of one kind of run.

    Attributes
    ----------
    words : mapping
        Option -> reader of its value, which returns the displayed value and its meaning.
    needed : frozenset of str
        Required options.
    """

    words: Mapping[str, Callable[[Any], Value]]
    needed: frozenset[str]


def _text(value: Any) -> Value:
    if not isinstance(value, str) or not value:
        raise InputError(f"{value!r}: must be a word")
    return value, value


def _integer_reader(low: int) -> Callable[[Any], Value]:
    def read(value: Any) -> Value:
        if (
            isinstance(value, bool)
            or not isinstance(value, int)
            or not low <= value < MOST
        ):
            raise InputError(f"{value!r}: must be an integer of at least {low}")
        return value, value

    return read


def _name_reader(find: Callable[[str], str]) -> Callable[[Any], Value]:
    def read(value: Any) -> Value:
        result = find(_text(value)[1])
        return result, result

    return read


def _dtype(word: str) -> str:
    if find_dtype(word) is None:
        raise InputError(f"{word!r}: unknown type; use one of {', '.join(DTYPES)}")
    return WORDS["dtype"](word)


def _size(value: Any) -> Value:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise InputError(f"{value!r}: must be a size such as 64MiB")
    size_bytes = as_bytes(value)
    if size_bytes < 0:
        raise InputError(f"{value!r}: must not be negative")
    return size_bytes, size_bytes


def _grain(value: Any) -> Value:
    word = str(value).strip().lower()
    if word in GRANULARITIES:
        return word, word
    size_bytes = _size(value)[1]
    return str(size_bytes), size_bytes


def _flag(value: Any) -> Value:
    if not isinstance(value, bool):
        raise InputError(f"{value!r}: must be true or false")
    return value, value


def _ranks(value: Any) -> Value:
    text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
    return text, parse_ranks(text)


def _env(value: Any) -> Value:
    if value is None or value == {}:
        return "", ()
    if not isinstance(value, dict):
        raise InputError(
            f"{value!r}: must be a mapping of variables, such as {{NCCL_ALGO: Ring}}"
        )
    result = parse_env_of({name: str(item) for name, item in value.items()})
    return " ".join(f"{name}={item}" for name, item in result), result


def _faults(value: Any) -> Value:
    several = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(item, str) for item in several):
        raise InputError(
            f"{value!r}: must be a fault such as 'link gpu3:nvl5 down', or a list"
        )
    return "; ".join(several), tuple(several)


def _sender(value: Any) -> Value:
    text = _text(value)[1]
    parse_policy(text)
    return text, text


def _fold(value: Any) -> Value:
    word = str(value).lower()
    if word not in FOLDS:
        raise InputError(f"{value!r}: use {', '.join(FOLDS)}")
    return word, word


def _release(value: Any) -> Value:
    text = _text(value)[1]
    parse_version(text)
    return text, text


_BOTH: dict[str, Callable[[Any], Value]] = {
    "topology": _text,
    "nodes": _integer_reader(1),
    "fault": _faults,
    "policy": _sender,
    "granularity": _grain,
    "seed": _integer_reader(0),
}

BLOCKS = {
    "run": Block(
        _BOTH
        | {
            "collective": _name_reader(WORDS["operation"]),
            "size": _size,
            "algorithm": _name_reader(WORDS["algorithm"]),
            "protocol": _name_reader(WORDS["protocol"]),
            "channels": _integer_reader(1),
            "dtype": _name_reader(_dtype),
            "redop": _name_reader(WORDS["redop"]),
            "root": _integer_reader(0),
            "ranks": _ranks,
            "env": _env,
            "nccl_version": _release,
            "symmetric": _flag,
        },
        frozenset({"topology", "size"}),
    ),
    "train": Block(
        _BOTH
        | {"workload": _text, "steps": _integer_reader(1), "fold": _fold}
        | {"estimate": _flag, "strict_memory": _flag},
        frozenset({"workload"}),
    ),
    "serve": Block(
        {name: _BOTH[name] for name in ("topology", "nodes")} | {"serving": _text},
        frozenset({"serving"}),
    ),
    "jobs": Block(
        {
            name: _BOTH[name]
            for name in ("topology", "nodes", "policy", "granularity")
        }
        | {"jobs": _text},
        frozenset({"jobs"}),
    ),
}
"""Options of `clusim run`, `clusim train`, `clusim serve` and `clusim jobs`."""
