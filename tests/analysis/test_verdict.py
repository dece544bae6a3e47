"""Golden verdicts: what holds a run back is named, and saves what was said when it is taken away."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clusim
from clusim.analysis.critical import critical
from clusim.analysis.diff import judged_trace
from clusim.analysis.judge import Judged, judged
from clusim.base.errors import TraceError
from clusim.results.cause_kinds import CauseKind
from clusim.results.diagnosis import Verdict
from clusim.results.result import Result
from clusim.results.trace.held import Inputs
from clusim.schedule.arrays import to_arrays
from clusim.simulation.reruns import rerun
from clusim.simulation.speed import speed_of
from support.covering import THOROUGH

US = 1_000_000


@dataclass(frozen=True)
class Case:
    """A run in a trace, and what was found."""

    path: Path
    result: Result
    found: Judged

    @property
    def verdict(self) -> Verdict:
        return self.result.diagnose()

    def saved(self) -> int:
        """Return the saving of the first cause's remedy when the run of the trace is simulated with it [ps]."""
        key = self.verdict.causes[0].key
        change = next(remedy.change for remedy in self.found.remedies if key in remedy.keys)
        return self.result.time_ps - rerun(self.path, change).time_ps


def case(path: Path, result: Result) -> Case:
    with critical(path) as run:
        return Case(path, result, judged(run))


def collective(path: Path, machine: str, size: str, **options: Any) -> Case:
    how: Any = {"trace_out": path, "trace_primitives": True, **options}
    return case(path, clusim.collective(machine, "allreduce", size, **how))


def rings(path: Path, count: int) -> Case:
    """Run so many rings over the same GPUs at the same time, the first of which is the longest."""
    fabric = clusim.load("dgx-a100")
    builder = clusim.collectives.ScheduleBuilder(fabric)
    for number in range(count):
        size = (8 << 20) + (number == 0) * (1 << 20)
        builder.collective("allreduce", size, stream=f"stream {number}", channels=8)
    how: Any = {"granularity": 1 << 16, "trace_out": path, "trace_primitives": True}
    return case(path, clusim.simulate(fabric, builder.build(), **how))


def kernel(path: Path) -> Case:
    """Run a kernel that waits for memory, and an all-reduce behind it."""
    fabric = clusim.load("dgx-a100")
    builder = clusim.collectives.ScheduleBuilder(fabric)
    done = {
        rank: [builder.kernel(rank, compute_ps=20 * US, hbm_bytes=1 << 30)] for rank in range(8)
    }
    builder.collective("allreduce", 1 << 16, channels=2, after=done)
    return case(path, clusim.simulate(fabric, builder.build(), trace_out=path))


def narrow() -> list[str]:
    """Return the faults of a network that has an eighth of its rate at every NIC."""
    links = clusim.load("dgx-a100", nodes=2).links
    ends = [(link.a, link.b) for link in links if "nic" in link.a and "leaf" in link.b]
    return [f"lanes {nic}-{leaf} 1/8 at 1ns" for nic, leaf in ends]


RESOURCES: dict[CauseKind, tuple[tuple[str, str], dict[str, Any]]] = {
    CauseKind.LATENCY: (("dgx-h100", "8KiB"), {}),
    CauseKind.WIRE: (("dgx-a100", "32MiB"), {"granularity": 1 << 18}),
    CauseKind.PCIE: (("a100-pcie-x8", "16MiB"), {"granularity": 1 << 16, "ranks": range(4)}),
    CauseKind.PROXY: (("dgx-a100", "32KiB"), {"nodes": 2, "ranks": (0, 1, 8, 9)}),
    CauseKind.NIC: (
        ("dgx-a100", "2MiB"),
        {"nodes": 2, "granularity": 1 << 17, "ranks": (0, 1, 8, 9)},
    ),
}


@pytest.mark.parametrize("kind", RESOURCES)
def test_the_first_cause_is_the_one_whose_fix_saves_most(kind: CauseKind, tmp_path: Path) -> None:
    words, options = RESOURCES[kind]
    options = {**options, "faults": narrow()} if kind is CauseKind.NIC else options
    found = collective(tmp_path / "run.h5", *words, **options)
    assert found.verdict.causes[0].kind is kind
    savings = [cause.saving_ps for cause in found.verdict.causes if cause.saving_ps is not None]
    machine, size = words
    first = found.verdict.causes[0]
    speed = speed_of(first.remedy)
    assert speed is not None
    saved = found.saved()
    if (
        speed.of_links
    ):  # lowered again: flags over PCIe depend on the link, which images of traces keep
        faster = speed.machine(clusim.load(machine, nodes=options.get("nodes")))
        changed = {**options, "nodes": None}
        again = clusim.collective(faster, "allreduce", size, **changed)
        assert saved == pytest.approx(savings[0], rel=1e-4)
        saved = found.result.time_ps - again.time_ps
    assert saved == savings[0] == max(savings)
    assert savings[0] > 0.1 * found.result.time_ps


def test_memory_that_kernels_wait_for_is_named(tmp_path: Path) -> None:
    found = kernel(tmp_path / "run.h5")
    (first, *_) = found.verdict.causes
    assert (first.kind, first.what) == (CauseKind.MEMORY, "of GPUs")
    assert found.saved() > 0


@pytest.mark.parametrize(
    ("kind", "size", "fault"),
    [
        (CauseKind.STRAGGLER, "1MiB", "rank 3 slow x3"),
        (CauseKind.FAULT, "4MiB", "lanes gpu0-nvswitch0.0 1/4 at 1ns"),
    ],
)
def test_without_what_is_broken_the_run_is_the_sound_one(
    kind: CauseKind, size: str, fault: str, tmp_path: Path
) -> None:
    options: Any = {"algorithm": "ring", "granularity": 1 << 16}
    sound = clusim.collective("dgx-a100", "allreduce", size, **options)
    found = collective(tmp_path / "run.h5", "dgx-a100", size, faults=[fault], **options)
    first = found.verdict.causes[0]
    assert first.kind is kind
    assert first.what == {"straggler": "rank 3", "fault": "gpu0<->nvswitch0.0"}[kind.value]
    lost = found.result.time_ps - sound.time_ps
    assert found.saved() == pytest.approx(lost, rel=0.01)


def test_without_rivals_the_run_is_the_one_alone(tmp_path: Path) -> None:
    found, alone = rings(tmp_path / "three.h5", 3), rings(tmp_path / "one.h5", 1)
    first = found.verdict.causes[0]
    assert first.kind is CauseKind.CONTENTION
    assert "stream 1" in first.what
    assert "stream 2" in first.what
    lost = found.result.time_ps - alone.result.time_ps
    assert found.saved() == pytest.approx(lost, rel=0.001)
    assert all(cause.kind is not CauseKind.CONTENTION for cause in alone.verdict.causes)


def test_collectives_of_a_run_in_memory_have_the_names_of_its_trace() -> None:
    builder = clusim.collectives.ScheduleBuilder(clusim.load("dgx-a100"))
    builder.collective("allreduce", 1 << 20, stream="stream 1", channels=2)
    inputs = Inputs({}, 1, 0, to_arrays(builder.build()), [], [], np.empty(0))
    assert inputs.texts("calls/operation") == ["allreduce"]
    assert set(inputs.texts("tasks/stream")) == {"stream 1"}


def test_a_full_wire_bounds_the_savings_of_all_other_changes(tmp_path: Path) -> None:
    """NICs are busy for 94 % of the run: a remedy of others saves no more than 6 %."""
    options: Any = {"nodes": 2, "granularity": 1 << 16, "confirm": True}
    found = collective(tmp_path / "run.h5", "a100x4-mesh", "32MiB", **options)
    busy = int(found.result.wires.counters["busy_ps"].max())
    assert busy > 0.9 * found.result.time_ps
    nics = [cause for cause in found.verdict.causes if cause.kind is CauseKind.NIC]
    others = [cause for cause in found.verdict.causes if cause.kind is not CauseKind.NIC]
    assert nics
    assert any(cause.saving_ps is not None for cause in others)
    for cause in others:
        assert cause.saving_ps is None or cause.saving_ps <= found.result.time_ps - busy
    network = [remedy for remedy in found.found.remedies if nics[0].key in remedy.keys]
    for remedy in found.found.remedies:
        if remedy not in network and remedy.change.what != "slots":
            assert remedy.most_ps <= found.result.time_ps - busy


def test_phases_follow_each_other_and_the_middle_is_where_bytes_move(tmp_path: Path) -> None:
    found = collective(tmp_path / "run.h5", "dgx-h100", "8MiB", granularity=1 << 16, confirm=False)
    start, middle = found.verdict.main_phases
    assert (start.name, start.kind) == ("start", CauseKind.STEP)
    assert middle.name == "bandwidth"
    assert (start.start_ps, start.end_ps) == (0, middle.start_ps)
    assert found.verdict.phases[-1].end_ps == found.result.time_ps


def test_one_verdict_is_said_by_the_run_its_trace_and_its_json(tmp_path: Path) -> None:
    path = tmp_path / "run.h5"
    result = clusim.collective("dgx-h100", "allreduce", "8KiB", trace_out=path)
    again = judged_trace(path).verdict
    assert again == result.verdict
    data = json.loads(json.dumps(again.to_json()))
    assert Verdict.from_json(data, "here") == again
    assert data["text"] == again.lines()
    assert again.expected.startswith("expected error: ")
    assert again.includes.startswith("kernel only; ")
    (first, *_) = again.causes
    assert first.saving_ps is not None, "so small a run is simulated again unasked"


def test_the_saving_is_that_of_the_same_change_and_names_the_next_bottleneck(
    tmp_path: Path,
) -> None:
    found = collective(tmp_path / "run.h5", "dgx-a100", "512KiB", algorithm="ring")
    (first, *_) = found.verdict.causes
    assert first.saving_ps == found.saved()
    # The next bottleneck is that of the machine with the change.
    slower = clusim.collective("dgx-a100", "allreduce", "512KiB", algorithm="ring", confirm=False)
    assert slower.verdict.causes[0].then == ""
    share, _, words = first.then.partition("% ")
    assert 0 < float(share) <= 100
    assert words
    assert f"then: {first.then}" in found.result.verdict.lines()


def test_a_saving_is_told_where_the_changed_run_has_no_path(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The second diagnosis is that of the re-simulation."""
    known = iter([judged])

    def once(run: Any) -> Judged:
        try:
            return next(known)(run)
        except StopIteration:
            raise TraceError("here: no slices") from None

    monkeypatch.setattr("clusim.analysis.judge.judged", once)
    first = clusim.collective("dgx-a100", "allreduce", "64KiB").diagnose().headline
    assert first is not None
    assert first.saving_ps is not None
    assert first.then == ""


def test_a_saving_that_was_not_simulated_is_not_printed() -> None:
    verdict = clusim.collective("dgx-a100", "allreduce", "2MiB", confirm=False).diagnose()
    assert verdict.causes[0].saving_ps is None
    assert verdict.lines()[1].startswith("not certain: not simulated: ")
    assert not any(" x2: " in line for line in verdict.lines())


def test_a_verdict_is_simulated_only_where_it_is_asked_for() -> None:
    result = clusim.collective("dgx-a100", "allreduce", "64KiB")
    assert all(cause.saving_ps is None for cause in result.verdict.causes)
    assert result.diagnose().causes[0].saving_ps is not None
    assert result.verdict == result.diagnose()


ALL = [
    ("dgx-h100", "allreduce", "64KiB", {}),
    ("dgx-a100", "allreduce", "4MiB", {"algorithm": "ring", "granularity": 1 << 16}),
    ("a100x4-mesh", "allreduce", "2MiB", {"nodes": 2, "granularity": 1 << 16}),
    ("dgx-a100", "sendrecv", "4MiB", {"nodes": 2, "ranks": (0, 8), "granularity": 1 << 16}),
    ("a100-pcie-x8", "allgather", "1MiB", {"granularity": 1 << 14}),
    ("dgx-1v", "broadcast", "1MiB", {"granularity": 1 << 14}),
]


@pytest.mark.parametrize(("machine", "operation", "size", "options"), ALL if THOROUGH else ALL[::2])
def test_the_parts_add_up_to_the_run(
    machine: str,
    operation: str,
    size: str,
    options: Any,
    tmp_path: Path,
) -> None:
    """A cause's time is its part of one split of the run, also where a full wire and the path both limit it."""
    path = tmp_path / "run.h5"
    how: Any = {"trace_out": path, "trace_primitives": True, "confirm": False, **options}
    found = case(path, clusim.collective(machine, operation, size, **how))
    assert sum(cause.time_ps for cause in found.found.verdict.causes) == found.result.time_ps


def test_links_that_limit_besides_the_bottleneck_are_named(tmp_path: Path) -> None:
    """Between two nodes PCIe is the longest part of a ring, and links of InfiniBand are busy for 84% of the time."""
    options: Any = {"nodes": 2, "ranks": (0, 8), "granularity": 1 << 16}
    how: Any = {"trace_out": tmp_path / "run.h5", "trace_primitives": True, **options}
    found = case(tmp_path / "run.h5", clusim.collective("dgx-a100", "allreduce", "64MiB", **how))
    wires = found.result.wires
    busy = zip(wires.names, wires.counters["busy_ps"].tolist(), strict=True)
    share = max(ps for name, ps in busy if "leaf" in name) / found.result.time_ps
    assert 0.8 < share < wires.counters["busy_ps"].max() / found.result.time_ps
    (first, *_) = found.verdict.causes
    assert first.what == "PCIe"
    assert [link.endswith(f"({share:.1%} busy)") for link in first.also] == [True]


def test_a_trace_without_a_verdict_is_judged_by_its_slices(tmp_path: Path) -> None:
    found = collective(tmp_path / "run.h5", "dgx-h100", "8KiB", confirm=False)
    told = found.result.verdict
    assert replace(told, expected="", uneven=()) == replace(found.found.verdict, proof=told.proof)


@pytest.mark.parametrize(
    "change", [{"causes": 3}, {"basis": "\x1b[2J"}, {"time_ps": None}, {"phases": [{}]}]
)
def test_a_verdict_of_a_stranger_is_checked(change: dict[str, Any]) -> None:
    data = Verdict(10, (), basis="x").to_json() | change
    with pytest.raises(TraceError, match="no verdict"):
        Verdict.from_json(data, "here")


def test_a_run_whose_slices_are_too_many_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clusim.simulation.job.VERDICT_RECORDS", 10)
    verdict = clusim.collective("dgx-a100", "allreduce", "64KiB").verdict
    assert verdict.causes == ()
    assert verdict.lines()[0].startswith("unknown: more than 10 completed slices; the fullest")


def test_a_thread_that_serves_several_channels_is_followed(tmp_path: Path) -> None:
    """What a message waits for its thread is what the thread does for others: more than its own work in places."""
    path = tmp_path / "run.h5"
    collective(path, "dgx-a100", "8KiB", nodes=2)
    with critical(path) as run:
        threads, records = run.walk.threads, run.walk.threads.posting_times_ps()
        assert records
        for (instance, _), began_ps in records.items():
            assert threads.serves(instance)
            assert began_ps >= 0
        image = run.traced.network.image
        served = np.flatnonzero(image["instances"]["thread"] < len(image["endpoints"]))
        assert {instance for instance, _ in records} == set(served.tolist())
