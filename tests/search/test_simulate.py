import pandas as pd
import pytest
from scipy.stats import uniform

from accelerando.search import AsyncHalvingSearchCV, HyperbandSearchCV, simulate

from .estimators import Counter


@pytest.fixture(scope="module")
def hyperband(data):
    space = {"slope": uniform(0, 1)}
    return HyperbandSearchCV(Counter(), space, max_iter=27, client=None, random_state=0).fit(*data)


def test_one_worker_does_all_work_without_a_pause(hyperband):
    replay = simulate(hyperband, n_workers=1, fit_seconds=1, score_seconds=0)
    assert replay.seconds == replay.work_seconds == hyperband.metadata_["partial_fit_calls"]
    assert replay.speedup == 1


def test_many_workers_are_bound_by_the_longest_model(hyperband):
    replay = simulate(hyperband, n_workers=1000, fit_seconds=1, score_seconds=0)
    assert replay.seconds == 27


@pytest.mark.parametrize("priority", ["score", "fifo"])
def test_more_workers_are_never_much_slower(hyperband, priority):
    seconds = [simulate(hyperband.history_, n, priority=priority).seconds for n in range(1, 20)]
    assert seconds[0] > 2 * seconds[3]
    assert min(seconds) == seconds[-1]


def test_all_rows_come_back_with_the_same_scores(hyperband):
    replay = simulate(pd.DataFrame(hyperband.history_), 3, fit_seconds=None, score_seconds=None)

    def known(rows):
        return sorted((row["model_id"], row["partial_fit_calls"], row["score"]) for row in rows)

    assert known(replay.history) == known(hyperband.history_)
    assert replay.seconds_to(hyperband.best_score_) <= replay.seconds
    assert replay.seconds_to(hyperband.best_score_ + 1) is None


def test_a_rung_waits_for_the_one_before(hyperband):
    replay = simulate(hyperband, 4)
    ends = {}
    for row in replay.history:
        key = (row["bracket"], row["job_calls"])
        ends[key] = max(ends.get(key, 0.0), row["elapsed_wall_time"])
    for (bracket, calls), end in ends.items():
        later = [
            row["elapsed_wall_time"]
            for row in replay.history
            if row["bracket"] == bracket and row["job_calls"] > calls
        ]
        assert all(second > end for second in later)


def test_good_models_come_sooner_by_priority(hyperband):
    goal = 0.9 * hyperband.best_score_
    by_score = simulate(hyperband, 1).seconds_to(goal)
    assert by_score < simulate(hyperband, 1, priority="fifo").seconds_to(goal)


def test_asha_is_replayed_without_barriers(data):
    search = AsyncHalvingSearchCV(
        Counter(), {"slope": uniform(0, 1)}, 30, max_iter=9, client=None, random_state=0
    ).fit(*data)
    replay = simulate(search, 4)
    assert len(replay.history) == len(search.history_)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (([], 1), "history is empty"),
        (([{"score": 1}], 1), "it lacks"),
        (
            ([{"score": 1}], 0),
            "'n_workers' parameter of simulate must be an integer of at least 1. Got 0",
        ),
        (
            ([{"score": 1}], 1, 1, 1, "best"),
            "'priority' parameter of simulate must be 'score' or 'fifo'",
        ),
    ],
)
def test_wrong_inputs_are_named(arguments, words):
    with pytest.raises(ValueError, match=words):
        simulate(*arguments)
