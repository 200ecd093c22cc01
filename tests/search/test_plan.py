import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelerando.search._plan import (
    Rung,
    floor_log,
    halving_bracket,
    hyperband_brackets,
    hyperband_inputs,
    total,
)


@pytest.mark.parametrize(
    ("max_iter", "aggressiveness", "n_models", "calls"),
    [(1, 3, 1, 1), (27, 3, 49, 357), (81, 3, 143, 1581), (243, 3, 415, 6831), (49, 7, 63, 399)],
)
def test_the_plan_of_algorithm_1(max_iter, aggressiveness, n_models, calls):
    plan = total(hyperband_brackets(max_iter, aggressiveness))
    assert (plan["n_models"], plan["partial_fit_calls"]) == (n_models, calls)


def test_243_has_six_brackets_where_a_float_logarithm_finds_five():
    assert math.floor(math.log(243, 3)) == 4
    assert [bracket.index for bracket in hyperband_brackets(243, 3)] == [5, 4, 3, 2, 1, 0]


def test_729_starts_no_bracket_with_zero_calls():
    assert [bracket.rungs[0].calls for bracket in hyperband_brackets(729, 3)] == [
        1, 3, 9, 27, 81, 243, 729,
    ]  # fmt: skip


@given(st.integers(1, 2000), st.integers(2, 12))
def test_brackets_hold_together_for_every_input(max_iter, eta):
    brackets = hyperband_brackets(max_iter, eta)
    s_max = floor_log(max_iter, eta)
    assert eta**s_max <= max_iter < eta ** (s_max + 1)
    assert len(brackets) == s_max + 1
    for bracket in brackets:
        assert len(bracket.rungs) == bracket.index + 1
        assert bracket.max_calls == max_iter
        for rung, following in zip(bracket.rungs, bracket.rungs[1:], strict=False):
            assert following.n_models == rung.n_models // eta
            assert following.calls > rung.calls
        assert bracket.rungs[0].calls >= 1
        assert bracket.rungs[-1].n_models >= 1


@given(st.integers(1, 300), st.integers(2, 5), st.integers(1, 100) | st.none())
def test_halving_ends_at_one_survivor_or_at_max_iter(n_models, eta, max_iter):
    bracket = halving_bracket(n_models, None, eta, max_iter)
    last = bracket.rungs[-1]
    assert last.n_models < eta or last.calls == max_iter
    if max_iter is not None:
        assert last.calls <= max_iter


def test_halving_by_hand():
    assert halving_bracket(10, 9, 3, 100).rungs == (Rung(10, 9), Rung(3, 27), Rung(1, 81))
    assert halving_bracket(10, 50, 3, 100).rungs == (Rung(10, 50), Rung(3, 100))
    assert halving_bracket(10, 9, 3, 100).partial_fit_calls == 10 * 9 + 3 * 18 + 54


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            (0, 3),
            "'max_iter' parameter of HyperbandSearchCV must be an integer of at least 1. Got 0",
        ),
        ((81, 1), "'aggressiveness' parameter of .* must be an integer of at least 2. Got 1"),
        ((81.5, 3), "'max_iter' parameter .* must be an integer"),
        ((True, 3), "'max_iter' parameter .* must be an integer"),
    ],
)
def test_wrong_inputs_are_named(arguments, words):
    with pytest.raises(ValueError, match=words):
        hyperband_brackets(*arguments)


def test_rule_of_thumb_keeps_the_data_of_the_longest_model():
    once = hyperband_inputs(n_params=200, n_examples=1000, epochs=100)
    twice = hyperband_inputs(n_params=400, n_examples=1000, epochs=100)
    assert once["max_iter"] * once["chunk_size"] == 100 * 1000
    assert twice["max_iter"] * twice["chunk_size"] == 100 * 1000
    assert once["n_models"] == total(hyperband_brackets(200))["n_models"]


def test_rule_of_thumb_prices_the_search():
    cost = hyperband_inputs(n_params=9, n_examples=90, epochs=20, seconds_per_example=0.5)
    assert cost["chunk_size"] == 200
    assert cost["repeats"] == 3
    assert cost["worker_seconds"] == cost["partial_fit_calls"] * 200 * 0.5
    with pytest.raises(
        ValueError, match=r"'epochs' parameter of hyperband_inputs must be a number above 0. Got 0"
    ):
        hyperband_inputs(n_params=9, n_examples=90, epochs=0)
