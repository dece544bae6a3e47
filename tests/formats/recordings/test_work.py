"""What reading a recording costs: twice the file takes twice the work, broken or not, and layers have a limit."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import clusim
from clusim.base.errors import InputError
from clusim.formats.recordings import jsonstream as module
from clusim.formats.recordings.jsonstream import objects
from clusim.formats.recordings.kinds import reader
from clusim.formats.recordings.model import group_of
from clusim.formats.recordings.source import FileStream
from clusim.jobs.emitter import NcclEmitter
from clusim.jobs.read import job_of
from clusim.jobs.write import to_schedule
from clusim_formats.recordings import layers
from support.work import calls_of

TRACES = Path(__file__).resolve().parents[3] / "traces"
LAYERS = {"astra": "resnet-data-8.astra.txt", "simai": "gpt-tp8-dp2.simai.txt"}

BROKEN: dict[str, Callable[[int], str]] = {
    "whole": lambda i: f'{{"a": {i}}}\n',
    "bare values": lambda i: f'{{"a": ncclFloat{i}}}\n',
    "cut": lambda i: f'{{"a": {i}, "b\n',
    "open for ever": lambda i: '{"a": [\n',
    "quotes": lambda i: '{"\n',
    "on one line": lambda i: f'{{"a": x{i}}}, ',
}


class Counting:
    """A decoder that notes the length of each text it is given."""

    def __init__(self) -> None:
        self.letters: list[int] = []

    def raw_decode(self, text: str) -> tuple[Any, int]:
        self.letters.append(len(text))
        return json.JSONDecoder().raw_decode(text)


def looked_at(text: str) -> Iterator[int]:
    """Yield how many letters are given to the decoder for each object of a text."""
    counting = Counting()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_DECODER", counting)
        list(objects(FileStream("x.json", lambda: iter([text.encode()])), lambda line: None))
    yield from counting.letters


@pytest.mark.parametrize("kind", sorted({*BROKEN} - {"open for ever"}))
def test_objects_are_looked_for_in_windows(kind: str) -> None:
    """An error counts the lines in all the text it is given: the text behind an object must not be in it."""
    half, whole = (
        sum(looked_at("".join(BROKEN[kind](i) for i in range(count)))) for count in (4_000, 8_000)
    )
    assert whole < 2.2 * half


def test_a_broken_object_costs_a_kilobyte_and_a_long_one_its_length() -> None:
    many = "".join(BROKEN["bare values"](i) for i in range(1_000))
    assert set(looked_at(many)) <= set(range(module._WINDOWS[0] + 1))
    long = f'{{"a": "{"x" * 200_000}"}}'
    assert list(looked_at(long)) == [*module._WINDOWS[:2], len(long)]


@pytest.mark.parametrize(("kind", "cost"), [("whole", 1), ("cut", 1), ("open for ever", 100)])
def test_objects_of_a_file_are_bounded(
    kind: str, cost: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is nested without end takes a thousand levels for each: it counts as a hundred objects."""
    monkeypatch.setattr(module, "MOST_OBJECTS", 40)
    text = "".join(BROKEN[kind](i) for i in range(2_000))
    with pytest.raises(InputError, match=r"x\.json:\d+: \d+ objects so far, too many"):
        list(objects(FileStream("x.json", lambda: iter([text.encode()])), lambda _: None))
    monkeypatch.setattr(module, "MOST_OBJECTS", 2_000 * cost)
    list(objects(FileStream("x.json", lambda: iter([text.encode()])), lambda _: None))


def events_of(kind: str, folder: Path, times: int) -> Path:
    """Write the shipped sample of a kind so many times behind each other."""
    name = {
        "profiler": "profiler-2ranks/trace_1b2c3d4e5f60718_0.json",
        "inspector": "inspector-8ranks.jsonl",
        "goal": "ring-4.goal",
    }[kind]
    path = folder / f"{times}" / Path(name).name
    path.parent.mkdir()
    path.write_text((TRACES / name).read_text() * times)
    return path


@pytest.mark.parametrize("kind", ["profiler", "inspector"])
def test_twice_the_file_takes_twice_the_work(kind: str, tmp_path: Path) -> None:
    files = [events_of(kind, tmp_path, times) for times in (4, 8)]
    emitter = NcclEmitter(clusim.load("dgx-a100"), tuple(range(8)))

    def understood(path: Path) -> None:
        to_schedule(job_of(reader(kind)(str(path))), emitter)

    understood(files[0])
    half, whole = (calls_of(partial(understood, path)) for path in files)
    assert whole < 2.2 * half


@pytest.mark.parametrize("kind", LAYERS)
def test_layers_stand_for_so_many_events(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of more, there are those of one rank, which are the same; the first calls of all ranks can be asked for."""
    path = str(TRACES / LAYERS[kind])
    options = {"num_ranks": 8} if kind == "astra" else {}
    whole = reader(kind)(path, **options)
    limit = "clusim_formats.recordings.layers.MOST_LAYER_EVENTS"
    monkeypatch.setattr(limit, len(whole.events))
    assert not reader(kind)(path, **options).alike
    monkeypatch.setattr(limit, len(whole.events) - 1)
    one = reader(kind)(path, **options)
    own = [event for event in whole.events if event.rank == 0]
    assert one.alike
    assert one.events == own
    assert [one.groups[e.group] for e in one.events if e.group >= 0] == [
        whole.groups[e.group] for e in own if e.group >= 0
    ]
    first = reader(kind)(path, calls=2, **options)
    assert not first.alike
    assert [e for e in first.events if e.rank == 0] == own[: sum(e.rank == 0 for e in first.events)]
    assert sum(e.rank == 0 and e.kind == "collective" for e in first.events) == 2
    assert any(text.startswith("the first 2 calls") for text in first.assumed)


def test_more_ranks_are_no_more_work_where_one_stands_for_all() -> None:
    path = str(TRACES / LAYERS["astra"])

    def read(num_ranks: int) -> None:
        assert reader("astra")(path, num_ranks=num_ranks).alike

    read(60_000)
    few, many = (calls_of(partial(read, ranks)) for ranks in (60_000, 120_000))
    assert many < 1.1 * few


class Ranks(Sequence[int]):
    """Ranks of a group, of which it is counted how many are looked at."""

    looked = 0

    def __init__(self, ranks: Sequence[int]) -> None:
        self.ranks = ranks

    def __len__(self) -> int:
        return len(self.ranks)

    def __getitem__(self, index: Any) -> Any:
        Ranks.looked += 1
        return self.ranks[index]


def test_the_ranks_of_a_group_are_looked_at_once_and_not_by_every_rank(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(layers, "group_of", lambda *of: Ranks(group_of(*of)))
    Ranks.looked = 0
    found = reader("astra")(str(TRACES / LAYERS["astra"]), num_ranks=512)
    calls = sum(event.kind == "collective" for event in found.events)
    assert calls <= Ranks.looked <= calls + sum(len(group.ranks) + 1 for group in found.groups)
