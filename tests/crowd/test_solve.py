"""Solvers of the embedding."""

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from accelerando.crowd import TSTE
from accelerando.crowd._objective import Objective
from accelerando.crowd._solve import Solution, growing_batches, lbfgs, minibatch, race, rescaled


def test_growing_batches_see_every_answer_once_per_epoch():
    rng = np.random.default_rng(0)
    batches = list(growing_batches(1_000, first=50, growth=10.0, epochs=2, rng=rng))
    seen = np.concatenate(batches)
    np.testing.assert_array_equal(np.bincount(seen), np.full(1_000, 2))
    sizes = [len(rows) for rows in batches]
    assert sizes[:4] == [50, 60, 70, 80]


def objective(n_items=12, n_answers=300):
    rng = np.random.default_rng(0)
    truth = rng.normal(size=(n_items, 2))
    rows = np.array([rng.permutation(n_items)[:3] for _ in range(n_answers)])
    near, far = (np.square(truth[rows[:, 0]] - truth[rows[:, k]]).sum(axis=1) for k in (1, 2))
    rows = np.where((near < far)[:, None], rows, rows[:, [0, 2, 1]])
    return Objective(rows, np.ones(n_answers), n_items, TSTE(), ridge=1e-3), rows, truth


def settings(**changes):
    usual = {"estimate_lapse": False, "n_answers": 300.0, "max_iter": 100, "tol": 1e-6}
    return usual | changes


def test_lbfgs_ends_where_the_gradient_is_small():
    loss, _, truth = objective()
    found = lbfgs(loss, Solution(truth, 0.05, np.inf, 0), **settings(max_iter=500))
    assert found.loss < loss(truth, 0.05)[0]
    assert found.loss == pytest.approx(loss(found.positions, 0.05)[0])
    assert np.abs(loss(found.positions, 0.05)[1]).max() < 1e-3


def test_the_solver_has_one_thread_and_the_user_as_many_as_before():
    def threads():
        return {one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"}

    loss, _, truth = objective()
    seen = set()

    def noted(positions, lapse):
        seen.update(threads())
        return loss(positions, lapse)

    with threadpool_limits(2, user_api="blas"):
        lbfgs(noted, Solution(truth, 0.0, np.inf, 0), **settings(max_iter=2))
        assert seen == {1}
        assert threads() == {2}


def test_the_scale_with_the_smallest_loss_is_chosen():
    loss, _, truth = objective()
    scaled = rescaled(loss, 4.0 * truth, 0.05)
    losses = [loss(scale * 4.0 * truth, 0.05)[0] for scale in (0.25, 1.0, 4.0)]
    assert loss(scaled, 0.05)[0] == min(losses)


def test_a_race_is_won_by_the_best_start():
    loss, _, truth = objective()
    starts = [np.random.default_rng(seed).normal(size=truth.shape) for seed in (1, 2)] + [truth]
    short = settings(max_iter=8)
    alone = [race(loss, [start], 0.05, **short).loss for start in starts]
    assert race(loss, starts, 0.05, **short).loss == pytest.approx(min(alone))
    assert min(alone) < 0.95 * max(alone)


def test_starts_near_the_lead_continue_until_they_converge():
    loss, _, truth = objective()
    won = race(loss, [truth, 1.01 * truth], 0.05, **settings())
    assert won.n_iter > 8
    assert won.loss == pytest.approx(race(loss, [truth], 0.05, **settings()).loss, rel=1e-3)


def test_an_estimated_lapse_rate_stays_below_its_limit():
    loss, rows, truth = objective()
    swapped = rows.copy()
    swapped[::3] = swapped[::3][:, [0, 2, 1]]  # a third of the answers is wrong
    noisy = Objective(swapped, np.ones(len(rows)), 12, TSTE())
    start = Solution(truth, 0.05, np.inf, 0)
    careful = lbfgs(loss, start, **settings(estimate_lapse=True)).lapse
    careless = lbfgs(noisy, start, **settings(estimate_lapse=True)).lapse
    assert 0.0 < careful < 0.05 < careless < 0.3


def test_an_estimated_lapse_rate_is_a_minimum_with_its_prior():
    loss, _, truth = objective()
    start = Solution(truth, 0.05, np.inf, 0)
    found = lbfgs(loss, start, **settings(estimate_lapse=True, n_answers=50.0, max_iter=500))

    def with_prior(lapse):
        prior = np.log(lapse) + 19.0 * np.log1p(-lapse)
        return loss(found.positions, lapse)[0] - prior / 50.0

    assert found.loss == pytest.approx(with_prior(found.lapse))
    slope = (with_prior(found.lapse + 1e-5) - with_prior(found.lapse - 1e-5)) / 2e-5
    assert abs(slope) < 1e-2


def test_mini_batches_reduce_the_loss():
    loss, rows, _ = objective()
    rng = np.random.default_rng(2)
    start = Solution(rng.normal(size=(12, 2)), 0.05, np.inf, 0)
    found = minibatch(rows, np.ones(len(rows)), TSTE(), start, ridge=1e-3, epochs=30, rng=rng)
    assert found.loss == pytest.approx(loss(found.positions, 0.05)[0])
    assert found.loss < 0.7 * loss(start.positions, 0.05)[0]
