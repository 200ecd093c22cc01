"""Every way to score a query gives the score of the slow reference, for every noise model."""

import numpy as np
import pytest

from accelerando.crowd import CKL, GNMDS, SOE, STE, TSTE, Logistic, information_gain, search
from accelerando.crowd._posterior import Posterior
from accelerando.crowd._score import head_entropy
from tests.crowd.score_reference import information_gain as reference

MODELS = [STE(), TSTE(), TSTE(alpha=3.0), CKL(), Logistic(), GNMDS(), SOE()]
BACKENDS = ["numpy", "numba"]

each_model = pytest.mark.parametrize("noise", MODELS, ids=repr)
each_backend = pytest.mark.parametrize("backend", BACKENDS)
each_lapse = pytest.mark.parametrize("lapse", [0.0, 0.05])


def make_posterior(noise, lapse, n_items=14, scale=2.0, sharpness=4.0):
    rng = np.random.default_rng(0)
    positions = scale * rng.normal(size=(n_items, 2))
    table = -sharpness * rng.gamma(1.0, 2.0, size=(n_items, n_items))
    return Posterior(positions, positions, table, noise, lapse)


def all_queries(n_items):
    left, right = np.triu_indices(n_items, 1)
    rows = [
        (h, a, b)
        for h in range(n_items)
        for a, b in zip(left, right, strict=True)
        if h not in (a, b)
    ]
    return np.array(rows)


@each_model
@each_lapse
def test_the_vectorized_score_is_the_reference(noise, lapse):
    posterior = make_posterior(noise, lapse)
    queries = all_queries(14)[::7]
    expected = [reference(*map(int, query), posterior) for query in queries]
    np.testing.assert_allclose(information_gain(queries, posterior), expected, atol=1e-9)


@each_model
@each_lapse
@each_backend
def test_the_exhaustive_search_scores_every_query_as_the_reference_does(noise, lapse, backend):
    if backend == "numba":
        pytest.importorskip("numba")
    posterior = make_posterior(noise, lapse)
    found = search(posterior, backend=backend, top=10_000)
    assert sorted(map(tuple, found.queries.tolist())) == sorted(
        map(tuple, all_queries(14).tolist())
    )
    assert found.n_scored == len(all_queries(14))
    expected = [reference(*map(int, query), posterior) for query in found.queries]
    np.testing.assert_allclose(found.scores, expected, atol=1e-5)


@each_model
@each_backend
def test_extreme_embeddings_give_finite_scores(noise, backend):
    if backend == "numba":
        pytest.importorskip("numba")
    for scale, sharpness in ((1e-6, 1e3), (1e4, 1e6)):
        found = search(
            make_posterior(noise, 0.0, scale=scale, sharpness=sharpness), backend=backend
        )
        assert len(found.queries) == 14
        assert np.isfinite(found.scores).all()
        assert found.scores.min() > -1e-5


@each_model
@each_lapse
def test_information_is_between_zero_and_the_smaller_of_one_bit_and_the_open_question(noise, lapse):
    posterior = make_posterior(noise, lapse)
    queries = all_queries(14)
    gains = information_gain(queries, posterior)
    assert gains.min() >= -1e-12
    limit = np.minimum(np.log(2.0), head_entropy(posterior)[queries[:, 0]])
    assert (gains <= limit + 1e-9).all()


@each_model
def test_swapping_the_sides_changes_nothing(noise):
    posterior = make_posterior(noise, 0.05)
    queries = all_queries(14)[::5]
    np.testing.assert_allclose(
        information_gain(queries, posterior),
        information_gain(queries[:, [0, 2, 1]], posterior),
        atol=1e-12,
    )
