"""A run written as NCCL's log and replayed gives the calls that were run."""

from __future__ import annotations

from pathlib import Path

import clusim
from clusim import fabric
from clusim.export.nccl_log import write_nccl_log
from clusim.formats.logs import read_logs
from clusim.formats.logs.calls import call_table
from clusim.nccl import communicator, programs
from clusim.replaying import replay
from clusim.replaying.request import ReplayRequest
from clusim.schedule.builder import ProgramBuilder, Site

CALLS = (
    ("allreduce", 1 << 18, "float32"),
    ("all_gather", 1 << 18, "bfloat16"),
    ("reduce_scatter", 1 << 17, "float16"),
    ("broadcast", 4096, "float32"),
    ("reduce", 4096, "float64"),
    ("alltoall", 1 << 17, "float32"),
)


def test_a_simulated_run_survives_its_own_log(tmp_path: Path) -> None:
    machine = fabric.load("dgx-a100")
    comm = communicator(machine)
    builder = ProgramBuilder(machine.num_ranks)
    for operation, size, dtype in CALLS:
        root = 5 if operation in ("broadcast", "reduce") else -1
        moved = programs.Moved(operation, size, dtype, root=root)
        programs.emit(Site(builder), machine, comm, moved)
    trace, log_file = tmp_path / "run.h5", tmp_path / "nccl.log"
    clusim.simulate(machine, builder.build(), trace_out=trace)
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
    machine = fabric.load("dgx-h100")
    builder = ProgramBuilder(machine.num_ranks)
    for number, ranks in enumerate(((0, 1), (2, 3), (0, 3))):
        comm = communicator(machine, ranks=ranks)
        moved = programs.Moved("allreduce", 4096 << number)
        programs.emit(Site(builder, f"group{number}"), machine, comm, moved)
    trace, log_file = tmp_path / "run.h5", tmp_path / "nccl.log"
    clusim.simulate(machine, builder.build(), trace_out=trace)
    write_nccl_log(trace, log_file)
    found = replay(ReplayRequest((str(log_file),), topology="dgx-h100"))
    assert [(c.num_ranks, c.bytes) for c in found.calls] == [(2, 4096), (2, 8192), (2, 16384)]
