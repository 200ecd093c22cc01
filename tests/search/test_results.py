"""Attributes of a fitted search, from the records of the driver."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from accelerando.search._bracket_run import BracketRun, Model
from accelerando.search._plan import hyperband_brackets
from accelerando.search._results import best_model, cv_results, metadata_of, model_history

BRACKETS = hyperband_brackets(9)


def model(number, *scores, calls=1, params=None, bracket=0):
    rows = [
        {
            "model_id": number, "bracket": bracket, "score": score, "score_loss": -score,
            "partial_fit_time": 2.0, "score_time": math.nan if math.isnan(score) else 1.0,
        }
        for score in scores
    ]  # fmt: skip
    run = BracketRun(next(b for b in BRACKETS if b.index == bracket), iter(()))
    last = scores[-1] if scores else None
    return Model(number, run, params or {}, calls, last, rows=rows)


def test_an_entry_per_model_with_its_last_score():
    results = cv_results([model(0, 0.1, 0.5), model(1, 0.7), model(2, math.nan)], ["loss"])
    np.testing.assert_array_equal(results["test_score"], [0.5, 0.7, math.nan])
    assert results["rank_test_score"].tolist() == [2, 1, 3]
    assert results["rank_test_loss"].tolist() == [1, 2, 3]
    assert results["mean_partial_fit_time"].tolist() == [2.0, 2.0, 2.0]
    assert math.isnan(results["mean_score_time"][2])
    assert results["std_score_time"][0] == 0.0


def test_equal_scores_share_the_better_rank():
    results = cv_results([model(0, 0.5), model(1, 0.5), model(2, 0.1)], [])
    assert results["rank_test_score"].tolist() == [1, 1, 3]
    assert "test_loss" not in results


def test_parameters_that_a_model_lacks_are_masked():
    results = cv_results([model(0, 0.5, params={"a": 1}), model(1, 0.5, params={"b": (2, 3)})], [])
    assert results["param_a"].mask.tolist() == [False, True]
    assert results["param_b"][1] == (2, 3)


def test_rows_are_grouped_by_model():
    rows = [{"model_id": name, "score": score} for name, score in [("a", 1), ("b", 2), ("a", 3)]]
    assert {k: [row["score"] for row in v] for k, v in model_history(rows).items()} == {
        "a": [1, 3],
        "b": [2],
    }


def test_metadata_has_the_work_that_was_done():
    models = [model(0, 0.1, calls=3, bracket=2), model(1, 0.1, calls=1, bracket=2)]
    done = metadata_of(models, BRACKETS)
    assert (done["n_models"], done["partial_fit_calls"]) == (2, 4)
    assert [entry["bracket"] for entry in done["brackets"]] == [0, 1, 2]
    assert done["brackets"][2]["decisions"] == [1, 3]
    assert done["brackets"][0] == {
        "bracket": 0, "n_models": 0, "partial_fit_calls": 0, "decisions": [],
    }  # fmt: skip


def driver(*models, reason="finished", last_error=None, states=None):
    return SimpleNamespace(
        models={m.number: m for m in models},
        reason=reason,
        last_error=last_error,
        state_of=lambda m: (states or {0: "state 0", 1: "state 1"}).get(m.number),
    )


def test_the_best_model_has_the_highest_score():
    best, state = best_model(driver(model(0, 0.2), model(1, 0.9), model(2, math.nan), model(3)))
    assert (best.number, state) == (1, "state 1")


def test_a_model_whose_state_is_lost_is_skipped():
    best, _ = best_model(driver(model(0, 0.2), model(1, 0.9), states={0: "state"}))
    assert best.number == 0


def test_without_a_best_model_the_error_says_why():
    failed = driver(model(0, math.nan), last_error=ZeroDivisionError("oops"))
    with pytest.raises(ValueError, match=r"all 1 scored models .* NaN.*ZeroDivisionError\('oops'"):
        best_model(failed)
    with pytest.raises(ValueError, match=r"ended \(max_calls\) before a model was scored"):
        best_model(driver(model(0), reason="max_calls"))
    with pytest.raises(KeyboardInterrupt):
        best_model(driver(model(0), reason="interrupted"))
