"""Policies: a class of integer fields and functions, such as the congestion control of a queue pair.

**Hardware** Programmable congestion control of NICs.

**Model** Sections 4 and 5 of the timing contract. A class has constants (``name: Final = 3``), state
(``name: int = 0``, one value per flow, or ``name: list[int] = [0] * 8``) and functions of one kind
(`clusim.policies.kinds`). They read and set fields of `self`; of senders `rate`, `window`, `timer_ps` and `path` are
answers.

**Not modelled** Bytes of telemetry in packets; the time that a NIC needs to run the policy.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from dataclasses import fields as record_fields
from textwrap import dedent
from typing import Any, Final, TypeVar, get_origin, get_type_hints

from clusim.base.errors import InputError, suggest
from clusim.base.records import dataclass
from clusim.policies.kinds import (
    ANSWER_WORDS,
    CALLS,
    KINDS,
    OPTIONAL,
    RECEIVER,
    ROWS,
    SENDER,
    UNLIMITED_BYTES,
    WORDS,
    PolicyKind,
    SwitchHop,
)

_INT64 = range(-(2**63), 2**63)


class SenderFlow:
    """Fields that the functions of a sender policy find in `self`; a base class for type checkers.

    Attributes
    ----------
    rate : int
        Payload rate of the flow [bytes per 2^30 ps]: `line_rate` at first; at least 1.
    window : int
        Most payload in flight [bytes]; unlimited at first; at least 1. Effective if the policy has `acked`.
    timer_ps : int
        Time of the next call of `timer` [ps], later than now, or 0, its value after each call.
    path : int
        Path of the next packet: 0, at first, is the flow's path; another number draws another path (ECMP).
    in_flight : int
        Payload granted whose notice has not arrived [bytes]; 0 without `acked`.
    line_rate, min_rate : int
        Rates of the NIC's port and its lowest rate of a flow [bytes per 2^30 ps].
    key : int
        Hash of the flow, for choices that differ between flows.
    """

    rate: int
    window: int
    timer_ps: int
    path: int
    in_flight: int
    line_rate: int
    min_rate: int
    key: int


class ReceiverFlows:
    """Fields that the functions of a receiver policy find in `self`; a base class for type checkers.

    Attributes
    ----------
    credit : int
        Answer: payload that a flow may send in addition [bytes]; 0 before each call.
    flow : int
        Answer: number of this flow.
    timer_ps : int
        Time of the next call of `timer` [ps], later than now, or 0, its value after each call.
    num_flows : int
        Flows of the receiver, numbered from 0.
    line_rate, min_rate : int
        Rates of the NIC's port and its lowest rate of a flow [bytes per 2^30 ps].
    key : int
        Hash of the receiver.
    """

    credit: int
    flow: int
    timer_ps: int
    num_flows: int
    line_rate: int
    min_rate: int
    key: int


BASES = (SenderFlow, ReceiverFlows)
"""Base classes of policies with fields that are not state."""


@dataclass(frozen=True, slots=True)
class SenderPolicy:
    """A policy: its class and tables of fields.

    Attributes
    ----------
    name : str
        Name, or ``file.py:Class``.
    cls : type
        The class with the original functions.
    constants, state : dict
        Fields and their values at the start of a flow; arrays of state are tuples.
    flow : dict
        The same of each flow at a receiver: the class ``Flow`` in the class.
    """

    name: str
    cls: type[Any] = field(repr=False, compare=False)
    constants: dict[str, int]
    state: dict[str, int | tuple[int, ...]]
    flow: dict[str, int | tuple[int, ...]] = field(default_factory=dict)

    @property
    def kind(self) -> PolicyKind:
        """Its kind, by the functions that the class has."""
        marks = (kind for kind in KINDS.values() if kind.mark)
        return next((kind for kind in marks if hasattr(self.cls, kind.mark)), SENDER)

    @property
    def functions(self) -> dict[str, Callable[..., Any]]:
        """Functions of the policy by name, in the order of `CALLS`."""
        return {
            name: getattr(self.cls, name)
            for name in CALLS
            if hasattr(self.cls, name)
        }

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the words of a record."""
        return (*self.kind.words, *self.state, *self.constants)

    @property
    def row(self) -> tuple[str, ...]:
        """Names of the fields of an item of the table that functions receive."""
        if self.kind is RECEIVER:
            return (*self.flow,)
        row = ROWS.get(self.kind.name, SwitchHop)
        return tuple(item.name for item in record_fields(row))

    @property
    def answers(self) -> tuple[str, ...]:
        """Fields that functions may set: answers and state."""
        return (*self.kind.words[:ANSWER_WORDS], *self.state, *self.flow)

    def arguments(self, call: str) -> tuple[str, ...]:
        """Return the arguments of a function after `self` and `now_ps`."""
        return tuple(inspect.signature(self.functions[call]).parameters)[2:]

    @property
    def mode(self) -> int:
        """Value of the image's ``controls.sender``: of its kind, or 2 with telemetry."""
        acked = self.functions.get("acked")
        return 2 if acked and "hops" in self.arguments("acked") else self.kind.mode

    @property
    def chooses_path(self) -> bool:
        """True if a function sets the path of the next packet."""
        if self.kind is not SENDER:
            return False
        nodes = (
            node
            for call in self.functions.values()
            for node in ast.walk(syntax(call))
        )
        return any(
            isinstance(node, ast.Attribute)
            and node.attr == WORDS[3]
            and isinstance(node.ctx, ast.Store)
            for node in nodes
        )

    @property
    def target_use(self) -> float:
        """Share of a link that the policy aims at: its constant ``target_65536``, or all."""
        return self.constants.get("target_65536", 65536) / 65536

    def place(self, call: str) -> str:
        """Return class, function and line of a function, for messages."""
        code = self.functions[call].__code__
        return f"{self.name}: {self.cls.__name__}.{call}, line {code.co_firstlineno}"

    def record(
        self, rates: Mapping[str, int], constants: Mapping[str, int]
    ) -> tuple[int | tuple[int, ...], ...]:
        """Return the values of a flow's fields at its start.

        Parameters
        ----------
        rates : mapping
            Values of the NIC's rate control by name: a constant of that name has its value, unless given.
        constants : mapping
            Constants in place of the class's.
        """
        first = {"rate": rates["line_rate"], "window": UNLIMITED_BYTES}
        first |= {"line_rate": rates["line_rate"], "min_rate": rates["min_rate"]}
        fixed = {name: first.get(name, 0) for name in self.kind.words}
        values = {
            name: constants.get(name, rates.get(name, value))
            for name, value in self.constants.items()
        }
        return (*fixed.values(), *self.state.values(), *values.values())


P = TypeVar("P", bound=type[Any])
DEFINED: dict[str, SenderPolicy] = {}
"""Policies of this process, by ``file.py:Class``."""


def policy(cls: P) -> P:
    """Define a sender policy, as a decorator of its class; return the class.

    Raises
    ------
    InputError
        A field is not an integer, or a function has other arguments, or uses a float.

    Examples
    --------
    >>> import clusim
    >>> from typing import Final
    >>> @clusim.policy
    ... class Half:
    ...     share: Final = 2
    ...     def start(self, now_ps):
    ...         self.rate = self.line_rate // self.share
    """
    functions = [value for value in vars(cls).values() if inspect.isfunction(value)]
    try:
        for function in functions:
            inspect.getsource(function)
    except OSError:
        raise InputError(
            f"policy {cls.__name__}: compiled from its source; define it in a .py file or a notebook"
        ) from None
    files = [function.__code__.co_filename for function in functions]
    name = ":".join((*files[:1], cls.__name__))
    DEFINED[name] = cls.clusim_policy = read_class(name, cls)
    return cls


def _read_fields(
    name: str, cls: type[Any]
) -> tuple[dict[str, int], dict[str, int | tuple[int, ...]]]:
    """Return constants and state of a class."""
    inherited = {
        key
        for base in BASES
        if issubclass(cls, base)
        for key in base.__annotations__
    }
    hints = {
        key: hint
        for base in reversed(cls.__mro__[:-1])
        if base not in BASES
        for key, hint in get_type_hints(base).items()
        if key not in inherited
    }
    constants: dict[str, int] = {}
    state: dict[str, int | tuple[int, ...]] = {}
    for key, hint in hints.items():
        value: Any = getattr(cls, key, None)
        fixed = hint is Final or get_origin(hint) is Final
        words: list[Any] = value if type(value) is list and not fixed else [value]
        if not words or any(
            type(word) is not int or word not in _INT64 for word in words
        ):
            raise InputError(
                f"{name}: {key}: {value!r} must be an integer of 64 bits"
            )
        if fixed:
            constants[key] = words[0]
        else:
            state[key] = words[0] if value is not words else tuple(words)
    return constants, state


def read_class(name: str, cls: type[Any]) -> SenderPolicy:
    """Return the policy of a class."""
    constants, state = _read_fields(name, cls)
    fixed, flow = _read_fields(name, getattr(cls, "Flow", object))
    if fixed:
        raise InputError(f"{name}: Flow.{next(iter(fixed))}: is state, not Final")
    result = SenderPolicy(name, cls, constants, state, flow)
    if not result.functions:
        raise InputError(
            f"{name}: without a function; a policy has {', '.join(CALLS)}"
        )
    kind = result.kind
    for call, function in result.functions.items():
        if call not in kind.calls:
            raise InputError(
                f"{name}: {kind.mark or 'a policy'} is of {kind.of}, {call} is not; split it"
            )
        names, more = ("self", "now_ps", *kind.calls[call]), OPTIONAL.get(call, ())
        present = tuple(inspect.signature(function).parameters)
        if present != (*names, *(name for name in more if name in present)):
            must = ", ".join((*names, *(f"or also {name}" for name in more)))
            raise InputError(f"{result.place(call)}: arguments; must be {must}")
    for problem, line in _problems(result):
        raise InputError(f"{name}: {cls.__name__}, line {line}: {problem}")
    return result


def syntax(function: Callable[..., Any]) -> ast.FunctionDef:
    """Return the syntax tree of a function, with the lines of its file."""
    lines, first = inspect.getsourcelines(function)
    tree = ast.parse(dedent("".join(lines)))
    ast.increment_lineno(tree, first - 1)
    node = tree.body[0]
    assert isinstance(node, ast.FunctionDef)
    return node


def _problems(of: SenderPolicy) -> Iterator[tuple[str, int]]:
    """Yield constructs that are not integer arithmetic, or change a constant, with their lines."""
    for function in of.functions.values():
        for node in ast.walk(syntax(function)):
            line = getattr(node, "lineno", 0)
            if isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(
                node.op, ast.Div
            ):
                yield "/ returns a float; use //", line
            if isinstance(node, ast.Constant) and isinstance(node.value, float):
                yield f"{node.value} is a float; use an integer", line
            if not isinstance(node, ast.Attribute):
                continue
            item = node.value
            if isinstance(item, ast.Subscript) and isinstance(item.value, ast.Name):
                row = of.row if item.value.id == of.kind.table else (node.attr,)
                if node.attr not in row:
                    yield f"no field {node.attr!r}{suggest(node.attr, row)}", line
            if not isinstance(node.value, ast.Name):
                continue
            if node.value.id == "self" and node.attr not in of.fields:
                yield f"no field {node.attr!r}{suggest(node.attr, of.fields)}", line
            if isinstance(node.ctx, ast.Store) and node.attr not in of.answers:
                yield f"sets {node.attr}, which is not state", line
            if isinstance(node.ctx, ast.Store) and isinstance(
                of.state.get(node.attr), tuple
            ):
                yield f"sets {node.attr}, a list; set its elements", line
