"""Every algorithm computes the definition of its operation: untimed, on real data."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusim.base.terms.dtypes import REDUCTIONS
from clusim.collectives import ALGORITHMS, build
from clusim.collectives.api import REGISTRY
from clusim.schedule import Schedule, Shape
from clusim.schedule.dtypes import ELEMENTS
from clusim.schedule.executor import Executor
from clusim.schedule.semantics import run_untimed, verify
from support.collective_laws import fitting
from support.covering import THOROUGH, examples

PAIRS = list(REGISTRY)
SMALL = Shape(1024, slices=2, slots=8, slots_per_slice=2, slice_min=64)
"""Small chunks, so that a few KiB already take several loops."""

WHOLE = ("naive", "driver")
BY_LOADS = ("oneshot-pull", "twoshot-pull", "ld-st", "ld", "st")
REDUCING = [pair for pair in PAIRS if pair[0] in ("allreduce", "reduce", "reduce_scatter")]


def make(pair: tuple[str, str], ranks: Any, size_bytes: int, **options: Any) -> Schedule:
    """Return a small-chunked schedule on `ranks` ranks (a count, or a group within 20)."""
    operation, algorithm = pair
    if operation == "barrier":
        size_bytes = 0
    if algorithm not in WHOLE:
        options.setdefault("shape", SMALL)
    if isinstance(ranks, int):
        return build(ranks, operation, algorithm, size_bytes, **options)
    return build(20, operation, algorithm, size_bytes, ranks=ranks, **options)


def assert_right(schedule: Schedule, **how: Any) -> None:
    """Fail unless every call of `schedule` computes its definition."""
    for check in verify(schedule, **how):
        assert check.ok, check


COUNTS = (2, 3, 4, 5, 6, 7, 8, 9, 16)


@pytest.mark.parametrize("pair", PAIRS, ids="/".join)
def test_any_number_of_ranks_and_ragged_sizes(pair: tuple[str, str]) -> None:
    """Every number of ranks with two sizes in turn (all in a thorough run), in turn on 1 or 3 channels."""
    for row, ranks in enumerate(fitting(pair, *COUNTS)):
        for column, size_bytes in enumerate((4, 12, 20, 1000, 4 * 6151)):
            channels = (1, 3)[(row + column) % 2]
            if THOROUGH or column in (row % 5, (row + 1) % 5):
                assert_right(make(pair, ranks, size_bytes, channels=channels))


@pytest.mark.parametrize("pair", PAIRS, ids="/".join)
def test_groups_in_any_order_and_any_root(pair: tuple[str, str]) -> None:
    group = (11, 3, 17, 0, 8)[: fitting(pair, 5, 4)[0]]
    for root in group if REGISTRY[pair].has_root else (None,):
        schedule = make(pair, group, 5000, channels=2, root=root)
        assert schedule.num_ranks == 20
        assert {task.rank for task in schedule.tasks} == set(group)
        assert_right(schedule)


@pytest.mark.covering
@pytest.mark.parametrize("dtype", ELEMENTS)
@pytest.mark.parametrize("pair", REDUCING, ids="/".join)
def test_every_element_type_and_operator(pair: tuple[str, str], dtype: str) -> None:
    size_bytes = 211 * ELEMENTS[dtype].size_bytes
    ranks = fitting(pair, 5, 4)[0]
    for redop in REDUCTIONS:
        schedule = make(pair, ranks, size_bytes, channels=2, dtype=dtype, redop=redop)
        assert_right(schedule)
        # Rounding is that of the executor, whatever the algorithm.
        if pair[1] == "ring" or THOROUGH:
            assert_right(schedule, data="random")


@pytest.mark.parametrize(
    ("pair", "protocol"),
    [
        (pair, protocol)
        for pair in PAIRS
        for protocol in REGISTRY[pair].protocols or ("simple", "ll", "ll128")
    ],
    ids=lambda value: value if isinstance(value, str) else "/".join(value),
)
def test_protocols_with_their_own_shapes(pair: tuple[str, str], protocol: str) -> None:
    ranks = fitting(pair, 6, 8)[0]
    assert_right(make(pair, ranks, 600_012, protocol=protocol, channels=2, shape=None))


@given(
    pair=st.sampled_from(PAIRS),
    ranks=st.integers(2, 9),
    elements=st.integers(1, 9000),
    channels=st.integers(1, 5),
    dtype=st.sampled_from(["float16", "float32", "int8", "uint64"]),
    chunk=st.sampled_from([16, 48, 256, 4096]),
    slices=st.integers(1, 3),
    order=st.integers(0, 2**31),
)
@settings(max_examples=examples(50))
def test_random_sizes_shapes_and_orders(
    pair: tuple[str, str],
    ranks: int,
    elements: int,
    channels: int,
    dtype: str,
    chunk: int,
    slices: int,
    order: int,
) -> None:
    ranks = fitting(pair, ranks, 4)[0]
    size_bytes = elements * ELEMENTS[dtype].size_bytes
    options: dict[str, Any] = {"channels": channels, "dtype": dtype}
    if pair[1] not in WHOLE:
        elements_per_chunk = size_bytes // chunk
        chunk = chunk if elements_per_chunk < 600 else 4096
        options["shape"] = Shape(chunk, slices, slots=2 * slices, slots_per_slice=1, slice_min=16)
    executor = Executor(make(pair, ranks, size_bytes, **options), seed=order)
    run_untimed(executor, seed=order)
    assert all(check.ok for check in executor.check())


@pytest.mark.parametrize("pair", [pair for pair in PAIRS if pair[1] in BY_LOADS])
def test_chunks_are_no_smaller_than_a_barrier_tells_of(pair: tuple[str, str]) -> None:
    """257 elements in chunks of 16 B are 65 loops, and 64 can be told of."""
    shape = Shape(16, slots=2, slice_min=16)
    assert_right(make(pair, 3, 3 * 257 * 4, channels=1, shape=shape))


def test_slots_for_a_chunk_and_a_slice_are_enough() -> None:
    for pair in PAIRS:
        if pair[1] in WHOLE:
            continue
        shape = Shape(512, slices=2, slots=8, slots_per_slice=2, slice_min=16)
        assert_right(make(pair, fitting(pair, 8, 4)[0], 40_000, shape=shape))


def test_all_ranks_of_direct_algorithms_get_the_same_bits() -> None:
    for algorithm in ("oneshot", "twoshot", "ring", "tree", "butterfly", "nvls", "driver"):
        schedule = make(("allreduce", algorithm), 6, 6000, dtype="float32", channels=2)
        executor = Executor(schedule, data="random")
        run_untimed(executor)
        first = executor.output(0, 0)
        assert all((executor.output(0, rank) == first).all() for rank in range(1, 6)), algorithm


def test_names_are_complete() -> None:
    wanted = {"ring", "tree", "oneshot", "twoshot", "butterfly", "nvls", "naive", "driver"}
    wanted |= {"hierarchical", "sharp", "oneshot-ll", "twoshot-ll", "multimem"}
    wanted |= {"oneshot-lamport", "oneshot-pull", "twoshot-pull", "ld-st"}
    assert set(ALGORITHMS["allreduce"]) >= wanted
    assert set(ALGORITHMS) >= {
        *("reduce_scatter", "all_gather", "broadcast", "reduce", "gather", "scatter"),
        *("alltoall", "sendrecv", "barrier"),
    }
    assert ALGORITHMS["all_gather"][0] == "ring"
