"""Process of a running rank: an unmodified PyTorch program on the simulated device, in virtual time."""

from __future__ import annotations

import ctypes
import gc
import os
import runpy
import sys
import sysconfig
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusim.base.errors import ClusimError
from clusim.base.kept import PACKAGE
from clusim.hardware import FRAMEWORKS
from clusim.nccl.constants import LATEST
from clusim.programs.annotations import unused_annotations
from clusim.programs.clock import IssueTimes, RankClock, Totals
from clusim.programs.device import library
from clusim.programs.failures import explain_failure, locate, program_line
from clusim.programs.launch import RankTask, TorchProgram
from clusim.programs.processes import JobLink
from clusim.programs.starter import next_rank
from clusim.programs.step import RankRecord, RankResult
from clusim.programs.symmetry import COMPARED_STEPS, Operation, operation_of
from clusim.simulation.setup import Setup
from clusim.topology.arrays import arrays_of
from clusim.topology.model import Fabric
from clusim.workload.host import host_way, pace_of
from clusim.workload.prices import Prices

if TYPE_CHECKING:
    from clusim.programs.cuda import DeviceMemory

_LAUNCHERS = (__file__, "<frozen runpy>", runpy.__file__)
"""Files of the frames between this module and a program."""

EPOCH_S = 1_750_000_000
"""Virtual time of the start of a program [s since 1970]."""


class StepEnds:
    """Ends of optimizer steps, which the job times.

    Parameters
    ----------
    only : int
        Step after which the program ends; 0 for none.
    recorded : bool
        Report the operations of each step.
    """

    def __init__(
        self,
        clock: RankClock,
        link: JobLink,
        only: int = 0,
        *,
        recorded: bool,
        compared: bool,
    ) -> None:
        self.clock, self.link, self.only, self.recorded = clock, link, only, recorded
        if compared:
            clock.line, link.operations = program_line, self._operations
        self.count = 0

    def __call__(self, *_given: Any) -> None:
        clock = self.clock
        clock.complete()
        if not clock.events:
            return
        self.link.step(
            clock.host_ps, clock.last, self.record() if self.recorded else None
        )
        clock.take()
        self.count += 1
        if self.count == COMPARED_STEPS:
            clock.line = self.link.operations = None
        if self.count == self.only:
            raise SystemExit(0)
        if self.only:
            clock.totals = Totals()

    def _operations(self) -> list[tuple[Operation, str]]:
        """Return the operations since the last call, in the form that is compared among ranks."""
        groups = list(self.clock.groups)
        return [
            (operation_of(event, groups), line)
            for event, line in self.clock.unseen()
        ]

    def record(self) -> RankRecord:
        """Return the operations since the last step."""
        clock = self.clock
        clock.complete()
        return RankRecord(
            clock.rank, clock.events, list(clock.groups), splits=clock.splits
        )


def run_rank(rank: int, task: RankTask, link: JobLink) -> None:
    """Run the program as a rank, and report its result."""
    from clusim.programs.eager import eager_lines

    setup = Setup(*task.system)
    fabric = setup.fabric
    compiled = library()
    clock = RankClock(
        rank, link, IssueTimes.of(FRAMEWORKS["pytorch"], pace_of(fabric))
    )
    ended = StepEnds(
        clock, link, task.only, recorded=task.record, compared=task.compared
    )
    with _install_simulation(
        clock, fabric, compiled, ended, complete=task.real
    ) as memory:
        _execute(task.program)
        record = ended.record() if task.record and not ended.count else None
        files = _program_files()
        clock.totals.unused, clock.totals.eager = unused_annotations(), eager_lines()
        result = RankResult(clock.totals, [], 0, memory.peak_bytes, record, files)
        link.done(result, clock.host_ps)


def _program_files() -> list[str]:
    """Return the files of imported modules that are not installed packages."""
    installed = {
        *map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib"))
    }
    folders = (*filter(None, installed), str(PACKAGE))
    files = {
        str(getattr(module, "__file__", None) or "")
        for module in list(sys.modules.values())
    }
    return sorted(name for name in files if name and not name.startswith(folders))


def main() -> None:
    """Import PyTorch, and run a rank in each process that the connection requests."""
    starting = Connection(int(sys.argv[1]))
    compiled = library()
    # Operators need PyTorch's compiler; once a device exists, it would require functions of a CUDA build.
    import_module("torch._dynamo")
    compiled.clusim_register(int(os.environ["LOCAL_WORLD_SIZE"]))
    for name in ("cuda", "data", "flex", "groups", "operators"):
        import_module(f"clusim.programs.{name}")
    gc.freeze()
    connection = next_rank(starting)
    if connection is None:
        return
    rank, task, alone = connection.recv()
    link = JobLink(connection, alone=alone)
    try:
        run_rank(rank, task, link)
    except ClusimError as error:
        link.failed(error)


@contextmanager
def _install_simulation(
    clock: RankClock,
    fabric: Fabric,
    compiled: ctypes.CDLL,
    ended: StepEnds,
    *,
    complete: bool,
) -> Iterator[DeviceMemory]:
    """Install the simulated device, process groups and clocks."""
    import torch

    from clusim.programs import cuda, data, graphs, groups
    from clusim.programs.operators import SimulatedOperators

    gpu = fabric.nodes[arrays_of(fabric).node_of(0)].endpoint
    assert gpu is not None, "ranks are endpoints"
    compiled.clusim_set_capability(gpu.compute_capability)
    memory = cuda.DeviceMemory(gpu.mem_bytes)
    count = int(os.environ["LOCAL_WORLD_SIZE"])
    device = cuda.SimulatedCuda(compiled, clock, gpu, count, memory)
    operators = SimulatedOperators(
        clock,
        Prices(gpu),
        host_way(fabric).rate_Bps,
        device.stream,
        complete=complete,
    )
    operators.collectives = handler = groups.SimulatedGroups(operators, clock.rank)
    operators.allocated, operators.workspace = memory.add, memory.hold
    # The operators import PyTorch's compiler, which requires functions of a CUDA build if a device exists.
    cuda.install(device, (LATEST.major, LATEST.minor, LATEST.patch))
    graphs.install(graphs.graph_class(clock, operators.known, device.stream))
    store = _store(torch.distributed)
    if complete:
        handler.data = data.RealData(operators.known, clock.rank, store)
    groups.install(handler, int(os.environ["WORLD_SIZE"]), store)
    _adapt(torch)
    hook = import_module("torch.optim.optimizer").register_optimizer_step_post_hook(
        ended
    )
    real = _virtual_clocks(clock)
    try:
        with operators:
            yield memory
    finally:
        hook.remove()
        for name, function in real.items():
            setattr(time, name, function)


def _store(dist: Any) -> Any:
    """Return the store that all running ranks share; the first running rank has it."""
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    first = os.environ["CLUSIM_FIRST_RANK"] == os.environ["RANK"]
    return dist.TCPStore(address, port, is_master=first, wait_for_workers=False)


def _adapt(torch: Any) -> None:
    """Let parts of PyTorch that test the types of tensors accept tensors without data."""
    from torch._subclasses.fake_tensor import FakeTensor

    from clusim.programs import eager, flex, triton
    from clusim.programs.adapted import (
        install_kernels,
        install_moves,
        install_saving,
    )

    for place in map(
        import_module, ("torch.utils._foreach_utils", "torch.optim.optimizer")
    ):
        listed = getattr(place, "_foreach_supported_types", None)
        if isinstance(listed, list) and FakeTensor not in listed:
            listed.append(FakeTensor)
    install_saving()
    install_moves()
    install_kernels()
    flex.install()
    triton.install()
    # torch.tensor(..., device="cuda") then copies its data as an operator.
    torch._C._set_only_lift_cpu_tensors(True)
    loader = torch.utils.data.DataLoader
    initialise = loader.__init__

    def without_workers(self: Any, *given: Any, **more: Any) -> None:
        # Worker processes are outside the virtual time.
        for name in ("num_workers", "prefetch_factor", "persistent_workers"):
            more.pop(name, None)
        initialise(self, *given, **more)

    loader.__init__ = without_workers
    eager.install()
    torch.multiprocessing.spawn = _spawn


def _spawn(
    function: Any,
    args: Sequence[Any] = (),
    nprocs: int = 1,
    *_given: Any,
    **_more: Any,
) -> None:
    """Replacement for ``torch.multiprocessing.spawn``: a process of this rank, which represents others."""
    import torch
    import torch.distributed as dist

    if int(os.environ["LOCAL_RANK"]) >= nprocs:
        return
    torch.cuda.reset_peak_memory_stats()
    function(int(os.environ["LOCAL_RANK"]), *args)
    gc.collect()
    if dist.is_initialized():
        dist.destroy_process_group()


def _virtual_clocks(clock: RankClock) -> dict[str, Any]:
    """Replace the functions of `time` by the host's virtual time; return the real functions."""

    def sleep(seconds: float) -> None:
        clock.pause(round(seconds * 1e12), "sleep")

    replaced = {
        "time": lambda: EPOCH_S + clock.host_ps / 1e12,
        "time_ns": lambda: EPOCH_S * 10**9 + clock.host_ps // 1000,
        "perf_counter": lambda: clock.host_ps / 1e12,
        "perf_counter_ns": lambda: clock.host_ps // 1000,
        "monotonic": lambda: clock.host_ps / 1e12,
        "monotonic_ns": lambda: clock.host_ps // 1000,
        "sleep": sleep,
    }
    real = {name: getattr(time, name) for name in replaced}
    for name, function in replaced.items():
        setattr(time, name, function)
    return real


def _execute(program: TorchProgram) -> None:
    before = sys.argv, list(sys.path)
    sys.argv = [program.name, *program.arguments]
    try:
        if program.module:
            sys.path.insert(0, os.getcwd())
            runpy.run_module(program.name, run_name="__main__", alter_sys=True)
        else:
            sys.path.insert(0, str(Path(program.name).resolve().parent))
            runpy.run_path(program.name, run_name="__main__")
    except SystemExit as end:
        if end.code:
            raise
    except KeyboardInterrupt:
        raise
    except ClusimError as error:
        locate(error)
        raise
    except BaseException as error:
        reason = explain_failure(error)
        if reason is not None:
            raise reason from None
        frames = error.__traceback__
        while (
            frames is not None and frames.tb_frame.f_code.co_filename in _LAUNCHERS
        ):
            frames = frames.tb_next
        if frames is not None:
            error.__traceback__ = frames
        sys.excepthook(type(error), error, error.__traceback__)
        raise SystemExit(1) from None
    finally:
        sys.argv, sys.path[:] = before


if __name__ == "__main__":
    main()
