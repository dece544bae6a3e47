"""Run of an nccl-tests program: predictions for all sizes, types and operations.

A program is a collective and its counting of bytes; the harness determines the interval that is timed.

**Real programs** nccl-tests (common.cu, BenchTime) runs one iteration of every size before it reads the clock, waits
for all threads and processes, enqueues ``-n`` iterations and polls every stream until it is idle. So the time that it
divides by the iterations contains the host's time for the first one, the start of a kernel on an idle GPU, all
iterations, and the delay until the host notices. A loop around torch.distributed does the same with a slower host: a
call passes through Python and its dispatcher, creates a work object, records events and, as NCCL has a separate stream
there, each of the two streams waits for the other.
**Model** Work enqueued at once (a group of ``-m`` collectives, a complete graph) needs a host time and a GPU time.
The first contributes both, and each later one the longer of the two.
**Not modelled** Full queues; iterations that are slower than others; the additional cost of the first launch
of a graph; skew of processes after an MPI barrier; garbage collection.
**Parameters** The fields of `HostCosts`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from time import localtime, strftime
from typing import Any

from clusim.base.errors import InputError, suggest
from clusim.base.executors import Jobs
from clusim.base.terms.dtypes import DataType
from clusim.base.terms.operations import (
    OPERATIONS,
    Operation,
    find_operation,
    full_bytes,
    weighted_bytes,
)
from clusim.base.terms.times import ticks_ps
from clusim.hardware import GPUS
from clusim.nccl.constants import since
from clusim.nccl.env import windows
from clusim.nccl.launch import (
    DEFAULT_ITERATIONS,
    Host,
    Launch,
    empty_ps,
    enqueued_ps,
    graph_ps,
    host_of,
    iteration_ps,
    start_and_end_ps,
    torch_ps,
    wake_ps,
)
from clusim.nccltests.jobs import Failure, PerfKernel, in_order
from clusim.nccltests.options import SYMMETRIC_WINDOWS, TYPES, PerfOptions
from clusim.nccltests.table import Half, PerfDevice, PerfLine
from clusim.results.provenance import elapsed_ps
from clusim.simulation.request import Request
from clusim.simulation.setup import Setup

KERNEL = "kernel"
KINDS = ("nccl-tests", "torch", "own", "mixed", KERNEL)
"""nccl-tests; a Python loop around torch.distributed; the authors'; several; kernels alone (NCCL's Inspector)."""

AVERAGES = {0: 0.5, 1: 0.5, 2: 0.0, 3: 1.0}
"""nccl-tests' ``-a`` -> counted share of the threads' skew after a barrier: thread 0, mean, least, most."""


def kind_named(word: str) -> str:
    """Return a kind of harness as spelled in `KINDS`, "" if unknown.

    Raises `InputError` for other words.
    """
    name = word.strip().lower().replace("_", "-")
    if name and name not in KINDS:
        raise InputError(
            f"harness {word[:40]!r}: must be one of {', '.join(KINDS)}{suggest(name, KINDS)}"
        )
    return name


def iterations_of(kind: str, requested: int) -> int:
    """Return the iterations of a measurement; by default nccl-tests' number, or 0 for others."""
    return requested or DEFAULT_ITERATIONS * (kind in ("", "nccl-tests", "mixed"))


@dataclass(frozen=True, slots=True)
class PerfInterval:
    """Interval between two readings of the clock [ps], and its graphs, of `iterations` each."""

    total_ps: int
    iterations: int = 1
    graphs: int = 1

    @property
    def mean_ps(self) -> int:
        """Return the time per iteration [ps]."""
        return self.total_ps // (self.iterations * self.graphs)

    @property
    def mean_s(self) -> float:
        """Return the time per iteration [s], with the roundings of nccl-tests' arithmetic (BenchTime)."""
        return 1e-9 * (self.total_ps / 1000) / self.iterations / self.graphs


@dataclass(frozen=True, slots=True)
class Harness:
    """Measurement method of a table.

    Attributes
    ----------
    kind : str
        One of `KINDS`; "" is unknown.
    launch : Launch
        Launch of collectives: GPUs per thread, threads per process, groups, graph, waiting.
    iterations : int
        Iterations between two clock readings, or in a graph; 0 is a number at which start and end are negligible.
    warmups : int
        Earlier iterations; without effect, because a further one precedes the first clock reading.
    graphs : int
        Number of graph launches, nccl-tests' ``-G``.
    average : int
        Average over threads, nccl-tests' ``-a``: thread 0, mean, least or most.
    """

    kind: str = "nccl-tests"
    launch: Launch = field(default_factory=Launch)
    iterations: int = 0
    warmups: int = 1
    graphs: int = 1
    average: int = 1

    def processes(self, num_ranks: int) -> int:
        """Return the number of processes of a job."""
        gpus_per_process = max(1, self.launch.gpus_per_thread) * max(
            1, self.launch.threads
        )
        return max(1, ceil(num_ranks / gpus_per_process))

    def time_ps(self, host: Host, operation: str, kernel: PerfKernel) -> int:
        """Return the reported time per iteration [ps]; a kernel of 0 ps is a call without data."""
        return self.interval(host, operation, kernel).mean_ps

    def interval(
        self, host: Host, operation: str, kernel: PerfKernel
    ) -> PerfInterval:
        """Return the reported interval; a kernel of 0 ps is a call without data."""
        launch, number = self.launch, max(1, self.iterations)
        times = max(1, launch.aggregated)
        if self.kind == KERNEL:
            return PerfInterval(kernel.time_ps)
        if kernel.time_ps == 0:
            return PerfInterval(empty_ps(host, launch))
        edge_ps = self.around_ps(host) + self._lag_ps(kernel.lags_ps)
        if launch.graph:
            node_ps = iteration_ps(host, operation, kernel.time_ps, launch)
            if not self.iterations:
                return PerfInterval(node_ps)
            each_ps = graph_ps(host, launch), number * times * node_ps
            total_ps = elapsed_ps(each_ps, edge_ps, self.graphs)
            return PerfInterval(total_ps, number * times, self.graphs)
        host_ps, gpu_ps = self._queue_times(host, operation, kernel)
        if launch.blocking:
            met_ps = self._barrier_ps(host) if launch.blocking == 1 else 0
            one_ps = ticks_ps(host_ps + gpu_ps + edge_ps + met_ps)
            return PerfInterval(number * one_ps, number * times)
        total_ps = elapsed_ps((host_ps, gpu_ps), edge_ps, self.iterations)
        return PerfInterval(total_ps, number * times)

    def on_host(
        self, host: Host, operation: str, kernel: PerfKernel
    ) -> PerfInterval:
        """Return the interval of the host's time, nccl-tests' ``-C``.

        The full interval if the host waits for each iteration.
        """
        launch, number = self.launch, max(1, self.iterations)
        if launch.blocking or kernel.time_ps == 0:
            return self.interval(host, operation, kernel)
        times = max(1, launch.aggregated)
        if launch.graph:
            return PerfInterval(self.graphs * graph_ps(host, launch), number * times)
        host_ps = self._queue_times(host, operation, kernel)[0]
        return PerfInterval(number * host_ps, number * times)

    def around_ps(self, host: Host) -> int:
        """Return the time at start and end of no iteration, without the host's for the first [ps]."""
        apart = (
            AVERAGES[self.average]
            * (max(1, self.launch.threads) - 1)
            * wake_ps(host)
        )
        return sum(start_and_end_ps(host)) + round(apart)

    def _lag_ps(self, lags_ps: Sequence[int]) -> int:
        """Return the end of the last iteration after its interval [ps], averaged over threads as by `average`.

        A thread waits for all of its GPUs; with a barrier after each iteration, all threads wait for the last.
        """
        if not lags_ps:
            return 0
        gpus_per_thread = max(1, self.launch.gpus_per_thread)
        threads = [
            max(lags_ps[at : at + gpus_per_thread])
            for at in range(0, len(lags_ps), gpus_per_thread)
        ]
        if self.launch.blocking == 1:
            return max(threads)
        return (
            threads[0],
            sum(threads) // len(threads),
            min(threads),
            max(threads),
        )[self.average]

    def _queue_times(
        self, host: Host, operation: str, kernel: PerfKernel
    ) -> tuple[int, int]:
        host_ps, gpu_ps = enqueued_ps(
            host, operation, kernel.time_ps, self.launch, kernel.channels
        )
        if self.kind != "torch":
            return host_ps, gpu_ps
        call_ps, waits_ps = torch_ps(host)
        return host_ps + call_ps, gpu_ps + waits_ps

    def _barrier_ps(self, host: Host) -> int:
        """Return the time of a barrier [ps].

        Threads are released one after the other, processes in rounds.
        """
        rounds = (self.processes(host.num_ranks) - 1).bit_length()
        return (max(1, self.launch.threads) - 1 + rounds) * wake_ps(host)


@dataclass(frozen=True, slots=True)
class Program:
    """Program of nccl-tests for one operation."""

    of: Operation

    @property
    def name(self) -> str:
        """Return the name as used in file names, such as ``all_reduce``."""
        return self.of.test

    @property
    def binary(self) -> str:
        """Return the name of the program."""
        return f"{self.name}_perf"

    def count(self, size_bytes: int, element_bytes: int, num_ranks: int) -> int:
        """Return the elements of the table's count column for a requested size [bytes].

        For collectives with blocks, the elements of one block.
        """
        if not self.of.blocks:
            return size_bytes // element_bytes
        # Blocks start at multiples of 16 bytes.
        align = max(1, 16 // element_bytes)
        count = size_bytes // (element_bytes * num_ranks)
        return count // align * align

    def size(self, count: int, element_bytes: int, num_ranks: int) -> int:
        """Return the table's size for its count [bytes]."""
        size_bytes = count * element_bytes * (num_ranks if self.of.blocks else 1)
        return (
            sum(weighted_bytes(size_bytes, num_ranks))
            if self.name == "alltoallv"
            else size_bytes
        )


TESTS: dict[str, Program] = {
    item.test: Program(item) for item in OPERATIONS.values() if item.test
}
"""By name."""


def program_named(name: str) -> Program:
    """Return the test of a program or collective name.

    Examples: ``all_reduce_perf``, ``allreduce``, ``AllReduce``.
    """
    result = find_operation(name)
    if result is not None and result.test:
        return TESTS[result.test]
    hint = suggest(name, (test.binary for test in TESTS.values()))
    raise InputError(f"{name!r}: not a program of nccl-tests{hint}")


IN_PLACE_UNCHECKED = ("alltoall", "alltoallv", "sendrecv")
"""Tests without data in place."""

NO_DATA = ("mulsum",)
"""Operations without modelled numbers: data move, but are not verified; likewise types without `storage`."""


@dataclass(frozen=True, slots=True)
class PerfPlace:
    """GPUs of a test: nodes, and processes on each; and the kind of `Harness`."""

    setup: Setup
    processes: int
    kind: str = "nccl-tests"


def library_code(setup: Setup) -> int:
    """Return the NCCL version as in its header: 22703 is 2.27.3."""
    version = setup.comm.version
    if not since(version, "codes of five digits"):
        return version.major * 1000 + version.minor * 100 + version.patch
    return version.major * 10_000 + version.minor * 100 + version.patch


def devices(where: PerfPlace, options: PerfOptions) -> list[PerfDevice]:
    """Return the ranks as nccl-tests lists them; process and bus numbers are fictitious."""
    fabric, comm = where.setup.fabric, where.setup.comm
    result = []
    gpus_per_process = options.ngpus * options.nthreads
    for machine in comm.machines:
        for local, rank in enumerate(machine.ranks):
            node = fabric.nodes[fabric.node_index[fabric.ranks[comm.ranks[rank]]]]
            host = node.name.rpartition("/")[0] or fabric.name
            chip = node.endpoint.chip if node.endpoint else ""
            pid = 1000 + rank // gpus_per_process
            bus = f"0000:{0x1A + 0x11 * local & 0xFF:02x}:00"
            product = GPUS[chip].products[0] if chip in GPUS else chip or node.model
            result.append(PerfDevice(rank, 0, pid, host, local, bus, product))
    return result


def place(
    setup: Setup,
    options: PerfOptions,
    processes: int | None = None,
    kind: str = "nccl-tests",
    domains: tuple[int, int] | None = None,
) -> PerfPlace:
    """Return the participating GPUs per node and the kind of harness; check its flags.

    `processes` per node: by default one for all GPUs set by ``-g`` or ``-t``, otherwise one per GPU. `domains` has the
    number of NVLink domains and of GPUs in each, in place of the nodes and their processes.
    """
    harness_of(options, kind)
    has = setup.fabric.num_ranks // max(1, setup.fabric.num_zones)
    gpus_per_process = options.ngpus * options.nthreads
    if domains is not None:
        if processes is not None or setup.nodes is not None:
            raise InputError(
                "--domains sets the nodes and their processes: leave out --nodes and --procs-per-node"
            )
        if domains[1] % gpus_per_process:
            raise InputError(
                f"--domains: {domains[1]} GPUs of a domain are not a multiple of -g times -t, {gpus_per_process}"
            )
        setup, processes = (
            replace(setup, nodes=domains[0]),
            domains[1] // gpus_per_process,
        )
    if processes is None:
        processes = 1 if gpus_per_process > 1 else has
    per_node = processes * gpus_per_process
    if per_node > has:
        raise InputError(
            f"{per_node} GPUs per machine: {setup.name} has {has}; -g times -t times the processes per machine"
        )
    if per_node * setup.fabric.num_zones < 2:
        raise InputError(
            "one GPU; a collective needs at least two: use -g 2 or more"
        )
    window_env = windows(options.local_register == SYMMETRIC_WINDOWS)
    used = replace(
        setup,
        per_node=per_node if per_node < has else None,
        env=(*setup.env, *window_env),
    )
    return PerfPlace(used, processes, kind)


def harness_of(options: PerfOptions, kind: str = "nccl-tests") -> Harness:
    """Return the harness set by the flags.

    Raises `InputError` for flags without a torch.distributed equivalent if `kind` is ``torch``.
    """
    if kind == "torch":
        for flag, value in (
            ("t", options.nthreads),
            ("g", options.ngpus),
            ("m", options.agg_iters),
        ):
            if value > 1:
                raise InputError(
                    f"-{flag} {value}: loops around torch.distributed have a process per GPU and no groups"
                )
    launch = Launch(
        *(options.ngpus, options.cudagraph > 0, options.agg_iters),
        blocking=options.blocking,
        threads=options.nthreads,
    )
    return Harness(
        *(kind, launch, options.iters, options.warmup_iters),
        graphs=max(1, options.cudagraph),
        average=options.average,
    )


def rows(
    where: PerfPlace, test: Program, options: PerfOptions, *, jobs: Jobs = None
) -> Iterator[PerfLine]:
    """Yield the rows in nccl-tests' order, each as soon as it is known."""
    heads = sized_heads(where, test, options)
    cases = [
        row_request(where, test, options, head) if head[0] else None
        for head in heads
    ]
    kernels = in_order([case for case in cases if case is not None], jobs=jobs)
    for number, case in enumerate(cases):
        result = next(kernels) if case is not None else PerfKernel(0, "-", "-", 0)
        if isinstance(result, Failure):
            raise InputError(result.reason)
        yield _line(heads[number], result, where, test, options)


def sized_heads(
    where: PerfPlace, test: Program, options: PerfOptions
) -> list[tuple[int, int, str, str]]:
    """Return size [bytes], elements, type and reduction of every row, in nccl-tests' order."""
    ranks = where.setup.num_ranks
    if test.of.rooted and options.root >= ranks:
        raise InputError(f"-r {options.root}: not one of the ranks 0 to {ranks - 1}")
    heads: list[tuple[int, int, str, str]] = []
    for kind in options.types:
        element_bytes = TYPES[kind].size_bytes
        for op in options.ops if test.of.reduces else ("none",):
            for requested_bytes in options.sizes():
                count = test.count(requested_bytes, element_bytes, ranks)
                heads.append(
                    (test.size(count, element_bytes, ranks), count, kind, op)
                )
    return heads


def row_request(
    where: PerfPlace,
    test: Program,
    options: PerfOptions,
    head: tuple[int, int, str, str],
) -> Request:
    """Return the request of a row with a size [bytes], element count, type and reduction."""
    size, count, kind, op = head
    if test.name == "alltoallv":
        size = full_bytes(
            test.of.name, count * TYPES[kind].size_bytes, where.setup.num_ranks
        )
    data = _data(TYPES[kind], op, verify=options.check > 0)
    if test.of.rooted:
        data["root"] = where.setup.comm.ranks[options.root]
    return Request(where.setup, test.of.name, size, **data)


def _data(dtype: DataType, op: str, *, verify: bool) -> dict[str, Any]:
    """Return type, reduction and verification of a request.

    Unmodelled types move as others of their size.
    """
    is_checkable = bool(dtype.storage) and op not in NO_DATA
    return {
        "dtype": dtype.carrier,
        "redop": op if op not in ("none", "mulsum") else "sum",
        "verify": verify and is_checkable,
    }


def _line(
    head: tuple[int, int, str, str],
    kernel: PerfKernel,
    where: PerfPlace,
    test: Program,
    options: PerfOptions,
) -> PerfLine:
    size = head[0]
    host = host_of(where.setup.comm)
    harness = harness_of(options, where.kind)
    call = host, test.of.name, kernel
    mean_s = harness.interval(*call).mean_s
    ranks = host.num_ranks
    shown_s = harness.on_host(*call).mean_s if options.report_cputime else mean_s
    moved = size * (ranks - 1) / ranks if test.name == "hypercube" else size
    algbw = moved / 1e9 / mean_s if mean_s else 0.0
    wrong = 0 if size == 0 and options.check else kernel.wrong
    half = Half(shown_s * 1e6, algbw, algbw * test.of.bus_factor(ranks), wrong)
    in_place = replace(half, wrong=None) if test.name in IN_PLACE_UNCHECKED else half
    stamp = (
        strftime("%Y-%m-%d %H:%M:%S", localtime())
        if options.report_timestamps
        else ""
    )
    root = options.root if test.of.rooted else -1
    how = "; ".join(kernel.notes)
    return PerfLine(*head, root, (half, in_place), stamp, how, kernel.algorithm)
