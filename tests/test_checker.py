"""Wrong shapes and types fail in tests, also in dataclasses and closures."""

from dataclasses import dataclass

import checker
import pytest
import torch
from beartype.roar import BeartypeCallHintViolation
from jaxtyping import Float, TypeCheckError
from torch import Tensor

typed = checker.jaxtyped(typechecker=checker.check)


@typed
def product(a: Float[Tensor, "row mid"], b: Float[Tensor, "mid col"]) -> Float[Tensor, "row col"]:
    return (a @ b).mT


@typed
def double(x: float) -> float:
    return str(x) if x < 0 else 2 * x  # pyright: ignore[reportReturnType]


def closure():
    @typed
    def half(x: int | None) -> float:
        return (x or 0) / 2

    return half


def test_axes_must_agree_in_arguments_and_results():
    assert product(torch.zeros(2, 3), torch.zeros(3, 2)).shape == (2, 2)
    for wrong in (torch.zeros(4, 2), torch.zeros(3, 5)):
        with pytest.raises(TypeCheckError):
            product(torch.zeros(2, 3), wrong)


def test_types_without_shapes_are_checked_in_arguments_and_results():
    assert double(3) == 6  # an int is a fine float
    for wrong in ("3", -1):
        with pytest.raises(BeartypeCallHintViolation):
            double(wrong)


def test_fields_of_a_dataclass_are_checked_and_a_subclass_is_wrapped_once():
    @typed
    @dataclass
    class Row:
        x: Float[Tensor, " col"]
        n: int = 0

    @typed
    class Last(Row):
        pass

    assert Last.__init__ is Row.__init__
    with pytest.raises(TypeCheckError):
        Last(torch.zeros(1, 2))


def test_a_closure_is_checked_when_it_is_first_made():
    half = closure()
    with pytest.raises(BeartypeCallHintViolation):
        half("2")
    assert closure()(4) == 2
    assert not hasattr(closure(), "__wrapped__")


@pytest.mark.usefixtures("users_view")
def test_a_user_has_no_checks():
    assert product(torch.zeros(2, 3), torch.zeros(3, 5)).shape == (5, 2)
    assert double(-1) == "-1"


def test_regard_is_checked():
    from regard.ops import attention_weights

    with pytest.raises(TypeCheckError):
        attention_weights(torch.ones(1, 2).long(), torch.ones(4, 2).long())
