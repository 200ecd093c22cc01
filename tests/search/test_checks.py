"""What is wrong is said before anything is trained."""

import asyncio
import math
import threading

import numpy as np
import pytest
from distributed import Client
from scipy.stats import uniform
from sklearn.linear_model import SGDClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer
from sklearn.svm import SVC

from accelerando.exceptions import UnsupportedError
from accelerando.search import _checks as checks

from .estimators import Counter, Unpicklable
from .searches import counters, hyperband


def test_an_estimator_that_cannot_be_pickled_runs_here_but_not_elsewhere(data, client, tmp_path):
    space = {"slope": uniform(0, 1)}
    with pytest.raises(TypeError, match=r"cannot be pickled .* client=None"):
        hyperband(Unpicklable(lock=threading.Lock()), space, client=client).fit(*data)
    with pytest.raises(TypeError, match="cannot be pickled"):
        hyperband(Unpicklable(lock=threading.Lock()), space, checkpoint=tmp_path).fit(*data)
    assert hyperband(Unpicklable(), space).fit(*data).best_estimator_.calls_ == 9
    with pytest.raises(TypeError, match=r"A trained Unpicklable .* so it cannot be saved"):
        hyperband(Unpicklable(), space, checkpoint=tmp_path / "trained").fit(*data)


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
        ({"parameters": [{}, {}]}, "parameters must name at least one parameter"),
        ({"tol": "x"}, "'tol' parameter .* must be a number, nan or None"),
        ({"verbose": "x"}, "'verbose' parameter .* 0 <= verbose <= 1. Got 'x'"),
        ({"verbose": 2}, "'verbose' parameter .* 0 <= verbose <= 1. Got 2"),
        ({"refit": False}, "'refit' parameter .* must be True"),
        ({"refit": "nonsense"}, "'refit' parameter .* must be True .* Got 'nonsense'"),
        ({"patience": 1}, "'patience' parameter"),
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
        ({"error_score": True}, "'error_score' parameter .* must be 'raise' or a number"),
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


def test_patience_is_false_true_or_a_number():
    def calls(patience):
        return checks.patience_calls(hyperband(patience=patience), automatic=7)

    assert [calls(p) for p in (False, None, True, 2, np.int64(5))] == [None, None, 7, 2, 5]
    for wrong in (1, 2.5, "yes"):
        with pytest.raises(ValueError, match=r"at least 2, False or True \(chosen for you\)"):
            calls(wrong)


def test_infinite_limits_are_allowed():
    checks.check_parameters(hyperband(slice_seconds=math.inf, max_seconds=math.inf), 3)


@pytest.mark.parametrize("score", [math.nan, np.nan, 0, -1.5, "raise"])
def test_error_scores(score):
    checks.check_parameters(hyperband(error_score=score), 3)


def test_names_with_a_prefix_are_left_to_the_estimator():
    class Net(Counter):
        def __init__(self, module=None, slope=1.0, **options):
            super().__init__(slope)
            self.module = module

        def set_params(self, **params):
            return self

    def module(hidden=3):
        pass

    checks.check_estimator(Net(module), {"module__hidden": [1]}, y=[0])
    checks.check_estimator(Net(dict), {"module__anything": [1]}, y=[0])
    with pytest.raises(ValueError, match=r"'module', has no argument 'hiden'. Did you mean 'hidd"):
        checks.check_estimator(Net(module), {"module__hiden": [1]}, y=[0])
    pipeline = make_pipeline(Normalizer(), SGDClassifier())
    with pytest.raises(ValueError, match="set_params refuses parameters of the space"):
        checks._try_parameters(pipeline, {"sgdclassifier__alhpa": [1]})
    with pytest.raises(ValueError, match="SGDClassifier requires y to be passed"):
        checks.check_estimator(SGDClassifier(), {"alpha": [1]}, y=None)


def test_scores_of_estimators_without_fit():
    class Steps:
        def score(self, X, y):
            return 0.5

    class Silent:
        pass

    assert checks.make_scorer(Steps(), None)(Steps(), [1], [2]) == 0.5
    assert checks.make_scorer(Silent(), "accuracy") is not None
    with pytest.raises(TypeError, match="estimator must have score, but Silent does not have it"):
        checks.make_scorer(Silent(), None)


def test_any_keyword_may_be_accepted_by_partial_fit():
    class Open(Counter):
        def partial_fit(self, X, y=None, **options):
            return super().partial_fit(X, y)

    checks.check_fit_params(Open(), {"anything": 1})


def test_without_a_default_client_models_are_trained_here(monkeypatch):
    def no_client():
        raise ValueError

    monkeypatch.setattr(checks, "default_client", no_client)
    assert checks.choose_client(hyperband(client="default")) is None
    assert checks.choose_client(hyperband(client=None)) is None


def test_a_client_that_was_closed_is_refused(client, data):
    with Client(client.scheduler.address, set_as_default=False) as closed:
        pass
    with pytest.raises(UnsupportedError, match=r"'client' parameter .* must be a connected, synch"):
        counters(client=closed).fit(*data)


def test_an_asynchronous_client_is_refused(client, data):
    address = client.scheduler.address

    async def search():
        async with Client(address, set_as_default=False, asynchronous=True) as other:
            counters(client=other).fit(*data)

    with pytest.raises(UnsupportedError, match="because fit waits for its results"):
        asyncio.run(search())
