"""Pipelines in a search: only the last step is trained."""

import numpy as np
import pytest
from sklearn.linear_model import SGDClassifier
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, Normalizer, StandardScaler

from accelerando.search._pipeline import (
    check_pipeline,
    copy_pipeline,
    is_pipeline,
    last_step,
    transform,
)

X = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 9.0]])


def fitted():
    return StandardScaler().fit(X)


def test_what_is_trained_is_the_last_step():
    model = SGDClassifier()
    assert is_pipeline(make_pipeline(model))
    assert not is_pipeline(model)
    assert last_step(make_pipeline(Normalizer(), model)) is model
    assert last_step(model) is model


def test_rows_pass_through_the_earlier_steps_in_order():
    double = FunctionTransformer(lambda rows: 2 * rows)
    add = FunctionTransformer(lambda rows: rows + 1)
    steps = [("a", double), ("b", "passthrough"), ("c", None), ("d", add), ("e", SGDClassifier())]
    np.testing.assert_array_equal(transform(Pipeline(steps), X), 2 * X + 1)
    np.testing.assert_array_equal(transform(SGDClassifier(), X), X)


@pytest.mark.parametrize("step", [Normalizer(), fitted(), "passthrough", None], ids=str)
def test_stateless_and_fitted_steps_are_allowed(step):
    check_pipeline(Pipeline([("first", step), ("last", SGDClassifier())]), {"last__alpha"})


def test_a_step_that_is_not_fitted_is_refused():
    pipeline = Pipeline([("scale", StandardScaler()), ("last", SGDClassifier())])
    with pytest.raises(ValueError, match="'scale' of the pipeline must be stateless or fitted"):
        check_pipeline(pipeline, {"last__alpha"})


@pytest.mark.parametrize("searched", ["scale", "scale__with_mean"])
def test_parameters_of_a_fitted_step_cannot_be_searched(searched):
    pipeline = Pipeline([("scale", fitted()), ("last", SGDClassifier())])
    with pytest.raises(ValueError, match=rf"contains \['{searched}'\]"):
        check_pipeline(pipeline, {searched, "last__alpha"})
    check_pipeline(pipeline, {"scale2__with_mean"})  # another step whose name begins alike


def test_a_copy_shares_nothing_keeps_what_is_fitted_and_forgets_what_was_trained():
    last = SGDClassifier(alpha=0.5).fit(X, [0, 1, 1])
    pipeline = Pipeline([("scale", fitted()), ("last", last)])
    copied = copy_pipeline(pipeline)
    np.testing.assert_array_equal(copied[0].mean_, pipeline[0].mean_)
    assert copied[0] is not pipeline[0]
    assert copied[-1].alpha == 0.5
    assert not hasattr(copied[-1], "coef_")
    copied.set_params(last__alpha=0.1)
    assert pipeline[-1].alpha == 0.5
