import numpy as np
import pytest

from accelerando.crowd import CKL, SOE, TSTE, OrdinalEmbedding
from accelerando.crowd._posterior import Posterior, log_posterior


def test_the_posterior_is_the_product_of_the_answers_probabilities():
    positions = np.array([[0.0], [1.0], [3.0], [7.0]])
    answers = [[0, 1, 3], [0, 1, 2], [2, 3, 1]]
    table = log_posterior(positions, answers, lapse=0.1, feet=0.0)
    squared = (positions - positions.T) ** 2
    for place in range(4):
        product = 1.0
        for head, winner, loser in answers[:2]:
            assert head == 0
            product *= TSTE().probability(squared[place, winner], squared[place, loser], 0.1)
        assert table[0, place] == pytest.approx(np.log(product), abs=1e-5)
    assert (table[[1, 3]] == 0).all()


@pytest.mark.parametrize(("noise", "feet"), [(TSTE(), 1.0), (SOE(), 1.0), (CKL(), 0.5)])
def test_an_answer_counts_for_its_feet_too(noise, feet):
    # Slowly: put one item of the answer at each place, and ask for the probability.
    rng = np.random.default_rng(0)
    positions, places = rng.normal(size=(6, 2)), rng.normal(size=(4, 2))
    answers = np.array([rng.permutation(6)[:3] for _ in range(30)])
    expected = np.zeros((6, 4))
    for answer in answers:
        for role, weight in ((0, 1.0), (1, feet), (2, feet)):
            for k, place in enumerate(places):
                spot = positions[answer].copy()
                spot[role] = place
                near, far = np.square(spot[0] - spot[1:]).sum(axis=1)
                expected[answer[role], k] += weight * np.log(noise.probability(near, far, 0.1))
    table = log_posterior(positions, answers, noise, lapse=0.1, places=places, feet=feet)
    np.testing.assert_allclose(table, expected, atol=1e-4)


def test_the_order_of_answers_does_not_matter(eggs):
    line = eggs(15, 2_000, seed=0)
    positions = line.truth[:, None] / 4
    forward = log_posterior(positions, line.triplets)
    backward = log_posterior(positions, line.triplets[::-1])
    np.testing.assert_allclose(forward, backward, rtol=1e-4)


def test_a_million_answers_do_not_underflow(eggs):
    line = eggs(12, 20_000, seed=0, careless=0.1)
    positions = line.truth[:, None]
    rows = np.tile(line.triplets, (50, 1))
    table = log_posterior(positions, rows)
    assert len(rows) == 1_000_000
    assert table.min() < -1e4  # exp of it is zero in any precision
    posterior = Posterior(positions, positions, table, TSTE()).probabilities()
    assert np.isfinite(posterior).all()
    np.testing.assert_allclose(posterior.sum(axis=1), 1.0)
    # So many answers leave no doubt that an item sits at its own place or beside it.
    assert (np.abs(posterior.argmax(axis=1) - np.arange(12)) <= 1).all()


def test_tempering_flattens_without_changing_the_order():
    table = np.array([[0.0, -1.0, -5.0]] * 3)
    spots = np.arange(3.0)[:, None]
    exact = Posterior(spots, spots, table, TSTE(), temper=1.0).probabilities()
    flat = Posterior(spots, spots, table, TSTE(), temper=0.3).probabilities()
    np.testing.assert_allclose(exact[0, 0] / exact[0, 2], np.exp(5.0))
    np.testing.assert_allclose(flat[0, 0] / flat[0, 2], np.exp(1.5))


def test_many_items_share_a_sample_of_places(eggs):
    line = eggs(60, 2_000, seed=0)
    model = OrdinalEmbedding(random_state=0).fit(line.triplets)
    posterior = Posterior.from_embedding(model, line.triplets, max_places=20)
    assert posterior.places.shape == (20, 2)
    assert posterior.probabilities([5, 7]).shape == (2, 20)


def test_wrong_settings_are_named():
    spots = np.arange(3.0)[:, None]
    with pytest.raises(ValueError, match=r"'log_posterior' .* \(3, 3\), .* Got \(2, 3\)"):
        Posterior(spots, spots, np.zeros((2, 3)), TSTE())
    with pytest.raises(ValueError, match=r"'temper' .* above 0 and at most 1. Got 0 instead"):
        Posterior(spots, spots, np.zeros((3, 3)), TSTE(), temper=0)
    with pytest.raises(ValueError, match=r"'lapse' .* below 0.5. Got 0.7"):
        Posterior(spots, spots, np.zeros((3, 3)), TSTE(), lapse=0.7)
    with pytest.raises(ValueError, match=r"'trust' .* at most 1. Got 2"):
        Posterior(spots, spots, np.zeros((3, 3)), TSTE(), trust=2)


def test_the_weight_of_an_answer_is_how_often_it_counts():
    place = np.random.default_rng(0).normal(size=(6, 2))
    rows = np.array([[0, 1, 2], [3, 4, 5], [1, 0, 5]])
    weighted = log_posterior(place, rows, weights=[2.0, 0.0, 1.0])
    repeated = log_posterior(place, rows[[0, 0, 2]])
    np.testing.assert_allclose(weighted, repeated, rtol=1e-5, atol=1e-6)
