"""Collectives of a run as NCCL log lines (``NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,COLL``).

Lines are in the order in which ranks started the calls. As in NCCL they have no times; hosts, process
numbers and addresses are invented, but a communicator has the same address everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from clusim.base.errors import one_line
from clusim.base.files import write_text
from clusim.base.terms.dtypes import REDUCTIONS
from clusim.base.terms.operations import BLOCKWISE, OPERATIONS
from clusim.report.export.run import Run, TaskRow

_FIRST_PROCESS = 10_000
_POINTER = 0x7F0000000000


def write_nccl_log(path: str | Path, target: Path) -> int:
    """Write the log and return the number of its lines."""
    run = Run.open(path)
    lines = [*_init_lines(run), *_call_lines(run)]
    write_text(target, "".join(f"{line}\n" for line in lines), [path])
    return len(lines)


class _Comms:
    """Numbers the communicators: one for each group of ranks and stream."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.known: dict[tuple[tuple[int, ...], str], int] = {}

    def of(self, task: TaskRow) -> int:
        key = (self.run.ranks(task.call), task.stream)
        return self.known.setdefault(key, len(self.known))


def _head(rank: int) -> str:
    process = _FIRST_PROCESS + rank
    return f"clusim:{process}:{process} [{rank}] NCCL INFO"


def _address(comm: int, rank: int) -> str:
    return f"{_POINTER + (comm << 24) + (rank << 12):#x}"


def _init_lines(run: Run) -> Iterator[str]:
    """Yield a line for every rank of every communicator, and the version."""
    comms, done = _Comms(run), set()
    provenance = run.result.provenance
    yield f"{_head(0)} Bootstrap: clusim {one_line(provenance.version)}, {one_line(provenance.fabric)}"
    for task in run.tasks():
        if task.call < 0 or (comms.of(task), task.rank) in done:
            continue
        comm = comms.of(task)
        done.add((comm, task.rank))
        ranks = run.ranks(task.call)
        yield (
            f"{_head(task.rank)} ncclCommInitRankConfig comm {_address(comm, task.rank)}"
            f" rank {ranks.index(task.rank)} nranks {len(ranks)} cudaDev {task.rank} nvmlDev {task.rank}"
            f" busId {0x1000 * (task.rank + 1):x} commId {0xC1000000 + comm:#x} - Init COMPLETE"
        )


def _call_lines(run: Run) -> Iterator[str]:
    comms = _Comms(run)
    counts: dict[tuple[int, int], int] = {}
    for task in run.tasks():
        if task.call < 0:
            continue
        key = (comms.of(task), task.rank)
        number = counts[key] = counts.get(key, -1) + 1
        yield from _one_call(run, task, comms, number)


def _one_call(run: Run, task: TaskRow, comms: _Comms, number: int) -> Iterator[str]:
    inputs, call = run.inputs, task.call
    operation, dtype = inputs.texts("calls/operation")[call], run.dtype(call)
    ranks = run.ranks(call)
    count = int(inputs.numbers("calls/bytes")[call]) // dtype.size_bytes
    if operation in BLOCKWISE:
        count //= len(ranks)  # NCCL's count: elements per rank
    redop = inputs.texts("calls/redop")[call]
    root = int(inputs.numbers("calls/root")[call])
    comm = comms.of(task)
    collective = [(operation, ranks.index(root) if root in ranks else 0)]
    for name, peer in run.messages(task) or collective:
        if name not in OPERATIONS or not OPERATIONS[name].nccl:
            continue  # a barrier or a custom operation: NCCL has no such call
        yield (
            f"{_head(task.rank)} {OPERATIONS[name].nccl}: opCount {number:x} sendbuff {_address(64 + comm, task.rank)}"
            f" recvbuff {_address(128 + comm, task.rank)} count {count} datatype {dtype.nccl}"
            f" op {REDUCTIONS.index(redop) if redop in REDUCTIONS else 0} root {peer} comm {_address(comm, task.rank)}"
            f" [nranks={len(ranks)}] stream {_address(192 + comm, task.rank)}"
        )
