"""Samplers draw from lists, distributions and conditional spaces."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import uniform

from accelerando.search import IncrementalSearchCV
from accelerando.search._sample import GridSampler, RandomSampler, check_space

from .estimators import Counter
from .searches import hyperband


def test_conditional_spaces(data):
    spaces = [{"penalty": ["l2"], "alpha": [1e-3]}, {"penalty": ["elasticnet"], "l1_ratio": [0.5]}]
    search = hyperband(parameters=spaces).fit(*data)
    column = search.cv_results_["param_l1_ratio"]
    assert 0 < column.mask.sum() < len(column)
    assert {tuple(sorted(params)) for params in search.cv_results_["params"]} == {
        ("alpha", "penalty"),
        ("l1_ratio", "penalty"),
    }


def test_draws_depend_on_the_seed_and_the_number_only():
    sampler = RandomSampler([{"x": uniform(0, 1), "kind": ["a", "b"]}], seed=3)
    assert sampler.draw(5) == sampler.draw(5)
    assert sampler.draw(5) != sampler.draw(6)
    assert sampler.draw(5) != RandomSampler(sampler.spaces, seed=4).draw(5)
    assert {sampler.draw(model)["kind"] for model in range(20)} == {"a", "b"}


def test_lists_are_drawn_without_replacement():
    spaces = [{"x": list(range(5)), "y": ["a", "b"]}, {"z": np.arange(10)}]
    sampler = RandomSampler(spaces, seed=0, n_models=50)
    for first in (0, 20):  # every combination once, then all again
        drawn = {repr(sampler.draw(model)) for model in range(first, first + 20)}
        assert len(drawn) == 20
    assert [sampler.draw(i) for i in range(20)] != [sampler.draw(i) for i in range(20, 40)]
    few = RandomSampler(spaces, seed=0, n_models=7)
    assert len({repr(few.draw(model)) for model in range(7)}) == 7


def test_a_space_that_is_smaller_than_the_plan_is_said(data):
    space = {"slope": [0.1, 0.2, 0.3, 0.4]}
    with pytest.warns(UserWarning, match="4 combinations, fewer than the 17 models of the plan"):
        search = hyperband(Counter(), space).fit(*data)
    assert search.metadata == search.metadata_
    with pytest.warns(UserWarning, match="4 combinations, fewer than the 10 models"):
        search = IncrementalSearchCV(Counter(), space, max_iter=2, client=None).fit(*data)
    assert sorted(search.cv_results_["param_slope"]) == space["slope"]
    assert search.metadata["n_models"] == 4


def test_the_order_of_names_in_a_space_does_not_matter():
    one = RandomSampler([{"x": uniform(0, 1), "y": uniform(0, 1)}], seed=0)
    other = RandomSampler([{"y": uniform(0, 1), "x": uniform(0, 1)}], seed=0)
    assert one.draw(2) == other.draw(2)


def test_a_grid_has_every_combination_once():
    grid = GridSampler([{"x": [1, 2], "y": ["a", "b"]}, {"z": [3]}])
    drawn = [tuple(sorted(grid.draw(model).items())) for model in range(len(grid))]
    assert len(drawn) == len(set(drawn)) == 5


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ("alpha", "parameters must be a dict of lists"),
        ([], "parameters must be a dict of lists"),
        ([{"alpha": [1]}, 3], "list of dicts. It contains 3"),
        ({"alpha": "l2"}, r"parameters\['alpha'\] must be a list"),
        ({"alpha": []}, r"parameters\['alpha'\] must be a list"),
        ({"alpha": 1.0}, r"parameters\['alpha'\] must be a list.* Got 1.0"),
        ({"alpha": {1: 2}}, r"parameters\['alpha'\] must be a list.* Got {1: 2}"),
        ({"alpha": pd.Series([1, 2])}, r"parameters\['alpha'\] must be a list"),
    ],
)
def test_wrong_spaces_are_named(parameters, words):
    with pytest.raises(TypeError, match=words):
        check_space(parameters)


def test_a_space_becomes_a_list_of_spaces():
    space = {"alpha": np.array([1, 2]), "beta": uniform(0, 1)}
    assert check_space(space) == [space]
    assert check_space((space, {})) == [space, {}]
    for empty in ({}, [{}, {}]):
        with pytest.raises(ValueError, match="parameters must name at least one parameter"):
            check_space(empty)
