"""Whatever things are called, a page shows their names and does nothing else; checked without a browser."""

from __future__ import annotations

import ast
import base64
import hashlib
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import clusim.report
from clusim.report.html import page, policy, served_page
from clusim.report.markup import Markup, element, fill, join_markup, safe
from clusim.report.page_data import Feed

REPORT = Path(clusim.report.__file__).parent


class Reader(HTMLParser):
    """Notes elements, attributes and texts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


@given(st.text())
def test_any_text_is_shown_and_adds_no_element(text: str) -> None:
    made = element("p", text, element("b", text), title=text)
    read = Reader(made.html)
    assert [tag for tag, _ in read.tags] == ["p", "b"]
    assert list(read.tags[0][1]) == ["title"]
    shown = "".join(read.texts)
    if text.isprintable():
        assert shown == text * 2
        assert read.tags[0][1]["title"] == text
    made.html.encode()


@pytest.mark.parametrize(
    ("text", "shown"),
    [("<b>", "&lt;b&gt;"), ("&amp;", "&amp;amp;"), ("\"'", "&quot;&#x27;"), ("a\x00b\x1b", "a\ufffdb\ufffd"),
     ("\udc80", "\\udc80"), ("a\tb\n", "a\tb\n")],
)  # fmt: skip
def test_text_is_escaped_and_markup_is_not(text: str, shown: str) -> None:
    assert safe(text) == shown
    assert safe(Markup(text)) == text
    assert join_markup([text, Markup("<br>")]).html == f"{shown}<br>"


def test_markup_is_no_text_and_cannot_become_part_of_one_unseen() -> None:
    assert not isinstance(Markup("<b>"), str)
    assert safe(f"{Markup('<b>')}").startswith("Markup(html=")
    with pytest.raises(TypeError):
        "text" + Markup("<b>")  # type: ignore[operator]


def test_the_files_of_the_page_are_filled_with_escaped_text() -> None:
    text = fill("machine.html", hint="<svg onload=x>", measures="{{legend}}", legend="", picture="")
    assert "<svg" not in text.html
    assert "{{legend}}" in text.html


def test_markup_is_made_of_constants_only() -> None:
    allowed = {
        "html.py": {"Markup(page_style())", "Markup(page_script(*SCRIPTS))"},
        "comparison.py": {"Markup(page_style())", "Markup(script)"},
        "templates.py": {"Markup(''.join(text))"},
    }
    for path in REPORT.rglob("*.py"):
        calls = {
            ast.unparse(node)
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("Markup")
        }
        if path.name != "markup.py":
            assert calls <= allowed.get(path.name, set()), path.name


def test_no_module_but_that_of_markup_writes_tags() -> None:
    for path in REPORT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                is_doc = "\n" in node.value or path.name == "markup.py"
                assert is_doc or not re.search(r"</?[a-z]+[ >/]", node.value), (
                    path.name,
                    node.value,
                )


FORBIDDEN = ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function(",
             "setAttribute(\"on", "createContextualFragment", "DOMParser", ".srcdoc", "import(")  # fmt: skip


def test_the_script_makes_no_html_of_text() -> None:
    for path in (REPORT / "page").glob("*.js"):
        script = path.read_text(encoding="utf-8")
        assert [word for word in FORBIDDEN if word in script] == [], path.name


@pytest.mark.parametrize("live", [False, True])
def test_the_page_allows_its_own_script_and_style_and_nothing_else(feed: Feed, live: bool) -> None:
    text = served_page(feed) if live else page(feed)
    read = Reader(text)
    rules = {
        name: value.split()
        for name, *value_parts in (
            rule.strip().split(" ", 1) for rule in policy(live=live).split(";")
        )
        for value in value_parts
    }
    found = next(a["content"] for t, a in read.tags if t == "meta" and "http-equiv" in a)
    assert found == policy(live=live)
    assert rules["default-src"] == ["'none'"]
    for tag, rule in (("script", "script-src"), ("style", "style-src")):
        bodies = re.findall(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        hashes = [base64.b64encode(hashlib.sha256(b.encode()).digest()).decode() for b in bodies]
        assert rules[rule] == [f"'sha256-{value}'" for value in hashes]
    assert ("connect-src" in rules) is live
    assert text.index("Content-Security-Policy") < text.index("<style>") < text.index("<script>")


@pytest.mark.parametrize("name", ["collective", "training", "traffic", "cluster"])
def test_no_element_has_a_style_or_a_script_of_its_own(
    name: str, request: pytest.FixtureRequest
) -> None:
    """The policy of the page would not let them work."""
    read = Reader(page(Feed.open(request.getfixturevalue(name))))
    for tag, attributes in read.tags:
        assert "style" not in attributes, tag
        assert not [key for key in attributes if key.startswith("on")], tag
