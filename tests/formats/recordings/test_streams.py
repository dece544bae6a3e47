"""JSON in pieces: the same as all at once, wherever the pieces end; what is cut or broken; archives; memory."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clusim.base.errors import InputError
from clusim.formats.recordings.jsonstream import TextWindow, objects, read_items
from clusim.formats.recordings.kinds import kind_of, reader
from clusim.formats.recordings.source import FileStream, streams

TRACES = Path(__file__).resolve().parents[3] / "traces"
TABLE = {
    "a": 1.5,
    "big": 12345678901234567,
    "rows": [{"n": i, "text": "é\n" * 3} for i in range(40)],
    "z": [[], {}],
}


def stream(data: bytes, size: int) -> FileStream:
    def begin() -> Iterator[bytes]:
        yield from (data[at : at + size] for at in range(0, len(data), size))

    return FileStream("x.json", begin)


def items(
    data: bytes, size: int, **more: Any
) -> tuple[list[Any], tuple[dict[str, Any] | None, bool]]:
    found: list[Any] = []
    return found, read_items(stream(data, size), "rows", found.append, **more)


@pytest.mark.parametrize("size", [1, 2, 7, 64, 1000, 1 << 20])
@pytest.mark.parametrize("indent", [None, 2])
def test_pieces_of_any_size_are_the_same(
    size: int, indent: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clusim.formats.recordings.jsonstream._ITEM_WINDOWS", (16, 1 << 16))
    data = json.dumps(TABLE, indent=indent, ensure_ascii=False).encode()
    found, (rest, listed) = items(data, size)
    assert (found, listed) == (TABLE["rows"], True)
    assert rest == {key: value for key, value in TABLE.items() if key != "rows"}
    rows = json.dumps(TABLE["rows"], indent=indent).encode()
    assert items(rows, size) == (TABLE["rows"], ({}, True))


@pytest.mark.parametrize(
    ("text", "expected"),
    [("{}", ({}, False)), ('{"rows": 3}', ({"rows": 3}, False)), ("3", (None, False)), ('{"rows": []}', ({}, True)),
     ("[]", ({}, True)), (' {"rows" : [ 1 , 2 ] } ', ({}, True))],
)  # fmt: skip
def test_small_files(text: str, expected: Any) -> None:
    assert items(text.encode(), 3)[1] == expected


@pytest.mark.parametrize(
    ("text", "line"),
    [('{"rows": [1, 2', 1), ('{"rows": [1,\n 2,, 3]}', 2), ('{"rows": [1, ]}', 1), ('{"a": 1 "rows": []}', 1), 
     ("{3: 4}", 1), ('{"rows": []}\n\n x', 3), ('{"rows": [1]', 1), ("", 1), ('{"a"', 1), ('{"rows": [01]}', 1),
     ("[1] 2", 1)],
)  # fmt: skip
def test_what_is_no_json_is_one_line_with_its_place(text: str, line: int) -> None:
    for size in (1, 100):
        with pytest.raises(InputError, match=rf"x\.json:{line}: not JSON"):
            items(text.encode(), size)
    for deep in ("[" * 200_000, '{"rows": [' + "[" * 200_000):
        with pytest.raises(InputError, match="not JSON"):
            items(deep.encode(), 1 << 16)


def test_a_list_that_is_cut_gives_what_is_whole() -> None:
    data = json.dumps(TABLE).encode()
    said: list[str] = []
    found, (rest, listed) = items(data[:-60], 50, cut=said.append)
    assert 30 < len(found) < 40
    assert found == TABLE["rows"][: len(found)]  # type: ignore[index]
    assert (rest, listed) == ({"a": 1.5, "big": 12345678901234567}, True)
    assert said == ["the file is cut in line 1; the part before was read"]
    broken = data.replace(b'"n": 3,', b'"n" 3,', 1) + b" " * 100_000
    with pytest.raises(InputError, match="not JSON"):
        items(broken, 50, cut=said.append)


def test_one_value_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clusim.formats.recordings.jsonstream._ITEM_WINDOWS", (16, 1000))
    with pytest.raises(InputError, match="a value of more than"):
        items(b'{"a": "' + b"9" * 5000, 100)


def test_windows_hold_no_more_than_they_must() -> None:
    window = TextWindow(iter([b"ab\n", b"cd\n", b"e\xc3", b"\xa9"]))
    assert window.hold(2)
    assert window.text == "ab\n"
    window.at = 3
    assert window.hold(5)
    assert (window.text, window.line_at(0), window.dropped) == ("cd\ne\u00e9", 2, 3)
    assert window.length() == 8


@pytest.mark.parametrize("size", [1, 3, 50, 10_000])
def test_objects_of_pieces_are_the_same(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clusim.formats.recordings.jsonstream._SEARCHED", 8)
    text = '[{"a": 1},\n{"b": {"c": [2]}}\n{"broken": \n {"d": 3}\n  x\n{"e": 4}]\n'
    damaged: list[int] = []
    found = list(objects(stream(text.encode(), size), damaged.append))
    assert [item for _, item in found] == [{"a": 1}, {"b": {"c": [2]}}, {"d": 3}, {"e": 4}]
    assert ([line for line, _ in found], damaged) == ([1, 2, 4, 6], [3, 5])


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_files_of_archives_come_in_their_order(tmp_path: Path, mode: Any) -> None:
    path = tmp_path / "job.tar"
    with tarfile.open(path, mode) as archive:
        for name in ("job.10.json", "job.9.json", ".hidden.json", "readme.md"):
            entry = tarfile.TarInfo(name)
            entry.size = len(name)
            archive.addfile(entry, io.BytesIO(name.encode()))
    found = [
        (f.name.rpartition(":")[2], b"".join(f.begin()))
        for f in streams(path, lambda n: ".json" in n)
    ]
    assert found == [("job.9.json", b"job.9.json"), ("job.10.json", b"job.10.json")]
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 3] if mode == "w:gz" else data[:700])
    with pytest.raises(InputError):
        list(streams(path, lambda n: ".json" in n))


def test_what_is_there_is_said_if_there_is_nothing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no file of this kind"):
        list(streams(tmp_path, lambda n: True))
    empty = tmp_path / "empty.json"
    empty.touch()
    with pytest.raises(InputError, match="is empty"):
        list(next(streams(empty, lambda n: True)).begin())
    with pytest.raises(InputError, match="larger than 0 MiB"):
        FileStream("x", lambda: iter([b"abc"])).read_all(2)


@pytest.mark.parametrize(
    ("kind", "sample"),
    [
        ("goal", "ring-4.goal"),
        ("hlo", "mlp-tp4.hlo.txt"),
        ("simai", "gpt-tp8-dp2.simai.txt"),
        ("inspector", "inspector-8ranks.jsonl"),
        ("jsonl", "minimal-2ranks.jsonl"),
        ("kineto", "kineto-2ranks/rank0.json"),
    ],
)
def test_a_mark_of_the_byte_order_in_front_changes_nothing(
    kind: str, sample: str, tmp_path: Path
) -> None:
    """Editors on Windows put it there."""
    path = tmp_path / Path(sample).name
    path.write_bytes(b"\xef\xbb\xbf" + (TRACES / sample).read_bytes())
    assert kind_of(str(path)) == kind
    marked, plain = (reader(kind)(str(p)) for p in (path, TRACES / sample))
    shown = [(e.kind, e.rank, e.operation, e.bytes, e.duration_ps) for e in marked.events]
    assert shown == [(e.kind, e.rank, e.operation, e.bytes, e.duration_ps) for e in plain.events]
