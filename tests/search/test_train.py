"""Training one model: slices, scores, patience, and random numbers."""

import dataclasses
import math
import random

import numpy as np
from scipy.stats import uniform
from sklearn.base import clone
from sklearn.linear_model import SGDClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from accelerando.search import IncrementalSearchCV
from accelerando.search._data import Chunk
from accelerando.search._train import Slice, State, TrainingSpec, train_slice

from .estimators import Counter, Raises
from .searches import hyperband


def test_the_cut_into_slices_changes_no_result(data):
    scores = [
        hyperband(MLPClassifier((5,)), {"alpha": [1e-4, 1e-2]}, slice_seconds=seconds, priority=p)
        .fit(*data)
        .cv_results_["test_score"]
        for seconds, p in [(1e-9, "score"), (1e-9, "fifo"), (100, "score")]
    ]
    np.testing.assert_array_equal(scores[0], scores[1])
    np.testing.assert_array_equal(scores[0], scores[2])


def test_slices_are_scored_inside_a_rung(data):
    slow = {"slope": uniform(0, 1), "seconds": [0.003]}
    whole = hyperband(Counter(), slow, slice_seconds=100).fit(*data)
    cut = hyperband(Counter(), slow, slice_seconds=1e-9).fit(*data)
    assert len(whole.history_) == 9 + 3 + 1 + 5 + 1 + 3  # one score per model and rung
    assert len(whole.history_) < len(cut.history_) <= cut.metadata_["partial_fit_calls"]


def test_tol_is_what_patience_asks_for(data):
    steady = {"slope": [0.01]}
    patient = IncrementalSearchCV(
        Counter(), steady, 1, patience=5, tol=0.02, max_iter=50, client=None
    )
    assert patient.fit(*data).metadata_["partial_fit_calls"] == 50
    demanding = clone(patient).set_params(tol=0.2)
    assert demanding.fit(*data).metadata_["partial_fit_calls"] == 5


def chunks(n=3):
    return [Chunk(np.full((2, 1), i), np.zeros(2), {}) for i in range(n)]


def spec(estimator=None, **options):
    options = {"n_chunks": 3, "seed": 0, **options}
    scorer = options.pop("scorer", lambda model, X, y: model.score(X, y))
    return TrainingSpec(estimator or Counter(), scorer, "score", **options)


def train(settings, state=None, start=0, stop=5, limit=None, seconds=100.0, **options):
    part = Slice(0, {}, start, stop, stop if limit is None else limit, seconds)
    rows = chunks()
    options = {"chunk": rows.__getitem__, "validation": rows[0], **options}
    return train_slice(settings, state, part, **options)


def test_a_slice_ends_at_its_stop_its_limit_or_its_time():
    state, report = train(spec())
    assert (state.calls, report.calls) == (5, 5)
    assert [row.calls for row in report.rows] == [5]
    assert train(spec(), limit=2)[1].calls == 2
    assert train(spec(), seconds=0.0)[1].calls == 1
    assert train(spec(), stop_requested=lambda: True)[1].calls == 1


def test_scores_are_taken_when_they_are_due_and_at_the_end():
    state, report = train(spec(score_every=2))
    assert [row.calls for row in report.rows] == [2, 4, 5]
    assert state.scores == [(2, 2.0), (4, 4.0)]  # patience must not depend on where a slice ends


def test_patience_stops_a_model_on_a_plateau():
    _, report = train(spec(Counter(slope=0.0), score_every=1, patience=2, tol=0.1), stop=9)
    assert (report.calls, report.stopped) == (2, True)
    for never in (math.nan, None):
        _, report = train(spec(Counter(slope=0.0), score_every=1, patience=2, tol=never), stop=9)
        assert (report.calls, report.stopped) == (9, False)
    _, report = train(spec(Counter(slope=1.0), score_every=1, patience=2, tol=0.1), stop=9)
    assert (report.calls, report.stopped) == (9, False)


def test_a_lost_model_is_trained_again_without_new_rows():
    before, _ = train(spec(score_every=2), stop=4)
    state, report = train(spec(score_every=2), state=None, start=4, stop=6)
    assert state.calls == 6
    assert [row.calls for row in report.rows] == [6]
    assert state.scores[:2] == before.scores
    assert train(spec(), state=None, start=3, stop=3)[1].rows == []
    _, late = train(spec(), state=None, start=4, stop=9, seconds=0.0)
    assert [row.calls for row in late.rows] == [5]  # the time limit applies to new calls only


def test_an_error_is_in_the_report_and_the_state_is_given_up():
    state, report = train(spec(Raises(slope=0.9)))
    assert state is None
    assert (report.calls, report.stopped) == (1, True)
    assert isinstance(report.error, FloatingPointError)
    for score in ("high", "0.5", b"1", 1 + 2j, np.complex64(1), None):
        state, report = train(spec(scorer=lambda model, X, y, score=score: score))
        assert state is None
        assert f"scoring must return a number for 'score'. Got {score!r}" in str(report.error)


def test_calls_draw_the_same_random_numbers_however_they_are_cut():
    class Draws(Counter):
        def partial_fit(self, X, y=None):
            self.drawn_ = [*getattr(self, "drawn_", []), np.random.rand(), random.random()]
            return super().partial_fit(X, y)

    whole, _ = train(spec(Draws()))
    assert len(set(whole.estimator.drawn_)) == 10
    half, _ = train(spec(Draws()), limit=2)
    np.random.rand()
    again, _ = train(spec(Draws()), state=half, start=2)
    assert again.estimator.drawn_ == whole.estimator.drawn_
    np.random.seed(0)
    expected = np.random.RandomState(0).rand()
    train(spec(Draws()))
    assert np.random.rand() == expected  # the global state is restored
    np.random.seed(0)
    train(spec(Draws()), single_thread=False)
    assert np.random.rand() != expected  # it is not touched where other threads use it


def test_every_random_state_that_is_none_is_seeded():
    models = [spec(SGDClassifier(), seed=seed).start(number, {"alpha": 0.1}).estimator
              for seed, number in [(0, 0), (0, 0), (0, 1), (1, 0)]]  # fmt: skip
    seeds = [model.random_state for model in models]
    assert seeds[0] == seeds[1]
    assert len(set(seeds)) == 3
    assert spec(SGDClassifier(random_state=7)).start(0, {}).estimator.random_state == 7
    nested = spec(make_pipeline(StandardScaler(), SGDClassifier())).start(0, {}).estimator
    assert nested.get_params()["sgdclassifier__random_state"] is not None


def test_saved_states_keep_their_class():
    """Checkpoints hold pickles of this class."""
    assert (State.__module__, State.__qualname__) == ("accelerando.search._train", "State")
    assert [field.name for field in dataclasses.fields(State)] == ["estimator", "calls", "scores"]


def test_a_model_that_exits_costs_only_itself():
    class Exits(Counter):
        def partial_fit(self, X, y=None):
            raise SystemExit(3)

    rows = Chunk(np.zeros((2, 1)), np.zeros(2), {})
    spec = TrainingSpec(Exits(), lambda m, X, y: m.score(X), "score", 0, n_chunks=1)
    state, report = train_slice(
        spec, None, Slice(0, {}, 0, 2, 2, 1.0), chunk=lambda i: rows, validation=rows
    )
    assert (state, report.calls, report.stopped) == (None, 0, True)
    assert isinstance(report.error, SystemExit)
