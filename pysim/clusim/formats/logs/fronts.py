"""Prefixes of log headers: timestamps in many forms, or the rank that a launcher printed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from clusim.formats.logs.digits import word, words
from clusim.formats.logs.lines import label_of, stamp_ns
from clusim.formats.logs.repeating import NONE

Positions = NDArray[np.int64]

FRONT_BYTES = 48
"""Longest front that is parsed."""

OTHER = -2
"""Marker: text of another line."""

LABEL = -(1 << 40)
"""Offset minus a rank: a launcher's label."""

_LEAST_ROWS = 64


def front(text: bytes) -> tuple[int, int]:
    """Return time [ns] and rank in the text before a header; `OTHER` if it is another line's."""
    stamp, label = stamp_ns(text), label_of(text)
    if len(text) > FRONT_BYTES or b"NCCL" in text:
        return OTHER, NONE
    if stamp >= 0 or label != NONE or not text.strip(b" []\t"):
        return stamp, label
    return OTHER, NONE


def stamps(buffer: NDArray[np.uint8], start: Positions, end: Positions) -> Positions:
    """Return the times of fronts [start, end) in the format of the first, -1 for the others.

    Only the first front is parsed in full. Fronts with digits at the same positions and the same text
    between them differ from it by their digits, each with the weight (seconds, minutes, ...) that it has in
    the first.
    """
    times = np.full(len(start), NONE, np.int64)
    if len(start) < _LEAST_ROWS:
        return times
    first = bytes(buffer[start[0] : end[0]])
    base = stamp_ns(first)
    width = len(first)
    if base < 0 or width > FRONT_BYTES:
        return times
    weights = _weights(first, base)
    if weights is None:
        return times
    # All other characters are equal, including dates and launchers' labels.
    view, good = words(buffer), end - start == width
    for at in range(0, width, 8):
        fixed = bytes(0 if weight else 255 for weight in weights[at : at + 8].tolist())
        value, mask = word(first[at : at + 8])[0], word(fixed)[0]
        good &= (view[start + at] & mask) == value & mask
    time = np.full(len(start), base, np.int64)
    for at in np.flatnonzero(weights).tolist():
        digit = buffer[start + at]
        good &= (digit - np.uint8(ord("0"))) < 10
        time += (digit.astype(np.int64) - first[at]) * weights[at]
    return np.where(good & (time >= 0), time, NONE)


def _weights(text: bytes, base: int) -> NDArray[np.int64] | None:
    """Return the weight of each digit of a time of day [ns]; 0 for other characters and dates."""
    weights = np.zeros(len(text), np.int64)
    for i, byte in enumerate(text):
        if not 48 <= byte <= 57:
            continue
        for other in (byte + 1, byte - 1):
            changed = text[:i] + bytes([other]) + text[i + 1 :]
            if 48 <= other <= 57 and (stamp := stamp_ns(changed)) >= 0:
                weights[i] = (stamp - base) * (other - byte)
                break
    # Months and years differ in length: only digits with a weight below a day may vary.
    weights[np.abs(weights) >= 10**9 * 3600 * 24] = 0
    return weights if weights.any() else None
