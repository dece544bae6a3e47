"""The front door: defaults, options and clear errors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from clusim.base.errors import InputError
from clusim.collectives import ALGORITHMS, build
from clusim.collectives.api import REGISTRY
from clusim.collectives.entry import algorithm
from clusim.schedule import Schedule, Shape
from clusim.topology import load


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("allsum", "ring", 64), "'allsum': unknown; did you mean 'allreduce'?"),
        (("allreduce", "zigzag", 64), r"unknown algorithm 'zigzag' .nccl is.*; there are ring"),
        (("allreduce", "ring", 0), "size 0 bytes; must be at least 1"),
        (("allreduce", "ring", -4), "size -4 bytes"),
        (("allreduce", "ring", "1MiB"), "size '1MiB'; must be an integer number of bytes"),
        (("allreduce", "ring", 1e6), "must be an integer number of bytes"),
        (("allreduce", "ring", 2**40 + 4), "at most 1 TiB"),
        (("allreduce", "ring", 6), "not a multiple of float32"),
    ],
)
def test_bad_arguments_are_named(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build(4, *arguments)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ranks": (0, 4)}, "rank 4: out of range; this fabric has ranks 0..3"),
        ({"ranks": (0, -1)}, "rank -1: out of range"),
        ({"ranks": (1, 2, 1)}, "rank 1: named twice"),
        ({"ranks": (2,)}, "a group of 1; at least 2 ranks"),
        ({"ranks": ()}, "a group of 0; at least 2 ranks"),
        ({"channels": 0}, "0 channels; must be 1..64"),
        ({"channels": 65}, "65 channels; must be 1..64"),
        ({"protocol": "fast"}, "'fast': unknown; there are simple"),
        ({"dtype": "f8"}, "'f8': unknown"),
        ({"redop": "xor"}, "'xor': unknown"),
    ],
)
def test_bad_options_are_named(options: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        build(4, "allreduce", "ring", 64, **options)


def test_a_root_must_be_in_the_group() -> None:
    with pytest.raises(InputError, match=r"root 3 is not in the group \[0, 1\]"):
        build(4, "broadcast", "ring", 64, ranks=(0, 1), root=3)
    assert build(4, "broadcast", "ring", 64, ranks=(2, 1)).calls[0].root == 2
    assert build(4, "allreduce", "ring", 64).calls[0].root == -1
    with pytest.raises(InputError, match="allreduce: takes no root; leave out root 3"):
        build(4, "allreduce", "ring", 64, root=3)


def test_nvls_needs_reduction_units() -> None:
    with pytest.raises(InputError, match=r"lacks reduction units .*use ring or tree"):
        build(load("dgx-a100"), "allreduce", "nvls", 1 << 20)
    with pytest.raises(InputError, match="not with protocol ll; use simple"):
        build(load("dgx-h100"), "allreduce", "nvls", 1 << 20, protocol="ll")
    assert build(load("dgx-h100"), "allreduce", "nvls", 1 << 20).calls[0].channels == 16


def test_shapes_that_cannot_work_are_refused() -> None:
    with pytest.raises(InputError, match="multiple of 16"):
        Shape(100)
    with pytest.raises(InputError, match="so rings would deadlock"):
        Shape(1024, slices=4, slots=4, slots_per_slice=2)
    with pytest.raises(InputError, match="must be >= 1"):
        Shape(1024, slices=0)


def test_the_fabric_gives_channels_and_small_sizes_use_fewer() -> None:
    fabric = load("dgx-a100")
    assert build(fabric, "allreduce", "ring", 1 << 30).calls[0].channels == 24
    assert build(fabric, "allreduce", "ring", 1 << 10).calls[0].channels == 1
    assert build(fabric, "allreduce", "ring", 1 << 10, channels=4).calls[0].channels == 4


@pytest.mark.parametrize(
    ("written", "name"),
    [("all_reduce", "allreduce"), ("AllGather", "all_gather"), ("all-to-all", "alltoall")],
)
def test_operations_are_known_however_their_words_are_joined(written: str, name: str) -> None:
    schedule = build(4, written, None, 64)
    assert schedule == build(4, name, None, 64)
    assert schedule.calls[0].operation == name


def test_aliases_of_element_types_become_names() -> None:
    call = build(2, "allreduce", "ring", 64, dtype="bf16").calls[0]
    assert call.dtype == "bfloat16"


@pytest.mark.parametrize(
    ("operation", "algorithm"),
    [(operation, name) for operation, names in ALGORITHMS.items() for name in names],
)
def test_every_algorithm_makes_a_schedule(operation: str, algorithm: str) -> None:
    schedule = build(4, operation, algorithm, 0 if operation == "barrier" else 1600)
    assert isinstance(schedule, Schedule)
    assert (schedule.calls[0].operation, schedule.calls[0].algorithm) == (operation, algorithm)


def test_an_algorithm_for_other_numbers_of_ranks_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entry = replace(REGISTRY["allreduce", "butterfly"], ranks="a power of two")
    monkeypatch.setitem(REGISTRY, ("allreduce", "butterfly"), entry)
    assert [n for n in range(1, 10) if entry.fits(n)] == [1, 2, 4, 8]
    assert build(8, "allreduce", "butterfly", 64).calls[0].algorithm == "butterfly"
    with pytest.raises(InputError, match="6 ranks; it needs a power of two, use ring or"):
        build(6, "allreduce", "butterfly", 64)


def test_an_entry_with_an_unknown_requirement_or_a_taken_name_is_refused() -> None:
    with pytest.raises(AssertionError, match="ranks: one of any number, a power of two"):
        algorithm("allreduce", "new", ranks="prime")(lambda writer, fabric: None)
    with pytest.raises(AssertionError, match="allreduce has two algorithms ring"):
        algorithm("allreduce", "ring")(lambda writer, fabric: None)


def test_every_operation_has_one_default() -> None:
    defaults = [entry.operation for entry in REGISTRY.values() if entry.default]
    assert defaults == list(ALGORITHMS)
    assert all(REGISTRY[op, names[0]].default for op, names in ALGORITHMS.items())
