"""XML text as a small tree with line numbers.

It is parsed with defusedxml; depth and size are limited during parsing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from xml.sax import (
    SAXException,
    SAXParseException,
)  # the exceptions only; the parser is defusedxml's
from xml.sax.handler import ContentHandler
from xml.sax.saxutils import quoteattr
from xml.sax.xmlreader import AttributesImpl, Locator

from clusim.base.errors import TopologyError
from clusim.base.limits import fail, parse_integer, printable

MAX_DEPTH = 64
MAX_ELEMENTS = 500_000
MAX_TEXT = 64 * 2**20


@dataclass(slots=True)
class XmlElement:
    """An element: its tag, attributes, children, text, and the line it starts in."""

    tag: str
    attributes: dict[str, str]
    line: int
    where: str
    children: list[XmlElement] = field(default_factory=list)
    text: str = ""

    def get(self, name: str) -> str:
        """Return an attribute, empty if it is missing."""
        return self.attributes.get(name, "").strip()

    def fail(self, message: str) -> TopologyError:
        """Return the error `message` about the element."""
        return fail(self.where, self.line, message)

    def integer(self, name: str) -> int | None:
        """Return an integer attribute, None if it is missing; other text is an error."""
        text = self.get(name)
        if not text:
            return None
        value = parse_integer(text)
        if value is None:
            message = f"{name}={printable(text)!r} of <{printable(self.tag)}>: must be an integer"
            raise self.fail(message)
        return value

    def bits(self, name: str) -> int | None:
        """Return a hexadecimal attribute such as ``0x060400``; None if it is empty or invalid."""
        text = self.get(name)
        if not re.fullmatch(r"(0[xX])?[0-9a-fA-F]{1,16}", text):
            return None
        return int(text, 16)

    def all(self, *tags: str) -> list[XmlElement]:
        """Return the children with these tags."""
        return [child for child in self.children if child.tag in tags]

    def walk(self) -> Iterator[XmlElement]:
        """Yield the element and all below it, a parent before its children."""
        yield self
        for child in self.children:
            yield from child.walk()

    def lines(self, depth: int = 0) -> Iterator[str]:
        """Yield its text, of tags and attributes."""
        attributes = "".join(
            f" {name}={quoteattr(value)}" for name, value in self.attributes.items()
        )
        if not self.children:
            yield f"{'  ' * depth}<{self.tag}{attributes}/>"
            return
        yield f"{'  ' * depth}<{self.tag}{attributes}>"
        for child in self.children:
            yield from child.lines(depth + 1)
        yield f"{'  ' * depth}</{self.tag}>"

    @classmethod
    def of(cls, tag: str, *children: XmlElement, **attributes: object) -> XmlElement:
        """Return a new element outside any file; a trailing underscore of a name is removed."""
        attributes_text = {
            name.rstrip("_"): str(value) for name, value in attributes.items()
        }
        return cls(tag, attributes_text, 0, "", list(children))


class _Builder(ContentHandler):
    def __init__(self, where: str) -> None:
        super().__init__()
        self.where = where
        self.root: XmlElement | None = None
        self.stack: list[XmlElement] = []
        self.count = 0
        self.locator: Locator | None = None

    def setDocumentLocator(self, locator: Locator) -> None:
        self.locator = locator

    def startElement(self, name: str, attrs: AttributesImpl) -> None:
        line = self.locator.getLineNumber() if self.locator is not None else 0
        self.count += 1
        if self.count > MAX_ELEMENTS:
            raise fail(
                self.where,
                line or 0,
                f"more than {MAX_ELEMENTS} elements; is it a topology?",
            )
        if len(self.stack) >= MAX_DEPTH:
            raise fail(
                self.where,
                line or 0,
                f"nested deeper than {MAX_DEPTH} levels; is it a topology?",
            )
        element = XmlElement(name, dict(attrs.items()), line or 0, self.where)
        if self.stack:
            self.stack[-1].children.append(element)
        else:
            self.root = element
        self.stack.append(element)

    def characters(self, content: str) -> None:
        if self.stack and len(self.stack[-1].text) < 10_000:
            self.stack[-1].text += content

    def endElement(self, name: str) -> None:
        self.stack.pop()


_DECLARATION = re.compile(r"\s*<\?xml[^>]*\?>")


def parse_xml(text: str, where: str) -> XmlElement:
    """Return the root element of an XML text; `where` is its name in errors."""
    try:
        from defusedxml import DefusedXmlException
        from defusedxml.sax import parseString
    except ImportError:
        raise TopologyError(
            f"{where}: reading XML needs defusedxml: pip install defusedxml"
        ) from None
    if len(text) > MAX_TEXT:
        raise fail(where, 0, f"larger than {MAX_TEXT >> 20} MiB; is it a topology?")
    # The text is decoded already, so that a declared encoding is ignored; line numbers stay the same.
    head = _DECLARATION.match(text)
    if head is not None:
        text = "\n" * head[0].count("\n") + text[head.end() :]
    builder = _Builder(where)
    try:
        parseString(text.encode("utf-8", "replace"), builder, forbid_dtd=True)
    except SAXParseException as error:
        line = error.getLineNumber() or 0
        raise fail(
            where, line, f"not valid XML: {printable(error.getMessage())}"
        ) from None
    except DefusedXmlException:
        raise fail(
            where, 0, "declares a document type or entities; remove them"
        ) from None
    except (SAXException, ValueError, LookupError) as error:
        raise fail(where, 0, f"not valid XML: {printable(error)}") from None
    if builder.root is None:
        raise fail(where, 0, "no XML element; is it a topology?")
    return builder.root


def parse_root(text: str, where: str, tag: str, writer: str) -> XmlElement:
    """Return the root element of an XML text if it is a `tag`, as files of `writer` have it."""
    root = parse_xml(text, where)
    if root.tag != tag:
        raise root.fail(
            f"the root element is <{printable(root.tag)}>; {writer} has <{tag}>"
        )
    return root
