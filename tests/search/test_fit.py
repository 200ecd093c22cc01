"""One search from outside, in this process: attributes, data of all kinds, failures."""

import math
import pickle
import threading

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from scipy.stats import loguniform, uniform
from sklearn.base import clone, is_classifier
from sklearn.cluster import MiniBatchKMeans
from sklearn.exceptions import FitFailedWarning, NotFittedError
from sklearn.linear_model import SGDClassifier, SGDRegressor
from sklearn.metrics import accuracy_score, make_scorer
from sklearn.model_selection import cross_val_score
from sklearn.neural_network import MLPClassifier
from sklearn.svm import SVC

from accelerando.search import (
    AsyncHalvingSearchCV,
    HyperbandSearchCV,
    RandomIncrementalSearchCV,
    SuccessiveHalvingSearchCV,
)

from .estimators import Counter, LearnsOne, Raises, ScoresNaN, Unpicklable

SPACE = {"alpha": loguniform(1e-5, 1.0), "penalty": ["l1", "l2"]}


def hyperband(estimator=None, parameters=None, **options):
    options = {"max_iter": 9, "random_state": 0, "client": None, **options}
    return HyperbandSearchCV(estimator or SGDClassifier(), parameters or SPACE, **options)


def counters(**options):
    return hyperband(Counter(), {"slope": uniform(0, 1)}, **options)


def test_a_program_for_dask_ml_runs_with_the_import_changed(data):
    X, y = (da.from_array(part, chunks=150) for part in data)
    search = HyperbandSearchCV(SGDClassifier(), SPACE, 9, 3, random_state=1)
    assert search.fit(X, y, classes=[0, 1, 2]) is search
    expected = {
        "mean_partial_fit_time", "std_partial_fit_time", "mean_score_time", "std_score_time",
        "test_score", "rank_test_score", "model_id", "partial_fit_calls", "params", "bracket",
        "param_alpha", "param_penalty",
    }  # fmt: skip
    assert set(search.cv_results_) == expected
    assert {len(column) for column in search.cv_results_.values()} == {17}
    assert set(search.history_[0]) >= {
        "partial_fit_time", "score_time", "score", "model_id", "params", "partial_fit_calls",
        "elapsed_wall_time", "bracket",
    }  # fmt: skip
    assert search.metadata == search.metadata_
    best = search.best_index_
    assert search.cv_results_["rank_test_score"][best] == 1
    assert search.cv_results_["test_score"][best] == search.best_score_
    assert search.cv_results_["params"][best] == search.best_params_
    last = search.model_history_[search.cv_results_["model_id"][best]][-1]
    assert last["score"] == search.best_score_
    assert search.cv_results_["model_id"][0] == "bracket=2-0"
    assert (search.n_splits_, search.multimetric_) == (1, False)
    lazy = search.predict(X)
    assert isinstance(lazy, da.Array)
    np.testing.assert_array_equal(lazy.compute(), search.predict(data[0]))
    assert search.decision_function(X).compute().shape == (600, 3)
    assert search.score(X, y) == search.scorer_(search.best_estimator_, *data)


def test_the_history_counts_what_the_models_did(data):
    search = counters(chunk_size=100).fit(*data)
    for model, calls in zip(
        search.cv_results_["model_id"], search.cv_results_["partial_fit_calls"], strict=True
    ):
        assert search.model_history_[model][-1]["partial_fit_calls"] == calls
    assert search.best_estimator_.calls_ == 9
    assert search.best_score_ == pytest.approx(9 * search.best_params_["slope"])
    slopes = search.cv_results_["param_slope"][search.cv_results_["bracket"] == 0]
    assert search.best_params_["slope"] >= max(slopes)


def test_chunks_have_the_asked_size(data):
    sizes = set(counters(chunk_size=100).fit(*data).best_estimator_.rows_)
    assert sizes == {96}  # 480 training rows in 5 equal chunks
    repeated = counters(chunk_size=1000).fit(*data).best_estimator_.rows_
    assert set(repeated) == {1000}


def test_all_models_are_validated_on_the_same_rows(data):
    seen = set()

    def scoring(estimator, X, y):
        seen.add(X.tobytes())
        return estimator.score(X, y)

    hyperband(scoring=scoring).fit(*data)
    assert len(seen) == 1


def test_the_same_seed_gives_the_same_search(data):
    first, second = (hyperband(MLPClassifier((5,)), {"alpha": [1e-4, 1e-2]}) for _ in range(2))
    first.metadata  # noqa: B018 — asking must not draw random numbers
    first.fit(*data)
    second.fit(*data)
    np.testing.assert_array_equal(first.cv_results_["test_score"], second.cv_results_["test_score"])
    other = hyperband(MLPClassifier((5,)), {"alpha": [1e-4, 1e-2]}, random_state=1).fit(*data)
    assert list(other.cv_results_["test_score"]) != list(first.cv_results_["test_score"])


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


@pytest.mark.parametrize(
    "convert",
    [
        lambda X, y: (X, y),
        lambda X, y: (X.tolist(), y.tolist()),
        lambda X, y: (pd.DataFrame(X), pd.Series(y)),
        lambda X, y: (sparse.csr_matrix(X), y),
        lambda X, y: (sparse.csr_array(X), y),
        lambda X, y: (da.from_array(X, chunks=(200, 4)), da.from_array(y, chunks=100)),
        lambda X, y: (X, np.array(["a", "b", "c"])[y]),
    ],
    ids=["numpy", "lists", "pandas", "sparse matrix", "sparse array", "dask", "strings"],
)
def test_data_of_every_kind(data, convert):
    X, y = convert(*data)
    search = hyperband().fit(X, y)
    assert search.best_score_ > 0.4
    assert is_classifier(search)
    assert len(search.classes_) == 3
    assert search.n_features_in_ == 8


def test_dask_dataframes(data):
    frame = pd.DataFrame(data[0], columns=list("abcdefgh")).assign(target=data[1])
    rows = dd.from_pandas(frame, npartitions=4)
    X, y = rows[list("abcdefgh")], rows["target"]
    search = hyperband().fit(X, y)
    assert list(search.feature_names_in_) == list("abcdefgh")
    assert search.best_score_ > 0.4
    lazy = search.predict(X)
    assert isinstance(lazy, da.Array)
    np.testing.assert_array_equal(lazy.compute(), search.predict(X.compute()))
    assert search.decision_function(X).compute().shape == (600, 3)
    assert 0.4 < search.score(X, y) <= 1
    with pytest.raises(ValueError, match="y must be a Dask collection with the blocks of X"):
        hyperband().fit(X, data[1])
    with pytest.raises(ValueError, match="sample_weight must be a Dask collection"):
        hyperband().fit(X, y, sample_weight=np.ones(600))
    with pytest.raises(ValueError, match="test_size=100 counts rows"):
        hyperband(test_size=100).fit(X, y)


def test_sample_weights_are_split_with_their_rows(data):
    X, y = data
    weight = (y != 2).astype(float)
    search = hyperband(chunk_size=100).fit(X, y, sample_weight=weight)
    # a class of weight zero is hardly predicted
    assert np.mean(search.predict(X) == 2) < np.mean(hyperband().fit(X, y).predict(X) == 2) / 2


def test_weights_with_dask_arrays(data):
    X, y = (da.from_array(part, chunks=150) for part in data)
    search = hyperband().fit(X, y, sample_weight=np.ones(600))
    assert search.best_score_ > 0.4


def test_groups_stay_on_one_side(data):
    X, y = data
    groups = np.repeat(np.arange(60), 10)
    X = X.copy()
    X[:, 0] = groups
    sides = []

    def scoring(estimator, X, y):
        sides.append(set(X[:, 0]))
        return 0.5

    hyperband(scoring=scoring, max_iter=1).fit(X, y, groups=groups)
    assert len(sides[0]) == 12
    with pytest.raises(ValueError, match="groups is supported for data in memory"):
        hyperband().fit(da.from_array(X), da.from_array(y), groups=groups)


def test_chunks_of_one_class_and_unsorted_targets(data):
    X, y = data
    order = np.argsort(y, kind="stable")
    blocks = (200, 200, 200)
    X, y = da.from_array(X[order], chunks=(blocks, -1)), da.from_array(y[order], chunks=(blocks,))
    search = hyperband().fit(X, y)
    np.testing.assert_array_equal(search.classes_, [0, 1, 2])


def test_without_targets(data):
    search = hyperband(MiniBatchKMeans(n_init=1), {"n_clusters": [2, 3, 4]}).fit(data[0])
    assert search.transform(data[0]).shape == (600, search.best_params_["n_clusters"])


def test_rows_one_at_a_time(data):
    search = hyperband(LearnsOne(), {"prior": [1.0, 2.0]}).fit(*data)
    assert len(search.predict(data[0])) == 600


def test_conditional_spaces(data):
    spaces = [{"penalty": ["l2"], "alpha": [1e-3]}, {"penalty": ["elasticnet"], "l1_ratio": [0.5]}]
    search = hyperband(parameters=spaces).fit(*data)
    column = search.cv_results_["param_l1_ratio"]
    assert 0 < column.mask.sum() < len(column)
    assert {tuple(sorted(params)) for params in search.cv_results_["params"]} == {
        ("alpha", "penalty"),
        ("l1_ratio", "penalty"),
    }


def test_several_metrics(data):
    scoring = {"accuracy": "accuracy", "loss": make_scorer(accuracy_score)}
    search = hyperband(scoring=scoring, refit="accuracy").fit(*data)
    assert search.multimetric_
    assert search.best_score_ == max(search.cv_results_["test_accuracy"])
    assert set(search.scorer_) == {"accuracy", "loss"}
    assert {"test_loss", "rank_test_loss"} <= set(search.cv_results_)
    assert 0 <= search.score(*data) <= 1
    with pytest.raises(ValueError, match=r"'refit' parameter .* must be one of .* Got True"):
        hyperband(scoring=scoring).fit(*data)


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


def test_patience_ends_models_that_do_not_improve(data):
    flat = hyperband(Counter(slope=0.0), {"offset": uniform(0, 1)}, max_iter=27, patience=True)
    flat.fit(*data)
    assert flat.metadata_["partial_fit_calls"] < flat.metadata["partial_fit_calls"]
    assert flat.cv_results_["partial_fit_calls"].max() == 12  # scores at 3, 6, 9 and 12: 9 in vain
    rising = hyperband(Counter(), {"slope": uniform(0.1, 1)}, max_iter=27, patience=True)
    assert rising.fit(*data).metadata_ == rising.metadata
    with pytest.warns(UserWarning, match="patience=2 is less than"):
        hyperband(Counter(), {"slope": [1.0]}, max_iter=27, patience=2).fit(*data)
    with pytest.raises(
        ValueError, match=r"'patience' parameter .* must be an integer of at least 2, .* Got 1"
    ):
        hyperband(patience=1).fit(*data)


def test_tol_is_what_patience_asks_for(data):
    steady = {"slope": [0.01]}
    patient = RandomIncrementalSearchCV(
        Counter(), steady, 1, patience=5, tol=0.02, max_iter=50, client=None
    )
    assert patient.fit(*data).metadata_["partial_fit_calls"] == 50
    demanding = clone(patient).set_params(tol=0.2)
    assert demanding.fit(*data).metadata_["partial_fit_calls"] == 6


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


def test_stop_and_best_so_far_from_another_thread(data):
    search = hyperband(
        Counter(seconds=0.005), {"slope": uniform(0, 1)}, max_iter=243, slice_seconds=0.02
    )
    assert search.best_so_far_ is None
    with pytest.raises(RuntimeError, match="no search is running"):
        search.stop()
    seen = []

    def watch():
        while not seen:
            if (best := search.best_so_far_) is not None:
                seen.append(best)
        search.stop()

    thread = threading.Thread(target=watch)
    thread.start()
    search.fit(*data)
    thread.join()
    assert search.stop_reason_ == "stopped"
    assert set(seen[0]) >= {"score", "params", "model_id"}
    assert search.best_so_far_["score"] == search.best_score_
    assert search.best_estimator_.calls_ >= 1


def test_a_stop_before_the_first_score_waits_for_it(data):
    search = counters(slice_seconds=1e-9)

    class StopsAtOnce(Counter):
        def partial_fit(self, X, y=None):
            search.stop()
            return super().partial_fit(X, y)

    search.set_params(estimator=StopsAtOnce()).fit(*data)
    assert search.stop_reason_ == "stopped"
    assert search.metadata_["partial_fit_calls"] == search.n_iter_ == 1


def test_models_that_are_over_are_dropped(data):
    search = counters(max_iter=81, priority="fifo").fit(*data)
    assert search.n_live_models_ <= search.metadata["n_models"]
    asha = AsyncHalvingSearchCV(
        Counter(), {"slope": uniform(0, 1)}, n_initial_parameters=90, max_iter=9, client=None,
        random_state=0,
    ).fit(*data)  # fmt: skip
    assert asha.n_live_models_ < 90 / 2


def test_an_estimator_that_cannot_be_pickled_runs_here_but_not_elsewhere(data, client, tmp_path):
    space = {"slope": uniform(0, 1)}
    with pytest.raises(TypeError, match=r"cannot be pickled .* client=None"):
        hyperband(Unpicklable(lock=threading.Lock()), space, client=client).fit(*data)
    with pytest.raises(TypeError, match="cannot be pickled"):
        hyperband(Unpicklable(lock=threading.Lock()), space, checkpoint=tmp_path).fit(*data)
    assert hyperband(Unpicklable(), space).fit(*data).best_estimator_.calls_ == 9


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"estimator": SVC()}, "estimator must have partial_fit, but SVC does not have it"),
        (
            {"parameters": {"alhpa": [1]}},
            "SGDClassifier has no such parameter. Did you mean 'alpha'",
        ),
        ({"parameters": {"alpha": 3.0}}, r"parameters\['alpha'\] must be a list"),
        ({"parameters": {"alpha": []}}, r"parameters\['alpha'\] must be a list"),
        ({"parameters": "alpha"}, "parameters must be a dict"),
        (
            {"priority": "best"},
            "'priority' parameter of HyperbandSearchCV must be 'score' or 'fifo'. Got 'best'",
        ),
        ({"sampler": "grid"}, "'sampler' parameter of HyperbandSearchCV must be 'random' or 'tpe'"),
        (
            {"slice_seconds": 0},
            "'slice_seconds' parameter of HyperbandSearchCV must be a number above 0",
        ),
        ({"max_seconds": -1}, "must be a number above 0, None or infinity. Got -1"),
        (
            {"max_calls": 2.5},
            "'max_calls' parameter .* must be an integer of at least 1 or None. Got 2.5",
        ),
        ({"error_score": "ignore"}, "'error_score' parameter .* must be 'raise' or a number"),
        (
            {"client": "cluster"},
            "'client' parameter .* must be 'default', None or a dask.distributed.Client",
        ),
        ({"chunk_size": 0}, "'chunk_size' parameter .* must be an integer of at least 1"),
        (
            {"max_iter": 0},
            "'max_iter' parameter of HyperbandSearchCV must be an integer of at least 1",
        ),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_what_is_wrong_is_said_before_anything_is_trained(data, options, words):
    with pytest.raises((ValueError, TypeError), match=words):
        hyperband(**options).fit(*data)


def test_an_argument_that_partial_fit_does_not_take_is_refused(data):
    with pytest.raises(TypeError, match=r"fit got \['sample_weight'\], but Counter.partial_fit"):
        counters().fit(*data, sample_weight=np.ones(600))


def test_scikit_learns_contract(data):
    search = hyperband()
    with pytest.raises(NotFittedError):
        search.predict(data[0])
    assert not hasattr(search, "n_features_in_")
    assert not hasattr(search, "transform")
    copy = clone(search).fit(*data)
    again = pickle.loads(pickle.dumps(copy))
    np.testing.assert_array_equal(again.predict(data[0]), copy.predict(data[0]))
    scores = cross_val_score(hyperband(), *data, cv=2)
    assert scores.shape == (2,)


def test_a_regressor(data):
    X, y = data
    search = hyperband(SGDRegressor(), {"alpha": loguniform(1e-5, 1)}).fit(X, y.astype(float))
    assert not hasattr(search, "predict_proba")
    assert search.predict(X).dtype == float


def test_defaults_of_successive_halving(data):
    search = SuccessiveHalvingSearchCV(SGDClassifier(), SPACE, client=None, random_state=0)
    assert search.fit(*data).metadata == search.metadata_


def test_a_grid(data):
    search = RandomIncrementalSearchCV(
        SGDClassifier(), {"alpha": [1e-4, 1e-2], "penalty": ["l1", "l2"]}, "grid", max_iter=3,
        fits_per_score=2, client=None,
    ).fit(*data)  # fmt: skip
    assert [row["partial_fit_calls"] for row in search.model_history_[0]] == [2, 3]
    assert len(search.cv_results_["params"]) == 4
    with pytest.raises(ValueError, match="distribution, which has no grid"):
        RandomIncrementalSearchCV(SGDClassifier(), SPACE, "grid").fit(*data)


def test_fitting_leaves_the_global_random_state_alone(data):
    np.random.seed(3)
    expected = np.random.RandomState(3).rand()
    hyperband().fit(*data)
    assert np.random.rand() == expected
