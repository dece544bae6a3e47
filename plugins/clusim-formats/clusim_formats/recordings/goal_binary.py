"""Binary GOAL schedules, as written by ``txt2bin`` of LogGOPSim and ATLAHS.

A file contains a magic number, the numbers of ranks, cpus and NICs, and start and end of every rank's part. A part is
a list of operations of fixed length, preceded by the operations without dependencies. An operation refers to those
whose end and start it waits for by indices in a list after all operations. Labels are not kept.
"""

from __future__ import annotations

import struct
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from clusim.base.errors import InputError
from clusim.base.match import ANY
from clusim.formats.recordings.model import MOST_EVENTS, EventKind, Recording
from clusim.formats.recordings.source import map_file
from clusim_formats.recordings.goal_order import (
    MAX_BYTES,
    MAX_NS,
    MAX_RANKS,
    GoalStep,
)

COOKIE: Final = struct.pack("<Q", 4223)
USED_UP: Final = struct.pack("<Q", 2342)
"""Value that replaces the magic number if LogGOPSim has modified the file in place."""

_HEAD = struct.Struct("<IBB")
_ANY = (1 << 32) - 1
_OPERATION = np.dtype(
    [
        ("waits", "<u4"), ("type", "u1"), ("peer", "<u4"), ("size", "<u8"), ("tag", "<u4"), ("cpu", "u1"),
        ("nic", "u1"), ("ends", "<u4"), ("end_at", "<u4"), ("starts", "<u4"), ("start_at", "<u4"),
    ]
)  # fmt: skip
_KINDS: Final[dict[int, EventKind]] = {1: "send", 2: "recv", 3: "compute"}


def is_binary(data: bytes) -> bool:
    """Return True if data begin as a binary schedule."""
    return data[:8] in (COOKIE, USED_UP)


def read_binary(name: str, recording: Recording) -> dict[int, list[GoalStep]]:
    """Return the operations of every rank of a file, and set the number of ranks.

    Raises
    ------
    InputError
        The file is invalid; the message has the rank and the operation.
    """
    data = map_file(name)
    if bytes(data[:8]) == USED_UP:
        raise InputError(
            f"{name}: is a schedule consumed by LogGOPSim (--save-mem); generate it again with txt2bin"
        )
    base = data[8:]
    if len(base) < _HEAD.size:
        raise InputError(f"{name}: ends in its header; copy it again")
    num_ranks, _, _ = _HEAD.unpack_from(base)
    if not 1 <= num_ranks <= MAX_RANKS:
        raise InputError(f"{name}: {num_ranks} ranks; must be 1..{MAX_RANKS}")
    if len(base) < _HEAD.size + 16 * num_ranks:
        raise InputError(
            f"{name}: ends in its table of {num_ranks} ranks; copy it again"
        )
    table = np.frombuffer(base, "<u8", 2 * num_ranks, _HEAD.size).reshape(
        num_ranks, 2
    )
    recording.num_ranks = num_ranks
    result = {}
    spent = 0
    for rank in range(num_ranks):
        first, end = int(table[rank, 0]), int(table[rank, 1])
        part = _Part(name, rank, base, (first, end))
        spent += part.count + len(part.edges)
        if spent > MOST_EVENTS:
            raise InputError(
                f"{name}: rank {rank}: more than {MOST_EVENTS} operations and requires; use a shorter schedule"
            )
        result[rank] = part.steps(num_ranks)
        if nics := int(np.count_nonzero(part.operations["nic"])):
            recording.skipped["attribute nic"] += nics
    return result


class _Part:
    """Operations of a rank."""

    def __init__(
        self, name: str, rank: int, base: memoryview, extent: tuple[int, int]
    ) -> None:
        self.name, self.rank = name, rank
        first, end = extent
        if end < first + 8 or end > len(base):
            raise self._bad(
                f"is at {first} to {end} of {len(base)} bytes; is the file cut?"
            )
        self.count, roots = struct.unpack_from("<II", base, first)
        at = first + 8 + 4 * roots
        behind = at + _OPERATION.itemsize * self.count
        if behind > end or (end - behind) % 4:
            raise self._bad(
                f"{self.count} operations do not fit into its {end - first} bytes"
            )
        self.operations: NDArray[Any] = np.frombuffer(
            base, _OPERATION, self.count, at
        )
        self.edges: NDArray[Any] = np.frombuffer(
            base, "<u4", (end - behind) // 4, behind
        )

    def _bad(self, message: str, at: int | None = None) -> InputError:
        where = "" if at is None else f" operation {at}"
        return InputError(f"{self.name}: rank {self.rank}{where}: {message}")

    def steps(self, num_ranks: int) -> list[GoalStep]:
        """Return the operations."""
        listed = sum(
            int(self.operations[key].astype(np.uint64).sum())
            for key in ("ends", "starts")
        )
        if listed != len(self.edges):
            raise self._bad(
                f"its operations name {listed} that wait, and {len(self.edges)} are listed"
            )
        rows = self.operations.tolist()
        result = [self._step(at, row, num_ranks) for at, row in enumerate(rows)]
        waits = [0] * self.count
        targets: list[int] = self.edges.tolist()
        for at, row in enumerate(rows):
            for number, first, start in (
                (row[7], row[8], False),
                (row[9], row[10], True),
            ):
                if number and first + number > len(targets):
                    raise self._bad(
                        f"names its dependents at {first} of {len(targets)} places",
                        at,
                    )
                for later in targets[first : first + number]:
                    if later >= self.count:
                        raise self._bad(
                            f"operation {later} of {self.count} waits for it", at
                        )
                    waits[later] += 1
                    (result[later].starts if start else result[later].needs).append(
                        at
                    )
        for at, row in enumerate(rows):
            if row[0] != waits[at]:
                raise self._bad(
                    f"waits for {row[0]} others, but {waits[at]} are listed", at
                )
        return result

    def _step(self, at: int, row: Any, num_ranks: int) -> GoalStep:
        """Return an operation; its dependencies are added later."""
        _, number, peer, size, tag, cpu = row[:6]
        kind = _KINDS.get(number)
        if kind is None:
            raise self._bad(
                f"type {number}; must be 1 (send), 2 (recv) or 3 (calc)", at
            )
        if kind == "compute":
            if size > MAX_NS:
                raise self._bad(f"calc {size}: at most {MAX_NS} ns", at)
            return GoalStep(kind, at, "", size, cpu=cpu)
        peer, tag = (ANY if value == _ANY else value for value in (peer, tag))
        low = ANY if kind == "recv" else 0
        if not low <= peer < num_ranks or tag < low:
            raise self._bad(
                f"{kind}: rank {peer}, tag {tag}; ranks are 0..{num_ranks - 1}, and -1 is any, for receives only",
                at,
            )
        if size > MAX_BYTES:
            raise self._bad(f"{kind} {size}b: at most {MAX_BYTES} bytes", at)
        return GoalStep(kind, at, "", size, peer, tag, cpu)
