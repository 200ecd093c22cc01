"""ASHA: the plan of its rungs, and its parameters."""

import pytest
from scipy.stats import uniform

from accelerando.search import AsyncHalvingSearchCV
from accelerando.search._halving import Outcome

from .estimators import Counter


def asha(**options):
    options = {"n_initial_parameters": 12, "max_iter": 9, "client": None, **options}
    return AsyncHalvingSearchCV(Counter(), {"slope": uniform(0, 1)}, random_state=0, **options)


def test_the_last_rung_is_max_iter():
    (bracket,) = asha(n_initial_parameters=81, n_initial_iter=2, max_iter=40).metadata["brackets"]
    assert bracket["decisions"] == [2, 6, 40]  # 18 is the largest power below 40
    (bracket,) = asha(n_initial_parameters=81, max_iter=81).metadata["brackets"]
    assert bracket["decisions"] == [1, 3, 9, 27, 81]


def test_rungs_that_no_model_reaches_are_not_planned():
    (bracket,) = asha(n_initial_parameters=5, max_iter=81).metadata["brackets"]
    assert bracket["decisions"] == [1, 3]


def test_in_flight_models_start_at_once():
    for in_flight in (1, 5, 100):
        (bracket,) = asha(in_flight=in_flight)._bracket_runs()
        assert len(next(bracket.steps).jobs) == min(in_flight, 12)


def test_premature_promotions_cost_calls(data):
    search = asha(n_initial_parameters=30).fit(*data)
    assert search.metadata_["partial_fit_calls"] > search.metadata["partial_fit_calls"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"in_flight": 0}, "'in_flight' parameter of AsyncHalvingSearchCV must be an integer of"),
        ({"n_initial_iter": None}, "'n_initial_iter' parameter .* Got None"),
        ({"max_iter": 2.5}, "'max_iter' parameter .* must be an integer of at least 1"),
        ({"aggressiveness": 1}, "'aggressiveness' parameter .* must be an integer of at least 2"),
        ({"n_initial_iter": 10}, "'max_iter' parameter .* must be at least n_initial_iter=10"),
    ],
)
def test_wrong_parameters_are_named(options, words):
    with pytest.raises(ValueError, match=words):
        asha(**options).metadata  # noqa: B018


def test_a_slow_model_holds_up_decisions_only_if_they_are_deterministic():
    def started(deterministic):
        (run,) = asha(
            n_initial_parameters=12, in_flight=3, deterministic=deterministic
        )._bracket_runs()
        jobs = list(next(run.steps).jobs)
        n_done = 0
        while len(jobs) > 1 and n_done < 8:  # model 0, the first job, never arrives
            job = jobs.pop(1)
            n_done += 1
            jobs += run.steps.send(Outcome(job.model, job.model / 10)).jobs
        return n_done

    assert started(deterministic=True) == 2  # the two others, then all wait for model 0
    assert started(deterministic=False) == 8


def test_the_order_of_arrival_gives_a_whole_search(data):
    search = asha(deterministic=False, n_initial_parameters=30).fit(*data)
    assert search.stop_reason_ == "finished"
    assert search.metadata_["n_models"] == 30
    assert search.best_estimator_.calls_ == 9


def test_in_flight_follows_the_workers():
    slots = [2]
    (run,) = asha(deterministic=False)._bracket_runs(lambda: slots[0])
    jobs = list(next(run.steps).jobs)
    assert len(jobs) == 4
    slots[0] = 3
    assert len(run.steps.send(Outcome(jobs[0].model, 0.5)).jobs) == 3
