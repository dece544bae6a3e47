"""HLO text: modules, instructions, tensors, groups of replicas."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod

import numpy as np

from clusim.base.errors import InputError
from clusim.base.terms.dtypes import find_dtype
from clusim.formats.recordings.source import lines

MOST_INSTRUCTIONS = 2_000_000
_MOST_ELEMENTS = 1 << 50
_MODULE = re.compile(r"HloModule\s+([\w.$-]+)(.*)", re.DOTALL)
_COMPUTATION = re.compile(r"(ENTRY\s+)?%?([\w.$-]+)\s*(?:\(.*)?\{\s*$")
_NAMED = re.compile(r"(?:ROOT\s+)?%?([\w.$-]+)\s*=\s*(.*)", re.DOTALL)
_TENSOR = re.compile(r"\b([a-z]\w{0,15})\[([0-9,<= ]{0,400})\]")
_EXTENT = re.compile(r"[0-9]{1,15}")
_CALL = re.compile(r"([\w-]+)\((.*)", re.DOTALL)
_OPERAND = re.compile(r"(?<![\w.$-])([A-Za-z_][\w.$-]{0,400})\s{0,8}(?:,|\)|$)")
_BITS = {
    "pred": 8, "s4": 4, "u4": 4, "s2": 2, "u2": 2, "f4e2m1fn": 4, "s16": 16, "u16": 16, "c64": 64, "c128": 128
}  # fmt: skip
_IOTA = re.compile(r"\[([0-9,]{1,60})\]<=\[([0-9,]{1,60})\](?:T\(([0-9,]{1,60})\))?")


@dataclass(frozen=True, slots=True)
class HloTensor:
    """Array: its type as in HLO, and its dimensions."""

    kind: str
    dims: tuple[int, ...]

    @property
    def elements(self) -> int:
        """Number of elements."""
        result = 1
        for dim in self.dims:
            result = min(result * dim, _MOST_ELEMENTS)
        return result

    @property
    def bytes(self) -> int:
        """Size [bytes]."""
        data_type = find_dtype(re.sub(r"^s(8|32|64)$", r"i\1", self.kind))
        bits = data_type.size_bytes * 8 if data_type else _BITS.get(self.kind, 8)
        return -(-self.elements * bits // 8)


@dataclass(slots=True)
class HloInstruction:
    """Instruction; `attributes` is the text after its operands."""

    name: str
    line: int
    opcode: str
    shape: tuple[HloTensor, ...]
    operands: tuple[str, ...]
    attributes: str


@dataclass(slots=True)
class HloModule:
    """Module: its computations by name, and the name of its entry."""

    name: str
    header: str
    computations: dict[str, list[HloInstruction]] = field(default_factory=dict)
    entry: str = ""


def read_module(path: str) -> HloModule:
    """Read a module; raise `InputError` with the line if it is invalid."""
    module: HloModule | None = None
    body: list[HloInstruction] | None = None
    count = 0
    for line, text in lines(path):
        stripped = text.strip()
        if module is None:
            if not stripped:
                continue
            match = _MODULE.match(stripped)
            if match is None:
                raise InputError(
                    f"{path}:{line}: {stripped[:40]!r}: must begin with HloModule"
                )
            module = HloModule(match[1], match[2])
        elif body is None:
            begin = _COMPUTATION.match(stripped)
            if begin is not None:
                if begin[2] in module.computations:
                    raise InputError(
                        f"{path}:{line}: computation {begin[2][:40]} occurs twice"
                    )
                body = module.computations[begin[2]] = []
                module.entry = begin[2] if begin[1] else module.entry
        elif stripped.startswith("}"):
            body = None
        elif stripped and not stripped.startswith("//"):
            count += 1
            if count > MOST_INSTRUCTIONS:
                raise InputError(
                    f"{path}:{line}: more than {MOST_INSTRUCTIONS} instructions"
                )
            body.append(_instruction(path, line, stripped))
    if module is None or not module.entry:
        raise InputError(f"{path}: no ENTRY computation; is the file cut?")
    if body is not None:
        raise InputError(f"{path}: ends inside a computation; is the file cut?")
    return module


def _instruction(path: str, line: int, text: str) -> HloInstruction:
    match = _NAMED.match(text)
    shape, tail = _split(match[2]) if match is not None else ("", "")
    call = _CALL.match(tail)
    if match is None or call is None:
        raise InputError(
            f"{path}:{line}: {text[:60]!r}: must be NAME = SHAPE OPCODE(OPERANDS)"
        )
    inside, behind = _split_at_bracket(call[2])
    operands = tuple(
        m[1]
        for m in _OPERAND.finditer(
            re.sub(r"[\[{][^\]}\[{]{0,400}[\]}]", " ", inside)
        )
    )
    return HloInstruction(
        match[1], line, call[1], tuple(_tensors(shape)), operands, behind
    )


def _split(text: str) -> tuple[str, str]:
    """Return the shape, which may be a tuple, and the rest of the text."""
    if text.startswith("("):
        inside, behind = _split_at_bracket(text[1:])
        return inside, behind.strip()
    shape, _, behind = text.partition(" ")
    return shape, behind.strip()


def _split_at_bracket(text: str) -> tuple[str, str]:
    """Return the text before the matching closing parenthesis, and the text after it."""
    depth = 1
    for match in re.finditer(r"[()]", text):
        depth += 1 if match[0] == "(" else -1
        if not depth:
            return text[: match.start()], text[match.end() :]
    return text, ""


def _tensors(shape: str) -> Iterator[HloTensor]:
    for match in _TENSOR.finditer(shape):
        yield HloTensor(match[1], tuple(map(int, _EXTENT.findall(match[2]))))


def replica_groups(attributes: str, num_ranks: int) -> list[tuple[int, ...]] | None:
    """Return the groups of devices of a collective, by default one of all; None if invalid."""
    text = attributes.partition("replica_groups=")[2]
    iota = _IOTA.match(text)
    if iota is not None:
        return _of_iota(
            *(
                [int(n[:9]) for n in (part or "").split(",") if n]
                for part in iota.groups()
            )
        )
    listed = re.match(r"\{\s*(?:\{[0-9, ]*\}[,\s]*)*\}", text)
    if text and not listed:
        return None
    parts = re.findall(r"\{([0-9, ]*)\}", listed[0][1:-1]) if listed else []
    groups = [tuple(int(n[:9]) for n in re.findall(r"\d+", part)) for part in parts]
    groups = [group for group in groups if group]
    if not groups:
        return [tuple(range(num_ranks))]
    flat = [rank for group in groups for rank in group]
    return groups if len(set(flat)) == len(flat) and max(flat) < num_ranks else None


def _of_iota(
    shape: list[int], dims: list[int], order: list[int]
) -> list[tuple[int, ...]] | None:
    """Return the groups of ``[GROUPS,SIZE]<=[DIMS]T(ORDER)``; None if invalid."""
    total = prod(dims)
    order = order or list(range(len(dims)))
    fits = (
        len(shape) == 2
        and prod(shape) == total
        and sorted(order) == list(range(len(dims)))
    )
    if not fits or not 0 < total <= 1 << 17:
        return None
    table = np.arange(total).reshape(dims).transpose(order).reshape(shape)
    return [tuple(row) for row in table.tolist()]
