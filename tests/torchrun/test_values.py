"""Values that calls move, against their definitions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.torch_programs import needs_torch

if TYPE_CHECKING:
    from clusim.programs.values import Known

needs_torch()

SIZE, OWN = 3, 1


def parts(*lengths: int) -> list[Known]:
    """Return what each rank sends: tensors of the given lengths with values 100 rank + position."""
    import torch

    return [([100 * rank + torch.arange(n) for n in lengths], ()) for rank in range(SIZE)]


def moved(operation: str, sent: list[Known], written: int, redop: str = "sum") -> list[list[int]]:
    from clusim.programs.values import MovedCall, results_of

    call = MovedCall(operation, redop, OWN, 2, len(sent[0][0]))
    results = results_of(call, sent, written)
    return [[] if r is None else r.tolist() for r in results]


def test_values_of_all_element_types_survive_their_encoding() -> None:
    import torch

    from clusim.programs.values import decode_tensors, encode_tensors

    for dtype in (torch.bfloat16, torch.bool, torch.int64, torch.complex64):
        value = torch.tensor([1, 0, 1]).to(dtype)
        (read,) = decode_tensors(encode_tensors([value]))
        assert read.dtype == dtype
        assert torch.equal(read, value)
    assert decode_tensors(encode_tensors([torch.empty(0)]))[0].numel() == 0


@pytest.mark.parametrize(
    ("operation", "lengths", "written", "redop", "expected"),
    [
        ("allreduce", (2,), 1, "sum", [[300, 303]]),
        ("allreduce", (2,), 1, "max", [[200, 201]]),
        ("allreduce", (2,), 1, "avg", [[100, 101]]),
        ("allreduce", (1, 2), 2, "min", [[0], [0, 1]]),
        ("all_gather", (2,), 1, "sum", [[0, 1, 100, 101, 200, 201]]),
        ("all_gather", (1,), 3, "sum", [[0], [100], [200]]),
        ("reduce_scatter", (6,), 1, "sum", [[306, 309]]),
        ("reduce_scatter", (1, 2, 1), 1, "sum", [[300, 303]]),
        ("broadcast", (2,), 1, "sum", [[200, 201]]),
        ("scatter", (1, 2, 3), 1, "sum", [[200, 201]]),
        ("alltoall", (3,), 1, "sum", [[1, 101, 201]]),
        ("alltoall", (1, 2, 1), 3, "sum", [[0, 1], [100, 101], [200, 201]]),
    ],
)
def test_results_are_those_of_the_operation(
    operation: str, lengths: tuple[int, ...], written: int, redop: str, expected: list[list[int]]
) -> None:
    assert moved(operation, parts(*lengths), written, redop) == expected


def test_unequal_parts_are_cut_by_rows() -> None:
    """Rank r sends r + 1 rows of two elements to each rank but the last, which has the rest."""
    import torch

    sent = []
    for rank in range(SIZE):
        counts = (rank + 1, rank + 1, 1)
        sent.append(([100 * rank + torch.arange(2 * sum(counts))], counts))
    assert moved("alltoall", sent, 1) == [
        [2, 3, *(100 + i for i in (4, 5, 6, 7)), *(200 + i for i in (6, 7, 8, 9, 10, 11))]
    ]


def test_ranks_with_one_representative_count_each() -> None:
    one = parts(2)[1]
    assert moved("allreduce", [one] * SIZE, 1) == [[300, 303]]
    assert moved("allreduce", [one] * SIZE, 1, "prod") == [[100**3, 101**3]]


def test_an_unknown_part_makes_a_result_unknown() -> None:
    from clusim.programs.values import MovedCall, results_of

    sent = [*parts(2)[:2], None]
    assert results_of(MovedCall("allreduce", "sum", OWN, 0, 1), sent, 1) == [None]
    assert results_of(MovedCall("broadcast", "sum", OWN, 2, 1), sent, 1) == [None]
