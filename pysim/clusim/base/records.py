"""Decorator of data classes with methods generated on first use.

`dataclasses.dataclass` compiles up to eight methods of each class when it is defined. A small run defines 200 classes,
a fifth of its time, and creates objects of half of the classes. The classes here are data classes for
`dataclasses.fields`, `replace`, `asdict`, patterns and type checkers. Comparison, hash, text and pickling are closures
over the names of the fields; only ``__init__`` is compiled, at the first object.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import MISSING, Field, FrozenInstanceError
from functools import partial
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls=None, /, **options):
        """Define a data class; options as of `dataclasses.dataclass`, without ``order`` and ``unsafe_hash``."""
        return (
            partial(_process_class, **options)
            if cls is None
            else _process_class(cls, **options)
        )


def _process_class(cls: type[Any], **options: bool) -> type[Any]:
    comparable, frozen = options.pop("eq", True), options.pop("frozen", False)
    with_repr = options.pop("repr", True)
    hashed = "__hash__" in vars(cls) and not (
        cls.__hash__ is None and "__eq__" in vars(cls)
    )
    options |= {"init": False, "repr": False, "eq": False}
    inherits = any(map(dataclasses.is_dataclass, cls.__mro__[1:]))
    record = dataclasses.dataclass(cls, frozen=frozen and inherits, **options)
    # Also for classes of `dataclasses` that inherit from this one.
    vars(record)["__dataclass_params__"].frozen = frozen
    fields: tuple[Field[Any], ...] = dataclasses.fields(record)
    methods: dict[str, Any] = {"__init__": _first_init(record, frozen)}
    if with_repr:
        methods["__repr__"] = _repr(tuple(item.name for item in fields if item.repr))
    if comparable:
        methods["__eq__"] = _eq(
            _values(tuple(item.name for item in fields if item.compare))
        )
    for name, method in methods.items():
        if name not in cls.__dict__:
            method.__qualname__ = f"{cls.__qualname__}.{name}"
            setattr(record, name, method)
    if comparable and not hashed:
        values = _values(
            tuple(
                i.name for i in fields if (i.compare if i.hash is None else i.hash)
            )
        )
        type.__setattr__(
            record, "__hash__", (lambda self: hash(values(self))) if frozen else None
        )
    if frozen:
        _freeze(
            record, tuple(item.name for item in fields), options.get("slots", False)
        )
    return record


def _values(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function that reads these attributes of an object."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda item: tuple(getattr(item, name) for name in names)


def _eq(values: Callable[[Any], tuple[Any, ...]]) -> Callable[[Any, object], Any]:
    def equal(self: Any, other: object) -> Any:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return values(self) == values(other)

    return equal


def _repr(names: tuple[str, ...]) -> Callable[[Any], str]:
    def text(self: Any) -> str:
        parts = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return f"{self.__class__.__qualname__}({parts})"

    return recursive_repr("...")(text)


def _freeze(cls: type[Any], names: tuple[str, ...], slots: bool) -> None:
    """Refuse assignment to the fields, and set them when an object is unpickled."""

    def refuse(verb: str, other: str) -> Callable[..., None]:
        def method(self: Any, name: str, *value: Any) -> None:
            if type(self) is cls or name in names:
                raise FrozenInstanceError(f"cannot {verb} field {name!r}")
            getattr(super(cls, self), other)(name, *value)

        return method

    def state(self: Any) -> list[Any]:
        return [getattr(self, name) for name in names]

    def restore(self: Any, values: list[Any]) -> None:
        for name, value in zip(names, values, strict=True):
            object.__setattr__(self, name, value)

    for name, verb in (("__setattr__", "assign to"), ("__delattr__", "delete")):
        setattr(cls, name, refuse(verb, name))
    if slots and "__getstate__" not in cls.__dict__:
        for name, method in (("__getstate__", state), ("__setstate__", restore)):
            setattr(cls, name, method)


def _first_init(cls: type[Any], frozen: bool) -> Callable[..., None]:
    """Return an ``__init__`` that replaces itself with the compiled one."""

    def init(self: Any, *args: Any, **named: Any) -> None:
        compiled = _init(cls, frozen)
        type.__setattr__(cls, "__init__", compiled)
        compiled(self, *args, **named)

    return init


def _init(cls: type[Any], frozen: bool) -> Callable[..., None]:
    scope: dict[str, Any] = {"_missing": MISSING, "_set": object.__setattr__}
    positional, named, body = ["self"], list[str](), list[str]()
    for item in dataclasses.fields(cls):
        name, value = item.name, item.name
        has_factory, plain = (
            item.default_factory is not MISSING,
            item.default is not MISSING,
        )
        scope[f"_{name}_"] = item.default_factory if has_factory else item.default
        if item.init:
            default = "=_missing" if has_factory else f"=_{name}_" if plain else ""
            (named if item.kw_only else positional).append(name + default)
            if has_factory:
                value = f"_{name}_() if {name} is _missing else {name}"
        elif not (has_factory or plain):
            continue
        else:
            value = f"_{name}_()" if has_factory else f"_{name}_"
        body.append(
            f"_set(self, {name!r}, {value})" if frozen else f"self.{name} = {value}"
        )
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    arguments = ", ".join((*positional, *(("*", *named) if named else ())))
    exec("\n ".join((f"def __init__({arguments}):", *(body or ["pass"]))), scope)
    result: Callable[..., None] = scope["__init__"]
    result.__qualname__ = f"{cls.__qualname__}.__init__"
    return result
