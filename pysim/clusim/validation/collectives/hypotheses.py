"""Changes of a system or of NCCL's choices that may explain a measured curve, in the order of their cost.

**Model** Positions (GPU, NIC) are assumed not to matter: one representative of each kind is simulated. Extents (half
the lanes, twice as slow, half and a quarter of the channels) are assumed.
**Not modelled** Processes on a remote NUMA node, sockets in place of RDMA, too few PCIe reads of NICs, other jobs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from clusim.base.errors import InputError
from clusim.base.terms.operations import ALGORITHMS, PROTOCOLS, Algorithm, Collective
from clusim.nccl.communicator import Communicator
from clusim.simulation.setup import Setup
from clusim.topology import Fabric
from clusim.topology.pcie_paths import acs_on, rooted_nics

CHOICE, VARIABLE, FAULT, SYSTEM = range(4)
"""Kinds by cost: variables of the tuner, of the search for channels, faults, and other systems with a new search."""

THREADS = (64, 128, 256)
"""Threads per CTA of hypotheses."""


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A change that may explain a curve.

    Attributes
    ----------
    title : str
        Cause, as a noun phrase.
    change : str
        Options of ``clusim`` for this change, or a change of ``clusim what-if``.
    kind : int
        `CHOICE`, `VARIABLE`, `FAULT` or `SYSTEM`.
    """

    title: str
    change: str
    setup: Setup
    kind: int = VARIABLE


def hypotheses(
    setup: Setup, channels: int, collective: Collective | None = None
) -> Iterator[Hypothesis]:
    """Yield the causes that apply to a system, the cheapest kind first.

    Parameters
    ----------
    channels : int
        Most channels of the unchanged runs.
    collective : Collective or None
        None is sends and receives, for which NCCL does not choose algorithm and protocol.
    """
    yield from _without_variables(setup)
    if collective is not None:
        yield from _choices(setup, collective)
    yield from _channels(setup, channels)
    yield from _variables(setup)
    yield from system_hypotheses(setup)


def system_hypotheses(setup: Setup) -> Iterator[Hypothesis]:
    """Yield failed and slow parts of a system, and other paths on PCIe."""
    yield from _faults(setup)
    yield from _systems(setup)


def _with_env(
    setup: Setup, title: str, kind: int, **env: str
) -> Iterator[Hypothesis]:
    """Yield a change of variables, unless one is already given."""
    if not env.keys() & dict(setup.env).keys():
        change = " ".join(f"--env {name}={value}" for name, value in env.items())
        yield Hypothesis(
            title, change, replace(setup, env=(*setup.env, *env.items())), kind
        )


def _without_variables(setup: Setup) -> Iterator[Hypothesis]:
    """Yield the system without each given variable, which may not have reached the measured processes."""
    for name, value in setup.env:
        variables = tuple(item for item in setup.env if item[0] != name)
        yield Hypothesis(
            f"{name} not set",
            f"no --env {name}={value}",
            replace(setup, env=variables),
            CHOICE,
        )


def _choices(setup: Setup, collective: Collective) -> Iterator[Hypothesis]:
    """Yield forced and disabled protocols and algorithms, and both together."""
    algorithms = _possible_algorithms(setup.comm, collective)
    forced = partial(_with_env, setup, kind=CHOICE)
    for protocol in PROTOCOLS:
        name = protocol.value
        yield from forced(f"{name} protocol forced", NCCL_PROTO=name)
    for algorithm in algorithms if len(algorithms) > 1 else ():
        yield from forced(
            f"{algorithm.value} algorithm forced", NCCL_ALGO=algorithm.value
        )
    yield from forced("LL128 disabled", NCCL_PROTO="^LL128")
    yield from forced("trees disabled", NCCL_ALGO="^Tree")
    yield from _with_env(setup, "NVLS disabled", VARIABLE, NCCL_NVLS_ENABLE="0")
    for algorithm in algorithms if len(algorithms) > 1 else ():
        for protocol in PROTOCOLS:
            if setup.comm.table.cost(collective, algorithm, protocol).bandwidth_GBps:
                names = algorithm.value, protocol.value
                title = "{} algorithm with {} forced".format(*names)
                yield from forced(title, NCCL_ALGO=names[0], NCCL_PROTO=names[1])


def _possible_algorithms(
    comm: Communicator, collective: Collective
) -> list[Algorithm]:
    """Return the algorithms that NCCL can choose for a collective."""
    return [
        algorithm
        for algorithm in ALGORITHMS
        if any(
            comm.table.cost(collective, algorithm, p).bandwidth_GBps
            for p in PROTOCOLS
        )
    ]


def _channels(setup: Setup, channels: int) -> Iterator[Hypothesis]:
    """Yield other numbers of channels, and of threads of a CTA."""
    fewer = {
        "half of the channels": channels // 2,
        "a quarter of the channels": channels // 4,
    }
    for title, number in fewer.items():
        if number:
            yield from _with_env(
                setup, title, VARIABLE, NCCL_MAX_NCHANNELS=str(number)
            )
    twice = str(2 * channels)
    if channels:
        yield from _with_env(
            setup, "twice the channels", VARIABLE, NCCL_MIN_NCHANNELS=twice
        )
    for threads in THREADS:
        yield from _with_env(
            setup, f"{threads} threads per CTA", VARIABLE, NCCL_NTHREADS=str(threads)
        )


def _variables(setup: Setup) -> Iterator[Hypothesis]:
    """Yield disabled transports."""
    variables = {"P2P disabled": ("NCCL_P2P_DISABLE", "1")}
    if setup.fabric.num_zones > 1:
        variables |= {
            "no GPUDirect RDMA": ("NCCL_NET_GDR_LEVEL", "LOC"),
            "no GPUDirect reads": ("NCCL_NET_GDR_READ", "0"),
            "PXN disabled": ("NCCL_PXN_DISABLE", "1"),
        }
    for title, (name, value) in variables.items():
        yield from _with_env(setup, title, VARIABLE, **{name: value})


def _faults(setup: Setup) -> Iterator[Hypothesis]:
    """Yield failed and slow parts."""
    fabric = setup.fabric
    gpu, nics = (
        fabric.ranks[0],
        [node.name for node in fabric.nodes if node.kind == "nic"],
    )
    switches = [
        node.name
        for node in fabric.nodes
        if node.tier == "switch" and node.zone == 0
    ]
    faults = {
        "one NVLink down": [f"link {gpu}:nvl1 down"],
        "one NVSwitch down": [f"plane {name} down" for name in switches[:1]],
        "PCIe of one GPU at half of its lanes": [f"lanes {gpu}:pcie 1/2"],
        "CTAs of one GPU slow (x2)": [f"rank {gpu} slow x2"],
    }
    if fabric.num_zones > 1:
        faults |= {
            "one NIC down": [f"node {name} down" for name in nics[:1]],
            "one NIC at half of its PCIe lanes": [
                f"lanes {name}:pcie 1/2" for name in nics[:1]
            ],
            "half of the NICs down": [
                f"node {name} down" for name in _every_second(fabric)
            ],
        }
    for title, texts in faults.items():
        if texts:
            change = " ".join(f"--fault '{text}'" for text in texts[:2])
            more = f" ... ({len(texts)} faults)" if len(texts) > 2 else ""
            broken = replace(setup, faults=(*setup.faults, *texts))
            yield Hypothesis(title, change + more, broken, FAULT)


def _systems(setup: Setup) -> Iterator[Hypothesis]:
    """Yield other paths on PCIe."""
    systems = {("ACS on (PCIe peers through the root complex)", "acs on"): acs_on}
    if setup.fabric.num_zones > 1:
        systems |= {
            ("NICs at their CPU", "nics rooted"): partial(rooted_nics, remote=False),
            ("NICs at another CPU", "nics remote"): partial(
                rooted_nics, remote=True
            ),
        }
    for (title, change), changed_system in systems.items():
        with suppress(InputError):  # no such part
            yield Hypothesis(
                title, change, setup.on(changed_system(setup.fabric)), SYSTEM
            )


def _every_second(fabric: Fabric) -> list[str]:
    """Return every second NIC of each node; empty for nodes with one."""
    result: list[str] = []
    for zone in range(fabric.num_zones):
        names = [
            node.name
            for node in fabric.nodes
            if node.kind == "nic" and node.zone == zone
        ]
        result += names[1::2]
    return result
