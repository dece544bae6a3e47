"""Quantities with units: sizes in bytes, rates as exact rationals, times in picoseconds.

Units are not guessed. ``64MB`` is decimal and ``64MiB`` binary; ``400Gb/s`` is bits and ``50GB/s``
bytes; ambiguous text (``64M``, ``25 G``, ``5m``) is an error that names the alternatives. All arithmetic
is exact, so a value that is not an integral number of bytes or picoseconds is also an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from fractions import Fraction
from functools import lru_cache
from math import gcd

from clusim.base.errors import UnitError
from clusim.base.records import dataclass

MAX_INT = 2**63 - 1
"""Largest size [bytes] and time [ps] that the engines accept."""

PS_PER_S = 10**12

_DECIMAL = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "p": 10**15}
_BINARY = {"ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40, "pi": 2**50}
_PREFIXES = _DECIMAL | _BINARY
_TIMES = {
    "ps": 1,
    "ns": 10**3,
    "us": 10**6,
    "µs": 10**6,
    "μs": 10**6,
    "ms": 10**9,
    "s": 10**12,
}
_LONG_TIMES = {
    "m": "ms or 60s",
    "min": "60s",
    "h": "3600s",
    "sec": "s",
    "n": "ns",
    "u": "us",
}

_NUMBER = r"[0-9]{1,20}(?:\.[0-9]{0,20})?(?:[eE][+-]?[0-9]{1,2})?|\.[0-9]{1,20}"
_QUANTITY = re.compile(rf"\s*({_NUMBER})\s*([^\s0-9.,+-]*)\s*")
_COUNTED = re.compile(r"\s*([0-9]{1,6})\s*[x×*]\s*(\S.*)", re.DOTALL)  # noqa: RUF001 - people paste the sign


_TRANSFERS = re.compile(r"[0-9.]\s*[kKMGT]T(/s|ps)")


@dataclass(frozen=True, slots=True, order=False)
class Rate:
    """A data rate as a reduced rational: `num` bytes per `den` ps."""

    num: int
    den: int

    def __post_init__(self) -> None:
        """Reduce the fraction, and refuse invalid rates."""
        if self.num < 0 or self.den <= 0:
            raise UnitError(
                f"rate {self.num}/{self.den}: must be >= 0 bytes per > 0 ps"
            )
        divisor = gcd(self.num, self.den)
        object.__setattr__(self, "num", self.num // divisor)
        object.__setattr__(self, "den", self.den // divisor)
        if max(self.num, self.den) >= 2**63:
            raise UnitError(
                f"rate {self.num}/{self.den}: too fine to be exact; use fewer digits"
            )

    @classmethod
    def from_bytes_per_s(cls, value: int | float | Fraction) -> Rate:
        """Return the rate of `value` bytes per second, exactly."""
        exact = Fraction(value) / PS_PER_S
        return cls(exact.numerator, exact.denominator)

    @property
    def bytes_per_s(self) -> float:
        """The rate [B/s]."""
        return self.num * PS_PER_S / self.den

    def time_ps(self, size_bytes: int) -> int:
        """Return the serialisation time of `size_bytes` at this rate, rounded up [ps]."""
        if self.num == 0:
            raise UnitError("rate 0 B/s: cannot send; use a rate > 0")
        return -(-size_bytes * self.den // self.num)

    def __mul__(self, factor: int | Fraction) -> Rate:
        """Return this rate multiplied by `factor`."""
        exact = Fraction(self.num, self.den) * factor
        return Rate(exact.numerator, exact.denominator)

    def __str__(self) -> str:
        """Write the rate with its usual unit, e.g. ``25 GB/s``."""
        return _rate_text(self)


def _number(text: str, noun: str, example: str) -> tuple[Fraction, str]:
    """Split `text` into its value and its unit."""
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise UnitError(f"{_show(text)}: not a {noun}; write for example {example}")
    return Fraction(match[1]), match[2]


def _show(text: str) -> str:
    quoted = repr(text)
    return quoted if len(quoted) <= 60 else f"{quoted[:56]}...'"


def _plain(value: Fraction) -> str:
    """Write a value without exponent and without superfluous zeros."""
    if value.denominator == 1:
        return str(value.numerator)
    return f"{float(value):g}"


def _to_integer(value: Fraction, text: str, unit: str) -> int:
    if value.denominator != 1:
        raise UnitError(
            f"{_show(text)}: is {float(value):g} {unit}; must be an integer number of {unit}"
        )
    if value > MAX_INT:
        raise UnitError(f"{_show(text)}: too large; the largest is {MAX_INT} {unit}")
    return int(value)


def _as_text(value: object, noun: str, example: str) -> str:
    if not isinstance(value, str):
        raise UnitError(f"{value!r}: not a {noun}; write for example {example}")
    return value


def parse_size(text: str | int, *, binary_suffix: bool = False) -> int:
    """Return the size written in `text` [bytes].

    Parameters
    ----------
    text : str or int
        ``"64MiB"`` (binary), ``"64 MB"`` (decimal), ``"4096"`` or 4096 (bytes).
    binary_suffix : bool
        Read ``64M`` as 64 MiB, as nccl-tests does; otherwise a bare ``K``, ``M``, ``G``, ``T`` is ambiguous.
    """
    if isinstance(text, int) and not isinstance(text, bool):
        text = str(text)
    text = _as_text(text, "size", "64MiB")
    number, unit = _number(text, "size", "64MiB")
    value = _plain(number)
    lower = unit.lower()
    if (unit.endswith("b") and lower[:-1] in _PREFIXES) or lower.endswith(
        ("bit", "bits")
    ):
        big = unit[: len(unit) - len(lower.lstrip("kmgtpi"))] if lower != "b" else ""
        raise UnitError(
            f"{_show(text)}: {unit!r} are bits, not bytes; write {value}{big.rstrip('i')}B"
        )
    if lower in ("k", "m", "g", "t") and binary_suffix:
        return _to_integer(number * _BINARY[lower + "i"], text, "bytes")
    if lower in ("k", "m", "g", "t", "p") or lower in _BINARY:
        one = unit[0].upper() if lower[0] != "k" else "K"
        binary, decimal = (
            number * _BINARY[one.lower() + "i"],
            number * _DECIMAL[one.lower()],
        )
        raise UnitError(
            f"{_show(text)}: ambiguous size; write {value}{one}iB ({_plain(binary)} bytes)"
            f" or {value}{one}B ({_plain(decimal)} bytes)"
        )
    if lower not in ("", "b", "byte", "bytes") and not (
        lower[-1] == "b" and lower[:-1] in _PREFIXES
    ):
        raise UnitError(
            f"{_show(text)}: unknown unit {unit!r} of size; use B, KB, MB, GB or KiB, MiB, GiB"
        )
    scale = _PREFIXES[lower[:-1]] if lower.endswith("b") else 1
    return _to_integer(number * scale, text, "bytes")


def parse_rate(text: str) -> Rate:
    """Return the rate in `text`: ``"25 GB/s"``, ``"400 Gb/s"``, ``"12 x 25GB/s"``."""
    text = _as_text(text, "rate", "'25 GB/s' or '400 Gb/s'")
    counted = _COUNTED.fullmatch(text)
    if counted is not None:
        return parse_rate(counted[2]) * int(counted[1])
    if _TRANSFERS.search(text):
        raise UnitError(
            f"{_show(text)}: transfers are not bytes; write lanes x rate after encoding, e.g. '16 x 1.97 GB/s'"
        )
    number, unit = _number(text, "rate", "'25 GB/s' or '400 Gb/s'")
    per_s = (
        unit.removesuffix("/s").removesuffix("/sec")
        if "/" in unit
        else unit.removesuffix("ps")
    )
    base = (
        per_s.replace("bits", "b")
        .replace("bit", "b")
        .replace("bytes", "B")
        .replace("byte", "B")
    )
    prefix, kind = base[:-1].lower(), base[-1:]
    if per_s != unit and kind in ("b", "B") and prefix in _PREFIXES:
        bytes_per_s = number * _PREFIXES[prefix] / (8 if kind == "b" else 1)
        return Rate.from_bytes_per_s(bytes_per_s)
    value = _plain(number)
    letter = unit[:1].upper()
    if letter in ("K", "M", "G", "T"):
        hint = f"write {value} {letter}B/s (bytes) or {value} {letter}b/s (bits)"
        if unit[1:3] == "T/":
            hint = "transfers are not bytes; write lanes x rate after encoding, e.g. '16 x 1.97 GB/s'"
        raise UnitError(f"{_show(text)}: ambiguous rate; {hint}")
    if not unit:
        raise UnitError(
            f"{_show(text)}: a rate needs a unit; write {value} GB/s (bytes) or {value} Gb/s (bits)"
        )
    raise UnitError(
        f"{_show(text)}: unknown unit {unit!r} of rate; use GB/s (bytes) or Gb/s (bits)"
    )


def parse_percent(text: str) -> float:
    """Return the part written in `text`, above 0 and below 1: ``"20%"``, ``"0.2"``."""
    number, sign, remainder = text.strip().partition("%")
    try:
        part = float(number) / (100 if sign else 1)
    except ValueError:
        part = 0.0
    if remainder or not 0 < part < 1:
        raise UnitError(
            f"{_show(text)}: must be above 0% and below 100%; write 20% or 0.2"
        )
    return part


def parse_time(text: str | int) -> int:
    """Return the time written in `text` [ps]: ``"500ns"``, ``"1.2 us"``, ``"0"``."""
    if isinstance(text, int) and not isinstance(text, bool) and text == 0:
        return 0
    if isinstance(text, int) and not isinstance(text, bool):
        text = str(text)
    text = _as_text(text, "time", "500ns")
    number, unit = _number(text, "time", "500ns")
    if not unit and number == 0:
        return 0
    value = _plain(number)
    if unit in _TIMES:
        return _to_integer(number * _TIMES[unit], text, "ps")
    if not unit:
        raise UnitError(
            f"{_show(text)}: a time needs a unit; write {value}ns, {value}us or {value}ms"
        )
    if unit.lower() in _LONG_TIMES:
        raise UnitError(
            f"{_show(text)}: unknown unit {unit!r} of time; did you mean {_LONG_TIMES[unit.lower()]}?"
        )
    if unit.lower() in _TIMES:
        raise UnitError(
            f"{_show(text)}: unknown unit {unit!r} of time; did you mean {unit.lower()!r}?"
        )
    raise UnitError(
        f"{_show(text)}: unknown unit {unit!r} of time; use ps, ns, us, ms or s"
    )


def _write_scaled(
    value: Fraction, units: tuple[tuple[str, int], ...], exact: bool
) -> str:
    """Write `value` in the largest unit not above it, with `exact` in a unit without rounding."""
    fitting = [item for item in units if value >= item[1]] or [units[-1]]
    for name, scale in fitting:
        scaled = value / scale
        digits = f"{float(scaled):.3f}".rstrip("0").rstrip(".")
        if Fraction(digits) == scaled:
            return f"{digits} {name}"
        if not exact:
            return (
                f"{float(scaled):.4g} {name}"
                if scaled < 1000
                else f"{float(scaled):.0f} {name}"
            )
    return f"{_digits(value / fitting[-1][1])} {fitting[-1][0]}"


def _digits(value: Fraction) -> str:
    """Write a value with all its digits (at most 20 after the decimal point)."""
    quotient, remainder = divmod(value, 1)
    digits = f"{int(remainder * 10**20):020d}".rstrip("0")
    return f"{int(quotient)}.{digits}" if digits else str(int(quotient))


_SIZE_NAMES = (
    ("TiB", 2**40),
    ("GiB", 2**30),
    ("MiB", 2**20),
    ("KiB", 2**10),
    ("B", 1),
)
_TIME_NAMES = (("s", 10**12), ("ms", 10**9), ("us", 10**6), ("ns", 10**3), ("ps", 1))
_RATE_NAMES = (
    ("TB/s", 10**12),
    ("GB/s", 10**9),
    ("MB/s", 10**6),
    ("KB/s", 10**3),
    ("B/s", 1),
)


def format_size(size_bytes: int, *, exact: bool = False) -> str:
    """Write a size with a binary unit; with `exact` it reads back as the same number."""
    return _write_scaled(Fraction(size_bytes), _SIZE_NAMES, exact)


def format_rate(rate: Rate | float, *, exact: bool = False) -> str:
    """Write a rate (or a number of bytes per second) in decimal bytes per second."""
    value = (
        Fraction(rate.num * PS_PER_S, rate.den)
        if isinstance(rate, Rate)
        else Fraction(rate)
    )
    return _write_scaled(value, _RATE_NAMES, exact)


# Large systems have few rates, and many links whose texts are compared.
_rate_text = lru_cache(1024)(format_rate)


def format_time(time_ps: int, *, exact: bool = False) -> str:
    """Write a time; with `exact` it reads back as the same number."""
    return _write_scaled(Fraction(time_ps), _TIME_NAMES, exact)


def parse_ranks(text: str) -> tuple[int, ...]:
    """Return the ranks of a list such as ``0-7`` or ``0,2,4-6``.

    Raises
    ------
    UnitError
        It is not such a list.
    """
    ranks: list[int] = []
    for part in text.split(","):
        low, dash, high = part.strip().partition("-")
        if not low.isdecimal() or (dash and not high.isdecimal()) or len(part) > 20:
            raise UnitError(
                f"{text!r}: not a list of ranks; write for example 0-7 or 0,2,4-6"
            )
        first, last = int(low), int(high or low)
        if last < first or last - first > 1_000_000:
            raise UnitError(
                f"{text!r}: {part.strip()} is not an ascending range of ranks"
            )
        ranks += range(first, last + 1)
    return tuple(ranks)


def parse_domains(text: str) -> tuple[int, int]:
    """Return the numbers of NVLink domains and of GPUs in each of a text such as ``2x4``.

    Raises
    ------
    UnitError
        It is not two numbers of at least 1.
    """
    domains, _, gpus = text.strip().lower().partition("x")
    if not (domains.isdecimal() and gpus.isdecimal()) or len(text) > 20:
        raise UnitError(f"{text!r}: not DOMAINSxGPUS; write for example 2x4")
    if not 1 <= int(domains) <= 65_536 or not 1 <= int(gpus) <= 65_536:
        raise UnitError(f"{text!r}: numbers of domains and GPUs are 1 to 65,536")
    return int(domains), int(gpus)


def format_ranges(numbers: Iterable[int]) -> str:
    """Write distinct numbers in ascending order: ``0-3,8``."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)
