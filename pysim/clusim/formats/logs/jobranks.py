"""GPU and node of every rank of every communicator, in one numbering of the job's GPUs.

A GPU is identified by its bus address, otherwise by its device index, otherwise by the order of the
ranks on its host. Nodes of ranks that did not log are assumed equal to those of ranks that did.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from clusim.base.errors import InputError
from clusim.base.limits import MOST_RANKS
from clusim.formats.logs.columns import NONE
from clusim.formats.logs.communicators import LoggedCommunicator
from clusim.formats.logs.log import Log

USUAL_GPUS = 8
"""Assumed GPUs of a node if the log does not contain their number."""

MOST_GPUS = 16
"""Maximum number of GPUs of a node for which device indices are used."""


@dataclass(slots=True)
class JobRanks:
    """The GPUs of a job.

    Attributes
    ----------
    hosts : list of str
        Host of every rank of the job; invented names for nodes that did not log start with ``(``.
    devices : list of int
        Index of its GPU in the node.
    of : dict
        Number of a communicator -> rank of the job of each of its ranks.
    assumed : list of str
        Assumptions, one line each.
    """

    hosts: list[str] = field(default_factory=list)
    devices: list[int] = field(default_factory=list)
    of: dict[int, tuple[int, ...]] = field(default_factory=dict)
    assumed: list[str] = field(default_factory=list)

    @property
    def machines(self) -> list[str]:
        """Distinct hosts, in order."""
        return list(dict.fromkeys(self.hosts))

    @property
    def most_per_machine(self) -> int:
        """Largest number of ranks on one node."""
        return max(Counter(self.hosts).values(), default=0)


def add_runs(log: Log) -> None:
    """Add a communicator for each nccl-tests run with known ranks but without NCCL lines."""
    have = {communicator.run for communicator in log.communicators}
    for run in log.runs:
        if run.number in have or run.n_ranks < 2 or not run.sizes:
            continue
        have.add(run.number)
        added = LoggedCommunicator(len(log.communicators), run.number, run.n_ranks)
        for device in run.devices:
            added.host_of[device.rank] = device.host
            added.gpu_of[device.rank] = device.name
            bus = _bus_id(device.bus)
            if bus != NONE:
                added.bus_of[device.rank] = bus
        added.hosts = list(dict.fromkeys(device.host for device in run.devices))
        log.communicators.append(added)


def _bus_id(text: str) -> int:
    """Return the bus address in the notation of logs, from ``1b`` or ``0000:1b:00``."""
    parts = text.partition(".")[0].split(":")
    try:
        numbers = [int(part, 16) for part in parts]
    except ValueError:
        return NONE
    if len(numbers) == 1:
        return numbers[0] << 12
    domain, bus, device = [0, *numbers][-3:]
    return (domain << 20) + (bus << 12) + (device << 4)


class _Buses:
    """Indices of GPUs in their nodes, by bus address."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._seen: dict[str, set[int]] = {}
        self._nvml: dict[str, dict[int, int]] = {}
        for communicator in log.communicators:
            for rank, bus in communicator.bus_of.items():
                host = communicator.host_of.get(rank, "")
                self._seen.setdefault(host, set()).add(bus)
                index = self._device(communicator, rank)
                if index != NONE:
                    self._nvml.setdefault(host, {})[bus] = index

    def _device(self, communicator: LoggedCommunicator, rank: int) -> int:
        handle = communicator.members.get(rank)
        if handle is None:
            return NONE
        member = self._log.facts.members[handle]
        return member.nvml if 0 <= member.nvml < MOST_GPUS else NONE

    def index(self, communicator: LoggedCommunicator, rank: int) -> int:
        """Return the index of a rank's GPU, NONE if it is unknown."""
        host = communicator.host_of.get(rank, "")
        bus = communicator.bus_of.get(rank, NONE)
        if bus == NONE:
            return self._device(communicator, rank)
        buses = self._seen[host]
        by_bus = self._nvml.get(host, {})
        if len(set(by_bus.values())) == len(buses) == len(by_bus):
            return by_bus[bus]
        return sorted(buses).index(bus)


def job_ranks(log: Log) -> JobRanks:
    """Number the GPUs of the job of a log."""
    result = JobRanks()
    buses = _Buses(log)
    places: dict[int, list[tuple[str, int]]] = {}
    for communicator in log.communicators:
        if not 1 <= communicator.n_ranks <= MOST_RANKS:
            continue
        hosts = _nodes_of_ranks(log, communicator, _hosts(log, communicator, result))
        places[communicator.number] = _places(communicator, hosts, buses)
    order = {
        host: i
        for i, host in enumerate(
            dict.fromkeys(h for p in places.values() for h, _ in p)
        )
    }
    slots = sorted(
        {slot for of_ranks in places.values() for slot in of_ranks},
        key=lambda s: (order[s[0]], s[1]),
    )
    number = {slot: i for i, slot in enumerate(slots)}
    result.hosts = [host for host, _ in slots]
    result.devices = [device for _, device in slots]
    result.of = {
        c: tuple(number[slot] for slot in of_ranks) for c, of_ranks in places.items()
    }
    result.assumed = list(dict.fromkeys(result.assumed))
    if log.facts.spliced:
        _require_room(log, result)
    return result


def _require_room(log: Log, placed: JobRanks) -> None:
    """Refuse a log with torn lines if its ranks need more nodes than its lines can be from.

    Raises
    ------
    InputError
        Names the two lines that contradict each other.
    """
    largest = max(
        log.communicators, key=lambda c: (c.n_logged, c.n_ranks), default=None
    )
    if largest is None:
        return
    nodes = max(
        (m.n_nodes for c in log.communicators for m in log.members(c)), default=NONE
    )
    hosts = {p.host for p in log.facts.processes if p.lines and p.host}
    room = max(nodes, len(hosts), 1)
    names = placed.machines
    if len(names) <= room or (nodes == NONE and largest.n_logged < largest.n_ranks):
        return
    slots = set(placed.of.get(largest.number, ()))
    other = next(
        (c for c in log.communicators if set(placed.of.get(c.number, ())) - slots),
        largest,
    )
    places = [
        log.facts.place(min(log.facts.members[h].line for h in c.handles))
        for c in (largest, other)
    ]
    raise InputError(
        f"{places[0]}: a communicator of {largest.n_ranks} ranks on {room} node{'s' * (room > 1)}, but with those"
        f" of {places[1]} the ranks are on {len(names)}: {log.facts.spliced} lines were written into each other;"
        " use one log file per process (NCCL_DEBUG_FILE=nccl.%h.%p)"
    )


def _hosts(
    log: Log, communicator: LoggedCommunicator, placed: JobRanks
) -> list[str]:
    """Return the host of every rank; nodes that did not log get invented names."""
    n, host_of = communicator.n_ranks, communicator.host_of
    if len(host_of) >= n and all(rank in host_of for rank in range(n)):
        return [host_of[rank] for rank in range(n)]
    per = _per_machine(log, communicator)
    named: dict[int, str] = {}
    for rank in sorted(host_of):
        named.setdefault(rank // per, host_of[rank])
    if len(set(named.values())) < len(named):
        named = {}
    free = [host for host in communicator.hosts if host not in named.values()]
    for block in range(-(-n // per)):
        if block not in named:
            named[block] = free.pop(0) if free else f"(machine {block})"
    missing = n - len(host_of)
    placed.assumed.append(
        f"{missing} of {n} ranks of a communicator did not log their node: blocks of {per} per node assumed"
    )
    return [named[rank // per] for rank in range(n)]


def _nodes_of_ranks(
    log: Log, communicator: LoggedCommunicator, hosts: list[str]
) -> list[str]:
    """Return the node of every rank: hosts that multi-node NVLink (MNNVL) joins are one node."""
    members = log.members(communicator)
    local = max((m.local_ranks for m in members), default=NONE)
    max_per_host = max(hosts.count(host) for host in set(hosts))
    if max((m.mnnvl for m in members), default=NONE) <= 0 or local <= max_per_host:
        return hosts
    return [hosts[rank // local * local] for rank in range(len(hosts))]


def _per_machine(log: Log, communicator: LoggedCommunicator) -> int:
    """Return the number of ranks of a communicator on a node."""
    members = log.members(communicator)
    local = max((m.local_ranks for m in members), default=NONE)
    if local > 0:
        return local
    nodes = max((m.n_nodes for m in members), default=NONE)
    n = communicator.n_ranks
    if nodes > 0 and n % nodes == 0:
        return n // nodes
    hosts = len(communicator.hosts)
    if hosts > 1 and communicator.n_logged == n and n % hosts == 0:
        return n // hosts
    return min(n, USUAL_GPUS)


def _places(
    communicator: LoggedCommunicator, hosts: list[str], buses: _Buses
) -> list[tuple[str, int]]:
    """Return host and GPU index of every rank; unknown or conflicting indices by rank order."""
    indices = [buses.index(communicator, rank) for rank in range(len(hosts))]
    by_host: dict[str, list[int]] = {}
    for rank, host in enumerate(hosts):
        by_host.setdefault(host, []).append(rank)
    if communicator.n_logged < len(hosts):
        _assume_alike(indices, by_host)
    places: list[tuple[str, int]] = [("", 0)] * len(hosts)
    for host, ranks in by_host.items():
        gpus = [indices[rank] for rank in ranks]
        if NONE in gpus or len(set(gpus)) < len(gpus):
            gpus = list(range(len(ranks)))
        for rank, index in zip(ranks, gpus, strict=True):
            places[rank] = (host, index)
    return places


def _assume_alike(indices: list[int], by_host: dict[str, list[int]]) -> None:
    """Assign the GPU indices of a node that logged to ranks of nodes that did not."""
    pattern = next(
        (
            [indices[r] for r in ranks]
            for ranks in by_host.values()
            if all(indices[r] != NONE for r in ranks)
        ),
        None,
    )
    if pattern is None:
        return
    for ranks in by_host.values():
        if len(ranks) == len(pattern) and all(indices[r] == NONE for r in ranks):
            for rank, index in zip(ranks, pattern, strict=True):
                indices[rank] = index
