"""Requests of a run: their lengths and arrivals.

**Model** Closed loop: `concurrency` requests are always in the server; the next arrives when one has ended. Open loop:
arrivals are a Poisson process, or read from a file with the columns ``arrival`` [s], ``input`` and ``output`` [tokens].
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from clusim.base.errors import InputError
from clusim.base.limits import read_text
from clusim.serving.spec import LengthSpec, RequestSpec

MAX_FILE_BYTES = 256 << 20

PER_CONCURRENT = 10
"""Requests of a closed loop for each that is in the server (``vllm bench serve`` scripts of InferenceX)."""

OPEN_COUNT = 1000
"""Requests of an open loop, by default."""

COLUMNS = ("arrival", "input", "output")


class ServingRequest(NamedTuple):
    """A request: its arrival in open loops [ps], and its tokens."""

    arrival_ps: int
    prompt: int
    output: int


def draw_requests(spec: RequestSpec) -> list[ServingRequest]:
    """Return the requests of a run in the order of arrival; in a closed loop arrivals are 0.

    Raises
    ------
    InputError
        Contradicting settings, or an invalid line of the file.
    """
    modes = [name for name in ("concurrency", "rate", "file") if getattr(spec, name)]
    if len(modes) != 1:
        words = " and ".join(modes) or "nothing"
        raise InputError(
            f"requests: set one of concurrency, rate and file, not {words}"
        )
    if spec.file:
        return list(_read_requests(spec.file))[: spec.count]
    closed = PER_CONCURRENT * (spec.concurrency or 0)
    count = spec.count or closed or OPEN_COUNT
    random = np.random.Generator(np.random.PCG64(spec.seed))
    prompts = _lengths(spec.input, count, random)
    outputs = _lengths(spec.output, count, random)
    arrivals = [0] * count
    if spec.rate:
        gaps = random.exponential(1e12 / spec.rate, count)
        arrivals = [round(time) for time in np.cumsum(gaps)]
    return [
        ServingRequest(*row) for row in zip(arrivals, prompts, outputs, strict=True)
    ]


def _lengths(spec: LengthSpec, count: int, random: np.random.Generator) -> list[int]:
    if spec.fixed is not None:
        return [spec.fixed] * count
    if spec.uniform is not None:
        low, high = spec.uniform
        return [int(value) for value in random.integers(low, high + 1, count)]
    assert spec.lognormal is not None
    mean, sigma = spec.lognormal.mean, spec.lognormal.sigma
    values = random.lognormal(np.log(mean) - sigma**2 / 2, sigma, count)
    return [max(1, round(value)) for value in values]


def _read_requests(name: str) -> Iterator[ServingRequest]:
    path = Path(name)
    if not path.is_file():
        raise InputError(f"{name}: no such file")
    lines = read_text(
        path, MAX_FILE_BYTES, advice="not a trace of requests"
    ).splitlines()
    rows = csv.reader(lines)
    head = next(rows, [])
    if [*map(str.strip, head)] != [*COLUMNS]:
        raise InputError(
            f"{name}:1: columns must be {','.join(COLUMNS)}, not {','.join(head)}"
        )
    before = 0
    for number, row in enumerate(rows, start=2):
        try:
            arrival_ps = round(float(row[0]) * 1e12)
            request = ServingRequest(arrival_ps, int(row[1]), int(row[2]))
        except (ValueError, IndexError, OverflowError):
            raise InputError(
                f"{name}:{number}: must be a time [s] and two numbers of tokens"
            ) from None
        if request.arrival_ps < before:
            raise InputError(
                f"{name}:{number}: arrival is before the line above; sort the file"
            )
        if request.prompt < 1 or request.output < 1 or len(row) != len(COLUMNS):
            raise InputError(
                f"{name}:{number}: both numbers of tokens must be at least 1"
            )
        before = request.arrival_ps
        yield request
