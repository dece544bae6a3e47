"""Ranks of a job recorded by NCCL profiler plugins: GPUs, members of communicators, nodes.

They are numbered as in the largest communicator, as only communicators and processes are known.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from clusim.base.errors import InputError, one_line
from clusim.base.limits import MOST_RANKS, natural
from clusim.formats.recordings.model import Recording

Owner = tuple[str, int]
"""Host and process."""

MOST_MEMBERS = 1 << 24
"""Maximum total number of ranks of all communicators."""

Ranks = dict[str, tuple[int, ...]]
"""Communicator -> its ranks, as ranks of the job."""

_Gpu = tuple[str, int, int]
"""Host, process, and index of the GPU in the process."""


@dataclass(slots=True)
class RecordedComm:
    """Communicator: its size, its nodes (0 is unknown), and the known processes of its ranks."""

    name: str
    n_ranks: int
    nodes: int = 0
    owners: dict[int, Owner] = field(default_factory=dict)
    where: dict[int, str] = field(default_factory=dict)

    def see(self, rank: int, owner: Owner, where: str) -> None:
        """Record the owner of a rank; raise `InputError` if another process has claimed it."""
        first_owner = self.owners.setdefault(rank, owner)
        if first_owner != owner:
            raise InputError(
                f"{where}: rank {rank} of communicator {self.name} is process {_format_owner(owner)}, and process"
                f" {_format_owner(first_owner)} in {self.where[rank]}; use files of one job"
            )
        self.where.setdefault(rank, where)


def job_ranks(comms: dict[str, RecordedComm], recording: Recording) -> Ranks:
    """Number the GPUs of a job as in its largest communicator; return the ranks of every communicator.

    Number of ranks, nodes and assumptions are added to the recording.

    Raises
    ------
    InputError
        The number of ranks is above the limit.
    """
    if sum(comm.n_ranks for comm in comms.values()) > MOST_MEMBERS:
        raise InputError(
            f"{len(comms)} communicators with more than {MOST_MEMBERS} ranks together"
        )
    gpus, notes = _gpus(comms)
    recording.assumed += notes
    largest = max(comms.values(), key=lambda comm: (comm.n_ranks, len(comm.owners)))
    number = {gpu: rank for rank, gpu in gpus[largest.name].items()}
    remaining = sorted(
        {gpu for members in gpus.values() for gpu in members.values()} - set(number),
        key=_gpu_order,
    )
    for gpu in remaining:
        number[gpu] = largest.n_ranks + len(number) - len(gpus[largest.name])
    recording.num_ranks = largest.n_ranks + len(remaining)
    if remaining:
        recording.assume(
            "no communicator has all ranks; the ranks of the largest are numbered first"
        )
    result = {}
    for comm in comms.values():
        result[comm.name] = _members(recording, comm, gpus[comm.name], number)
        if recording.num_ranks > MOST_RANKS:
            raise InputError(
                f"communicator {comm.name}: the job would have {recording.num_ranks} ranks; at most {MOST_RANKS}"
            )
    recording.hosts = _hosts(recording, largest, number)
    return result


def _format_owner(owner: Owner) -> str:
    return one_line(f"{owner[0]}:{owner[1]}" if owner[0] else str(owner[1]))[:80]


def _gpu_order(gpu: _Gpu) -> tuple[object, ...]:
    return natural(gpu[0]), gpu[1], gpu[2]


def _gpus(
    comms: dict[str, RecordedComm],
) -> tuple[dict[str, dict[int, _Gpu]], list[str]]:
    """Return the GPU of every recorded rank; ranks of one process are its GPUs in order."""
    gpus: dict[str, dict[int, _Gpu]] = {}
    widths: dict[Owner, set[int]] = {}
    for comm in comms.values():
        count: Counter[Owner] = Counter()
        members = gpus[comm.name] = {}
        for rank in sorted(comm.owners):
            owner = comm.owners[rank]
            members[rank] = (*owner, count[owner])
            count[owner] += 1
        for owner, width in count.items():
            widths.setdefault(owner, set()).add(width)
    mixed = any(len(width) > 1 for width in widths.values())
    note = "processes with several GPUs: those in a smaller communicator are not recorded; the first are assumed"
    return gpus, [note] if mixed else []


def _members(
    recording: Recording,
    comm: RecordedComm,
    gpus: dict[int, _Gpu],
    number: dict[_Gpu, int],
) -> tuple[int, ...]:
    """Return the job's ranks in a communicator; unrecorded ranks follow a pattern or are new."""
    global_ranks = {rank: number[gpu] for rank, gpu in gpus.items()}
    if len(global_ranks) == comm.n_ranks:
        return tuple(global_ranks[rank] for rank in range(comm.n_ranks))
    if (
        all(rank == number for rank, number in global_ranks.items())
        and comm.n_ranks <= recording.num_ranks
    ):
        return tuple(range(comm.n_ranks))
    regular = _regular(global_ranks, comm.n_ranks, recording.num_ranks)
    if regular is not None:
        return regular
    text = "communicators with unrecorded ranks and an irregular pattern: these ranks are assumed on further GPUs"
    recording.assume(text)
    members = []
    for rank in range(comm.n_ranks):
        if rank not in global_ranks:
            global_ranks[rank] = recording.num_ranks
            recording.num_ranks += 1
        members.append(global_ranks[rank])
    return tuple(members)


def _regular(
    numbers: dict[int, int], size: int, world: int
) -> tuple[int, ...] | None:
    """Return equally spaced ranks that contain the known ranks; None if impossible."""
    position, first_known = next(iter(numbers.items()))
    for other, other_number in numbers.items():
        if other != position:
            steps = [(other_number - first_known) // (other - position)]
            break
    else:
        steps = [1, world // size]
    for step in steps:
        first = first_known - position * step
        fits = all(first + rank * step == at for rank, at in numbers.items())
        block = step * size
        if (
            step > 0
            and first >= 0
            and fits
            and first % block < step
            and first // block * block + block <= world
        ):
            return tuple(first + rank * step for rank in range(size))
    return None


def _hosts(
    recording: Recording, largest: RecordedComm, number: dict[_Gpu, int]
) -> list[str]:
    """Return the node of every rank; empty if neither known nor implied by the node count."""
    host_of = {rank: gpu[0] for gpu, rank in number.items()}
    if not all(host_of.values()):
        return []
    names, nodes = set(host_of.values()), largest.nodes
    if len(host_of) == recording.num_ranks and (
        not nodes or len(names) == nodes or recording.num_ranks > largest.n_ranks
    ):
        return [host_of[rank] for rank in range(recording.num_ranks)]
    if (
        not nodes
        or recording.num_ranks % nodes
        or recording.num_ranks != largest.n_ranks
    ):
        return []
    size = recording.num_ranks // nodes
    blocks = {(rank // size, host) for rank, host in host_of.items()}
    if len(blocks) > len({block for block, _ in blocks}) or len(blocks) > len(names):
        recording.assumed.append(
            f"{len(names)} host names, and {nodes} nodes in the headers: ranks are taken to fill nodes in order"
        )
    return [f"machine {rank // size}" for rank in range(recording.num_ranks)]
