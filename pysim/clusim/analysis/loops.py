"""Loops of analyses in plain Python; `clusim.analysis._kernels` compiles them.

Importing the compiler needs more time than a short loop, so short loops run uncompiled.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from clusim.engine.abi import Mode

Array = NDArray[Any]

PLAIN = 20_000
"""Turns of a loop up to which it is not compiled: 0.1 s at most."""

_INTERLEAVED = int(Mode.INTERLEAVED)


def slice_table(prims: Array, shape: Array, out: Array, most: int) -> int:
    """Enumerate the slices of an instance that are not skipped (contract, section 7).

    Returns their number, or -1 if there are more than `most`, or if the count needs more than 64 times `most` steps.

    `prims` has rows (base, coef, step, repeat, sync); `shape` is (nchunks, mode, length, chunk, stride, offset,
    limit, slice_min, rotation, align, slices, slots of a slice). `out` has rows
    (primitive, bytes, slots); with an empty one slices are only counted.
    """
    nchunks, mode, length, chunk, stride, offset = (
        shape[0],
        shape[1],
        shape[2],
        shape[3],
        shape[4],
        shape[5],
    )
    limit, slice_min, rotation, align, slices = shape[6], shape[7], shape[8], shape[9], shape[10]
    width = shape[11]
    span = nchunks * chunk if mode == _INTERLEAVED else chunk
    loops = (length + span - 1) // span
    if loops == 0 and prims[:, 4].any():
        loops = 1
    count = steps = 0
    fill = len(out) > 0
    for loop in range(loops):
        rem = max(0, length - loop * span)
        c = chunk
        if mode == _INTERLEAVED and rem < span:
            even = (rem + nchunks - 1) // nchunks
            c = min(chunk, (even + align - 1) // align * align)
        for p in range(len(prims)):
            base, coef, step, repeat, sync = (
                prims[p, 0],
                prims[p, 1],
                prims[p, 2],
                prims[p, 3],
                prims[p, 4],
            )
            for i in range(repeat):
                steps += 1
                if count > most or steps > 64 * most:
                    return -1
                if sync:
                    if fill:
                        out[count, 0], out[count, 1], out[count, 2] = p, 0, width
                    count += 1
                    continue
                q = (base + coef * rotation + step * i) % nchunks
                if mode == _INTERLEAVED:
                    piece = min(max(min(rem, span) - q * c, 0), c)
                else:
                    low = q * stride + offset + loop * chunk
                    high = min(low + chunk, q * stride + offset + length, limit)
                    piece = max(0, high - low)
                even = (piece + slices - 1) // slices
                size = max((even + 15) // 16 * 16, slice_min, 1)
                done, left = 0, slices
                if (piece + size - 1) // size > most:
                    return -1
                while done < piece:
                    if fill:
                        out[count, 0], out[count, 1] = p, min(size, piece - done)
                        out[count, 2] = width * (left if done + size >= piece else 1)
                    count += 1
                    left -= 1
                    done += size
    return count


def count_spans(start: Array, end: Array, weight: Array, edges: Array) -> Array:
    """Spread weights evenly over their spans of time; return the amount in each bin."""
    out = np.zeros(len(edges) - 1)
    for i in range(len(start)):
        length = max(1, end[i] - start[i])
        b = np.searchsorted(edges, start[i], side="right") - 1
        b = min(max(b, 0), len(out) - 1)
        while b < len(out) and edges[b] < start[i] + length:
            part = min(edges[b + 1], start[i] + length) - max(edges[b], start[i])
            if part > 0:
                out[b] += weight[i] * part / length
            b += 1
    return out
