"""Every spelling of a word finds its object, and what follows from a word is right."""

from __future__ import annotations

import pytest

from clusim.base.errors import InputError
from clusim.base.terms.dtypes import BY_NUMBER, DTYPES, IN_TABLES, find_dtype
from clusim.base.terms.operations import (
    ALGORITHMS,
    COLLECTIVE_OF,
    OPERATIONS,
    PROTOCOL_NAMES,
    Algorithm,
    Collective,
    Protocol,
    bus_factor,
    counted_share,
    find_algorithm,
    find_operation,
    find_protocol,
    full_bytes,
    kernel_word,
    operation_named,
    operation_starting,
    operation_written,
    own_word,
    protocol_named,
)


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_name_of_an_operation_finds_it(name: str) -> None:
    item = OPERATIONS[name]
    words = [name, item.name.upper(), item.nccl, item.astra, *item.others]
    words += [f"{item.test}_perf", f"./build/{item.test}_perf_mpi"] if item.test else []
    words += [f"nccl{item.nccl}"] if item.nccl else []
    for word in filter(None, words):
        assert find_operation(word) is item, word
    for word in (*item.torch, *(word for _, word in item.chakra)):
        assert operation_starting(word) == name, word


@pytest.mark.parametrize(
    ("word", "operation"),
    [
        ("_allgather_base", "all_gather"),
        ("reduce_scatter_tensor_coalesced", "reduce_scatter"),
        ("alltoallv", "alltoall"),
        ("broadcast_oop", "broadcast"),
        ("gemm", ""),
        (None, ""),
    ],
)
def test_longer_names_are_what_they_begin_with(word: object, operation: str) -> None:
    assert operation_starting(word) == operation


@pytest.mark.parametrize(
    ("word", "operation"),
    [
        ("ReduceScatter", "reduce_scatter"),
        ("AllReduce", "allreduce"),
        ("Reduce}Scatter", ""),
        ("ReduceSomething", ""),
        ("SendRecv", ""),
        (7, ""),
    ],
)
def test_a_name_that_is_written_whole_is_nothing_else(word: object, operation: str) -> None:
    assert operation_written(word) == operation


def test_words_that_nobody_knows_are_errors_with_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean 'allreduce'"):
        operation_named("allredcue")
    with pytest.raises(InputError, match="there are simple, ll, ll128"):
        protocol_named("fast")
    with pytest.raises(InputError, match="operation 'barrier': not for this; there are allreduce"):
        operation_named("barrier", tuple(COLLECTIVE_OF))


@pytest.mark.parametrize(
    ("operation", "factor", "share"),
    [
        ("allreduce", 1.75, 14.0),
        ("all_gather", 0.875, 7.0),
        ("reduce_scatter", 0.875, 7.0),
        ("alltoall", 0.875, 7.0),
        ("broadcast", 1.0, 7.0),
        ("reduce", 1.0, 7.0),
        ("gather", 0.875, 0.875),
        ("scatter", 0.875, 0.875),
        ("sendrecv", 1.0, 8.0),
        ("hypercube", 1.0, 8.0),
        ("send", 1.0, 1.0),
        ("of one's own", 1.0, 8.0),
    ],
)
def test_bus_factors_and_what_all_wires_carry(operation: str, factor: float, share: float) -> None:
    assert bus_factor(operation, 8) == factor
    assert counted_share(operation, 8) == share


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4, 5, 7, 16, 72, 1440])
def test_bus_factors_are_nccl_tests_s_for_every_number_of_ranks(num_ranks: int) -> None:
    # What a rank sends of its buffer in a ring, or to each of the others: (n - 1) parts of n, twice for an all-reduce.
    sent = {
        "allreduce": 2 * (num_ranks - 1),
        **dict.fromkeys(
            ("all_gather", "reduce_scatter", "alltoall", "weighted_alltoall", "gather", "scatter"),
            num_ranks - 1,
        ),
    }
    for operation in OPERATIONS:
        factor = bus_factor(operation, num_ranks)
        assert factor * num_ranks == pytest.approx(sent.get(operation, num_ranks))


def test_numbers_of_collectives_are_those_of_chakra_s_schema() -> None:
    # CollectiveCommType of et_def.proto, MLCommons Chakra 1.0.
    names = "ALL_REDUCE REDUCE ALL_GATHER GATHER SCATTER BROADCAST ALL_TO_ALL REDUCE_SCATTER"
    names += " REDUCE_SCATTER_BLOCK BARRIER"
    found = {number: name for item in OPERATIONS.values() for number, name in item.chakra}
    assert found == dict(enumerate(names.split()))


def test_blocks_say_what_the_largest_buffer_holds() -> None:
    assert [full_bytes(name, 10, 4) for name in ("all_gather", "scatter", "allreduce")] == [
        40,
        40,
        10,
    ]


def test_nccl_s_order_is_that_of_its_tables() -> None:
    assert [item.operation for item in Collective] == [
        *("broadcast", "reduce", "all_gather", "reduce_scatter", "allreduce")
    ]
    assert [item.nccl for item in BY_NUMBER] == list(range(12))
    assert [item.tables[0] for item in BY_NUMBER] == list(
        dict.fromkeys(item.tables[0] for item in IN_TABLES.values())
    )


def test_every_name_of_a_type_finds_it() -> None:
    for item in DTYPES.values():
        for word in filter(None, (item.name, item.short, *item.tables, *item.others)):
            for spelled in (word, word.upper(), f"nccl{word}", f"torch.{word}", f"c10::{word}"):
                assert find_dtype(spelled) is item, spelled
        assert item.carrier in DTYPES
        assert DTYPES[item.carrier].storage
    assert find_dtype("f8") is None


def test_a_float_of_8_bits_has_one_name() -> None:
    words = ("f8e4m3", "fp8_e4m3", "fp8", "float8_e4m3fn", "ncclFloat8e4m3", "Float8_e4m3fn")
    found = {getattr(find_dtype(word), "name", "") for word in words}
    assert found == {"float8e4m3"}
    assert (DTYPES["float8e4m3"].carrier, DTYPES["float8e4m3"].peak) == ("uint8", "f8")


def test_algorithms_and_protocols_have_every_spelling() -> None:
    for item in ALGORITHMS:
        for word in (item.value, item.name, item.key, item.plugin):
            assert find_algorithm(word) is item
    assert find_protocol("SIMPLE") is Protocol.SIMPLE
    assert PROTOCOL_NAMES == ("simple", "ll", "ll128")
    assert own_word("NVLS_Tree") == Algorithm.NVLS_TREE.key == "nvlstree"
    assert own_word("Oneshot-LL") == "oneshot-ll"
    assert [kernel_word(word) for word in ("nvlstree", "simple", "oneshot")] == [
        *("NVLS_TREE", "SIMPLE", "ONESHOT")
    ]
