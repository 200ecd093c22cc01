"""Fingerprints: equal for equal content, also in another process; different for other content."""

import functools
import os
import subprocess
import sys

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch
from scipy.stats import loguniform, rv_discrete, rv_histogram, uniform
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import SGDClassifier
from sklearn.metrics import accuracy_score, make_scorer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from accelerando.search._fingerprint import fingerprint

ONES = np.ones((3, 2))
FRAME = pd.DataFrame({"a": [1.0, 2.0], "b": ["x", "y"]})


LEVELS = ["x", "y"]
SCALER, OTHER_SCALER = (StandardScaler().fit(ONES * factor) for factor in (1, 2))


def times(factor):
    return lambda value: value * factor


def cached(factor):
    return functools.lru_cache(times(factor))


def categories(levels):
    return pd.Categorical(LEVELS, categories=levels)


def histogram(top):
    return rv_histogram(([1, 2], [0, 1, top]), density=True)


class WithState:
    """Has the parameters of an estimator, and one attribute more."""

    def __init__(self, state):
        self.state = state

    def get_params(self, deep=True):
        return {"alpha": 1}


class Listed(list):
    """A list with an attribute."""

    def __init__(self, state):
        super().__init__([1])
        self.state = state


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (ONES, ONES + 1e-12),
        (ONES, ONES.astype("float32")),
        (ONES, ONES.reshape(2, 3)),
        (np.array(["a", None], object), np.array(["a", "b"], object)),
        (FRAME, FRAME.rename(columns={"a": "c"})),
        (FRAME, FRAME.assign(b=["x", "z"])),
        (FRAME["a"], FRAME["a"] + 1),
        (scipy.sparse.csr_array(ONES), scipy.sparse.csr_array(ONES * 2)),
        (np.array(["2020-01-01"], "M8[D]"), np.array(["2020-01-02"], "M8[D]")),
        (np.ma.masked_array([1, 2], [0, 1]), np.ma.masked_array([1, 2], [0, 0])),
        (FRAME, FRAME.set_index(pd.Index([1, 2]))),
        (FRAME.assign(b=categories(LEVELS)), FRAME.assign(b=categories(LEVELS[::-1]))),
        (categories(LEVELS), categories(LEVELS[::-1])),
        (torch.ones(2), torch.zeros(2)),
        (torch.ones(2, dtype=torch.bfloat16), torch.zeros(2, dtype=torch.bfloat16)),
        (torch.ones(2, dtype=torch.int32), torch.ones(2, dtype=torch.float32)),
        (torch.eye(2).to_sparse(), torch.eye(2).to_sparse() * 2),
        (torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)),
        (da.ones(4, chunks=2), da.zeros(4, chunks=2)),
        (SGDClassifier(), SGDClassifier(alpha=1.0)),
        (uniform(0, 1), uniform(0, 2)),
        (uniform(0, 1), loguniform(1, 2)),
        (make_scorer(accuracy_score), make_scorer(accuracy_score, greater_is_better=False)),
        (histogram(2), histogram(3)),
        (histogram(2)(), histogram(3)()),
        (rv_discrete(values=([1, 2], [0.5, 0.5]))(), rv_discrete(values=([1, 2], [0.4, 0.6]))()),
        (make_pipeline(SCALER, SGDClassifier()), make_pipeline(OTHER_SCALER, SGDClassifier())),
        (FrozenEstimator(SCALER), FrozenEstimator(OTHER_SCALER)),
        (SCALER.transform, OTHER_SCALER.transform),
        (WithState(1), WithState(2)),
        (Listed(1), Listed(2)),
        (times(2), times(3)),
        (cached(2), cached(3)),
        ({"a": 1}.get, {"a": 2}.get),
        (np.log, np.log1p),
        (functools.partial(max, 1), functools.partial(max, 2)),
        (np.random.RandomState(0), np.random.RandomState(1)),
        (np.random.default_rng(0), np.random.default_rng(1)),
        ([1, 2] * 50, [1, 3] * 50),
        ({"a": 1}, {"a": 2}),
        (1, 1.0),
        (1, "1"),
        ((1,), [1]),
        (None, "None"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_other_content_has_another_fingerprint(one, other):
    assert fingerprint(one) != fingerprint(other)
    assert fingerprint(one) == fingerprint(one)


def test_a_copy_has_the_same_fingerprint():
    for make in (ONES.copy, FRAME.copy, lambda: np.asfortranarray(ONES), lambda: {"b": 1, "a": 2}):
        assert fingerprint(make()) == fingerprint(make())
    assert fingerprint(np.asfortranarray(ONES)) == fingerprint(ONES)
    assert fingerprint({"b": 1, "a": 2}) == fingerprint({"a": 2, "b": 1})
    assert fingerprint({"l1", "l2", "l3"}) == fingerprint({"l3", "l2", "l1"})


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
def test_other_rows_of_a_compressed_tensor_have_another_fingerprint():
    one, other = torch.eye(2).to_sparse_csr(), torch.ones(2, 2).tril().to_sparse_csr()
    assert fingerprint(one) != fingerprint(other) != fingerprint(torch.ones(2, 2).tril())


@pytest.mark.parametrize("dist", [uniform, loguniform(1, 2), histogram(3)])
def test_a_distribution_that_was_used_is_the_same(dist):
    before = fingerprint(dist)
    dist.rvs()
    assert fingerprint(dist) == before


def test_an_object_that_contains_itself_ends():
    endless = [1]
    endless.append(endless)
    assert fingerprint(endless)


def test_another_process_has_the_same_fingerprints():
    program = (
        "import logging, threading\n"
        "import numpy as np\n"
        "from scipy.stats import loguniform\n"
        "from sklearn.linear_model import SGDClassifier\n"
        "from sklearn.metrics import get_scorer\n"
        "from accelerando.search._fingerprint import fingerprint\n"
        "LIMITS, log = {'low': 1}, logging.getLogger('log')\n"
        "class Scorer:\n"
        "    def __call__(self, model, X, y):\n"
        "        log.info('scored')\n"
        "        return LIMITS['low']\n"
        "def ping(x):\n"
        "    return pong(x)\n"
        "def pong(x):\n"
        "    return ping(x) and {'p', 'q', 'r'}\n"
        "LOCK, RNG = threading.Lock(), np.random.default_rng()\n"
        "class Model(SGDClassifier):\n"
        "    names = {'a', 'b', 'c', 'd'}\n"
        "    def partial_fit(self, X, y, classes=None):\n"
        "        with LOCK:\n"
        "            return super().partial_fit(X, y, RNG.permutation(classes))\n"
        "values = [Model, Model(), np.arange(5), loguniform(1e-3, 1), SGDClassifier(),\n"
        "          get_scorer('accuracy'), {'a', 'b', 'c', 'd'}, Scorer(), ping,\n"
        "          lambda m, X, y: m.score(X, y) + 1]\n"
        "print([fingerprint(value) for value in values])\n"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1
