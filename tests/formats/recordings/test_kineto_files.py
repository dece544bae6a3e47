"""Damaged traces of the PyTorch profiler, refused or read without anything that was not there; and real ones."""

from __future__ import annotations

import copy
import gzip
import json
import random
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusim.base.errors import InputError
from clusim.formats.recordings import Recording
from clusim.formats.recordings.kineto import read
from clusim_cli.main import run
from formats.recordings.kineto_traces import save, training
from support.covering import examples
from support.realfiles import real_files


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"traceEvents": 5}', "no list traceEvents"),
        ('{"distributedInfo": {"rank": 0}}', "no list traceEvents"),
        ('{"traceEvents": []}', "no kernels"),
        ('{"traceEvents": [1, 2, "x"]}', "no kernels"),
        ('{"traceEvents": [', "not JSON"),
        ("[[]]", "no kernels"),
        ('{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": 0, "dur": 1e30}]}', "no kernels"),
        (
            '{"distributedInfo": {"world_size": 1000000}, "traceEvents": [{"ph": "X", "cat": "kernel", "name": "k",'
            ' "ts": 0, "dur": 1}]}',
            "1000000 ranks; at most 131072",
        ),
    ],
)  # fmt: skip
def test_nonsense_is_refused(
    tmp_path: Path, content: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bad.json"
    path.write_text(content)
    with pytest.raises(InputError) as error:
        read(str(path))
    assert message in str(error.value)
    assert "bad.json" in str(error.value)
    assert run(["replay", str(path), "--kind", "kineto", "--topology", "dgx-a100"]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_files_of_different_days_are_refused(tmp_path: Path) -> None:
    traces = [training(rank) for rank in range(2)]
    for event in traces[1]["traceEvents"]:
        for key in ("Collective name", "In msg nelems", "Out msg nelems"):
            event["args"].pop(key, None)
    traces[1]["baseTimeNanoseconds"] += 86_400_000_000_000 * 30
    with pytest.raises(InputError, match=r"hours apart; do the files belong together"):
        read([save(tmp_path / f"{at}.json", trace) for at, trace in enumerate(traces)])


def test_a_file_that_is_cut_gives_what_is_left(tmp_path: Path) -> None:
    path = tmp_path / "rank0.json"
    text = json.dumps(training(0))
    path.write_text(text[: text.index('"optimizer"')])
    found = read(str(path))
    assert any("the file is cut" in note for note in found.assumed)
    assert next(e.name for e in found.events if e.rank == 0) == "forward"
    packed = tmp_path / "rank0.json.gz"
    packed.write_bytes(gzip.compress(text.encode())[:-40])
    with pytest.raises(InputError, match="damaged or cut"):
        read(str(packed))


def signature(found: Recording) -> set[tuple[Any, ...]]:
    """What events are, apart from their times since the first, and from calls that became kernels."""
    return {
        (e.rank, e.name, e.duration_ps)
        + (() if e.kind == "compute" else (e.operation, e.bytes, found.groups[e.group].ranks))
        for e in found.events
    }


def attempt(files: list[str]) -> Recording | None:
    """Read files; None if they are refused in one line."""
    message = ""
    try:
        return read(files)
    except InputError as error:
        message = str(error)
    assert message
    assert "\n" not in message
    return None


INTACT = [training(rank) for rank in range(2)]


@settings(max_examples=examples(20))
@given(st.integers(0, 1 << 32), st.sampled_from(["drop", "shuffle", "cut"]))
def test_damage_adds_no_event(seed: int, how: str) -> None:
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        files = [
            save(Path(folder) / f"rank{rank}.json", trace) for rank, trace in enumerate(INTACT)
        ]
        intact = signature(read(files))
        intact |= {row[:3] for row in intact}
        damaged = copy.deepcopy(INTACT[0])
        events = damaged["traceEvents"]
        if how == "drop":
            damaged["traceEvents"] = [event for event in events if rng.random() < 0.8]
        elif how == "shuffle":
            rng.shuffle(events)
        text = json.dumps(damaged)
        if how == "cut":
            text = text[: rng.randrange(len(text))]
        Path(files[0]).write_text(text)
        found = attempt(files)
        if found is None:
            return
    assert signature(found) <= intact
    assert all(d < at for at, e in enumerate(found.events) for d in e.deps)
    if how == "shuffle":
        assert signature(found) == signature(found) & intact
        assert len(found.events) == 12


STRANGE = [
    None,
    -1,
    0,
    1e400,
    "x",
    "",
    [],
    {},
    [None],
    1 << 80,
    True,
    -0.5,
    "[0, 1",
    "[0, ...]",
    [0, 1, 1],
]


@settings(max_examples=examples(50))
@given(st.integers(0, 1 << 32))
def test_strange_values_are_no_traceback(seed: int) -> None:
    rng = random.Random(seed)
    damaged = copy.deepcopy(INTACT[0])
    for _ in range(rng.randrange(1, 6)):
        event = rng.choice(damaged["traceEvents"])
        place = rng.choice([event, event, damaged["distributedInfo"], damaged])
        if place is event and isinstance(event.get("args"), dict) and rng.random() < 0.7:
            place = event["args"]
        if isinstance(place, dict) and place:
            key = rng.choice([k for k in place if k != "traceEvents"] or ["x"])
            place[key] = rng.choice(STRANGE)
        if not isinstance(damaged["distributedInfo"], dict):
            break
    with tempfile.TemporaryDirectory() as folder:
        files = [
            save(Path(folder) / "rank0.json", damaged),
            save(Path(folder) / "rank1.json", INTACT[1]),
        ]
        found = attempt(files)
        if found is None:
            return
    assert all(d < at for at, e in enumerate(found.events) for d in e.deps)
    assert all(e.start_ps >= 0 and e.duration_ps >= 0 for e in found.events)


# Real files


@pytest.mark.parametrize("path", real_files("kineto"), ids=lambda path: path.name[:24])
def test_real_traces(path: Path) -> None:
    found = read(str(path))
    own = [e for e in found.events if e.rank == 0]
    calls = [e for e in own if e.kind == "collective"]
    # Seven in every step of data-parallel training, of which the corpus in tests has one and its source three.
    assert len(calls) in ((7, 21) if "nccl_parser" in path.name else (0,))
    if calls:
        assert {(e.operation, e.bytes) for e in calls} >= {
            ("allreduce", 26550272),
            ("broadcast", 424),
        }
        # Every one is waited for by a kernel of the other stream, as the calls of the host show.
        waited = {d for e in own for d in e.deps if e.kind == "compute"}
        assert all(at in waited for at, e in enumerate(found.events) if e in calls)
    assert found.skipped == {}
