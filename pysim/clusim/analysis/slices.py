"""Slices by instance and number: primitive, bytes and connections.

The engine's records name a slice by its instance and number only; the rest follows from the programs (contract,
section 7, iteration). Connections are first in, first out, so the slice that let another pass its gate follows
by counting slots.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from clusim.base.arrays import Array
from clusim.base.errors import TraceError
from clusim.base.records import dataclass
from clusim.engine.abi import NONE, Mode, Op
from clusim.engine.image import OP_FLAGS

MOST_SLICES = 1 << 24
"""Slices of one instance that are followed."""

KEPT_SLICES = 1 << 24
"""Maximum number of slices whose primitives are kept in memory: 200 MB."""


def predecessors(image: Mapping[str, Array]) -> list[list[int]]:
    """Return for each task the tasks it waits for."""
    tasks, successors = image["tasks"], image["succ"].tolist()
    before: list[list[int]] = [[] for _ in range(len(tasks))]
    ends = zip(tasks["succ_lo"].tolist(), tasks["succ_hi"].tolist(), strict=True)
    for task, (low, high) in enumerate(ends):
        for other in successors[low:high]:
            before[other].append(task)
    return before


def all_starts(image: Mapping[str, Array], start_ps: Array) -> Array:
    """Return the start of every task of an image [ps], proxies after the schedule's tasks.

    A trace has the times of the schedule's tasks. A proxy starts at the end of its last dependency. This end is
    known, because no task depends on a proxy: it has the same dependencies as the sender's task.
    """
    tasks, count = len(image["tasks"]), len(start_ps)
    result = np.zeros(tasks, np.int64)
    result[:count] = start_ps
    if tasks > count:
        before = [frozenset(earlier) for earlier in predecessors(image)]
        pairs = zip(before[:count], start_ps.tolist(), strict=True)
        alike = {earlier: ps for earlier, ps in pairs if earlier}
        result[count:] = [alike.get(earlier, 0) for earlier in before[count:]]
    return result


@dataclass(frozen=True, slots=True)
class SliceTable:
    """Slices of one instance in order: primitive (row of the image), bytes, FIFO slots."""

    prim: Array
    bytes: Array
    slots: Array
    where: str = "trace"

    def prims(self, seq: Any) -> Array:
        """Return the primitives of slices by number; raises `TraceError` for an unknown slice."""
        if np.max(np.asarray(seq, np.int64), initial=-1) >= len(self.prim):
            raise TraceError(
                f"{self.where}: slice {np.max(seq)} of a program that has {len(self.prim)}"
            )
        return np.asarray(self.prim[seq])


class _Shape(NamedTuple):
    """Numbers of an instance that divide its work into slices; see `clusim.engine.image`."""

    nchunks: int
    mode: int
    length: int
    chunk: int
    stride: int
    offset: int
    limit: int
    slice_min: int
    rotation: int
    align: int
    slices: int
    slots: int

    @property
    def span(self) -> int:
        """Bytes of a loop."""
        return max(
            1,
            self.nchunks * self.chunk
            if self.mode == Mode.INTERLEAVED
            else self.chunk,
        )

    def pieces(self, loops: Array, chunks: Array) -> Array:
        """Return the bytes of chunks (columns) in loops (rows); at least 0."""
        if self.mode == Mode.INTERLEAVED:
            remaining = np.clip(self.length - loops * self.span, 0, self.span)
            even = -(-remaining // max(1, self.nchunks))
            tail = np.minimum(
                self.chunk, -(-even // max(1, self.align)) * self.align
            )
            chunk = np.where(remaining < self.span, tail, self.chunk)
            return np.asarray(
                np.minimum(np.maximum(remaining - chunks * chunk, 0), chunk)
            )
        begin = chunks * self.stride + self.offset
        low = begin + loops * self.chunk
        high = np.minimum(
            np.minimum(low + self.chunk, begin + self.length), self.limit
        )
        return np.asarray(np.maximum(0, high - low))


def slice_rows(prims: Array, shape: _Shape, most: int) -> list[Array] | None:
    """Enumerate the slices of an instance that are not skipped (contract, section 7).

    Returns arrays of (primitive, bytes, slots), or None if there are more than `most`, or 64 times as many steps.
    `prims` has columns (base, coef, step, repeat, sync).
    """
    base, coef, step, repeat, sync = prims.T
    loops, steps = -(-shape.length // shape.span), sum(repeat.tolist())
    if loops == 0 and sync.any():
        loops = 1
    if steps > most or loops * steps > 64 * most:
        return None
    prim = np.repeat(np.arange(len(prims)), repeat)
    turn = np.arange(steps) - np.repeat(np.cumsum(repeat) - repeat, repeat)
    chunk = (base[prim] + coef[prim] * shape.rotation + step[prim] * turn) % max(
        1, shape.nchunks
    )
    parts, count = [np.zeros((3, 0), np.int64)], 0
    at_once = max(1, _STEPS // max(1, steps))
    for first in range(0, loops if steps else 0, at_once):
        rows = np.arange(first, min(loops, first + at_once))[:, None]
        piece = np.where(sync[prim] != 0, 0, shape.pieces(rows, chunk))
        even = -(-piece // max(1, shape.slices))
        size = np.maximum(np.maximum(-(-even // 16) * 16, shape.slice_min), 1)
        number = np.where(sync[prim] != 0, 1, -(-piece // size)).ravel()
        if (
            number.max(initial=0) > most
            or (count := count + int(number.sum())) > most
        ):
            return None
        of = np.repeat(np.arange(len(number)), number)
        turns = np.arange(len(of)) - np.repeat(np.cumsum(number) - number, number)
        size, remaining = size.ravel()[of], piece.ravel()[of]
        last = (turns == number[of] - 1) & (sync[prim[of % steps]] == 0)
        slots = shape.slots * np.where(last, shape.slices - turns, 1)
        parts.append(
            np.stack(
                [prim[of % steps], np.minimum(size, remaining - turns * size), slots]
            )
        )
    return list(np.concatenate(parts, axis=1))


_STEPS = 1 << 18
"""Steps of primitives that are enumerated at once."""


class Slices:
    """The slices of all instances of an image, enumerated when they are needed.

    Parameters
    ----------
    image : mapping
        Arrays of the image by name.
    task_start_ps : ndarray
        Start of every task; instances that share a connection use it in this order.
    where : object
        The trace's name in errors.
    """

    def __init__(
        self,
        image: Mapping[str, Array],
        task_start_ps: Array,
        where: object = "trace",
    ) -> None:
        self.image, self.where = image, str(where)
        self._start_ps = task_start_ps
        self._tables: OrderedDict[tuple[int, ...], SliceTable] = OrderedDict()
        fields = [
            "template",
            "length",
            "chunk_bytes",
            "stride",
            "offset",
            "limit",
            "slice_min",
        ]
        fields += ["rotation", "align", "slices", "slots_per_slice"]
        self._work = [
            *zip(
                *(image["instances"][name].tolist() for name in fields), strict=True
            )
        ]
        self._kept = 0
        prims = image["prims"]
        names = ("base", "coef", "step", "repeat", "flags")
        self._prims = np.stack(
            [prims[name].astype(np.int64) for name in names], axis=1
        )
        self._flags = (
            OP_FLAGS[prims["opcode"]] if len(prims) else np.empty(0, np.int64)
        )
        self._users: dict[bool, dict[int, list[int]]] = {}
        self._used: dict[tuple[int, int, bool], tuple[Array, Array]] = {}
        self._used_size = 0

    def table(self, instance: int) -> SliceTable:
        """Return the slices of an instance; instances with equal work share them."""
        work = self._work[instance]
        result = self._tables.get(work)
        if result is not None:
            self._tables.move_to_end(work)
            return result
        template = self.image["templates"][work[0]]
        low, high = int(template["prim_lo"]), int(template["prim_hi"])
        shape = int(template["nchunks"]), int(template["mode"]), *work[1:]
        rows = slice_rows(
            self._prims[low:high],
            _Shape(*(min(n, 2**62) for n in shape)),
            MOST_SLICES,
        )
        if rows is None:
            raise TraceError(
                f"{self.where}: instance {instance} has more than {MOST_SLICES} slices; too many to follow"
            )
        prim, size, slots = rows
        prim = (prim + low).astype(np.int32)
        result = SliceTable(prim, size, slots.astype(np.int32), self.where)
        self._tables[work] = result
        self._kept += len(prim)
        while self._kept > KEPT_SLICES and len(self._tables) > 1:
            _, old = self._tables.popitem(last=False)
            self._kept -= len(old.prim)
        return result

    def flags(self, prim: int) -> int:
        """Return the flags of the opcode of a primitive."""
        return int(self._flags[prim])

    def multicasts(self, prims: Array) -> Array:
        """Return True for the primitives that store by multicast without a reduction."""
        return np.asarray(self._flags[prims] & (Op.MCAST | Op.REDUCE) == Op.MCAST)

    def connection(self, instance: int, prim: int, *, send: bool) -> int:
        """Return the connection a primitive receives from or sends on, or `NONE`."""
        needed = Op.SEND | Op.MCAST | Op.REDUCE | Op.AGGREGATE if send else Op.RECV
        if not self._flags[prim] & needed:
            return NONE
        local = self.image["prims"]["send" if send else "recv"][prim]
        offset = int(self.image["instances"]["conn_off"][instance])
        return int(self.image["inst_conns"][offset + int(local)])

    def _uses(
        self, instance: int, connection: int, *, send: bool
    ) -> tuple[Array, Array]:
        """Return the slices of an instance that use slots on a side of a connection, and the slots up to each."""
        key = (instance, connection, send)
        if key not in self._used:
            if self._used_size > KEPT_SLICES:
                self._used, self._used_size = {}, 0
            table, row = self.table(instance), self.image["instances"][instance]
            flag, side = (Op.SEND, "send") if send else (Op.RECV, "recv")
            prims = np.unique(table.prim)
            prims = prims[(self._flags[prims] & flag) != 0]
            offset = int(row["conn_off"])
            of_prim = self.image["inst_conns"][
                offset + self.image["prims"][side][prims]
            ]
            rows = np.flatnonzero(np.isin(table.prim, prims[of_prim == connection]))
            self._used[key] = rows, np.cumsum(table.slots[rows], dtype=np.int64)
            self._used_size += len(rows)
        return self._used[key]

    def users(self, connection: int, *, send: bool) -> list[int]:
        """Return the instances that send or receive on a connection, in order of task start."""
        if send not in self._users:
            self._users[send] = self._find_users(send)
        return self._users[send].get(connection, [])

    def _find_users(self, send: bool) -> dict[int, list[int]]:
        image, flag = self.image, Op.SEND if send else Op.RECV
        instances = image["instances"]
        result: dict[int, list[int]] = {}
        order = np.argsort(self._start_ps[instances["task"]], kind="stable")
        locals_of = []
        for template in image["templates"]:
            rows = slice(int(template["prim_lo"]), int(template["prim_hi"]))
            side = image["prims"]["send" if send else "recv"][rows]
            locals_of.append(
                sorted(set(side[(self._flags[rows] & flag) != 0].tolist()))
            )
        for instance in order.tolist():
            offset = int(instances["conn_off"][instance])
            for local in locals_of[int(instances["template"][instance])]:
                users = result.setdefault(
                    int(image["inst_conns"][offset + local]), []
                )
                if instance not in users[-1:]:
                    users.append(instance)
        return result

    def _upto(self, instance: int, connection: int, seq: int, *, send: bool) -> int:
        """Return the slots used on one side of a connection up to and including slice `seq`."""
        slots = 0
        for user in self.users(connection, send=send):
            rows, used = self._uses(user, connection, send=send)
            count = len(rows)
            if user == instance:
                count = int(np.searchsorted(rows, seq, side="right"))
            slots += int(used[count - 1]) if count else 0
            if user == instance:
                break
        return slots

    def _reaching(
        self, connection: int, slots: int, *, send: bool
    ) -> tuple[int, int] | None:
        """Return the slice with which one side of a connection has used `slots` slots."""
        for user in self.users(connection, send=send):
            rows, used = self._uses(user, connection, send=send)
            total = int(used[-1]) if len(used) else 0
            if 0 < slots <= total:
                return user, int(rows[int(np.searchsorted(used, slots))])
            slots -= total
        return None

    def sender_of(self, instance: int, seq: int) -> tuple[int, int] | None:
        """Return the slice whose arrival released this one: the last it needed to receive."""
        connection = self.connection(
            instance, int(self.table(instance).prims(seq)), send=False
        )
        return self._reaching(
            connection, self._upto(instance, connection, seq, send=False), send=True
        )

    def receiver_of(self, instance: int, seq: int) -> tuple[int, int] | None:
        """Return the slice whose completion freed the slot for this one on its send connection."""
        connection = self.connection(
            instance, int(self.table(instance).prims(seq)), send=True
        )
        need = self._upto(instance, connection, seq, send=True)
        need -= int(self.image["conns"]["slots"][connection])
        return self._reaching(connection, need, send=False) if need > 0 else None
