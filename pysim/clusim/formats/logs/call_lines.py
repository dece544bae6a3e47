"""Lines of calls: each is a kind, which ranks repeat, and a number, a line and a time."""

from __future__ import annotations

import re
from array import array

import numpy as np

from clusim.base.limits import MOST_COUNT, MOST_RANKS
from clusim.formats.logs.columns import NONE
from clusim.formats.logs.raw_log import MOST_LOGGED_CALLS, RawLog

_CALL = re.compile(
    rb"(\w++): opCount ([0-9a-fA-F]{1,14}) sendbuff (\S++) recvbuff (\S++)(?: acc \S++)? (count .+)"
)
_REST = re.compile(
    rb"count (\d{1,19}) datatype (\d{1,9}) op (\d{1,9}) root (-?\d{1,9}) comm 0x([0-9a-fA-F]{1,16})"
    rb" \[nranks=(\d{1,9})\] stream (?:0x([0-9a-fA-F]{1,16})|\(nil\))(?: task \d+ globalrank (\d{1,9}))?\s*"
)
"""The part of a line that ranks repeat."""

_KIND = (
    "name",
    "count",
    "type",
    "op",
    "root",
    "member",
    "thread",
    "stream",
    "in_place",
)

_MOST_KINDS = 1 << 16
"""Maximum number of kinds that are kept to recognise them."""


class CallReader:
    """Reader of the calls of a log into `facts`, in bulk after each block of lines."""

    def __init__(self, facts: RawLog) -> None:
        """Read into `facts`."""
        self._facts = facts
        self._kinds = array("q")
        self._calls = array("q")

    def read(self, thread: int, line: int, text: bytes, time_ns: int) -> bool:
        """Read the message of a call; return False if it is another message, or not complete."""
        match = _CALL.fullmatch(text)
        if match is None:
            return False
        name, op_count, send, receive, tail = match.groups()
        key = (thread, name, send == receive, tail)
        kind = self._facts.call_kinds.get(key)
        if kind is None:
            kind = self._new_kind(line, *key)
            if kind == NONE:
                return False
        self._calls.extend((kind, int(op_count, 16), line, time_ns))
        return True

    def _new_kind(
        self, line: int, thread: int, name: bytes, in_place: bool, tail: bytes
    ) -> int:
        """Return the index of a new kind, `NONE` for a line that is cut or impossible."""
        facts = self._facts
        match = _REST.fullmatch(tail)
        if match is None:
            return NONE
        count, kind, op, root, n_ranks = (int(match[i]) for i in (1, 2, 3, 4, 6))
        pointer, stream, rank = (
            int(match[5], 16),
            int(match[7] or b"0", 16),
            int(match[8] or NONE),
        )
        possible = (
            count < MOST_COUNT
            and root < MOST_RANKS
            and max(n_ranks, rank) <= MOST_RANKS
        )
        if pointer == 0 or not possible:
            return NONE
        member = facts.member_at(thread, pointer, line)
        caller = facts.members[member]
        if caller.n_ranks == NONE:
            caller.n_ranks = n_ranks
        if caller.rank == NONE and 0 <= rank < caller.n_ranks:
            caller.rank = rank
        index = len(self._kinds) // len(_KIND)
        self._kinds.extend(
            (
                facts.name_of(name.decode()[:24]), count, kind, op, root, member, thread,
                facts.stream_of(facts.threads[thread].process, stream), in_place,
            )
        )  # fmt: skip
        if caller.n_ranks == n_ranks:
            facts.call_kinds[thread, name, in_place, tail] = index
        else:
            facts.note_miscount(member, n_ranks, line)
        return index

    def flush(self) -> None:
        """Store the calls that were read."""
        facts = self._facts
        kind, op_count, line, time_ns = (
            np.array(self._calls, np.int64).reshape(-1, 4).T
        )
        if len(facts.calls) >= MOST_LOGGED_CALLS:
            facts.later_calls += len(kind)
        elif len(kind):
            columns = np.array(self._kinds, np.int64).reshape(-1, len(_KIND))[kind].T
            values = {"op_count": op_count, "line": line, "time_ns": time_ns}
            facts.calls.add(dict(zip(_KIND, columns, strict=True)) | values)
        self._calls = array("q")
        if len(self._kinds) > _MOST_KINDS * len(_KIND):
            self._kinds = array("q")
            facts.call_kinds.clear()
