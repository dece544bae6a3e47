"""JSON Schemas of the commands' output, generated from types next to its code.

A form is a `TypedDict`, which type checkers compare with the returned dictionary, or the fields of a
dataclass (`FieldsOf`). Descriptions of fields are read from the section *Attributes* of docstrings.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from inspect import cleandoc
from typing import TYPE_CHECKING, Any, get_type_hints

from typing_extensions import TypedDict

if TYPE_CHECKING:
    from pydantic.annotated_handlers import GetCoreSchemaHandler
    from pydantic_core import CoreSchema

DIALECT = "https://json-schema.org/draft/2020-12/schema"
"""Of all schemas."""

_ENTRY = re.compile(r"^(\w[\w, ]*) : (.*)\n((?:    .*\n?|\n)*)", re.MULTILINE)
_SECTION = re.compile(r"\nAttributes\n-+\n(.*?)(?=\n\w[\w ]*\n-+\n|\Z)", re.DOTALL)


class FieldsOf:
    """Annotation of a dictionary with the fields of a dataclass and of more forms.

    Used as ``Annotated[dict[str, Any], FieldsOf(Cls)]``.
    """

    def __init__(self, cls: type, *more: type) -> None:
        self.cls, self.more = cls, more

    def __get_pydantic_core_schema__(self, _: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return the schema of a dictionary with these keys."""
        fields: dict[str, Any] = {}
        for cls in (self.cls, *self.more):
            fields |= get_type_hints(cls, include_extras=True)
        form: Any = TypedDict(self.cls.__name__, fields)  # type: ignore[misc]
        about = {"__doc__": self.cls.__doc__, "__module__": self.cls.__module__}
        for name, value in (about | {"__orig_bases__": (self.cls, *self.more)}).items():
            setattr(form, name, value)
        return handler.generate_schema(form)


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
            return _said(generated, schema["cls"])

    adapter: TypeAdapter[Any] = TypeAdapter(form)
    generated = adapter.json_schema(mode="serialization", schema_generator=Closed)
    return {"$schema": DIALECT, **generated, "title": title}


def _said(schema: dict[str, Any], cls: type) -> dict[str, Any]:
    """Return the schema of an object with the descriptions of its class, without further keys."""
    text = cleandoc(cls.__doc__ or "")
    words = _words_of(cls)
    properties = {
        name: _named(field, words.get(name)) for name, field in schema.get("properties", {}).items()
    }
    about = re.sub(r"\bNone\b", "null", " ".join(text.split("\n\n")[0].split()))
    return {**schema, "description": about, "properties": properties, "additionalProperties": False}


def _named(field: Mapping[str, Any], words: str | None) -> dict[str, Any]:
    """Return a field with its description, without the redundant title."""
    result = {key: value for key, value in field.items() if key != "title"}
    return result | ({"description": words} if words else {})


def _words_of(cls: type) -> dict[str, str]:
    """Return the descriptions of fields in the docstrings of a class and its bases."""
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
