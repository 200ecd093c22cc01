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
from scipy.stats import loguniform, uniform
from sklearn.linear_model import SGDClassifier
from sklearn.metrics import accuracy_score, make_scorer

from accelerando.search._identity import differences, fingerprint

ONES = np.ones((3, 2))
FRAME = pd.DataFrame({"a": [1.0, 2.0], "b": ["x", "y"]})


def times(factor):
    return lambda value: value * factor


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
        (torch.ones(2), torch.zeros(2)),
        (da.ones(4, chunks=2), da.zeros(4, chunks=2)),
        (SGDClassifier(), SGDClassifier(alpha=1.0)),
        (uniform(0, 1), uniform(0, 2)),
        (uniform(0, 1), loguniform(1, 2)),
        (make_scorer(accuracy_score), make_scorer(accuracy_score, greater_is_better=False)),
        (times(2), times(3)),
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


def test_an_object_that_contains_itself_ends():
    endless = [1]
    endless.append(endless)
    assert fingerprint(endless)


def test_another_process_has_the_same_fingerprints():
    program = (
        "import logging\n"
        "import numpy as np\n"
        "from scipy.stats import loguniform\n"
        "from sklearn.linear_model import SGDClassifier\n"
        "from sklearn.metrics import get_scorer\n"
        "from accelerando.search._identity import fingerprint\n"
        "LIMITS, log = {'low': 1}, logging.getLogger('log')\n"
        "class Scorer:\n"
        "    def __call__(self, model, X, y):\n"
        "        log.info('scored')\n"
        "        return LIMITS['low']\n"
        "def ping(x):\n"
        "    return pong(x)\n"
        "def pong(x):\n"
        "    return ping(x) and {'p', 'q', 'r'}\n"
        "values = [np.arange(5), loguniform(1e-3, 1), SGDClassifier(), get_scorer('accuracy'),\n"
        "          {'a', 'b', 'c', 'd'}, lambda m, X, y: m.score(X, y) + 1, Scorer(), ping]\n"
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


def test_differences_are_named():
    assert differences({"a": "1"}, {"a": "1"}) == []
    assert differences({"a": "1", "b": "2"}, {"a": "3"}) == [
        "a: saved 1, now 3",
        "b: saved 2, now nothing",
    ]
