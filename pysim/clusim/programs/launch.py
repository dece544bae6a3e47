"""Run of an unmodified PyTorch program as one rank of a simulated job."""

from __future__ import annotations

import ctypes
import os
import runpy
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusim.base.errors import ClusimError, InputError
from clusim.formats.recordings import chakra_writer
from clusim.formats.recordings.model import Recording
from clusim.hardware import FRAMEWORKS
from clusim.nccl import LATEST
from clusim.programs.clock import IssueTimes, RankClock, Totals
from clusim.programs.device import library
from clusim.programs.report import ProgramRun, RecordedFile, run_of
from clusim.programs.step import Steps, StepTime
from clusim.replays.placing import ReplayRequest, machines_of
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


@dataclass(frozen=True, slots=True)
class TorchProgram:
    """A program and its arguments; `module` is True for the name of a module (``python -m``)."""

    name: str
    arguments: tuple[str, ...] = ()
    module: bool = False


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """Step to be written as a Chakra trace.

    Attributes
    ----------
    path : Path
        The file.
    only : int
        Number of this step, from 1; the program ends after it, and collectives are not simulated. 0: the last step of
        a program that is simulated.
    """

    path: Path
    only: int = 0


class StepEnds:
    """Ends of optimizer steps; each step is simulated, and the clocks follow."""

    def __init__(self, clock: RankClock, steps: Steps, num_ranks: int, only: int = 0) -> None:
        self.clock, self.steps, self.num_ranks, self.only = clock, steps, num_ranks, only
        self.began_ps = self.count = 0
        self.done: list[tuple[int, StepTime]] = []
        self.last: Recording | None = None

    def __call__(self, *_given: Any) -> None:
        clock = self.clock
        recording = self.taken()
        if not recording.events:
            return
        self.last, self.count = recording, self.count + 1
        if self.only:
            if self.count < self.only:
                clock.totals = Totals()
                return
            raise SystemExit(0)
        timed = self.steps.step(recording)
        clock.shift(timed.time_ps - timed.alone_ps)
        now = clock.now_ps
        self.done.append((now - self.began_ps, timed))
        self.began_ps = now

    def taken(self) -> Recording:
        """Return the operations since the last step."""
        return self.clock.recording(self.clock.take(), self.num_ranks)


def run_program(
    program: TorchProgram,
    request: ReplayRequest,
    rank: int = 0,
    record: RecordedStep | None = None,
) -> ProgramRun:
    """Run a program as one rank of a job on all GPUs of a system.

    Parameters
    ----------
    request : ReplayRequest
        System, NCCL release and environment.
    rank : int
        The rank that runs.
    record : RecordedStep, optional
        Step to be written.

    Returns
    -------
    ProgramRun
        Virtual times.

    Raises
    ------
    InputError
        No PyTorch, an unknown system, or an operation that is not simulated.
    SystemExit
        Of the program.
    """
    assert request.topology is not None
    setup = Setup(request.topology, request.nodes)
    fabric = setup.fabric
    nodes = machines_of(fabric)
    ranks = sum(map(len, nodes))
    if not 0 <= rank < ranks:
        raise InputError(f"rank {rank}: {setup.name} has ranks 0 to {ranks - 1}")
    if not program.module and not Path(program.name).is_file():
        raise InputError(f"{program.name}: no such file")
    local = len(nodes[0])
    compiled = library()
    compiled.clusim_register(local)
    _environment(rank, ranks, local)
    steps = Steps(request, ranks)
    times = IssueTimes.of(FRAMEWORKS["pytorch"], pace_of(fabric))
    only = record.only if record is not None else 0
    clock = RankClock(rank, (lambda call: 1) if only else steps.time_of, times)
    ended = StepEnds(clock, steps, ranks, only)
    with _simulated(clock, fabric, compiled, ended) as memory:
        _execute(program)
    if not clock.totals.kernels and not clock.totals.calls:
        raise InputError(
            f"{program.name} ended without a kernel or a collective on a GPU; it may have found too few GPUs"
        )
    result = run_of(fabric.name, ranks, rank, clock.totals, ended.done)
    result.time_ps, result.peak_bytes = clock.now_ps, memory.peak_bytes
    result.memory_bytes = memory.limit_bytes
    if record is not None:
        result.recorded = _written(record, ended)
    return result


def _written(record: RecordedStep, ended: StepEnds) -> RecordedFile:
    """Write a step, or the program without optimizer steps."""
    recording = ended.last or ended.taken()
    if record.only > max(1, ended.count):
        raise InputError(f"step {record.only}: the program ended after {ended.count} steps")
    chakra_writer.write(recording, record.path)
    calls = sum(event.kind == "collective" for event in recording.events)
    kernels = sum(event.kind == "compute" for event in recording.events)
    return RecordedFile(str(record.path), ended.count, kernels, calls, bool(record.only))


def _environment(rank: int, ranks: int, local: int) -> None:
    """Set the variables of torchrun."""
    node = rank // local
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank % local),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(local),
        "GROUP_RANK": str(node),
        "NODE_RANK": str(node),
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_RUN_ID": "clusim",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
    }


@contextmanager
def _simulated(
    clock: RankClock, fabric: Fabric, compiled: ctypes.CDLL, ended: StepEnds
) -> Iterator[DeviceMemory]:
    """Install the simulated device, process groups and clocks."""
    import torch

    from clusim.programs import cuda, groups
    from clusim.programs.operators import SimulatedOperators

    gpu = fabric.nodes[arrays_of(fabric).node_of(0)].endpoint
    assert gpu is not None, "ranks are endpoints"
    memory = cuda.DeviceMemory(gpu.mem_bytes)
    count = int(os.environ["LOCAL_WORLD_SIZE"])
    device = cuda.SimulatedCuda(compiled, clock, gpu, count, memory)
    operators = SimulatedOperators(clock, Prices(gpu), host_way(fabric).rate_Bps, device.stream)
    operators.collectives = groups.SimulatedGroups(operators)
    operators.allocated = memory.add
    # The operators import PyTorch's compiler, which requires functions of a CUDA build if a device exists.
    cuda.install(device, (LATEST.major, LATEST.minor, LATEST.patch))
    groups.install(int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"]))
    _adapt(torch)
    hook = import_module("torch.optim.optimizer").register_optimizer_step_post_hook(ended)
    real = _virtual_clocks(clock)
    try:
        with operators:
            yield memory
    finally:
        hook.remove()
        for name, function in real.items():
            setattr(time, name, function)


def _adapt(torch: Any) -> None:
    """Let parts of PyTorch that test the types of tensors accept tensors without data."""
    from torch._subclasses.fake_tensor import FakeTensor

    from clusim.programs.operators import install_moves, install_saving

    for place in map(import_module, ("torch.utils._foreach_utils", "torch.optim.optimizer")):
        listed = getattr(place, "_foreach_supported_types", None)
        if isinstance(listed, list) and FakeTensor not in listed:
            listed.append(FakeTensor)
    install_saving()
    install_moves()
    loader = torch.utils.data.DataLoader
    made = loader.__init__

    def without_workers(self: Any, *given: Any, **more: Any) -> None:
        # Worker processes are outside the virtual time.
        for name in ("num_workers", "prefetch_factor", "persistent_workers", "pin_memory"):
            more.pop(name, None)
        made(self, *given, **more)

    loader.__init__ = without_workers
    torch.compile = _eager
    torch.nn.Module.compile = lambda self, *given, **more: None
    torch.multiprocessing.spawn = _spawn


def _eager(model: Any = None, **_more: Any) -> Any:
    """Replacement for ``torch.compile``: the model runs eagerly."""
    return model if model is not None else lambda function: function


def _spawn(function: Any, args: Sequence[Any] = (), *_given: Any, **_more: Any) -> None:
    """Replacement for ``torch.multiprocessing.spawn``: the first process represents all."""
    import torch.distributed as dist

    function(0, *args)
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
    except (ClusimError, KeyboardInterrupt):
        raise
    except BaseException as error:
        frames = error.__traceback__
        while frames is not None and frames.tb_frame.f_code.co_filename in _LAUNCHERS:
            frames = frames.tb_next
        if frames is not None:
            error.__traceback__ = frames
        sys.excepthook(type(error), error, error.__traceback__)
        raise SystemExit(1) from None
    finally:
        sys.argv, sys.path[:] = before
