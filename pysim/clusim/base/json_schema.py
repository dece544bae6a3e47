"""JSON output of results, and its schemas.

A result is a `JsonObject`: its fields are the keys of its JSON, and their descriptions are read from the section
*Attributes* of its docstring. Further forms are `TypedDict`s, which type checkers compare with the returned dictionary.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from functools import cache, reduce
from inspect import cleandoc, isfunction
from operator import attrgetter, or_
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    NotRequired,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from typing_extensions import TypedDict

from clusim.base.records import dataclass

if TYPE_CHECKING:
    from pydantic.annotated_handlers import GetCoreSchemaHandler
    from pydantic_core import CoreSchema

DIALECT = "https://json-schema.org/draft/2020-12/schema"
"""Of all schemas."""

_ENTRY = re.compile(r"^(\w[\w, ]*) : (.*)\n((?:    .*\n?|\n)*)", re.MULTILINE)
_SECTION = re.compile(r"\nAttributes\n-+\n(.*?)(?=\n\w[\w ]*\n-+\n|\Z)", re.DOTALL)

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Written:
    """Annotation of a number: its decimals in JSON, and the divisor that makes its unit; no decimals are an integer."""

    digits: int
    per: float = 0.0


Round2 = Annotated[float, Written(2)]
Round3 = Annotated[float, Written(3)]
Round6 = Annotated[float, Written(6)]
Round9 = Annotated[float, Written(9)]
"""Numbers that are rounded in JSON."""

Whole = Annotated[float, Written(0)]
"""Number that is an integer in JSON."""

Picoseconds = Annotated[int, Written(9)]
"""Time that is rounded to nanoseconds in JSON [ps]."""

GiB = Annotated[int, Written(3, 1 << 30)]
"""Size that is written in GiB in JSON [bytes]."""

_OMITTED = object()

IfKnown = Annotated[Value, _OMITTED]
"""Value whose key is omitted if it is empty or None."""

_NULL = object()

OrNull = Annotated[Value, _NULL]
"""Value that is null in JSON if it is empty."""

_PER = {"_us": 1e6, "_s": 1e12}
"""Ending of a key -> picoseconds in its unit."""


@dataclass(frozen=True, slots=True)
class _Key:
    """Key of a JSON object.

    Attributes
    ----------
    name : str
        The key; empty if the keys of the value are added to those of the object.
    path : str
        Attribute of the value, with dots.
    hint : type
        Type of the attribute.
    written : Written or None
        Unit and decimals of its numbers in JSON.
    """

    name: str
    path: str
    hint: Any
    written: Written | None

    def value(self, result: Any) -> Any:
        """Return the value of a result for `json.dumps`."""
        value = attrgetter(self.path)(result)
        if not value and _NULL in get_args(self.hint):
            return None
        return _plain(value() if callable(value) else value, self.written)

    @property
    def form(self) -> Any:
        """Type of the value in JSON."""
        hint = self.hint
        if self.written is not None:
            hint = _in_json(
                hint, float if self.written.digits or self.written.per else int
            )
        if _NULL in get_args(hint):
            return hint | None
        if _OMITTED not in get_args(hint):
            return hint
        value = get_args(hint)[0]
        united = get_args(value) if get_origin(value) in (Union, UnionType) else ()
        kinds = [kind for kind in united if kind is not type(None)]
        return NotRequired[kinds[0] if kinds else hint]


class JsonObject:
    """Result with JSON output and a schema.

    Its keys are its fields, or those of `KEYS`: names of fields, properties and methods in the order of output, ``*``
    for all other fields. ``key=path`` reads another attribute, ``*path`` adds the keys of an attribute, which are
    omitted if it is None; ``key?`` is null if the value is empty. A key in ``_us`` or ``_s`` reads an attribute in
    ``_ps``.
    """

    __slots__ = ()

    KEYS: ClassVar[tuple[str, ...]] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the keys and values for `json.dumps`."""
        result: dict[str, Any] = {}
        cls: Any = type(self)
        for key in _keys(cls):
            value = key.value(self)
            if not key.name:
                result |= value or {}
            elif value or _OMITTED not in get_args(key.hint):
                result[key.name] = value
        return result

    @classmethod
    def __get_pydantic_core_schema__(
        cls, _: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Return the schema of a dictionary with these keys."""
        copy: Any = cls
        return handler.generate_schema(_form(copy))


def _plain(value: Any, annotation: Written | None) -> Any:
    """Return a value for `json.dumps`, in its unit and rounded."""
    if isinstance(value, JsonObject):
        return value.to_json()
    if isinstance(value, list | tuple):
        return [_plain(item, annotation) for item in value]
    if isinstance(value, Mapping):
        return {name: _plain(item, annotation) for name, item in value.items()}
    if annotation is None or not isinstance(value, int | float):
        return value
    value = value / annotation.per if annotation.per else value
    return round(value, annotation.digits or None)


@cache
def _keys(cls: Any) -> tuple[_Key, ...]:
    """Return the keys of a class."""
    field_names = [field.name for field in fields(cls) if field.name not in cls.KEYS]
    selected = [
        name
        for key in cls.KEYS or "*"
        for name in (field_names if key == "*" else [key])
    ]
    return tuple(_key(cls, key) for key in selected)


def _key(cls: Any, text: str) -> _Key:
    name, _, path = text.removesuffix("?").partition("=")
    if name.startswith("*"):
        return _Key("", name[1:], _hint(cls, name[1:]), None)
    path = path or name
    stem, _, unit = name.rpartition("_")
    if "." not in path and path not in _names(cls):
        path = f"{stem}_ps"
    hint = _hint(cls, path)
    if text.endswith("?"):
        hint = Annotated[hint, _NULL]
    annotation = _read_annotation(hint)
    if path.endswith("_ps") and f"_{unit}" in _PER:
        annotation = Written(
            annotation.digits if annotation else 12, _PER[f"_{unit}"]
        )
    return _Key(name, path, hint, annotation)


def _names(cls: Any) -> set[str]:
    return {*dir(cls), *(field.name for field in fields(cls))}


def _hint(cls: Any, path: str) -> Any:
    """Return the type of an attribute, or of an attribute of an attribute; of a union, in its first type."""
    first, _, remainder = path.partition(".")
    if get_origin(cls) in (Union, UnionType):
        cls = get_args(cls)[0]
    attribute = getattr(cls, first, None)
    getter = getattr(
        attribute,
        "fget",
        getattr(attribute, "func", attribute if isfunction(attribute) else None),
    )
    hint = get_type_hints(getter or cls, include_extras=True)[
        "return" if getter else first
    ]
    return _hint(hint, remainder) if remainder else hint


def _read_annotation(hint: Any) -> Written | None:
    """Return the annotation of a type or its items."""
    if isinstance(hint, Written):
        return hint
    return next(filter(None, map(_read_annotation, get_args(hint))), None)


def _in_json(hint: Any, number: type) -> Any:
    """Return a type with `number` instead of its numbers."""
    if hint in (int, float):
        return number
    parts = [_in_json(part, number) for part in get_args(hint)]
    if get_origin(hint) in (Union, UnionType):
        return reduce(or_, parts)
    return get_origin(hint)[tuple(parts)] if parts else hint


@cache
def _form(cls: Any) -> Any:
    """Return a `TypedDict` with the keys of a class."""
    if not issubclass(cls, JsonObject):
        return cls
    forms: dict[str, Any] = {}
    words: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        words |= _fields_of(cleandoc(base.__doc__ or ""))
    for key in _keys(cls):
        if key.name:
            forms[key.name] = key.form
            continue
        kinds = [kind for kind in get_args(key.hint) if kind is not type(None)]
        part = _form(kinds[0] if kinds else key.hint)
        words |= _words_of(part)
        for name, form in get_type_hints(part, include_extras=True).items():
            is_plain = get_origin(form) is NotRequired or not kinds
            forms[name] = form if is_plain else NotRequired[form]
    make: Any = TypedDict
    result = make(cls.__name__, forms)
    result.__doc__, result.__module__, result.__words__ = (
        cls.__doc__,
        cls.__module__,
        words,
    )
    return result


def schema_of(form: Any, title: str) -> dict[str, Any]:
    """Return the JSON Schema of a form: no further keys, all required but `NotRequired`.

    Parameters
    ----------
    form : type
        A `TypedDict`, or a list or union.
    """
    from pydantic import TypeAdapter
    from pydantic.json_schema import GenerateJsonSchema
    from pydantic_core.core_schema import TypedDictSchema

    class Closed(GenerateJsonSchema):
        def typed_dict_schema(self, schema: TypedDictSchema) -> dict[str, Any]:
            generated = super().typed_dict_schema(schema)
            return _describe_object(generated, schema["cls"])

    adapter: TypeAdapter[Any] = TypeAdapter(form)
    generated = adapter.json_schema(mode="serialization", schema_generator=Closed)
    return {"$schema": DIALECT, **generated, "title": title}


def _describe_object(schema: dict[str, Any], cls: type) -> dict[str, Any]:
    """Return the schema of an object with the descriptions of its class, without further keys."""
    text = cleandoc(cls.__doc__ or "")
    words = _words_of(cls)
    properties = {
        name: _describe_field(field, words.get(name))
        for name, field in schema.get("properties", {}).items()
    }
    about = re.sub(r"\bNone\b", "null", " ".join(text.split("\n\n")[0].split()))
    return {
        **schema,
        "description": about,
        "properties": properties,
        "additionalProperties": False,
    }


def _describe_field(field: Mapping[str, Any], words: str | None) -> dict[str, Any]:
    """Return a field with its description, without the redundant title."""
    result = {key: value for key, value in field.items() if key != "title"}
    return result | ({"description": words} if words else {})


def _words_of(cls: type) -> dict[str, str]:
    """Return the descriptions of fields in the docstrings of a class and its bases."""
    if hasattr(cls, "__words__"):
        return dict(cls.__words__)
    result: dict[str, str] = {}
    for base in getattr(cls, "__orig_bases__", ()):
        if isinstance(base, type):
            result |= _words_of(base)
    return result | _fields_of(cleandoc(cls.__doc__ or ""))


def _fields_of(text: str) -> dict[str, str]:
    """Return the attribute descriptions of a numpydoc docstring, in one line, null for None."""
    section = _SECTION.search(f"{text}\n")
    result: dict[str, str] = {}
    for names, _, words in _ENTRY.findall(section[1] if section else ""):
        result |= dict.fromkeys(
            names.split(", "), re.sub(r"\bNone\b", "null", " ".join(words.split()))
        )
    return result
