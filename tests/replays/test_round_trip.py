"""A run written as NCCL's log, or as traces of the PyTorch profiler, and replayed gives the calls that were run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import clusim
from clusim import topology
from clusim.base.terms.operations import ROOTED
from clusim.formats.logs import read_logs
from clusim.formats.logs.calls import call_table
from clusim.formats.recordings.kineto import read as read_kineto
from clusim.nccl import communicator, programs
from clusim.replays import replay
from clusim.replays.placing import ReplayRequest
from clusim.report.export.kineto import write_kineto
from clusim.report.export.nccl_log import write_nccl_log
from clusim.results.trace.reader import read_result
from clusim.schedule.builder import ProgramBuilder, Site

CALLS = (
    ("allreduce", 1 << 18, "float32"),
    ("all_gather", 1 << 18, "bfloat16"),
    ("reduce_scatter", 1 << 17, "float16"),
    ("broadcast", 4096, "float32"),
    ("reduce", 4096, "float64"),
    ("alltoall", 1 << 17, "float32"),
)


EVERY = (
    *CALLS,
    ("allreduce", 1 << 16, "int8", "max"),
    ("gather", 1 << 17, "uint8"),
    ("scatter", 1 << 17, "int64"),
    ("sendrecv", 1 << 17, "float32"),
)


def ran(tmp_path: Path, *calls: tuple[Any, ...]) -> Path:
    """Return the trace of a run of calls as NCCL would do them."""
    machine = topology.load("dgx-a100")
    comm = communicator(machine)
    builder = ProgramBuilder(machine.num_ranks)
    for operation, size, dtype, *redop in calls:
        root = 5 if operation in ROOTED else -1
        moved = programs.CollectivePayload(
            operation, size, dtype, redop[0] if redop else "sum", root=root
        )
        programs.emit(Site(builder), machine, comm, moved)
    trace = tmp_path / "run.h5"
    clusim.simulate(machine, builder.build(), trace_out=trace, confirm=False)
    return trace


@pytest.mark.parametrize("call", EVERY, ids=lambda call: call[0])
def test_a_call_survives_the_profiler(call: tuple[Any, ...], tmp_path: Path) -> None:
    trace = ran(tmp_path, call)
    files = tuple(map(str, write_kineto(trace, tmp_path / "kineto")))
    operation, size, dtype, *redop = call
    found = read_kineto(list(files))
    assert not found.skipped
    if operation == "sendrecv":
        messages = {(e.rank, e.kind, e.peer, e.bytes, e.dtype) for e in found.events}
        pairs = (("send", 1), ("recv", 7))
        assert messages == {
            (rank, kind, (rank + by) % 8, size, dtype) for rank in range(8) for kind, by in pairs
        }
    else:
        root = 5 if operation in ROOTED else -1
        expected = (operation, size, dtype, redop[0] if redop else "sum", root)
        assert [(e.operation, e.bytes, e.dtype, e.redop, e.root) for e in found.events] == (
            [expected] * 8
        )
    again = replay(ReplayRequest(files, topology="dgx-a100", version="2.30"))
    assert again.total_ps == read_result(trace).time_ps
    assert not again.doubts, "what was recorded is what is predicted"


def test_a_training_step_survives_the_profiler(tmp_path: Path) -> None:
    trace = tmp_path / "step.h5"
    clusim.train(
        "resnet50-dgx1v", steps=1, fold="none", granularity="auto", trace_out=trace, confirm=False
    )
    files = tuple(map(str, write_kineto(trace, tmp_path / "kineto")))
    found = replay(ReplayRequest(files, topology="dgx-1v", gap="none"))
    # Times of the format are in us with 6 digits, in doubles.
    assert found.total_ps == pytest.approx(read_result(trace).time_ps, abs=1000)
    assert found.calls
    assert all(call.error == pytest.approx(0, abs=1e-6) for call in found.calls)
    assert not any("begin" in note for note in found.notes), "waits are recorded, not concluded"


def test_a_simulated_run_survives_its_own_log(tmp_path: Path) -> None:
    machine = topology.load("dgx-a100")
    comm = communicator(machine)
    builder = ProgramBuilder(machine.num_ranks)
    for operation, size, dtype in CALLS:
        root = 5 if operation in ("broadcast", "reduce") else -1
        moved = programs.CollectivePayload(operation, size, dtype, root=root)
        programs.emit(Site(builder), machine, comm, moved)
    trace, log_file = tmp_path / "run.h5", tmp_path / "nccl.log"
    clusim.simulate(machine, builder.build(), trace_out=trace, confirm=False)
    write_nccl_log(trace, log_file)
    table = call_table(read_logs([str(log_file)]))
    shown = [table.distinct[n] for n in table.call]
    assert [(c.operation, c.bytes, c.dtype) for c in shown] == list(CALLS)
    assert [c.root for c in shown if c.operation in ("broadcast", "reduce")] == [5, 5]
    assert not table.skipped
    found = replay(ReplayRequest((str(log_file),), topology="dgx-a100", version="2.30"))
    assert [(c.operation, c.bytes) for c in found.calls] == [call[:2] for call in CALLS]
    assert found.total_calls == len(CALLS)


def test_groups_keep_their_members(tmp_path: Path) -> None:
    machine = topology.load("dgx-h100")
    builder = ProgramBuilder(machine.num_ranks)
    for number, ranks in enumerate(((0, 1), (2, 3), (0, 3))):
        comm = communicator(machine, ranks=ranks)
        moved = programs.CollectivePayload("allreduce", 4096 << number)
        programs.emit(Site(builder, f"group{number}"), machine, comm, moved)
    trace, log_file = tmp_path / "run.h5", tmp_path / "nccl.log"
    clusim.simulate(machine, builder.build(), trace_out=trace, confirm=False)
    write_nccl_log(trace, log_file)
    found = replay(ReplayRequest((str(log_file),), topology="dgx-h100"))
    assert [(c.ranks, c.bytes) for c in found.calls] == [(2, 4096), (2, 8192), (2, 16384)]
