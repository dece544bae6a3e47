"""What primitives move over all their repetitions: the closed form is the sum over chunks."""

from __future__ import annotations

import random

import pytest

from clusim.schedule import Prim
from clusim.schedule.iteration import ChunkTotals, chunk_of, sum_chunks


@pytest.mark.parametrize("step", [-3, -1, 0, 1, 2, 7])
@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_what_is_moved_in_a_circle_is_the_sum_over_its_chunks(count: int, step: int) -> None:
    draw = random.Random(count * 10 + step)
    totals = ChunkTotals(tuple((draw.randrange(1000), draw.randrange(9)) for _ in range(count)))
    for _ in range(50):
        base, coef, rotation = draw.randrange(-9, 9), draw.randrange(-2, 3), draw.randrange(count)
        prim = Prim(
            "copySend", send=0, base=base, coef=coef, step=step, repeat=draw.randrange(1, 20)
        )
        moved = [
            totals.each[chunk_of(prim, rotation, index, count)] for index in range(prim.repeat)
        ]
        expected = sum(size for size, _ in moved), sum(slices for _, slices in moved)
        assert sum_chunks(totals, [prim], rotation) == expected
        assert sum_chunks(totals, [prim, prim], rotation) == (2 * expected[0], 2 * expected[1])


def test_chunks_are_even_only_if_all_are_alike() -> None:
    assert ChunkTotals(((16, 1),) * 4).even
    assert not ChunkTotals(((16, 1), (16, 1), (8, 1))).even
