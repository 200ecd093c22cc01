"""The probabilities of Algorithm 2: those of the listing, and the optimum."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from accelerando.compress import _probabilities
from accelerando.compress._probabilities import atom_probabilities


def algorithm_2(weights, budget):
    """The dissertation's listing, line by line."""
    order = sorted(range(len(weights)), key=lambda i: -abs(weights[i]))
    sizes = [abs(weights[i]) for i in order]
    found, s, i, n = [0.0] * len(weights), budget, 0, len(weights)
    while i < n:
        rest = math.fsum(sizes[i:])
        if rest == 0:
            break
        if sizes[i] * s <= rest:
            for k in range(i, n):
                found[order[k]] = sizes[k] * s / rest
            break
        found[order[i]] = 1.0
        s, i = s - 1, i + 1
    return found


@pytest.mark.parametrize("rounds", [0, 1, 16])
@given(
    weights=st.lists(
        st.one_of(st.just(0.0), st.floats(-1e3, 1e3).filter(lambda x: abs(x) > 1e-6)),
        min_size=1,
        max_size=40,
    ),
    share=st.floats(0.01, 1.5),
)
@settings(max_examples=50, deadline=None)
def test_probabilities_are_those_of_algorithm_2(rounds, weights, share):
    budget = max(0.01, share * len(weights))
    tensor = torch.tensor(weights, dtype=torch.float64)
    usual = _probabilities._ROUNDS
    _probabilities._ROUNDS = rounds
    try:
        found = atom_probabilities(tensor, budget)
    finally:
        _probabilities._ROUNDS = usual
    nonzero = sum(weight != 0 for weight in weights)
    if budget < nonzero:
        assert found.tolist() == pytest.approx(algorithm_2(weights, budget), abs=1e-9)
    assert float(found.sum()) == pytest.approx(min(budget, nonzero))
    assert ((found > 0) == (tensor != 0)).all()
    assert float(found.max()) <= 1


def test_no_other_probabilities_with_the_same_sum_have_less_variance():
    draw = torch.Generator().manual_seed(0)
    weights = torch.randn(30, generator=draw, dtype=torch.float64) ** 3
    best = atom_probabilities(weights, 6.0)
    least = float((weights**2 / best).sum())
    for _ in range(200):
        move = torch.randn(30, generator=draw, dtype=torch.float64) * 0.01 * best
        other = (best + move - move.sum() * best / best.sum()).clamp(1e-9, 1.0)
        if float(other.sum()) <= 6.0 + 1e-12:
            assert float((weights**2 / other).sum()) >= least * (1 - 1e-9)


def test_a_budget_of_nothing_is_refused():
    with pytest.raises(ValueError, match="'budget' parameter"):
        atom_probabilities(torch.ones(3), 0)
