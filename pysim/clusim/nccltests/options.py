"""Command line of an nccl-tests program: names, meanings and limits of its flags."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from clusim.base.errors import InputError
from clusim.base.terms.dtypes import BY_NUMBER, IN_TABLES, REDUCTIONS, DataType

TYPES: dict[str, DataType] = {item.tables[0]: item for item in BY_NUMBER}
"""By nccl-tests' names."""

OPS = (*REDUCTIONS, "mulsum")

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag: its letter, long name, field, argument and effect in clusim."""

    letter: str
    name: str
    attribute: str
    takes: str
    help: str


@dataclass
class PerfOptions:
    """Values of the flags, with nccl-tests' defaults; sizes in bytes."""

    nthreads: int = 1
    ngpus: int = 1
    minbytes: int = 32 << 20
    maxbytes: int = 32 << 20
    stepbytes: int = 1 << 20
    stepfactor: int = 1
    iters: int = 20
    agg_iters: int = 1
    warmup_iters: int = 1
    run_cycles: int = 1
    parallel_init: int = 0
    check: int = 1
    op: str = "sum"
    datatype: str = "float"
    root: int = 0
    blocking: int = 0
    stream_null: int = 0
    timeout: int = 0
    cudagraph: int = 0
    report_cputime: int = 0
    report_timestamps: int = 0
    average: int = 1
    local_register: int = 0
    cta_policy: int = -1
    device_implementation: int = 0
    device_cta_count: int = 16
    memory_report: int = 0
    unalign: int = 0
    per_iter_timing: int = 0
    per_iter_skip: int = 0
    output_file: str = ""
    given: set[str] = field(default_factory=set)

    @property
    def types(self) -> tuple[str, ...]:
        """Return the types to test."""
        return tuple(TYPES) if self.datatype == "all" else (self.datatype,)

    @property
    def ops(self) -> tuple[str, ...]:
        """Return the reductions to test."""
        return OPS if self.op == "all" else (self.op,)

    def sizes(self) -> list[int]:
        """Return the requested sizes, in order [bytes]."""
        result = []
        size = self.minbytes
        while size <= self.maxbytes:
            result.append(size)
            size = size * self.stepfactor if self.stepfactor > 1 else size + self.stepbytes
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

FLAGS = (
    Flag(
        "t", "nthreads", "nthreads", "count", "threads per process; each launches on different GPUs"
    ),
    Flag("g", "ngpus", "ngpus", "count", "GPUs per thread, launched one after the other"),
    Flag("b", "minbytes", "minbytes", "size", "smallest size"),
    Flag("e", "maxbytes", "maxbytes", "size", "largest size"),
    Flag("i", "stepbytes", "stepbytes", "size", "step between sizes"),
    Flag("f", "stepfactor", "stepfactor", "count", "factor between sizes"),
    Flag("n", "iters", "iters", "count", "iterations; each has its share of start and end"),
    Flag("m", "agg_iters", "agg_iters", "count", "iterations launched as one group"),
    Flag("w", "warmup_iters", "warmup_iters", "number", "warm-up iterations; without effect"),
    Flag("N", "run_cycles", "run_cycles", "count", "number of times to print the table"),
    Flag("p", "parallel_init", "parallel_init", "number", "without effect: not timed"),
    Flag("c", "check", "check", "number", "verify data of small sizes"),
    Flag("o", "op", "op", "op", "reduction: sum prod max min avg mulsum all"),
    Flag("d", "datatype", "datatype", "type", "type of the elements, or all"),
    Flag("r", "root", "root", "number", "root of broadcast, reduce, gather, scatter"),
    Flag(
        "z",
        "blocking",
        "blocking",
        "number",
        "wait for every iteration: 1 and meet, 2, 3 and meet untimed",
    ),
    Flag("y", "stream_null", "stream_null", "number", "without effect"),
    Flag("T", "timeout", "timeout", "number", "without effect"),
    Flag("G", "cudagraph", "cudagraph", "number", "iterations are a CUDA graph, launched so often"),
    Flag("C", "report_cputime", "report_cputime", "number", "report the time of the host"),
    Flag("S", "report_timestamps", "report_timestamps", "number", "add the time of day"),
    Flag("J", "output_file", "output_file", "file", "write JSON to a file"),
    Flag("a", "average", "average", "number", "time of thread 0, mean, least or most: 0 to 3"),
    Flag(
        "R",
        "local_register",
        "local_register",
        "number",
        "2: symmetric windows; 1 is without effect: not modelled",
    ),
    Flag("x", "cta_policy", "cta_policy", "number", "without effect: not modelled"),
    Flag("D", "device_implementation", "device_implementation", "number", "only 0"),
    Flag("V", "device_cta_count", "device_cta_count", "number", "without effect, as -D"),
    Flag("M", "memory", "memory_report", "number", "without effect: no memory is counted"),
    Flag("u", "unalign", "unalign", "number", "without effect: not modelled"),
    Flag("I", "per_iter_timing", "per_iter_timing", "number", "only 0"),
    Flag("K", "per_iter_skip", "per_iter_skip", "number", "without effect, as -I"),
)
"""Flags of nccl-tests 2.19."""

_MOST = {"blocking": 3, "average": 3, "local_register": 2, "cta_policy": 2, "per_iter_timing": 1}
"""Largest values that nccl-tests defines."""

SYMMETRIC_WINDOWS = 2
"""Value of ``-R`` that registers buffers as symmetric windows, the only one with an effect."""

_WITHOUT = {
    "warmup_iters": "one iteration of every size runs before the clock anyway",
    "parallel_init": "initialisation is not timed",
    "stream_null": "streams are not modelled",
    "timeout": "nothing hangs",
    "local_register": "registered buffers are not modelled but as windows (-R 2)",
    "cta_policy": "not modelled; NCCL's default",
    "device_cta_count": "it is for -D",
    "memory_report": "memory is not counted",
    "unalign": "addresses are not modelled",
    "per_iter_skip": "it is for -I",
}
"""Flags that are accepted without effect, with the reason."""


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
    least = 1 if flag.takes == "count" else 0
    if not value.isdecimal() or len(value) > 9 or int(value) < least:
        _wrong(flag, value, f"not an integer of at least {least}")
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
        known = IN_TABLES.get(value.lower())
        return _name(flag, known.tables[0] if known else value, tuple(TYPES))
    if flag.takes == "file":
        return value
    return _number(flag, value)


def flags_of(words: Sequence[str]) -> dict[str, str]:
    """Return flags as typed, ``-b 8 --maxbytes 1G``, by attribute name."""
    names = {f"-{flag.letter}": flag for flag in FLAGS} | {f"--{flag.name}": flag for flag in FLAGS}
    result: dict[str, str] = {}
    rest = list(words)
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        if name not in names:
            raise InputError(f"{name}: not a flag of nccl-tests")
        if not equals and not rest:
            raise InputError(f"{name}: needs a value")
        result[names[name].attribute] = value if equals else rest.pop(0)
    return result


def parse_flags(values: dict[str, str]) -> PerfOptions:
    """Return the options of flags given by attribute name, checked against each other."""
    options = PerfOptions()
    for flag in FLAGS:
        if flag.attribute in values:
            setattr(options, flag.attribute, value_of(flag, values[flag.attribute]))
            options.given.add(flag.letter)
    if options.minbytes > options.maxbytes:
        raise InputError(
            f"-b {options.minbytes} -e {options.maxbytes}: the smallest size is above the largest"
        )
    _check(options)
    if options.stepfactor == 1 and options.stepbytes == 0 and options.minbytes < options.maxbytes:
        raise InputError("-i 0: must be at least 1")
    return options


def _check(options: PerfOptions) -> None:
    """Raise `InputError` for invalid values, and for flags with which nccl-tests fails."""
    for flag in FLAGS:
        value, most = getattr(options, flag.attribute), _MOST.get(flag.attribute)
        if most is not None and flag.letter in options.given and value > most:
            raise InputError(f"-{flag.letter} {value}: must be 0 to {most}")
    if options.device_implementation:
        raise InputError(f"-D {options.device_implementation}: only NCCL's own implementation, 0")
    if options.per_iter_timing:
        raise InputError("-I 1: times of single iterations are not simulated; all are equal")
    if options.cudagraph and options.blocking:
        raise InputError(
            f"-z {options.blocking} -G {options.cudagraph}: a graph cannot wait while it is captured"
        )


def without_effect(options: PerfOptions) -> tuple[str, ...]:
    """Return the notes on given flags that change no time."""
    usual, result = PerfOptions(), []
    for flag in FLAGS:
        value = getattr(options, flag.attribute)
        if flag.letter == "R" and value == SYMMETRIC_WINDOWS:
            continue
        if flag.attribute in _WITHOUT and value != getattr(usual, flag.attribute):
            result.append(f"-{flag.letter} {value} has no effect: {_WITHOUT[flag.attribute]}")
    if options.average != usual.average and options.nthreads == 1:
        result.append(f"-a {options.average} has no effect: only threads of a process differ")
    return tuple(result)
