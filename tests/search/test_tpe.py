"""The TPE sampler learns from earlier brackets."""

import numpy as np
import pytest
from scipy.stats import loguniform, randint, uniform
from sklearn.linear_model import SGDClassifier

from accelerando.search import (
    HyperbandSearchCV,
)
from accelerando.search._sample import Observation
from accelerando.search._tpe import TPESampler, comparable


def test_like_is_compared_with_like():
    seen = [
        Observation({}, 1, 0.1),
        Observation({}, 1, 0.2),
        Observation({}, 3, 0.9),
        Observation({}, 3, float("nan")),
    ]
    assert {one.calls for one in comparable(seen, 2)} == {1}
    assert {one.calls for one in comparable(seen, 1)} == {3}
    assert comparable(seen, 5) == []


def test_tpe_draws_near_what_was_good():
    space = {"x": uniform(0, 1), "n": randint(1, 9), "kind": ["a", "b"]}
    sampler = TPESampler([space], seed=0)
    rng = np.random.default_rng(0)
    seen = []
    for _ in range(60):
        params = {
            "x": rng.random(),
            "n": int(rng.integers(1, 9)),
            "kind": str(rng.choice(["a", "b"])),
        }
        seen.append(Observation(params, 9, -abs(params["x"] - 0.2) - (params["kind"] == "b")))
    drawn = [sampler.draw(model, seen) for model in range(60)]
    random = [sampler.draw(model, []) for model in range(60)]
    near = np.mean([abs(params["x"] - 0.2) < 0.15 for params in drawn])
    assert near > 1.5 * np.mean([abs(params["x"] - 0.2) < 0.15 for params in random])
    assert np.mean([params["kind"] == "a" for params in drawn]) > 0.6
    assert {params["n"] for params in drawn} <= set(range(1, 9))
    assert all(isinstance(params["n"], int | np.integer) for params in drawn)
    assert drawn == [sampler.draw(model, seen) for model in range(60)]


def test_tpe_in_a_search_on_conditional_spaces(data):
    spaces = [{"penalty": ["l2"], "alpha": loguniform(1e-5, 1)}, {"l1_ratio": uniform(0, 1)}]
    searches = [
        HyperbandSearchCV(
            SGDClassifier(), spaces, max_iter=27, sampler="tpe", client=None, random_state=0
        ).fit(*data)
        for _ in range(2)
    ]
    assert [*searches[0].cv_results_["params"]] == [*searches[1].cv_results_["params"]]
    assert searches[0].metadata_ == searches[0].metadata
    random = HyperbandSearchCV(
        SGDClassifier(), spaces, max_iter=27, client=None, random_state=0
    ).fit(*data)
    same = [
        a == b
        for a, b in zip(
            random.cv_results_["params"], searches[0].cv_results_["params"], strict=True
        )
    ]
    assert all(same[:27])  # nothing was known when the first bracket was drawn
    assert not all(same[27:])


def test_tpe_needs_quantiles():
    class Odd:
        def rvs(self, random_state=None):
            return 1.0

    with pytest.raises(TypeError, match=r"needs distributions with ppf and cdf.*'x'"):
        TPESampler([{"x": Odd()}], seed=0)
