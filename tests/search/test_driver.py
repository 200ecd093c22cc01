"""The driver: failures, limits, and models that are dropped."""

import collections
import math
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.stats import uniform
from sklearn.exceptions import FitFailedWarning

from accelerando.search import AsyncHalvingSearchCV
from accelerando.search._bracket_run import BracketRun, Settings
from accelerando.search._data import Chunk, ChunkGroup, Data
from accelerando.search._driver import Driver
from accelerando.search._halving import async_halving, successive_halving, train_all
from accelerando.search._local import LocalWorkers
from accelerando.search._plan import Bracket, Rung
from accelerando.search._sample import RandomSampler
from accelerando.search._train import State, TrainingSpec

from .estimators import Counter, Raises, ScoresNaN
from .searches import counters, hyperband


def test_a_model_that_raises_costs_only_itself(data):
    with pytest.warns(FitFailedWarning, match=r"loss is infinite.*slope") as caught:
        search = hyperband(Raises(), {"slope": uniform(0, 1)}).fit(*data)
    slopes = search.cv_results_["param_slope"].astype(float)
    scores = search.cv_results_["test_score"]
    assert len(caught) == np.isnan(scores).sum() > 0
    assert search.best_params_["slope"] <= 0.5
    assert search.best_score_ == np.nanmax(scores)
    assert search.cv_results_["rank_test_score"][np.isnan(scores)].min() > 1
    assert slopes[np.isnan(scores)].min() > 0.5


def test_error_score_may_be_a_number_or_raise(data):
    raising = hyperband(Raises(), {"slope": [0.7, 0.2]}, error_score=-7.0)
    with pytest.warns(FitFailedWarning):
        assert raising.fit(*data).cv_results_["test_score"].min() == -7.0
    with pytest.raises(FloatingPointError, match="infinite") as failure:
        hyperband(Raises(), {"slope": [0.7]}, error_score="raise").fit(*data)
    assert "slope" in failure.value.__notes__[0]
    with pytest.raises(ValueError, match="all 17 scored models have the score NaN"):
        hyperband(ScoresNaN(), {"slope": [0.7]}).fit(*data)


def test_nan_scores_never_win(data):
    for seed in range(6):
        search = hyperband(ScoresNaN(), {"slope": uniform(0, 1)}, random_state=seed).fit(*data)
        assert math.isfinite(search.best_score_)
        assert search.best_params_["slope"] <= 0.5


def test_max_calls_is_never_passed(data):
    search = counters(max_calls=20).fit(*data)
    assert search.metadata_["partial_fit_calls"] == 20
    assert search.stop_reason_ == "max_calls"
    assert (
        search.best_estimator_.calls_ == search.cv_results_["partial_fit_calls"][search.best_index_]
    )


def test_max_seconds_returns_the_best_so_far(data):
    search = hyperband(
        Counter(seconds=0.01), {"slope": uniform(0, 1)}, max_iter=81, max_seconds=0.3
    ).fit(*data)
    assert search.stop_reason_ == "max_seconds"
    assert 0 < search.metadata_["partial_fit_calls"] < 1581
    assert search.best_score_ == search.cv_results_["test_score"].max()


def test_models_that_are_over_are_dropped(data):
    search = counters(max_iter=81, priority="fifo").fit(*data)
    assert search.n_live_models_ <= search.metadata["n_models"]
    asha = AsyncHalvingSearchCV(
        Counter(), {"slope": uniform(0, 1)}, n_initial_parameters=90, max_iter=9, client=None,
        random_state=0,
    ).fit(*data)  # fmt: skip
    assert asha.n_live_models_ < 90 / 2


def test_a_bracket_starts_after_another_if_the_sampler_learns():
    """A sampler that learns draws each bracket from the scores of the finished ones."""
    drawn = []

    class Learning:
        learns = True

        def draw(self, model, observed):
            drawn.append((model, len(observed)))
            return {"slope": 1.0}

    run(Learning(), [(3, 1), (2, 2)])
    assert drawn == [(0, 0), (1, 0), (2, 0), (3, 3), (4, 3)]


def test_a_bracket_learns_from_all_rungs_but_the_last_of_the_one_before():
    """So it can start while the last rung of the one before still runs."""
    plans = [
        Bracket(2, (Rung(9, 1), Rung(3, 3), Rung(1, 9))),
        Bracket(1, (Rung(3, 3), Rung(1, 9))),
        Bracket(0, (Rung(2, 9),)),
    ]
    runs = [BracketRun(plan, successive_halving(plan)) for plan in plans]
    told = {}

    class Learning:
        learns = True

        def draw(self, model, observed):
            calls = collections.Counter(one.calls for one in observed)
            told[model] = (calls, [bracket.ended for bracket in runs])
            return {"slope": 1.0}

    driver = run_brackets(Learning(), runs)
    assert told[0] == ({}, [False, False, False])
    assert told[9] == ({1: 9, 3: 3}, [False, False, False])
    assert told[12] == ({1: 9, 3: 6, 9: 1}, [True, False, False])
    assert driver.calls == sum(plan.partial_fit_calls for plan in plans)
    # Other workers may end that rung before the next bracket starts; it does not count then either.
    seen = [driver._observations(before) for before in ([], runs[:1])]
    last = [sum(one.calls == 9 for one in observed) for observed in seen]
    assert last == [4, 3]


def test_a_bracket_that_does_not_learn_starts_at_once():
    driver = run(RandomSampler([{"slope": [1.0]}], 0), [(3, 1), (2, 2)])
    assert driver.n_live == 1  # models are dropped as soon as they have ended
    assert driver.calls == 3 * 1 + 2 * 2
    assert all(bracket.ended for bracket in driver.brackets)


def test_the_best_of_the_dropped_models_is_kept():
    class Numbered:
        learns = False

        def draw(self, model, observed):
            return {"slope": [0.3, 0.9, 0.5][model]}

    driver = run(Numbered(), [(3, 2)])
    assert driver.best.number == 1
    assert driver.workers.location(1) == "here"
    assert driver.workers.location(0) is driver.workers.location(2) is None


def test_a_lost_winner_is_trained_again():
    driver = run(RandomSampler([{"slope": uniform(0, 1)}], 0), [(3, 4)])
    driver.workers.drop([0, 1, 2])
    state = driver.state_of(driver.best)
    assert state.estimator.calls_ == 4
    driver.workers.drop([0, 1, 2])
    driver.reason = "interrupted"
    assert driver.state_of(driver.best) is None


def test_a_state_after_other_calls_is_not_that_of_the_winner():
    driver = run(RandomSampler([{"slope": uniform(0, 1)}], 0), [(3, 4)])
    number = driver.best.number
    stale = State(Counter(), calls=2)
    driver.workers.put(number, stale)
    assert driver.state_of(driver.best).estimator.calls_ == 4
    driver.workers.put(number, stale)
    driver.checkpoint = SimpleNamespace(state=lambda number: State("saved", calls=4))
    assert driver.state_of(driver.best).estimator == "saved"
    driver.checkpoint = SimpleNamespace(state=lambda number: State("saved", calls=3))
    assert driver.state_of(driver.best).estimator.calls_ == 4


def test_thousands_of_finished_jobs_may_follow_each_other():
    """A search that continues must not nest a call for each job that the checkpoint contains."""
    n_models = 2000
    plan = Bracket(0, (Rung(n_models, 1),))
    steps = async_halving(n_models, [1], 3, in_flight=1)  # each job follows from the one before

    class Ended:
        def __init__(self):
            self.params = {number: {"slope": 0.0} for number in range(n_models)}
            self.seconds = 0.0

        def save_params(self, drawn):
            assert drawn == {}

        def end_of(self, model, calls):
            return [{"partial_fit_calls": 1, "score": float(model)}], False

        def drop(self, model):
            pass

    driver = Driver(
        [BracketRun(plan, steps)], RandomSampler([{"slope": [0.0]}], 0), Settings(),
        checkpoint=Ended(),
    )  # fmt: skip
    driver.run(workers_here())
    assert (driver.calls, driver.best.number) == (n_models, n_models - 1)
    assert all(bracket.ended for bracket in driver.brackets)


def run(sampler, brackets):
    """Run random searches of some models for some calls each, in this process."""
    plans = [Bracket(i, (Rung(n, calls),)) for i, (n, calls) in enumerate(brackets)]
    runs = [BracketRun(plan, train_all(plan.n_models, plan.max_calls)) for plan in plans]
    return run_brackets(sampler, runs)


def run_brackets(sampler, runs):
    driver = Driver(runs, sampler, Settings())
    driver.run(workers_here())
    return driver


def workers_here():
    rows = Chunk(np.zeros((2, 1)), np.zeros(2), {})
    spec = TrainingSpec(Counter(), lambda m, X, y: m.score(X), "score", 0, n_chunks=1)
    return LocalWorkers(spec, Data([ChunkGroup([rows])], [(0, 0)], rows), lambda: False)
