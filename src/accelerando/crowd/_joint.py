"""Joint fit: positions of items and reliability of participants together."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from accelerando.crowd._noise import NoiseModel
from accelerando.crowd._objective import Objective
from accelerando.crowd._reliability import Reliability, estimate_reliability
from accelerando.crowd._solve import Solution, lbfgs
from accelerando.crowd._triplets import Triplets

Array = NDArray[np.float64]

_ROUNDS = 6
# Change of a share below which the rounds end.
_CONVERGED = 0.01


def joint_fit(
    triplets: Triplets,
    weights: Array,
    noise: NoiseModel,
    start: Solution,
    participants: NDArray[Any],
    left: NDArray[np.bool_] | None,
    *,
    ridge: float,
    max_iter: int,
    tol: float,
) -> tuple[Solution, Reliability]:
    """Alternate between shares and positions, each given the other, until the shares converge.

    Both steps increase the same posterior, ``Σ log(floor + slope · p)`` plus the priors, so the
    rounds cannot cycle (coordinate ascent).
    """
    found = start
    before: Array | None = None
    for _ in range(_ROUNDS):
        attentive = _attentive(triplets, found.positions, noise)
        people = estimate_reliability(attentive, participants, left)
        if before is not None and float(np.abs(people.shares - before).max()) < _CONVERGED:
            break
        before = people.shares
        objective = Objective(
            triplets,
            weights,
            len(found.positions),
            noise,
            ridge=ridge,
            mixture=people.mixture(participants, left),
        )
        better = lbfgs(
            objective,
            found._replace(lapse=people.lapse),
            estimate_lapse=False,
            n_answers=float(weights.sum()),
            max_iter=max_iter,
            tol=tol,
        )
        found = better._replace(n_iter=better.n_iter + found.n_iter)
    return found, people


def _attentive(triplets: Triplets, positions: Array, noise: NoiseModel) -> Array:
    """Return the probability of each answer without lapses."""
    gaps = positions[triplets[:, :1]] - positions[triplets[:, 1:]]
    squared = np.einsum("ijk,ijk->ij", gaps, gaps)
    return np.asarray(noise.probability(squared[:, 0], squared[:, 1]))
