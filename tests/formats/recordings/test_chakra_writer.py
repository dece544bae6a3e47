"""Recordings written as Chakra traces and read back."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from clusim.base.errors import InputError
from clusim.formats.recordings import chakra, chakra_writer
from clusim.formats.recordings.kinds import kind_of, reader
from clusim.formats.recordings.model import (
    MOST_REPEATED,
    Event,
    OperatorCall,
    Recording,
    TensorShape,
)
from clusim.replays.full_job import replay_recording
from clusim.replays.placing import ReplayRequest
from clusim.topology import load

pytest.importorskip("google.protobuf")

OPERATIONS = ("allreduce", "all_gather", "reduce_scatter", "alltoall", "broadcast")


def step(seed: int, num_ranks: int = 8, rank: int = 0) -> Recording:
    """Return a random step of one rank: host, two streams of kernels, collectives of three groups."""
    random = Random(seed)
    result = Recording("torch", "step", num_ranks)
    groups = [
        range(num_ranks),
        range(rank // 2 * 2, rank // 2 * 2 + 2),
        range(rank % 4, num_ranks, 4),
    ]
    numbers = [result.group(f"group {at}", ranks) for at, ranks in enumerate(groups)]
    sequence = [0, 0, 0]
    for at in range(60):
        deps = tuple(sorted(random.sample(range(at), min(at, random.randrange(3)))))
        kind = random.choice(("host", "kernel", "kernel", "annotated", "call"))
        if kind == "host":
            event = Event(
                "delay", rank, "host", "issue", deps, duration_ps=random.randrange(1, 10**6)
            )
        elif kind == "call":
            group, operation = random.choice(numbers), random.choice(OPERATIONS)
            size = len(groups[group]) * random.randrange(1, 1000) + (operation == "all_gather")
            event = Event(
                *("collective", rank, f"nccl {group}", operation, deps),
                group=group,
                sequence=sequence[group],
                operation=operation,
                bytes=size,
                dtype=random.choice(("bfloat16", "float32", "uint8")),
                redop=random.choice(("sum", "max")),
                root=1 if operation == "broadcast" else -1,
            )
            sequence[group] += 1
        else:
            shapes = tuple(
                TensorShape(
                    (random.randrange(9), random.randrange(9)),
                    *random.choice((("bool", 1), ("bfloat16", 2))),
                )
                for _ in range(random.randrange(3))
            )
            operator = OperatorCall(
                "mm", shapes, shapes[:1], ("causal",), () if kind == "kernel" else (5, 0)
            )
            stream = f"stream {random.randrange(2)}"
            event = Event("compute", rank, stream, "mm", deps, duration_ps=random.randrange(10**7))
            event = replace(event, operator=random.choice((None, operator)))
        result.events.append(event)
    return result


def canonical(recording: Recording) -> set[object]:
    """Return the events by rank, stream and place, with dependencies by the same, and groups by their ranks.

    Messages of one launch have no order; calls are numbered from 0, and times from the first start.
    """
    places: Counter[object] = Counter()
    numbers: dict[object, set[int]] = defaultdict(set)
    origin = min((e.start_ps for e in recording.events if e.start_ps >= 0), default=0)
    for event in recording.events:
        numbers[_call(event)].add(event.sequence)
    events, names = [], []
    for event in recording.events:
        plain = replace(
            event,
            sequence=sorted(numbers[_call(event)]).index(event.sequence),
            name=event.name or event.kind,
            start_ps=event.start_ps - origin if event.start_ps >= 0 else event.start_ps,
        )
        place: object = places[event.rank, event.stream]
        if event.bunch >= 0:
            place = event.bunch, event.kind, event.peer, plain.sequence
        else:
            places[event.rank, event.stream] += 1
        events.append(plain)
        names.append((event.rank, event.stream, place))
    result: set[object] = set()
    for event, name in zip(events, names, strict=True):
        # The order of a stream needs no dependency.
        deps = frozenset(names[dep] for dep in event.deps if names[dep][:2] != name[:2])
        group = recording.groups[event.group].ranks if event.group >= 0 else ()
        result.add((name, deps, group, replace(event, deps=(), group=0, where="", bunch=0)))
    return result


def _call(event: Event) -> object:
    return (event.group, event.kind, event.rank, event.peer, event.tag)


TRACES = Path(__file__).resolve().parents[3] / "traces"
RECORDINGS = (
    *("chakra-4ranks", "comma-4ranks", "flight-2ranks", "gpt-tp8-dp2.simai.txt", "inspector-8ranks.jsonl"),
    *("kineto-2ranks", "minimal-2ranks.jsonl", "mlp-tp4.hlo.txt", "nsys-2ranks", "profiler-2ranks"),
    *("resnet-data-8.astra.txt", "ring-4.goal", "ring-4.goal.bin", "step.chakra.json", "zero3.deepspeed.log"),
)  # fmt: skip


@pytest.mark.parametrize("name", RECORDINGS)
def test_every_shipped_recording_is_the_same_as_a_chakra_trace(name: str, tmp_path: Path) -> None:
    path = str(TRACES / name)
    read = reader(kind_of(path))
    sizes = {"num_ranks": 8} if name.startswith(("resnet", "zero3")) else {}
    written = read(path, **sizes)
    files = chakra_writer.write(written, tmp_path / "job.et")
    got = chakra.read([str(file) for file in files])
    assert (got.num_ranks, got.hosts, got.nccl_version) == (
        written.num_ranks,
        written.hosts,
        written.nccl_version,
    )
    assert canonical(got) == canonical(written)


def test_messages_keep_their_communicators(tmp_path: Path) -> None:
    """Two communicators of ranks 0 and 1, one of ranks 1 and 2: the ends call them in different orders."""
    pairs = Recording("torch", "pairs", 3)
    groups = [
        pairs.group(name, ranks) for name, ranks in (("a", (0, 1)), ("b", (0, 1)), ("c", (1, 2)))
    ]
    for rank, kind, order in (
        (0, "send", (0, 1)),
        (1, "recv", (1, 0)),
        (1, "send", (2,)),
        (2, "recv", (2,)),
    ):
        for at in order:
            event = Event(
                kind, rank, f"nccl {at}", kind, group=groups[at], sequence=0, bytes=1 << 20, peer=int(kind == "send")
            )  # fmt: skip
            pairs.events.append(event)
    files = chakra_writer.write(pairs, tmp_path / "pairs.et")
    got = chakra.read([str(file) for file in files])
    assert canonical(got) == canonical(pairs)
    assert len(got.groups) == 3
    fabric = load("dgx-h100")
    times = [
        replay_recording(recording, ReplayRequest(("pairs.et",), fabric)).total_ps
        for recording in (pairs, got)
    ]
    assert times[0] == times[1]


@pytest.mark.parametrize("seed", range(8))
def test_a_step_is_read_as_it_was_written(seed: int, tmp_path: Path) -> None:
    written = step(seed)
    (file,) = chakra_writer.write(written, tmp_path / "job.80.et")  # the name is not the rank
    got = chakra.read(str(file))
    assert got.num_ranks == 8
    own = replace(got, events=[event for event in got.events if event.rank == 0])
    assert canonical(own) == canonical(written)


def test_the_other_ranks_repeat_the_step_in_their_groups(tmp_path: Path) -> None:
    (file,) = chakra_writer.write(step(1), tmp_path / "step.et")
    got = chakra.read(str(file))
    assert {event.rank for event in got.events} == set(range(8))
    for rank in range(8):
        mine = [e for e in got.events if e.rank == rank and e.kind == "collective"]
        assert mine
        assert all(rank in got.groups[e.group].ranks for e in mine)
    assert any("same work as rank 0" in line for line in got.assumed)


def test_a_large_job_is_its_first_rank_and_its_first_calls_are_those_of_all(tmp_path: Path) -> None:
    count = MOST_REPEATED // 60 // 8 * 8 + 8
    (file,) = chakra_writer.write(step(2, count), tmp_path / "step.et")
    large = chakra.read(str(file))
    assert large.alike
    assert len(large.events) == 60
    few = chakra.read(str(file), calls=1)
    assert not few.alike
    assert sum(event.kind == "collective" for event in few.events) == count


def test_files_of_stages_represent_their_replicas(tmp_path: Path) -> None:
    """Ranks 0 and 2 of two stages with two replicas each are written; 1 and 3 do the same in their groups."""
    stages = Recording("torch", "step", 4, representatives=(0, 0, 2, 2))
    pipeline = stages.group("pipeline", (0, 2))
    for rank, kind, peer in ((0, "send", 1), (2, "recv", 0)):
        replicas = stages.group("replicas", (rank, rank + 1))
        first = len(stages.events)
        stages.events += [
            Event("compute", rank, "stream 0", "mm", duration_ps=10**6),
            Event(kind, rank, "nccl 0", kind, (first,), group=pipeline, sequence=1, bytes=99, peer=peer),
            Event(
                *("collective", rank, "nccl 1", "allreduce", (first,)), duration_ps=1,
                group=replicas, sequence=1, operation="allreduce", bytes=64,
            ),
        ]  # fmt: skip
    files = chakra_writer.write(stages, tmp_path / "step.et")
    assert [file.name for file in files] == ["step.0.et", "step.2.et"]
    found = chakra.read([str(file) for file in files])
    assert found.unrecorded == {1, 3}
    seen = {
        (event.rank, event.kind): (found.groups[event.group].ranks, event.bytes, event.peer)
        for event in found.events
        if event.group >= 0
    }
    assert seen[1, "send"] == ((1, 3), 99, 1)
    assert seen[3, "recv"] == ((1, 3), 99, 0)
    assert seen[1, "collective"][:2] == ((0, 1), 64)
    assert seen[3, "collective"][:2] == ((2, 3), 64)


def test_ranks_that_differ_have_a_file_each(tmp_path: Path) -> None:
    first, other = step(3), step(4, rank=5)
    both = replace(first, events=[*first.events])
    for event in other.events:
        group = event.group
        if group >= 0:
            group = both.group(f"other {group}", other.groups[group].ranks)
        both.events.append(replace(event, group=group, deps=tuple(d + 60 for d in event.deps)))
    files = chakra_writer.write(both, tmp_path / "step.et")
    assert [file.name for file in files] == ["step.0.et", "step.5.et"]
    with pytest.raises(InputError, match="no event to write"):
        chakra_writer.write(Recording("torch", "step", 8), tmp_path / "step.et")


def test_damaged_shapes_are_an_error_of_their_node(tmp_path: Path) -> None:
    shape = TensorShape((2, 3), "float32", 4)
    event = Event("compute", 0, "s", "mm", duration_ps=5)
    recording = Recording("torch", "step", 1)
    recording.events = [replace(event, operator=OperatorCall("mm", (shape,), (shape,)))]
    (file,) = chakra_writer.write(recording, tmp_path / "step.et")
    file.write_bytes(file.read_bytes().replace(b"[[2,3]]", b"[[2,x]]"))
    with pytest.raises(InputError, match="node 1: mm: the shapes, types and values"):
        chakra.read(str(file))
