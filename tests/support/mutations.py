"""Images with a few numbers changed: what a damaged file, or a bug in lowering, would hand to an engine."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np

from clusim.engine.abi import NONE
from clusim.engine.image import DTYPES, Image
from clusim.engine.ranges import RANGES, Range, lengths

__all__ = ["mutated"]

EDGES = (0, 1, 2, 2**31 - 1, 2**31, NONE - 1, NONE, 2**32, 2**63 - 1, 2**63, 2**64 - 1)


def mutated(image: Image, rng: random.Random, legal: float = 0.7) -> Image:
    """Return a copy of `image` with one to three numbers changed.

    Parameters
    ----------
    legal : float
        Part of the numbers that stay in their range, so that the other checks and the run see them.
    """
    image = replace(image, **{name: getattr(image, name).copy() for name in DTYPES})
    for _ in range(rng.randint(1, 3)):
        name = rng.choice([name for name in DTYPES if len(getattr(image, name))])
        field, allowed = rng.choice(list(RANGES[name].items()))
        table = getattr(image, name)
        column = table[field] if field else table
        flat = column.reshape(-1).copy()
        at = rng.randrange(len(flat))
        old = int(flat[at])
        pick = _legal_value if rng.random() < legal else _any_value
        value = pick(image, allowed, old, rng)
        bits = np.iinfo(flat.dtype).bits
        flat[at] = np.array(value % 2**bits, np.uint64).astype(f"<u{bits // 8}").view(flat.dtype)
        if field:
            table[field] = flat.reshape(column.shape)
        else:
            table[:] = flat
    return image


def _legal_value(image: Image, allowed: Range, old: int, rng: random.Random) -> int:
    if allowed.into:
        return rng.randrange(max(1, lengths(image.tables(), image.nvc)[allowed.into]))
    near = [old + 1, old - 1, old * 2, old // 2]
    far = allowed.lo + rng.getrandbits(rng.randrange(1, 40)) % (allowed.hi - allowed.lo + 1)
    value = rng.choice([*near, far])
    return min(max(value, allowed.lo), allowed.hi)


def _any_value(_: Image, allowed: Range, old: int, rng: random.Random) -> int:
    outside = (allowed.lo - 1, allowed.hi + 1, allowed.lo, allowed.hi)
    return rng.choice([*EDGES, *outside, old ^ (1 << rng.randrange(64)), -old])
