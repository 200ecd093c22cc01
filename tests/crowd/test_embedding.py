import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.utils.estimator_checks import check_estimator

from accelerando.crowd import TSTE, OrdinalEmbedding
from accelerando.crowd._metrics import nearest_neighbor_error


def test_the_order_of_a_line_is_found_from_noisy_answers(eggs):
    line = eggs(30, 3_000, seed=0)
    model = OrdinalEmbedding(random_state=0).fit(line.triplets)
    assert nearest_neighbor_error(model.embedding_, line.truth) < 0.7
    held_out = eggs(30, 3_000, seed=1)
    assert model.score(held_out.triplets) > 0.9


def test_the_same_seed_gives_the_same_embedding(eggs):
    line = eggs(20, 300, seed=0)
    first, second = (OrdinalEmbedding(random_state=3).fit(line.triplets) for _ in range(2))
    np.testing.assert_array_equal(first.embedding_, second.embedding_)


def test_queries_with_answers_mean_the_same_as_triplets(eggs):
    rows = eggs(20, 300, seed=0).triplets
    swapped = rows[:, [0, 2, 1]]
    by_rows = OrdinalEmbedding(random_state=0).fit(rows)
    by_answers = OrdinalEmbedding(random_state=0).fit(swapped, np.zeros(len(rows), dtype=bool))
    np.testing.assert_array_equal(by_rows.embedding_, by_answers.embedding_)


def test_a_weight_of_two_is_an_answer_given_twice(eggs):
    rows = eggs(12, 200, seed=0).triplets
    weights = np.ones(len(rows))
    weights[:50] = 2.0
    twice = OrdinalEmbedding(random_state=0).fit(np.concatenate([rows, rows[:50]]))
    weighted = OrdinalEmbedding(random_state=0).fit(rows, sample_weight=weights)
    np.testing.assert_allclose(twice.loss_, weighted.loss_, rtol=1e-3)


def test_answers_of_weight_zero_do_not_count(eggs):
    line = eggs(12, 200, seed=0)
    wrong = line.triplets[:, [0, 2, 1]]
    both = np.concatenate([line.triplets, wrong])
    model = OrdinalEmbedding(random_state=0)
    model.fit(both, sample_weight=np.r_[np.ones(200), np.zeros(200)])
    expected = OrdinalEmbedding(random_state=0).fit(line.triplets)
    np.testing.assert_array_equal(model.embedding_, expected.embedding_)


def test_partial_fit_remembers_earlier_answers_and_goes_on_from_them(eggs):
    line = eggs(20, 900, seed=0)
    model = OrdinalEmbedding(n_items=20, random_state=0)
    for part in np.array_split(line.triplets, 6):
        model.partial_fit(part)
    at_once = OrdinalEmbedding(n_items=20, random_state=0).fit(line.triplets)
    assert model.n_answers_ == 900
    assert model.loss_ < at_once.loss_ * 1.02


def test_partial_fit_makes_room_for_items_it_has_not_seen():
    model = OrdinalEmbedding(random_state=0).fit([[0, 1, 2]])
    before = model.embedding_.copy()
    model.partial_fit([[3, 1, 0]])
    assert model.embedding_.shape == (4, 2)
    assert before.shape == (3, 2)


def test_a_warm_start_never_ends_above_where_it_began(eggs):
    line = eggs(20, 400, seed=0)
    model = OrdinalEmbedding(warm_start=True, n_init=1, random_state=0).fit(line.triplets)
    before = model.loss_
    assert model.fit(line.triplets).loss_ <= before + 1e-9


def test_positions_from_another_fit_are_one_more_start(eggs):
    rows = eggs(20, 400, seed=0).triplets
    good = OrdinalEmbedding(n_init=8, random_state=0).fit(rows)
    again = OrdinalEmbedding(n_init=0, random_state=1).fit(rows, init=good.embedding_)
    assert again.loss_ <= good.loss_ + 1e-4


def test_a_start_of_another_shape_is_refused(eggs):
    rows = eggs(20, 100, seed=0).triplets
    with pytest.raises(ValueError, match=r"shape \(20, 2\), .* Got shape \(20, 3\)"):
        OrdinalEmbedding(n_items=20).fit(rows, init=np.zeros((20, 3)))
    model = OrdinalEmbedding(n_items=20, random_state=0).fit(rows)
    with pytest.raises(ValueError, match="fit a new estimator"):
        model.set_params(n_components=3).partial_fit(rows)


def test_more_cold_starts_are_not_worse(eggs):
    rows = eggs(25, 200, seed=4).triplets
    few = OrdinalEmbedding(n_init=1, random_state=0).fit(rows).loss_
    many = OrdinalEmbedding(n_init=8, random_state=0).fit(rows).loss_
    assert many <= few * 1.01


@pytest.mark.parametrize("careless", [0.05, 0.15])
def test_the_lapse_rate_is_found_when_asked_for(careless):
    rng = np.random.default_rng(0)
    truth = 3.0 * rng.normal(size=(15, 2))
    rows = np.argsort(rng.random((12_000, 15)), axis=1)[:, :3]
    gap = [np.square(truth[rows[:, 0]] - truth[rows[:, k]]).sum(axis=1) for k in (1, 2)]
    left = rng.random(len(rows)) < TSTE().probability(*gap, careless)
    model = OrdinalEmbedding(lapse="estimate", random_state=0).fit(rows, left)
    assert model.lapse_ == pytest.approx(careless, abs=0.02)


def test_mini_batches_reach_what_full_batches_reach(eggs):
    rows = eggs(40, 30_000, seed=0).triplets
    full = OrdinalEmbedding(solver="lbfgs", random_state=0).fit(rows)
    mini = OrdinalEmbedding(solver="minibatch", random_state=0).fit(rows)
    held_out = eggs(40, 5_000, seed=1).triplets
    assert mini.score(held_out) > full.score(held_out) - 0.01


@pytest.mark.slow
def test_ten_thousand_items_are_embedded():
    rng = np.random.default_rng(0)
    truth = rng.random((10_000, 2))
    rows = rng.integers(10_000, size=(260_000, 3))
    rows = rows[
        (rows[:, 0] != rows[:, 1]) & (rows[:, 0] != rows[:, 2]) & (rows[:, 1] != rows[:, 2])
    ]
    gap = [np.square(truth[rows[:, 0]] - truth[rows[:, k]]).sum(axis=1) for k in (1, 2)]
    rows = np.where((gap[0] < gap[1])[:, None], rows, rows[:, [0, 2, 1]])
    model = OrdinalEmbedding(n_init=1, max_iter=30, random_state=0).fit(rows[:-10_000])
    assert model.score(rows[-10_000:]) > 0.85


def test_it_is_a_scikit_learn_estimator(eggs):
    rows = eggs(12, 400, seed=0).triplets
    model = OrdinalEmbedding(n_items=12, noise=TSTE(alpha=2.0), random_state=0)
    assert clone(model).get_params() == model.get_params()
    assert cross_val_score(model, rows, cv=3).min() > 0.8
    search = GridSearchCV(model, {"n_components": [1, 2], "noise": ["tste", "ckl"]}, cv=2).fit(rows)
    assert search.best_score_ > 0.8
    copy = pickle.loads(pickle.dumps(model.fit(rows)))
    np.testing.assert_array_equal(copy.transform(), model.transform())
    np.testing.assert_array_equal(model.transform([3, 1]), model.embedding_[[3, 1]])


def test_predictions_agree_with_the_score(eggs):
    rows = eggs(12, 400, seed=0).triplets
    model = OrdinalEmbedding(random_state=0).fit(rows)
    assert (model.predict(rows) == rows[:, 1]).mean() == pytest.approx(model.score(rows))
    np.testing.assert_allclose(model.predict_proba(rows).sum(axis=1), 1.0)
    assert model.predict_proba(rows).min() >= 0.05


@pytest.mark.parametrize("noise", ["tste", "ste", "ckl", "logistic", "soe", "gnmds"])
def test_hundreds_of_warm_refits_stay_finite_and_keep_their_scale(eggs, noise):
    rows = eggs(10, 600, seed=0, careless=0.0).triplets
    model = OrdinalEmbedding(noise=noise, n_items=10, random_state=0)
    for part in np.array_split(rows, 200):
        model.partial_fit(part)
    assert np.abs(model.embedding_).max() < 1e3
    assert model.score(rows) > 0.9


def test_the_ridge_holds_a_scale_that_the_answers_leave_open():
    loose, tight = (OrdinalEmbedding(ridge=r, random_state=0).fit([[0, 1, 2]]) for r in (1e-4, 0.1))
    assert np.abs(tight.embedding_).max() < np.abs(loose.embedding_).max()


def test_the_embedding_is_centered(eggs):
    model = OrdinalEmbedding(random_state=0).fit(eggs(12, 100, seed=0).triplets)
    np.testing.assert_allclose(model.embedding_.mean(axis=0), 0.0, atol=1e-12)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"lapse": 0.5}, "'lapse' .* at least 0 and below 0.5"),
        ({"lapse": "guess"}, "'estimate' or 'auto'. Got 'guess'"),
        ({"lapse": "estimate", "noise": "soe"}, "noise='soe' has no probability"),
        ({"lapse": "estimate", "solver": "minibatch"}, "a number with solver='minibatch'"),
        ({"solver": "adam"}, "'solver' .* 'minibatch'. Got 'adam'"),
        ({"n_components": 0}, "'n_components' .* an integer of at least 1 or 'auto'. Got 0"),
        ({"n_init": 0}, "'n_init' .* at least 1 unless"),
        ({"n_items": 2}, r"n_items=2"),
        ({"max_iter": 0}, "'max_iter' .* at least 1"),
        ({"tol": 0.0}, "'tol' .* above 0"),
        ({"ridge": -1.0}, "'ridge' .* of at least 0"),
    ],
)
def test_wrong_settings_are_named(settings, says):
    with pytest.raises(ValueError, match=says):
        OrdinalEmbedding(**settings).fit([[0, 1, 2]])


def test_nothing_to_learn_from_is_an_error():
    with pytest.raises(ValueError, match="at least one answer"):
        OrdinalEmbedding().fit(np.empty((0, 3)))
    with pytest.raises(ValueError, match="All weights are 0"):
        OrdinalEmbedding().fit([[0, 1, 2]], sample_weight=[0.0])
    with pytest.raises(NotFittedError):
        OrdinalEmbedding().transform()


def test_scikit_learns_checks_of_its_interface_hold():
    """Its rows are queries, and not samples with features: it says so in its tags."""

    class Table(OrdinalEmbedding):
        def __sklearn_tags__(self):
            tags = super().__sklearn_tags__()
            assert tags.transformer_tags is not None
            assert not tags.input_tags.two_d_array
            tags.input_tags.two_d_array = True  # otherwise scikit-learn runs one check only
            return tags

    results = check_estimator(Table(), on_fail=None, on_skip=None)
    passed = {one["check_name"] for one in results if one["status"] == "passed"}
    assert passed == {
        "check_estimator_cloneable",
        "check_estimator_tags_renamed",
        "check_valid_tag_types",
        "check_estimator_repr",
        "check_no_attributes_set_in_init",
        "check_do_not_raise_errors_in_init_or_set_params",
        "check_mixin_order",
        "check_estimators_unfitted",
        "check_transformers_unfitted",
        "check_parameters_default_constructible",
        "check_get_params_invariance",
        "check_set_params",
        "check_fit1d",
    }  # every other check fits features, which are refused
