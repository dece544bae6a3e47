"""Causes that may explain a slow system, simulated and ranked by their deviation from a measured curve.

**Model** A hypothesis is a change of the system or of NCCL's environment, such as a failed NVLink or disabled
GPUDirect RDMA. Each is simulated at some of the measured sizes; its misfit is the mean of
``|ln(measured / simulated)|``, as a percentage. Hypotheses whose times equal the unchanged system's, within
`SAME`, are omitted; hypotheses with equal times are one row. Positions (GPU, NIC) are assumed not to matter: one
representative of each kind is simulated. Extents (half the lanes, twice as slow) are assumed.
**Not modelled** Processes on a remote NUMA node, sockets in place of RDMA, too few PCIe reads of NICs, other jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from math import exp, log
from statistics import fmean

from clusim.base.errors import ClusimError, InputError
from clusim.base.executors import Jobs
from clusim.lowering import parse_faults
from clusim.nccl.launch import host_of
from clusim.nccltests.api import Table
from clusim.nccltests.jobs import Failure, PerfKernel, Progress, kernels
from clusim.nccltests.sweep import harness_of, row_request
from clusim.simulation.request import Request
from clusim.simulation.setup import Setup
from clusim.topology import Fabric
from clusim.topology.pcie_paths import acs_on, rooted_nics

SAME = 0.01
"""Relative difference below which two times are equal; assumed, below the spread of measurements."""


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A change that may explain a curve.

    Attributes
    ----------
    title : str
        Cause, as a noun phrase.
    change : str
        Options of ``clusim`` for this change, or a change of ``clusim what-if``.
    """

    title: str
    change: str
    setup: Setup


def hypotheses(setup: Setup, channels: int) -> Iterator[Hypothesis]:
    """Yield the causes that apply to a system.

    Parameters
    ----------
    channels : int
        Most channels of the unchanged runs.
    """
    fabric = setup.fabric
    gpu, nics = fabric.ranks[0], [node.name for node in fabric.nodes if node.kind == "nic"]
    switches = [node.name for node in fabric.nodes if node.tier == "switch" and node.zone == 0]
    several = fabric.num_zones > 1
    faults = {
        "one NVLink down": [f"link {gpu}:nvl1 down"],
        "one NVSwitch down": [f"plane {name} down" for name in switches[:1]],
        "PCIe of one GPU at half of its lanes": [f"lanes {gpu}:pcie 1/2"],
        "CTAs of one GPU slow (x2)": [f"rank {gpu} slow x2"],
    }
    if several:
        faults |= {
            "one NIC down": [f"node {name} down" for name in nics[:1]],
            "one NIC at half of its PCIe lanes": [f"lanes {name}:pcie 1/2" for name in nics[:1]],
            "half of the NICs down": [f"node {name} down" for name in _every_second(fabric)],
        }
    for title, texts in faults.items():
        if texts:
            change = " ".join(f"--fault '{text}'" for text in texts[:2])
            more = f" ... ({len(texts)} faults)" if len(texts) > 2 else ""
            broken = replace(setup, faults=(*setup.faults, *texts))
            yield Hypothesis(title, change + more, broken)
    systems: dict[tuple[str, str], Callable[[Fabric], Fabric]] = {
        ("ACS on (PCIe peers through the root complex)", "acs on"): acs_on
    }
    if several:
        systems |= {
            ("NICs at their CPU", "nics rooted"): partial(rooted_nics, remote=False),
            ("NICs at another CPU", "nics remote"): partial(rooted_nics, remote=True),
        }
    for (title, change), changed_system in systems.items():
        with suppress(InputError):  # no such part
            yield Hypothesis(title, change, setup.on(changed_system(fabric)))
    variables = {
        "P2P disabled": ("NCCL_P2P_DISABLE", "1"),
        "LL128 disabled": ("NCCL_PROTO", "^LL128"),
        "NVLS disabled": ("NCCL_NVLS_ENABLE", "0"),
        "trees disabled": ("NCCL_ALGO", "^Tree"),
        "half of the channels": ("NCCL_MAX_NCHANNELS", str(channels // 2)),
    }
    if several:
        variables |= {
            "no GPUDirect RDMA": ("NCCL_NET_GDR_LEVEL", "LOC"),
            "no GPUDirect reads": ("NCCL_NET_GDR_READ", "0"),
            "PXN disabled": ("NCCL_PXN_DISABLE", "1"),
        }
    given = dict(setup.env)
    for title, (name, value) in variables.items():
        if name not in given and (channels > 1 or title != "half of the channels"):
            changed = replace(setup, env=(*setup.env, (name, value)))
            yield Hypothesis(title, f"--env {name}={value}", changed)


def _every_second(fabric: Fabric) -> list[str]:
    """Return every second NIC of each node; empty for nodes with one."""
    result: list[str] = []
    for zone in range(fabric.num_zones):
        names = [node.name for node in fabric.nodes if node.kind == "nic" and node.zone == zone]
        result += names[1::2]
    return result


@dataclass(frozen=True, slots=True)
class SimulatedCause:
    """A hypothesis with its times.

    Attributes
    ----------
    titles : tuple of str
        Titles of the hypotheses with these times.
    times_us : dict of int to float
        Size [bytes] -> simulated time [us].
    """

    titles: tuple[str, ...]
    change: str
    times_us: dict[int, float]

    def misfit_pct(self, measured_us: dict[int, float]) -> float:
        """Return the mean deviation of measured from these times, of their ratio's logarithm [%]."""
        return misfit_pct(measured_us, self.times_us, tuple(self.times_us))


def misfit_pct(
    measured_us: dict[int, float], simulated_us: dict[int, float], sizes: Sequence[int]
) -> float:
    """Return the mean of ``|ln(measured / simulated)|`` as a percentage."""
    return 100 * (exp(fmean(abs(log(measured_us[s] / simulated_us[s])) for s in sizes)) - 1)


def ranked(
    causes: Sequence[SimulatedCause], measured_us: dict[int, float]
) -> tuple[SimulatedCause, ...]:
    """Return causes by the deviation of a measurement from them, the best first."""
    return tuple(sorted(causes, key=lambda item: item.misfit_pct(measured_us)))


def simulated_causes(
    table: Table,
    sizes: Sequence[int],
    *,
    jobs: Jobs = None,
    progress: Progress | None = None,
) -> tuple[tuple[SimulatedCause, ...], tuple[tuple[str, str], ...]]:
    """Simulate the hypotheses of a system at some sizes of a table.

    Returns
    -------
    (tuple of SimulatedCause, tuple of (str, str))
        Causes with other times than the unchanged system's, and title and reason of those that cannot be simulated.
    """
    heads = {
        line.size: (line.size, line.count, line.type, line.redop)
        for line in table.lines
        if line.size in sizes
    }
    options = replace(table.options, check=0)

    def request(setup: Setup, size: int) -> Request:
        where = replace(table.where, setup=setup)
        return row_request(where, table.test, options, heads[size])

    setup = table.where.setup
    unchanged = kernels([request(setup, size) for size in heads], jobs=jobs).values()
    channels = [kernel.channels for kernel in unchanged if isinstance(kernel, PerfKernel)]
    possible, failed = _possible(setup, max(channels, default=0))
    cases = {(item.title, size): request(item.setup, size) for item in possible for size in heads}
    done = kernels(cases.values(), jobs=jobs, progress=progress)
    made = [SimulatedCause((), "", {line.size: line.halves[0].time_us for line in table.lines})]
    for item in possible:
        times: dict[int, float] = {}
        for size in heads:
            kernel = done[cases[item.title, size]]
            if isinstance(kernel, Failure):
                failed.append((item.title, kernel.reason))
                break
            times[size] = _time_us(table, item.setup, kernel)
        else:
            equal = next((n for n, other in enumerate(made) if _same(times, other.times_us)), None)
            if equal is None:
                made.append(SimulatedCause((item.title,), item.change, times))
            else:
                made[equal] = replace(made[equal], titles=(*made[equal].titles, item.title))
    # The first entry is the unchanged system, merged with causes without effect.
    return tuple(made[1:]), tuple(failed)


def _possible(setup: Setup, channels: int) -> tuple[list[Hypothesis], list[tuple[str, str]]]:
    """Return the hypotheses that a system can have, and the reasons of the others that fail."""
    possible, failed = [], []
    for item in hypotheses(setup, channels):
        try:
            parse_faults(item.setup.fabric, item.setup.faults)
        except InputError:  # no such part
            continue
        try:
            _ = item.setup.comm
        except ClusimError as error:
            failed.append((item.title, str(error)))
            continue
        possible.append(item)
    return possible, failed


def _time_us(table: Table, setup: Setup, kernel: PerfKernel) -> float:
    host = kernel.host or host_of(setup.comm)
    harness = harness_of(table.options, table.where.kind)
    return harness.time_ps(host, table.test.of.name, kernel) / 1e6


def _same(times: dict[int, float], others: dict[int, float]) -> bool:
    return all(abs(log(us / others[size])) < SAME for size, us in times.items())
