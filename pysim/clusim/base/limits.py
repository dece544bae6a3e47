"""Limits and validation for numbers and texts of external files.

Limits are checked before reading or conversion. Values are printed on one line; errors have a location.
"""

from __future__ import annotations

import gc
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from json import JSONDecodeError
from math import isfinite
from pathlib import Path
from typing import Any

from clusim.base.errors import InputError, TopologyError, one_line
from clusim.base.files import note_input


def fail(where: str, line: int, message: str) -> TopologyError:
    """Return an error at a line of a file; line 0 is the file in general."""
    place = f"{where}:{line}" if line else where
    return TopologyError(f"{place}: {message}")


def printable(text: object, limit: int = 60) -> str:
    """Return foreign text as one short line for a message."""
    line = one_line(str(text))
    return line if len(line) <= limit else f"{line[: limit - 3]}..."


_DIGITS = re.compile(r"([0-9]+)")


def natural(text: str) -> tuple[tuple[int, str], ...]:
    """Return a key that sorts ``mlx5_2`` before ``mlx5_10``."""
    parts = _DIGITS.split(text)
    return tuple(
        (int(part[:18]), "") if i % 2 else (-1, part) for i, part in enumerate(parts)
    )


def parse_integer(text: str | None) -> int | None:
    """Return the integer in `text` (decimal, or hexadecimal with ``0x``), or None."""
    text = (text or "").strip()
    if re.fullmatch(r"-?[0-9]{1,9}", text):
        return int(text)
    if re.fullmatch(r"0[xX][0-9a-fA-F]{1,16}", text):
        return int(text, 16)
    return None


def number(value: Any) -> float | None:
    """Return a finite number from a number or its text, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if isinstance(value, str) and len(value) > 40:
        return None
    try:
        result = float(value)
    except (ValueError, OverflowError):
        return None
    return result if abs(result) < 1e18 else None


def json_problem(error: Exception) -> str:
    """Return the problem of a text that `json` did not read, as a part of a message."""
    if isinstance(error, RecursionError):
        return "its lists and objects are nested too deeply"
    if isinstance(error, JSONDecodeError):
        return f"{error.msg} at line {error.lineno}, column {error.colno}"
    if isinstance(error, ArithmeticError) or "set_int_max_str_digits" in str(error):
        return "a number has too many digits"
    return printable(error, 100)


MOST_RANKS = 1 << 17
"""Most ranks of a job, a communicator or a recording."""

MOST_CHANNELS = 1 << 10
"""Most channels of a communicator; NCCL has at most 64."""

MOST_COUNT = 1 << 59
"""Most elements of a call: with the largest type, the bytes fit into 63 bits."""

MOST_TEXT_BYTES = 64 << 20
"""Default limit of a file that is read in full [bytes]."""

_WHOLE = re.compile(r"[+-]?[0-9]{1,19}")
_REAL = re.compile(
    r"[+-]?(?:[0-9]{1,30}(?:\.[0-9]{0,30})?|\.[0-9]{1,30})(?:[eE][+-]?[0-9]{1,3})?"
)


@contextmanager
def pause_collector() -> Iterator[None]:
    """Disable the garbage collector, which would repeatedly scan the many objects of a file."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def integer(text: str, low: int, high: int) -> int | None:
    """Return the integer in `text`, None if it is not an integer in ``low .. high``."""
    match = _WHOLE.fullmatch(text.strip())
    if match is None:
        return None
    value = int(match[0])
    return value if low <= value <= high else None


def real(text: str, low: float, high: float) -> float | None:
    """Return the number in `text`, None if it is not a finite number in ``low .. high``."""
    match = _REAL.fullmatch(text.strip())
    if match is None:
        return None
    value = float(match[0])
    return value if isfinite(value) and low <= value <= high else None


def named_file(variable: str, path: str) -> tuple[str, int]:
    """Return the file that an environment variable names, and the time of its last change [ns].

    Raises
    ------
    InputError
        There is no such file.
    """
    place = Path(path)
    try:
        return str(place), place.stat().st_mtime_ns
    except (OSError, ValueError):
        raise InputError(
            f"{variable}={printable(path, 200)}: no such file"
        ) from None


def read_text(
    path: str | Path,
    most_bytes: int = MOST_TEXT_BYTES,
    *,
    strict: bool = True,
    advice: str = "use a smaller file",
    where: str = "",
) -> str:
    """Return the text of an input file; invalid UTF-8 is an error, or replaced if `strict` is False.

    Parameters
    ----------
    where : str
        Name of the file in errors; by default its path.

    Raises
    ------
    InputError
        It cannot be read, is a directory or device, is larger than `most_bytes`, or is not text.
    """
    where = where or str(path)
    try:
        mode = Path(path).stat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
            kind = "is a directory" if stat.S_ISDIR(mode) else "not a regular file"
            raise InputError(f"{where}: {kind}; choose a file")
        note_input(path)
        with Path(path).open("rb") as file:
            data = file.read(most_bytes + 1)
    except (OSError, ValueError) as error:
        reason = str(getattr(error, "strerror", None) or error)
        raise InputError(f"{where}: cannot be read: {reason.lower()}") from None
    if len(data) > most_bytes:
        raise InputError(f"{where}: larger than {most_bytes >> 20} MiB; {advice}")
    try:
        return data.decode("utf-8-sig", "strict" if strict else "replace")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(f"{where}:{line}: not UTF-8 text") from None
