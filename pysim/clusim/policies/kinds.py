"""Kinds of policies: functions, arguments, and first words of a record (sections 4 and 5 of the timing contract)."""

from __future__ import annotations

from typing import Final

from clusim.base.records import dataclass

ACCEPT, MARK, TRIM, DROP = range(4)
"""Answers of `enqueue`; of an arrival a receiver sees `ACCEPT`, `MARK`, or `TRIM` for a header."""

WORDS = (
    "rate",
    "window",
    "timer_ps",
    "path",
    "in_flight",
    "line_rate",
    "min_rate",
    "key",
)
"""Fields that every flow has: the first words of its record."""

RECEIVER_WORDS = (
    "rate",
    "credit",
    "timer_ps",
    "flow",
    "num_flows",
    "line_rate",
    "min_rate",
    "key",
)
"""The same of a receiver."""

ANSWER_WORDS: Final = 4
"""The first words, which functions may set."""

UNLIMITED_BYTES = 2**62
"""Window of a flow until its policy sets it [bytes]."""

RAISED = -(2**63)
"""Rate after a function that failed, such as by a division by zero."""

OPTIONAL = {"acked": ("path", "hops")}
"""Further arguments that a function may have."""


@dataclass(frozen=True, slots=True)
class SwitchHop:
    """Telemetry of a hop: the output of a switch at the start of a packet.

    Attributes
    ----------
    time_ps : int
        Time at which the packet starts on the wire [ps].
    queue_bytes : int
        Bytes that wait there, without the packet.
    sent_bytes : int
        Bytes sent on the wire before the packet, with headers.
    rate : int
        Rate of the wire [bytes per 2^30 ps].
    wire : int
        The wire; another one after a change of the path.
    """

    time_ps: int
    queue_bytes: int
    sent_bytes: int
    rate: int
    wire: int


@dataclass(frozen=True, slots=True)
class ClassHead:
    """First packet of a class at an output of a switch.

    Attributes
    ----------
    size_bytes : int
        Its bytes on the wire; 0 without a packet that may leave.
    age_ps : int
        Time since it entered its queue [ps].
    queue_bytes : int
        Bytes of the class that wait for the output.
    """

    size_bytes: int
    age_ps: int
    queue_bytes: int


@dataclass(frozen=True, slots=True)
class OutputWire:
    """One of the equal wires of a switch among which a packet chooses.

    Attributes
    ----------
    queue_bytes : int
        Bytes that wait for it.
    credit_bytes : int
        Free bytes in the buffers at its other end; with pauses the size of those that are not stopped.
    rate : int
        Its present rate [bytes per 2^30 ps].
    wire : int
        Its number.
    """

    queue_bytes: int
    credit_bytes: int
    rate: int
    wire: int


@dataclass(frozen=True, slots=True)
class PolicyKind:
    """A kind of policy.

    Attributes
    ----------
    name, of : str
        Word of the option ``--policy``, and the objects that it is of.
    mark : str
        Function that only policies of this kind have; empty for the kind of all others.
    mode : int
        Value of the image's ``controls.sender``.
    words : tuple of str
        First fields of a record.
    calls : dict
        Arguments of its functions after `self` and `now_ps`.
    table : str
        Argument that is a table of records, or empty.
    passed : dict
        Arguments of a compiled entry by function, where they have other names there.
    answer : str
        Field that is set to the function's result, or empty.
    """

    name: str
    of: str
    mark: str
    mode: int
    words: tuple[str, ...]
    calls: dict[str, tuple[str, ...]]
    table: str
    passed: dict[str, tuple[str, ...]]
    answer: str = ""


SENDER = PolicyKind(
    "sender",
    "senders",
    "",
    1,
    WORDS,
    {
        "start": (),
        "sent": ("size_bytes",),
        "acked": ("size_bytes", "rtt_ps", "marked"),
        "notified": (),
        "timer": (),
        "lost": ("size_bytes",),
    },
    "hops",
    {},
)
QUEUE = PolicyKind(
    "queue",
    "queues",
    "enqueue",
    3,
    WORDS,
    {"enqueue": ("size_bytes", "queue_bytes", "free_bytes", "vc")},
    "",
    {"enqueue": ("size_bytes", "rtt_ps", "marked", "path")},
    "path",
)
RECEIVER = PolicyKind(
    "receiver",
    "receivers",
    "requested",
    4,
    RECEIVER_WORDS,
    {
        "start": ("flows", "flow"),
        "requested": ("flows", "flow", "size_bytes", "lost"),
        "arrived": ("flows", "flow", "size_bytes", "mark"),
        "timer": ("flows",),
    },
    "flows",
    {
        "start": ("hops", "path"),
        "requested": ("hops", "path", "size_bytes", "marked"),
        "arrived": ("hops", "path", "size_bytes", "marked"),
        "timer": ("hops",),
    },
)
SCHEDULE = PolicyKind(
    "schedule",
    "schedules",
    "next",
    5,
    WORDS,
    {"next": ("heads",)},
    "heads",
    {"next": ("hops",)},
    "path",
)

PATH = PolicyKind(
    "path",
    "paths",
    "choose",
    6,
    WORDS,
    {"choose": ("size_bytes", "key", "flow", "draw", "wires")},
    "wires",
    {"choose": ("size_bytes", "rtt_ps", "marked", "path", "hops")},
    "path",
)

KINDS = {kind.name: kind for kind in (SENDER, QUEUE, RECEIVER, SCHEDULE, PATH)}

ROWS = {SENDER.name: SwitchHop, SCHEDULE.name: ClassHead, PATH.name: OutputWire}
"""Items of the table that functions receive."""

CALLS = tuple(dict.fromkeys(call for kind in KINDS.values() for call in kind.calls))
"""Functions of all kinds, in the order of the engine."""
