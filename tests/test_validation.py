"""One template for every message about a parameter, and one conversion into a piece."""

from dataclasses import dataclass

import numpy as np
import pytest

from accelerando import _validation as validation


@dataclass(frozen=True)
class Piece:
    size: int
    rate: float = 1.0


class Other:
    pass


@pytest.mark.parametrize("value", [1, 7, np.int64(3)])
def test_integers_pass(value):
    validation.check_integer("Y", "x", value)


@pytest.mark.parametrize("value", [0, -1, True, 1.0, "1", None, float("nan")])
def test_other_values_are_named_with_the_parameter_and_its_owner(value):
    with pytest.raises(ValueError) as caught:
        validation.check_integer(Other(), "x", value)
    expected = (
        f"The 'x' parameter of Other must be an integer of at least 1. Got {value!r} instead."
    )
    assert str(caught.value) == expected


def test_further_values_are_allowed_by_identity_and_type():
    also = {None: "None", "auto": '"auto"'}
    validation.check_integer("Y", "x", None, also=also)
    validation.check_integer("Y", "x", "auto", also=also)
    with pytest.raises(ValueError, match='an integer of at least 1, None or "auto"'):
        validation.check_integer("Y", "x", "car", also=also)


@pytest.mark.parametrize(
    ("bounds", "good", "bad", "text"),
    [
        ({"above": 0}, [0.1, 3], [0, -1], "a number above 0"),
        ({"minimum": 0, "below": 1}, [0, 0.5], [1, -0.1], "a number of at least 0 and below 1"),
        ({"above": 0, "maximum": 1}, [1, 0.2], [0, 1.01], "a number above 0 and at most 1"),
        ({}, [-3, 0.0, np.float32(2)], ["2", True, float("nan"), float("inf")], "a number"),
    ],
)
def test_numbers_stay_within_their_bounds(bounds, good, bad, text):
    for value in good:
        validation.check_number("Y", "x", value, **bounds)
    for value in bad:
        with pytest.raises(ValueError, match=f"must be {text}. Got"):
            validation.check_number("Y", "x", value, **bounds)


def test_choices_compare_types_as_well():
    validation.check_choice("Y", "x", "a", ["a", "b"])
    with pytest.raises(ValueError, match=r"'a', 'b' or 'c'. Got 1 instead"):
        validation.check_choice("Y", "x", 1, ["a", "b", "c"])
    with pytest.raises(ValueError, match=r"True or 'auto'. Got 1 instead"):
        validation.check_choice("Y", "x", 1, [True, "auto"])


def piece(given, settings=None, convert=lambda given: None):
    return validation.as_piece(
        "shape", given, Piece, settings=settings, convert=convert, allowed="a piece"
    )


def test_a_class_an_instance_and_a_short_form_become_a_piece():
    assert piece(Piece, {"size": 3}) == Piece(3)
    assert piece(Piece(2)) == Piece(2)
    assert piece(Piece(2), {"rate": 0.5}) == Piece(2, 0.5)
    assert piece(4, convert=Piece) == Piece(4)


def test_an_unknown_setting_is_answered_with_the_known_ones():
    with pytest.raises(ValueError, match=r"Piece has no parameter 'sise'. Did you mean 'size'\?"):
        piece(Piece, {"sise": 3})
    with pytest.raises(ValueError, match=r"Its parameters: shape__size, shape__rate."):
        piece(Piece(2), {"colour": 3})


def test_a_missing_setting_and_settings_without_a_piece_are_refused():
    with pytest.raises(ValueError, match="shape=Piece needs more shape__x parameters"):
        piece(Piece)
    with pytest.raises(ValueError, match=r"\['shape__size'\] .* shape=None"):
        piece(None, {"size": 1})


@pytest.mark.parametrize("given", [None, 3.5, Other, Other()])
def test_anything_else_is_refused(given):
    with pytest.raises(TypeError, match=r"'shape' parameter must be a piece. Got .* instead."):
        piece(given)
