"""Whatever is done to a file, importing it ends in a fabric or in one clear line, never in a traceback."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusim.base.errors import ClusimError, InternalError
from clusim.formats.topologies import KINDS, import_text
from support.covering import THOROUGH, examples

SAMPLES = sorted((Path(__file__).parent / "samples").iterdir())
MUTATIONS = 400 if THOROUGH else 40
"""Of each sample; `fuzz/test_fuzz.py` has 6,000 more for the same readers."""

INTERESTING = (
    b"",
    b"0",
    b"-1",
    b"99999999999999999999",
    b"1e308",
    b"nan",
    b"\x00",
    b"\xff\xfe",
    b"<",
    b"&amp;",
    b"..",
    b"[[[[",
    b"\n\n",
    "ä±".encode(),
    b"gpu0..9",
    b"{}",
    b"null",
    b'"',
    b"0x1f",
    b"1 GT/s",
)


def mutate(data: bytes, chance: random.Random) -> bytes:
    """Return the bytes with one to four changes: flipped, cut, doubled, swapped, or replaced by something odd."""
    for _ in range(chance.randint(1, 4)):
        a = chance.randrange(len(data) + 1)
        b = min(len(data), a + chance.choice((1, 2, 5, 20, 100)))
        piece = data[a:b]
        kind = chance.randrange(6)
        if kind == 0:
            data = data[:a] + data[b:]
        elif kind == 1:
            data = data[:a] + piece + piece + data[b:]
        elif kind == 2:
            data = data[:a] + chance.choice(INTERESTING) + data[a:]
        elif kind == 3:
            data = data[:a] + chance.choice(INTERESTING) + data[b:]
        elif kind == 4 and piece:
            data = data[:a] + bytes([piece[0] ^ 1 << chance.randrange(8)]) + data[a + 1 :]
        else:
            lines = data.split(b"\n")
            i, j = chance.randrange(len(lines)), chance.randrange(len(lines))
            lines[i], lines[j] = lines[j], lines[i]
            data = b"\n".join(lines)
    return data


def survives(text: str, name: str, kind: str | None = None) -> None:
    try:
        import_text(text, name, kind=kind).fabric()
    except InternalError:
        raise
    except ClusimError as error:
        lines = str(error).splitlines()
    else:
        return
    assert 1 <= len(lines) <= 25
    assert all(line.isprintable() for line in lines)


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.name)
def test_mutated_samples(path: Path) -> None:
    chance = random.Random(path.name)
    data = path.read_bytes()
    for number in range(MUTATIONS):
        text = mutate(data, chance).decode("utf-8", "replace")
        survives(text, f"{path.name} mutation {number}")


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_refuses_what_is_another_kind(kind: str) -> None:
    for path in SAMPLES:
        survives(path.read_text(encoding="utf-8"), path.name, kind)
    for text in ("", "\x00", "{", "<", "[]", "{}", "1 2 3", "GPU0", "a: b", "<system>\n"):
        survives(text, "x", kind)


@settings(max_examples=examples(65))
@given(st.text(max_size=400), st.sampled_from([None, *KINDS]))
def test_any_text(text: str, kind: str | None) -> None:
    survives(text, "x", kind)


_WORDS = st.sampled_from(
    [
        "0",
        "1",
        "7",
        "-1",
        "",
        "0x060400",
        "0x030200",
        "0x020700",
        "16 GT/s",
        "90",
        "fffffff:ff:ff.0",
        "x",
    ]
)
_NAMES = """busid class vendor device link_speed link_width dev rank sm gcn count target tclass numaid name
 speed bw"""
_ATTRIBUTES = st.dictionaries(st.sampled_from(_NAMES.split()), _WORDS, max_size=6)


def _element(children: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    tags = st.sampled_from(
        ["cpu", "pci", "gpu", "nic", "net", "nvlink", "xgmi", "c2c", "group", "slot"]
    )
    return st.builds(
        lambda tag, attributes, inner: "<{0} {1}>{2}</{0}>".format(
            tag, " ".join(f'{k}="{v}"' for k, v in attributes.items()), "".join(inner)
        ),
        tags,
        _ATTRIBUTES,
        st.lists(children, max_size=3),
    )


@settings(max_examples=examples(100))
@given(st.lists(st.recursive(st.just(""), _element, max_leaves=12), max_size=4))
def test_any_tree_of_known_elements(parts: list[str]) -> None:
    survives(f"<system>{''.join(parts)}</system>", "x.xml")


_NODES = st.lists(
    st.one_of(
        st.text(max_size=8),
        st.integers(-3, 3),
        st.dictionaries(
            st.sampled_from(["id", "kind", "type", "chip", "latency"]),
            st.text(max_size=6),
            max_size=4,
        ),
    ),
    max_size=5,
)
_VALUES = st.one_of(
    st.text(max_size=6),
    st.integers(),
    st.floats(),
    st.none(),
    st.lists(st.text(max_size=3), max_size=2),
)
_KEYS = st.sampled_from(
    ["source", "target", "bandwidth", "latency", "count", "type", "order", "ends"]
)
_LINKS = st.lists(st.dictionaries(_KEYS, _VALUES, max_size=6), max_size=5)


@settings(max_examples=examples(65))
@given(_NODES, _LINKS, st.booleans(), st.booleans())
def test_any_node_link_graph(
    nodes: list[object], links: list[object], directed: bool, ours: bool
) -> None:
    import json

    graph = {"formats": {}} if ours else {}
    text = json.dumps({"directed": directed, "graph": graph, "nodes": nodes, "links": links})
    survives(text, "x.json")
