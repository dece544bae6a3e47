"""Command line of an nccl-tests program: names, meanings and limits of its flags."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NoReturn

from clusim.base.errors import InputError
from clusim.base.terms.dtypes import BY_NUMBER, IN_TABLES, REDUCTIONS, DataType

TYPES: dict[str, DataType] = {item.tables[0]: item for item in BY_NUMBER}
"""By nccl-tests' names."""

OPS = (*REDUCTIONS, "mulsum")

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag of nccl-tests 2.19.

    Attributes
    ----------
    letter, name : str
        As ``-t`` and ``--nthreads``; the field of `PerfOptions` has the same name.
    takes : str
        Kind of its argument.
    most : int or None
        Largest value that nccl-tests defines.
    without : str
        Reason for a flag that is accepted without effect.
    """

    letter: str
    name: str
    help: str
    takes: str = "number"
    most: int | None = None
    without: str = ""


def _flag(letter: str, default: int | str, about: str, **more: Any) -> Any:
    """Return the field of a flag; `more` are further arguments of `Flag`."""
    return field(
        default=default, metadata={"flag": {"letter": letter, "help": about, **more}}
    )


@dataclass
class PerfOptions:
    """Values of the flags, with nccl-tests' defaults; sizes in bytes."""

    nthreads: int = _flag(
        "t", 1, "threads per process; each launches on different GPUs", takes="count"
    )
    ngpus: int = _flag(
        "g", 1, "GPUs per thread, launched one after the other", takes="count"
    )
    minbytes: int = _flag("b", 32 << 20, "smallest size", takes="size")
    maxbytes: int = _flag("e", 32 << 20, "largest size", takes="size")
    stepbytes: int = _flag("i", 1 << 20, "step between sizes", takes="size")
    stepfactor: int = _flag("f", 1, "factor between sizes", takes="count")
    iters: int = _flag(
        "n", 20, "iterations; each has its share of start and end", takes="count"
    )
    agg_iters: int = _flag("m", 1, "iterations launched as one group", takes="count")
    warmup_iters: int = _flag(
        "w",
        1,
        "warm-up iterations; without effect",
        without="one iteration of every size runs before the clock anyway",
    )
    run_cycles: int = _flag(
        "N", 1, "number of times to print the table", takes="count"
    )
    parallel_init: int = _flag(
        "p", 0, "without effect: not timed", without="initialisation is not timed"
    )
    check: int = _flag("c", 1, "verify data of small sizes")
    op: str = _flag(
        "o", "sum", "reduction: sum prod max min avg mulsum all", takes="op"
    )
    datatype: str = _flag("d", "float", "type of the elements, or all", takes="type")
    root: int = _flag("r", 0, "root of broadcast, reduce, gather, scatter")
    blocking: int = _flag(
        "z", 0, "wait for every iteration: 1 and meet, 2, 3 and meet untimed", most=3
    )
    stream_null: int = _flag(
        "y", 0, "without effect", without="streams are not modelled"
    )
    timeout: int = _flag("T", 0, "without effect", without="nothing hangs")
    cudagraph: int = _flag("G", 0, "iterations are a CUDA graph, launched so often")
    report_cputime: int = _flag("C", 0, "report the time of the host")
    report_timestamps: int = _flag("S", 0, "add the time of day")
    output_file: str = _flag("J", "", "write JSON to a file", takes="file")
    average: int = _flag(
        "a", 1, "time of thread 0, mean, least or most: 0 to 3", most=3
    )
    local_register: int = _flag(
        "R",
        0,
        "2: symmetric windows; 1 is without effect: not modelled",
        most=2,
        without="registered buffers are not modelled but as windows (-R 2)",
    )
    cta_policy: int = _flag(
        "x",
        -1,
        "without effect: not modelled",
        most=2,
        without="not modelled; NCCL's default",
    )
    device_implementation: int = _flag("D", 0, "only 0")
    device_cta_count: int = _flag(
        "V", 16, "without effect, as -D", without="it is for -D"
    )
    memory: int = _flag(
        "M",
        0,
        "without effect: no memory is counted",
        without="memory is not counted",
    )
    unalign: int = _flag(
        "u", 0, "without effect: not modelled", without="addresses are not modelled"
    )
    per_iter_timing: int = _flag("I", 0, "only 0", most=1)
    per_iter_skip: int = _flag(
        "K", 0, "without effect, as -I", without="it is for -I"
    )
    given: set[str] = field(default_factory=set)
    listed: tuple[int, ...] = ()

    @property
    def types(self) -> tuple[str, ...]:
        """Return the types to test."""
        return tuple(TYPES) if self.datatype == "all" else (self.datatype,)

    @property
    def ops(self) -> tuple[str, ...]:
        """Return the reductions to test."""
        return OPS if self.op == "all" else (self.op,)

    @property
    def step(self) -> tuple[str, int]:
        """Return the unit of the step between sizes, ``factor`` or ``bytes``, and the step."""
        if self.stepfactor > 1:
            return "factor", self.stepfactor
        return "bytes", self.stepbytes

    def sizes(self) -> list[int]:
        """Return the listed sizes, else those of the flags, in order [bytes]."""
        if self.listed:
            return list(self.listed)
        result = []
        size = self.minbytes
        kind, step = self.step
        while size <= self.maxbytes:
            result.append(size)
            size = size * step if kind == "factor" else size + step
            if len(result) > MOST_SIZES:
                raise InputError(
                    f"-i {self.stepbytes}: more than {MOST_SIZES} sizes; use a larger step, or -f 2"
                )
            if size == 0:
                raise InputError(
                    "-b 0 -f: zero times anything stays zero; use -b 8, or a step with -i"
                )
        return result


MOST_SIZES = 4096

FLAGS = tuple(
    Flag(name=item.name, **item.metadata["flag"])
    for item in fields(PerfOptions)
    if "flag" in item.metadata
)
"""Flags of nccl-tests 2.19."""

SYMMETRIC_WINDOWS = 2
"""Value of ``-R`` that registers buffers as symmetric windows, the only one with an effect."""


def _wrong(flag: Flag, value: str, want: str) -> NoReturn:
    raise InputError(f"-{flag.letter} {value!r}: {want}")


def parse_size(flag: Flag, value: str) -> int:
    """Return a size as nccl-tests reads it: a number and K, M or G, powers of two [bytes]."""
    text = value.strip().lower()
    unit = text[-1:] if text[-1:] in ("k", "m", "g") else ""
    try:
        number = float(text.removesuffix(unit) if unit else text)
    except ValueError:
        number = -1.0
    if not 0 <= number * _UNITS[unit] < 2**62:
        _wrong(flag, value, "not a size; write for example 8, 64K, 128M or 8G")
    return int(number * _UNITS[unit])


def _number(flag: Flag, value: str) -> int:
    minimum = 1 if flag.takes == "count" else 0
    if not value.isdecimal() or len(value) > 9 or int(value) < minimum:
        _wrong(flag, value, f"not an integer of at least {minimum}")
    return int(value)


def _name(flag: Flag, value: str, names: Sequence[str]) -> str:
    if value.lower() not in (*names, "all"):
        _wrong(flag, value, f"not known; one of {', '.join(names)} or all")
    return value.lower()


def value_of(flag: Flag, value: str) -> int | str:
    """Return a flag's value from its text."""
    if flag.takes == "size":
        return parse_size(flag, value)
    if flag.takes == "op":
        return _name(flag, value, OPS)
    if flag.takes == "type":
        named_type = IN_TABLES.get(value.lower())
        return _name(
            flag, named_type.tables[0] if named_type else value, tuple(TYPES)
        )
    if flag.takes == "file":
        return value
    return _number(flag, value)


def flags_of(words: Sequence[str]) -> dict[str, str]:
    """Return flags as typed, ``-b 8 --maxbytes 1G``, by attribute name."""
    names = {f"-{flag.letter}": flag for flag in FLAGS} | {
        f"--{flag.name}": flag for flag in FLAGS
    }
    result: dict[str, str] = {}
    words_left = list(words)
    while words_left:
        name, equals, value = words_left.pop(0).partition("=")
        if name not in names:
            raise InputError(f"{name}: not a flag of nccl-tests")
        if not equals and not words_left:
            raise InputError(f"{name}: needs a value")
        result[names[name].name] = value if equals else words_left.pop(0)
    return result


def parse_flags(values: dict[str, str]) -> PerfOptions:
    """Return the options of flags given by attribute name, checked against each other."""
    options = PerfOptions()
    for flag in FLAGS:
        if flag.name in values:
            setattr(options, flag.name, value_of(flag, values[flag.name]))
            options.given.add(flag.letter)
    if options.minbytes > options.maxbytes:
        raise InputError(
            f"-b {options.minbytes} -e {options.maxbytes}: the smallest size is above the largest"
        )
    _check(options)
    if (
        options.stepfactor == 1
        and options.stepbytes == 0
        and options.minbytes < options.maxbytes
    ):
        raise InputError("-i 0: must be at least 1")
    return options


def _check(options: PerfOptions) -> None:
    """Raise `InputError` for invalid values, and for flags with which nccl-tests fails."""
    for flag in FLAGS:
        value = getattr(options, flag.name)
        if (
            flag.most is not None
            and flag.letter in options.given
            and value > flag.most
        ):
            raise InputError(f"-{flag.letter} {value}: must be 0 to {flag.most}")
    if options.device_implementation:
        raise InputError(
            f"-D {options.device_implementation}: only NCCL's own implementation, 0"
        )
    if options.per_iter_timing:
        raise InputError(
            "-I 1: times of single iterations are not simulated; all are equal"
        )
    if options.cudagraph and options.blocking:
        raise InputError(
            f"-z {options.blocking} -G {options.cudagraph}: a graph cannot wait while it is captured"
        )


def without_effect(options: PerfOptions) -> tuple[str, ...]:
    """Return the notes on given flags that change no time."""
    usual, result = PerfOptions(), []
    for flag in FLAGS:
        value = getattr(options, flag.name)
        if flag.letter == "R" and value == SYMMETRIC_WINDOWS:
            continue
        if flag.without and value != getattr(usual, flag.name):
            result.append(f"-{flag.letter} {value} has no effect: {flag.without}")
    if options.average != usual.average and options.nthreads == 1:
        result.append(
            f"-a {options.average} has no effect: only threads of a process differ"
        )
    return tuple(result)
