"""Query scores; every noise model is compared with a slow reference in tests/contracts."""

import numpy as np
import pytest

from accelerando.crowd import STE, TSTE, OrdinalEmbedding, information_gain
from accelerando.crowd._posterior import Posterior, as_posterior
from accelerando.crowd._score import head_entropy, uncertainty

LINE = np.array([[0.0], [1.0], [5.0], [6.0]])


def flat(places=LINE):
    return Posterior(LINE, places, np.zeros((4, len(places))), STE())


def test_a_fitted_model_is_scored_with_its_posterior(eggs):
    rows = eggs(8, 200, seed=0).triplets
    model = OrdinalEmbedding(random_state=0).fit(rows)
    posterior = Posterior.from_embedding(model, rows)
    queries = [[0, 1, 2], [3, 4, 5]]
    for score in (information_gain, uncertainty):
        np.testing.assert_array_equal(score(queries, model), score(queries, posterior))
    np.testing.assert_array_equal(head_entropy(model), head_entropy(posterior))


def test_a_query_is_informative_if_the_places_predict_different_answers():
    # Places 0 and 1 say "1", places 5 and 6 say "2"; most places are undecided about 2 and 3.
    posterior = Posterior(LINE, LINE, np.zeros((4, 4)), TSTE())
    near, far = information_gain([[0, 1, 2], [0, 2, 3]], posterior)
    assert near > 1.5 * far


def test_a_certain_place_leaves_nothing_to_learn():
    posterior = Posterior(LINE, LINE, np.where(np.eye(4) > 0, 0.0, -1e6), STE())
    np.testing.assert_allclose(information_gain([[0, 1, 2]], posterior), 0.0, atol=1e-9)
    np.testing.assert_allclose(head_entropy(posterior), 0.0, atol=1e-9)


def test_the_entropy_of_a_head_is_largest_without_answers():
    np.testing.assert_allclose(head_entropy(flat()), np.log(4.0))


def test_without_the_head_its_entropy_is_subtracted():
    queries = [[0, 1, 2], [3, 1, 2]]
    full = information_gain(queries, flat())
    part = information_gain(queries, flat(), include_head=False)
    np.testing.assert_allclose(full - part, np.log(4.0))


def test_uncertainty_is_highest_for_equally_far_items():
    positions = np.array([[0.0], [1.0], [-1.0], [5.0]])
    posterior = Posterior(positions, positions, np.zeros((4, 4)), STE())
    tie, clear = uncertainty([[0, 1, 2], [0, 1, 3]], posterior)
    assert tie == pytest.approx(np.log(2.0))
    assert clear < 0.01


def test_blocks_of_queries_give_the_same_scores(monkeypatch):
    queries = [[h, a, b] for h in range(4) for a in range(4) for b in range(a) if h not in (a, b)]
    whole = information_gain(queries, flat())
    monkeypatch.setattr("accelerando.crowd._score._BLOCK", 4)
    np.testing.assert_array_equal(information_gain(queries, flat()), whole)


def test_what_is_no_fitted_model_is_refused():
    with pytest.raises(TypeError, match=r"a fitted OrdinalEmbedding\. Got 3"):
        as_posterior(3)
    with pytest.raises(ValueError, match="not fitted"):
        information_gain([[0, 1, 2]], OrdinalEmbedding())
