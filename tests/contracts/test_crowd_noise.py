"""Every noise model, the same promises. A new model adds a row to MODELS."""

import numpy as np
import pytest

from accelerando.crowd import CKL, GNMDS, SOE, STE, TSTE, Logistic, OrdinalEmbedding
from accelerando.crowd._noise import noise_model
from accelerando.crowd._objective import Objective

MODELS = [STE(), TSTE(), TSTE(alpha=3.0), CKL(), CKL(mu=1.0), Logistic(), GNMDS(), SOE()]
LAPSES = [0.0, 0.05, 0.2]

each_model = pytest.mark.parametrize("noise", MODELS, ids=repr)
each_lapse = pytest.mark.parametrize("lapse", LAPSES)


def distances(size=200, seed=0):
    rng = np.random.default_rng(seed)
    return rng.gamma(1.0, 2.0, size), rng.gamma(1.0, 2.0, size)


@each_model
@each_lapse
def test_the_two_answers_to_a_query_have_probabilities_that_sum_to_one(noise, lapse):
    left, right = distances()
    total = noise.probability(left, right, lapse) + noise.probability(right, left, lapse)
    np.testing.assert_allclose(total, 1.0, atol=1e-12)


@each_model
@each_lapse
def test_the_nearer_item_is_the_likelier_answer(noise, lapse):
    left, right = distances()
    probability = noise.probability(left, right, lapse)
    assert np.all((probability > 0.5) == (left < right))


@each_model
@pytest.mark.parametrize("lapse", [0.05, 0.2])
def test_no_answer_is_more_certain_than_the_lapse_rate_allows(noise, lapse):
    probability = noise.probability(np.array([0.0, 1e6]), np.array([1e6, 0.0]), lapse)
    np.testing.assert_allclose(probability, [1.0 - lapse, lapse], atol=2e-5)


@each_model
@each_lapse
def test_slopes_agree_with_finite_differences(noise, lapse):
    winner, loser = distances()
    step = 1e-6
    _, winner_slope, loser_slope = noise.loss(winner, loser, lapse)
    by_winner = (
        noise.loss(winner + step, loser, lapse)[0] - noise.loss(winner - step, loser, lapse)[0]
    )
    by_loser = (
        noise.loss(winner, loser + step, lapse)[0] - noise.loss(winner, loser - step, lapse)[0]
    )
    # The hinge has a kink at margin one, where the two sides differ.
    margin = noise.dissimilarity(loser) - noise.dissimilarity(winner)
    smooth = np.abs(margin - 1.0) > 1e-4
    np.testing.assert_allclose(
        (by_winner / (2 * step))[smooth], winner_slope[smooth], rtol=1e-5, atol=1e-6
    )
    np.testing.assert_allclose(
        (by_loser / (2 * step))[smooth], loser_slope[smooth], rtol=1e-5, atol=1e-6
    )


@each_model
@each_lapse
@pytest.mark.parametrize("n_items", [12, 300], ids=["all pairs", "used pairs"])
def test_the_gradient_of_the_objective_agrees_with_finite_differences(noise, lapse, n_items):
    rng = np.random.default_rng(1)
    triplets = np.array([rng.permutation(n_items)[:3] for _ in range(60)])
    objective = Objective(triplets, rng.random(60), n_items, noise)
    positions = rng.normal(size=(n_items, 2))
    _, gradient, lapse_slope = objective(positions, lapse)
    direction = rng.normal(size=positions.shape)
    step = 1e-6
    ahead, behind = (objective(positions + s * direction, lapse)[0] for s in (step, -step))
    assert (ahead - behind) / (2 * step) == pytest.approx((gradient * direction).sum(), abs=1e-6)
    if lapse > 0:
        above, below = (objective(positions, lapse + s)[0] for s in (step, -step))
        assert (above - below) / (2 * step) == pytest.approx(lapse_slope, abs=1e-6)


@each_model
@each_lapse
def test_nothing_is_nan_where_items_coincide_or_are_far_apart(noise, lapse):
    winner = np.array([0.0, 0.0, 1e12, 1e12, 1e-300])
    loser = np.array([0.0, 1e12, 0.0, 1e12, 0.0])
    for values in (*noise.loss(winner, loser, lapse), noise.probability(winner, loser, lapse)):
        assert np.isfinite(values).all()


@each_model
def test_single_precision_stays_single_and_close(noise):
    left, right = distances()
    double = noise.probability(left, right, 0.05)
    single = noise.probability(left.astype(np.float32), right.astype(np.float32), 0.05)
    assert single.dtype == np.float32
    np.testing.assert_allclose(single, double, atol=2e-6)


@each_model
@pytest.mark.parametrize("n_answers", [1, 7, 400])
def test_a_fit_is_finite_and_learns_from_one_answer_to_many(noise, n_answers):
    rng = np.random.default_rng(2)
    truth = rng.normal(size=(15, 2))
    queries = np.array([rng.permutation(15)[:3] for _ in range(n_answers)])
    gap = [np.square(truth[queries[:, 0]] - truth[queries[:, k]]).sum(axis=1) for k in (1, 2)]
    model = OrdinalEmbedding(noise=noise, n_items=15, random_state=0)
    model.fit(queries, gap[0] < gap[1])
    assert np.isfinite(model.embedding_).all()
    assert np.isfinite(model.loss_)
    assert model.score(queries, gap[0] < gap[1]) > 0.9


@pytest.mark.parametrize("lapse", LAPSES)
def test_models_that_are_the_same_by_algebra_agree(lapse):
    winner, loser = distances()
    tste, ckl = TSTE(alpha=1.0), CKL(mu=1.0)
    for one, other in zip(
        tste.loss(winner, loser, lapse), ckl.loss(winner, loser, lapse), strict=True
    ):
        np.testing.assert_allclose(one, other, atol=1e-12)
    many = TSTE(alpha=1e9).probability(winner, loser, lapse)
    # (α+1)/2 · log(1 + δ/α) → δ/2: t-STE with many degrees of freedom is STE at half the scale.
    np.testing.assert_allclose(many, STE().probability(winner / 2, loser / 2, lapse), atol=1e-6)
    roots = STE().probability(np.sqrt(winner), np.sqrt(loser), lapse)
    np.testing.assert_allclose(Logistic().probability(winner, loser, lapse), roots, atol=1e-9)


@each_model
def test_a_mixture_with_the_group_of_everybody_is_the_common_lapse_rate(noise):
    if not noise.probabilistic:
        return
    winner, loser = distances()
    margin = noise.dissimilarity(loser) - noise.dissimilarity(winner)
    one = noise.link(margin, 0.1)
    other = noise.mixed_link(margin, np.full(200, 0.1), np.full(200, 0.8))
    np.testing.assert_allclose(other.loss, one.loss, rtol=1e-9)
    np.testing.assert_allclose(other.margin_slope, one.margin_slope, rtol=1e-6, atol=1e-12)


@each_model
def test_answers_of_people_who_guess_move_nothing(noise):
    winner, loser = distances()
    margin = noise.dissimilarity(loser) - noise.dissimilarity(winner)
    terms = noise.mixed_link(margin, np.full(200, 0.5), np.zeros(200))
    np.testing.assert_allclose(terms.loss, np.log(2.0))
    np.testing.assert_allclose(terms.margin_slope, 0.0)


@pytest.mark.parametrize("d", [1, 2, 3, 5, 10])
def test_the_degrees_of_freedom_of_tste_follow_the_dimension(d):
    assert noise_model("tste", d) == TSTE(alpha=max(1.0, d - 1.0))
    assert noise_model(TSTE(alpha=7.0), d) == TSTE(alpha=7.0)


def test_ckl_is_the_formula_of_its_paper():
    winner, loser = distances()
    expected = (0.3 + loser) / (2 * 0.3 + winner + loser)
    np.testing.assert_allclose(CKL(mu=0.3).probability(winner, loser), expected, atol=1e-12)


@pytest.mark.parametrize("noise", MODELS, ids=repr)
def test_every_model_can_be_asked_for_by_name(noise):
    assert type(noise_model(noise.name)) is type(noise)
    assert noise_model(noise) is noise
