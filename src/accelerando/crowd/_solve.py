"""Solvers: minimize the loss of the answers by L-BFGS from several starts or by mini-batches."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from threadpoolctl import ThreadpoolController

from accelerando.crowd._noise import NoiseModel
from accelerando.crowd._objective import Objective
from accelerando.crowd._triplets import Triplets

Array = NDArray[np.float64]

# Upper bound of an estimated lapse rate: at one half the answers carry no information.
_LARGEST_LAPSE = 0.3
# Prior of an estimated lapse rate, in pseudo-counts: one careless answer and nineteen careful ones.
# Without it the best fit to a few hundred answers has ε = 0 and a distorted embedding.
_PRIOR_CARELESS, _PRIOR_CAREFUL = 1.0, 19.0
# Steps of each start, and the relative loss above the best one up to which a start continues.
_RACE_STEPS = 8
_RACE_MARGIN = 0.02
_SCALES = (0.25, 1.0, 4.0)


class Solution(NamedTuple):
    """Result of a solver."""

    positions: Array
    lapse: float
    loss: float
    n_iter: int


def race(
    objective: Objective,
    starts: list[Array],
    lapse: float,
    *,
    estimate_lapse: bool,
    n_answers: float,
    max_iter: int,
    tol: float,
) -> Solution:
    """Run a few steps from every start, continue those close to the best, and return the best."""

    def run(start: Solution, steps: int) -> Solution:
        return lbfgs(
            objective,
            start,
            estimate_lapse=estimate_lapse,
            n_answers=n_answers,
            max_iter=steps,
            tol=tol,
        )

    lined_up = [Solution(rescaled(objective, start, lapse), lapse, np.inf, 0) for start in starts]
    if len(lined_up) == 1:
        return run(lined_up[0], max_iter)
    steps = min(_RACE_STEPS, max_iter)
    runners = [run(start, steps) for start in lined_up]
    leading = min(runner.loss for runner in runners)
    finished = []
    for runner in runners:
        if runner.loss > leading + _RACE_MARGIN * abs(leading):
            continue
        if runner.n_iter < steps or steps == max_iter:
            finished.append(runner)
        else:
            final = run(runner, max_iter - runner.n_iter)
            finished.append(final._replace(n_iter=final.n_iter + runner.n_iter))
    return min(finished, key=lambda solution: solution.loss)


def rescaled(objective: Objective, positions: Array, lapse: float) -> Array:
    """Return the positions times the factor with the smallest loss; the scale is model-specific."""
    losses = [objective(scale * positions, lapse)[0] for scale in _SCALES]
    return _SCALES[int(np.argmin(losses))] * positions


def lbfgs(
    objective: Objective,
    start: Solution,
    *,
    estimate_lapse: bool,
    n_answers: float,
    max_iter: int,
    tol: float,
) -> Solution:
    """Minimize by limited-memory BFGS with the analytic gradient (Liu and Nocedal, 1989)."""
    shape = start.positions.shape
    # The best fit to few answers is a huge embedding, where slopes are tiny. In units of its
    # standard deviation a warm start from there still moves when new answers disagree.
    unit = float(start.positions.std()) or 1.0

    def unpack(point: Array) -> tuple[Array, float]:
        if not estimate_lapse:
            return unit * point.reshape(shape), start.lapse
        return unit * point[:-1].reshape(shape), _LARGEST_LAPSE / (1.0 + np.exp(-point[-1]))

    def evaluate(point: Array) -> tuple[float, Array]:
        positions, lapse = unpack(point)
        loss, gradient, slope = objective(positions, lapse)
        gradient = unit * gradient.ravel()
        if not estimate_lapse:
            return loss, gradient
        prior = _PRIOR_CARELESS * np.log(lapse) + _PRIOR_CAREFUL * np.log1p(-lapse)
        prior_slope = _PRIOR_CARELESS / lapse - _PRIOR_CAREFUL / (1.0 - lapse)
        slope = (slope - prior_slope / n_answers) * lapse * (1.0 - lapse / _LARGEST_LAPSE)
        return loss - prior / n_answers, np.append(gradient, slope)

    point = start.positions.ravel() / unit
    if estimate_lapse:
        inside = min(max(start.lapse, 1e-3), 0.99 * _LARGEST_LAPSE)
        point = np.append(point, np.log(inside / (_LARGEST_LAPSE - inside)))
        # Lapse rate and scale are nearly interchangeable: the last digits of the loss decide.
        tol = tol / 1000.0
    options = {"maxiter": max_iter, "ftol": tol, "gtol": tol, "maxcor": 10}
    with _blas().limit(limits=1):
        found = minimize(evaluate, point, jac=True, method="L-BFGS-B", options=options)
    positions, lapse = unpack(found.x)
    return Solution(positions, float(lapse), float(found.fun), int(found.nit))


@cache
def _blas() -> ThreadpoolController:
    """Return what sets the threads of the linear algebra libraries; to find them takes a while.

    The vectors of an embedding are short. Threads of OpenBLAS wait for each other in a loop: two of
    them took 15 times as much computing time as one for 30 items, and more where cores are shared.
    """
    return ThreadpoolController().select(user_api="blas")


def growing_batches(
    n_answers: int, *, first: int, growth: float, epochs: int, rng: np.random.Generator
) -> Iterator[NDArray[np.intp]]:
    """Yield the row numbers of mini-batches of size ``first + ⌈growth · k⌉`` (PadaDamp).

    Every epoch is a new shuffle with each answer once. Early updates are cheap and noisy, late
    ones average over enough answers to converge (Sievert and Shah, 2021).

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> [len(rows) for rows in growing_batches(20, first=4, growth=2, epochs=1, rng=rng)]
    [4, 6, 8, 2]
    """
    update = 0
    for _ in range(epochs):
        order = rng.permutation(n_answers)
        used = 0
        while used < n_answers:
            size = first + int(np.ceil(growth * update))
            yield order[used : used + size]
            used += size
            update += 1


def minibatch(
    triplets: Triplets,
    weights: Array,
    noise: NoiseModel,
    start: Solution,
    *,
    ridge: float,
    epochs: int,
    rng: np.random.Generator,
    learning_rate: float = 0.1,
) -> Solution:
    """Minimize by Adam (Kingma and Ba, 2015) on growing batches with a constant lapse rate."""
    n_items = len(start.positions)
    # The smallest useful batch contains every item a few times.
    first = min(len(triplets), max(256, n_items))
    growth = first / 20
    positions = start.positions.copy()
    mean, square = np.zeros_like(positions), np.zeros_like(positions)
    updates = 0
    for rows in growing_batches(len(triplets), first=first, growth=growth, epochs=epochs, rng=rng):
        if not weights[rows].any():
            continue
        share = ridge * len(rows) / len(triplets)
        objective = Objective(triplets[rows], weights[rows], n_items, noise, ridge=share)
        _, gradient, _ = objective(positions, start.lapse)
        updates += 1
        mean += 0.1 * (gradient - mean)
        square += 0.01 * (gradient**2 - square)
        step = mean / (1.0 - 0.9**updates)
        size = np.sqrt(square / (1.0 - 0.99**updates)) + 1e-12
        positions -= learning_rate / np.sqrt(1.0 + updates / 50.0) * step / size
    loss = Objective(triplets, weights, n_items, noise, ridge=ridge)(positions, start.lapse)[0]
    return Solution(positions, start.lapse, loss, updates)
