"""Mutations of texts: bytes, tokens and lines, with the values at which readers break."""

from __future__ import annotations

import random
import re

__all__ = ["mutate"]

NUMBERS = (
    "0", "-1", "1", "2147483647", "2147483648", "4294967295", "4294967296", "9223372036854775807",
    "9223372036854775808", "18446744073709551615", "18446744073709551616", "99999999999999999999",
    "1e308", "-1e308", "1e309", "nan", "inf", "-inf", "NaN", "Infinity", "1e-320", "0x7fffffffffffffff",
    "9" * 400, "9" * 5000, "1e400", "0.1", "1" + "0" * 30, "٣", "1_000", "+1", "00", "1.", ".5",
)  # fmt: skip
PIECES = (
    b"", b"\0", b"\xff\xfe", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\r", b"\n\n", b"\t", b"\x1b[2J", b"{}", b"[]",
    b"null", b"true", b'"', b"'", b"<", b"&lol;", b"..", b"[[[[", b"{{{{", b"*a", b"&a [*a]", b"!!python/object:x",
    b"%", b"\\u0000", b"\xe2\x80\xae", b"gpu0..99999999", b"0-4294967295", b"#", b"//", b"/*", b"-", b":", b",",
)  # fmt: skip
_NUMBER = re.compile(rb"\d+(?:\.\d+)?")
_TOKEN = re.compile(rb"[A-Za-z_]\w*|\d+(?:\.\d+)?|[^\s\w]|\s+")
MOST_BYTES = 1 << 17


def mutate(data: bytes, chance: random.Random, other: bytes = b"") -> bytes:
    """Return the text with one to five changes; `other` is what pieces are spliced in from."""
    if data.startswith(b"SQLite format 3") and chance.random() < 0.6:
        return _schema(data, chance)
    for _ in range(chance.choice((1, 1, 1, 2, 2, 3, 5))):
        data = chance.choice(_CHANGES)(data, chance, other or data)[:MOST_BYTES]
    return data


def _schema(data: bytes, chance: random.Random) -> bytes:
    """Change bytes of the first page of a database, which describes its tables, and of page headers."""
    changed, page_bytes = bytearray(data), int.from_bytes(data[16:18], "big") or 1
    for _ in range(chance.choice((1, 1, 2, 4))):
        at = chance.randrange(min(page_bytes, len(data)))
        if chance.random() < 0.2:
            at = min(
                chance.randrange(0, len(data), page_bytes) + chance.randrange(16), len(data) - 1
            )
        changed[at] = chance.choice(
            (changed[at] ^ 1 << chance.randrange(8), changed[at] | 0x80, 0, 255)
        )
    return bytes(changed)


def _somewhere(
    pattern: re.Pattern[bytes], data: bytes, chance: random.Random
) -> re.Match[bytes] | None:
    """Return what matches first behind a place by chance, from the start of its word on."""
    at = chance.randrange(len(data) + 1)
    while at > 0 and data[at - 1 : at].isalnum():
        at -= 1
    return pattern.search(data, at) or pattern.search(data)


def _number(data: bytes, chance: random.Random, other: bytes) -> bytes:
    """Replace a number by one at the edge of something."""
    at = _somewhere(_NUMBER, data, chance)
    if at is None:
        return data
    kind = chance.randrange(4)
    if kind == 0:
        new = at[0] + at[0][-1:] * chance.choice((1, 3, 9, 18))
    elif kind == 1 and at[0].isdigit():
        new = str(max(0, int(at[0][:30]) + chance.choice((-1, 1, 2)))).encode()
    else:
        new = chance.choice(NUMBERS).encode()
    return data[: at.start()] + new + data[at.end() :]


def _token(data: bytes, chance: random.Random, other: bytes) -> bytes:
    """Delete, repeat or swap a token, or put one from elsewhere in its place."""
    at = _somewhere(_TOKEN, data, chance)
    if at is None:
        return data
    there = _somewhere(_TOKEN, other, chance) or at
    new = chance.choice((b"", at[0] * 2, there[0], there[0], chance.choice(PIECES)))
    return data[: at.start()] + new + data[at.end() :]


def _line(data: bytes, chance: random.Random, other: bytes) -> bytes:
    """Delete, repeat, swap, splice or cut lines."""
    rows, more = data.split(b"\n"), other.split(b"\n")
    i, j = chance.randrange(len(rows)), chance.randrange(len(rows))
    match chance.randrange(6):
        case 0:
            del rows[i]
        case 1:
            rows[i:i] = [rows[i]] * chance.choice((1, 2, 50))
        case 2:
            rows[i], rows[j] = rows[j], rows[i]
        case 3:
            rows[i:i] = [chance.choice(more)]
        case 4:
            at = chance.randrange(len(rows[i]) + 1)
            rows[i] = rows[i][:at] + rows[j]
        case _:
            rows[i] = rows[i][: chance.randrange(len(rows[i]) + 1)]
    return b"\n".join(rows)


def _bytes(data: bytes, chance: random.Random, other: bytes) -> bytes:
    """Flip a bit, delete, insert or cut."""
    a = chance.randrange(len(data) + 1)
    b = min(len(data), a + chance.choice((1, 2, 5, 20, 100)))
    match chance.randrange(6):
        case 0 if a < len(data):
            return data[:a] + bytes([data[a] ^ 1 << chance.randrange(8)]) + data[a + 1 :]
        case 1:
            return data[:a] + data[b:]
        case 2:
            return data[:b] + data[a:b] + data[b:]
        case 3:
            return data[:a] + chance.choice(PIECES) + data[b:]
        case 4 if chance.random() < 0.3:
            return data[:a]
        case _:
            return data[:a] + chance.choice(PIECES) + data[a:]


def _long(data: bytes, chance: random.Random, other: bytes) -> bytes:
    """Make one line very long, or nest something very deep."""
    a = chance.randrange(len(data) + 1)
    piece = chance.choice(
        (b"A", b"9", b" ", b"[", b"{", b'{"a":', b"<a>", b"- ", b"(", b"gpu0,", b"1 ")
    )
    return data[:a] + piece * chance.choice((100, 3000, 40000)) + data[a:]


_CHANGES = (_number, _number, _number, _token, _token, _token, _line, _line, _bytes, _bytes, _long)
