"""Data of every kind, one validation split, and chunks."""

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import is_classifier
from sklearn.cluster import MiniBatchKMeans

from accelerando.search import IncrementalSearchCV
from accelerando.search._data import chunk_of_call, split

from .estimators import Counter, LearnsOne
from .searches import counters, hyperband


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


def test_every_pass_uses_all_chunks_in_a_new_order():
    passes = [[chunk_of_call(7 * n + i, 7, seed=0) for i in range(7)] for n in range(3)]
    assert all(sorted(order) == list(range(7)) for order in passes)
    assert passes[0] != passes[1] != passes[2]
    assert passes[0] != [chunk_of_call(i, 7, seed=1) for i in range(7)]


def rows(n=100):
    return np.arange(n).reshape(-1, 1), np.arange(n)


def parts(X, y=None, **options):
    options = {"test_size": None, "chunk_size": None, "seed": 0, "fit_params": {}, **options}
    found, constant = split(X, y, **options)
    groups, validation = dask.compute(found.groups, found.validation)
    chunks = [groups[i].chunks[j] for i, j in found.locations]
    return chunks, validation, constant


@pytest.mark.parametrize("blocks", [None, 4, 10])
def test_rows_are_in_training_or_in_validation(blocks):
    X, y = rows()
    if blocks:
        X, y = da.from_array(X, chunks=100 // blocks), da.from_array(y, chunks=100 // blocks)
    chunks, validation, _ = parts(X, y)
    train = np.concatenate([chunk.y for chunk in chunks])
    assert sorted([*train, *validation.y]) == list(range(100))
    assert len(validation.y) == (20 if blocks != 10 else 10)  # at most one block
    for chunk in (*chunks, validation):
        np.testing.assert_array_equal(chunk.X[:, 0], chunk.y)


def test_sizes_of_the_validation_rows():
    X, y = (da.from_array(part, chunks=25) for part in rows())
    assert len(parts(X, y, test_size=0.4)[1].y) == 40
    assert len(parts(X, y, test_size=8)[1].y) == 8
    for size in (100, 0, 1.0):
        with pytest.raises(ValueError, match="test_size must leave rows for training"):
            parts(X, y, test_size=size)


def test_fit_parameters_per_row_are_split_and_others_are_not():
    X, y = rows()
    given = {"sample_weight": y, "classes": np.arange(100), "option": 3}
    chunks, _, constant = parts(X, y, fit_params=given, chunk_size=30)
    assert list(constant) == ["classes", "option"]
    for chunk in chunks:
        np.testing.assert_array_equal(chunk.params["sample_weight"], chunk.y)


def test_blocks_must_match():
    X, y = (da.from_array(part, chunks=25) for part in rows())
    with pytest.raises(ValueError, match=r"y has 3 blocks but X has 4\. Rechunk y"):
        parts(X, y[:75])
    with pytest.raises(ValueError, match="chunk_size=5 is for data in memory"):
        parts(X, y, chunk_size=5)


def test_targets_of_other_rows_are_refused():
    X, y = (da.from_array(part, chunks=25) for part in rows())
    with pytest.raises(ValueError, match=r"y must have a row for .* 104 rows and X has 100\."):
        parts(X, da.from_array(np.arange(104), chunks=26))
    with pytest.raises(ValueError, match=r"y .* Got the shape \(99,\) and X has 100 rows\."):
        parts(X, rows()[1][:99])
    longer = da.from_array(np.arange(104), chunks=26)[da.ones(104, chunks=26) > 0]
    unknown = X[da.ones(100, chunks=25) > 0]
    for targets, weight, name in [(longer, y, "y"), (y, longer, "sample_weight")]:
        with pytest.raises(ValueError, match=f"{name} .* 26 rows where a block of X has 25"):
            parts(unknown, targets, fit_params={"sample_weight": weight})


def test_empty_blocks_are_skipped():
    lazy = da.from_array(np.arange(40.0).reshape(20, 2), chunks=(5, 2))
    lazy = lazy[(lazy[:, 0] < 10) | (lazy[:, 0] >= 20)].compute_chunk_sizes()
    assert 0 in lazy.chunks[0]
    for part in (lazy, dd.from_dask_array(lazy, columns=["a", "b"])):
        search = IncrementalSearchCV(Counter(), {"slope": [1.0]}, 1, max_iter=6, client=None).fit(
            part, part[:, 0] if part is lazy else part["a"]
        )
        assert 0 not in search.best_estimator_.rows_
        assert len(search.best_estimator_.rows_) == 6


def test_empty_blocks_are_skipped_on_workers(client):
    frame = pd.DataFrame({"a": np.arange(20.0), "b": 1.0})
    lazy = dd.from_pandas(frame, npartitions=4)
    lazy = lazy[(lazy.a < 5) | (lazy.a >= 10)]
    search = IncrementalSearchCV(Counter(), {"slope": [1.0]}, 1, max_iter=6, client=client).fit(
        lazy, lazy.a
    )
    assert 0 not in search.best_estimator_.rows_


@pytest.mark.parametrize("known", [True, False])
def test_blocks_that_are_all_empty_are_refused(known):
    lazy = da.zeros((8, 2), chunks=(4, 2))
    lazy = lazy[lazy[:, 0] > 0]
    lazy = lazy.compute_chunk_sizes() if known else lazy
    search = IncrementalSearchCV(Counter(), {"slope": [1.0]}, 1, max_iter=6, client=None)
    with pytest.raises(ValueError, match="X must have rows"):
        search.fit(lazy, lazy[:, 0])


def test_a_block_of_one_row_is_trained_on():
    X = da.from_array(np.zeros((9, 2)), chunks=(4, 2))
    search = IncrementalSearchCV(Counter(), {"slope": [1.0]}, 1, max_iter=4, client=None)
    search.fit(X, X[:, 0])
    assert 0 not in search.best_estimator_.rows_


def test_weights_and_groups_that_do_not_fit_are_refused_before_training(data):
    X, y = data
    with pytest.raises(ValueError, match=rf"sample_weight .* which has {len(X)}\. Got 3\."):
        hyperband().fit(X, y, sample_weight=np.ones(3))
    with pytest.raises(ValueError, match="groups decides which rows are held out"):
        counters(validation_data=(X, y)).fit(X, y, groups=np.arange(len(X)))
