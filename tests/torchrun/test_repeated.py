"""Operators that were called before with arguments of the same forms."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import pytest

from support.torch_programs import Later, needs_torch

needs_torch()

torch, fake_tensor = Later("torch"), Later("torch._subclasses.fake_tensor")
aten, repeated = Later("torch", "ops.aten"), Later("clusim.programs.repeated")


def call_of(mode: Any, func: Any, *args: Any) -> tuple[Any, list[Any]]:
    """Return a call of an operator for repeated ones, and its tensors."""
    _, tensors = repeated.form_of(args, {})
    operator = repeated.DispatchedOperator(
        func, args, {}, tensors, repeated.OperatorTraits.of(func)
    )
    with mode:
        return operator.call_of(func(*args), None), tensors


def test_numbers_of_different_types_have_different_forms() -> None:
    forms = {
        repeated.form_of((value,), {})[0] for value in (1, 1.0, True, None, "1", [1], (1,), [[1]])
    }
    assert len(forms) == 8


def test_a_repeated_operator_has_new_results_of_the_same_forms() -> None:
    with fake_tensor.FakeTensorMode() as mode:
        x = torch.empty(4, 6)
    found, tensors = call_of(mode, aten.var_mean.correction, x, [1])
    made = found.result(found.made(tensors, mode))
    assert isinstance(made, tuple)
    assert [tuple(part.shape) for part in made] == [(4,), (4,)]
    assert made[0].untyped_storage()._cdata != made[1].untyped_storage()._cdata


def test_an_operator_in_place_returns_its_argument() -> None:
    with fake_tensor.FakeTensorMode() as mode:
        x, y, other = torch.empty(4), torch.empty(4), torch.empty(4)
    found, _ = call_of(mode, aten.add_.Tensor, x, y)
    assert found.results == (0,)
    assert found.result(found.made([other, y], mode)) is other
    nothing, _ = call_of(mode, aten._foreach_add_.Scalar, [x, y], 1)
    assert nothing.results == ()
    assert nothing.result([]) is None


@pytest.mark.parametrize(
    ("func", "lists"),
    [
        ("_foreach_add_.Scalar", True),
        ("_foreach_add.Scalar", False),
        ("add_.Tensor", False),
    ],
)
def test_only_operators_on_lists_in_place_keep_all_forms(func: str, lists: bool) -> None:
    assert repeated.OperatorTraits.of(attrgetter(func)(aten)).lists == lists


def test_results_that_share_a_storage_are_not_repeated() -> None:
    with fake_tensor.FakeTensorMode() as mode:
        x = torch.empty(4, 6)
    assert call_of(mode, aten.t.default, x)[0].results is None
    traits = [
        repeated.OperatorTraits.of(f) for f in (aten.t.default, aten.t_.default, aten.to.dtype)
    ]
    assert [item.shares for item in traits] == [True, False, False]


def test_a_view_has_the_storage_and_the_device_of_its_argument() -> None:
    with fake_tensor.FakeTensorMode() as mode:
        x = torch.empty(4, 6, device="cpu")
    operator = repeated.DispatchedOperator(
        aten.split.Tensor, (x, 2), {}, [x], repeated.OperatorTraits.of(aten.split.Tensor)
    )
    parts = operator.view_result(mode)
    assert isinstance(parts, list)
    assert [(tuple(p.shape), p.storage_offset()) for p in parts] == [((2, 6), 0), ((2, 6), 12)]
    assert {p.untyped_storage()._cdata for p in parts} == {x.untyped_storage()._cdata}
