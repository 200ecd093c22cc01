"""Reliability of participants: how much of each person's answers follows the embedding.

An answer of participant j comes from one of four sources, with the shares π_j:

* *attentive*: as the noise model says, with probability p for the answer that was given;
* *left* and *right*: that side, whatever the query. Their sum is the lapse rate of blind answers,
  their difference the side bias; somebody who guesses has half of each;
* *opposite*: attentive, with the answers exchanged, with probability 1 − p.

So the answer has probability ``floor + slope · p`` with the slope ``π_attentive − π_opposite`` and
the floor ``π_side + π_opposite``. This is the likelihood in which the embedding is fitted: answers
of people who guess have slope 0 and count for nothing, answers of people who exchange the buttons
count the right way round. Nobody has to be excluded. (As many attentive as opposite answers are the
same as guesses: answers determine the slope and the side bias, not all four shares.)

The shares maximize the posterior under a Dirichlet prior whose mean is that of the group, by
expectation maximization; with few answers a person is taken to be like the others.

References
----------
Dawid and Skene, "Maximum likelihood estimation of observer error-rates using the EM algorithm",
JRSS C 1979. Lapses: Wichmann and Hill, "The psychometric function", 2001.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from accelerando._validation import check

__all__ = ["Reliability", "estimate_reliability"]

Array = NDArray[np.float64]

# Mean shares of a group about which nothing is known, and the weight of that belief in people.
_USUAL = np.array([0.9, 0.04, 0.04, 0.02])
_USUAL_WEIGHT = 10.0
# Weight of the group in the estimate of one person, in answers.
_GROUP_WEIGHT = 4.0
_STEPS = 100
_CONVERGED = 1e-4
_SMALLEST_FLOOR = 1e-3
_GRID = np.linspace(-1.0, 1.0, 101)


@dataclass(frozen=True)
class Reliability:
    """Reliability of each participant.

    Attributes
    ----------
    people : array of shape (n_people,)
        Who they are: the different values of ``participants``, sorted.
    shares : array of shape (n_people, 4)
        Shares of attentive, left, right and opposite answers.
    low, high : array of shape (n_people,)
        95 % interval of the slope.
    group : array of shape (4,)
        Mean shares of the group, to which people with few answers are shrunk.
    n_answers : array of shape (n_people,)
    """

    people: NDArray[np.generic]
    shares: Array
    low: Array
    high: Array
    group: Array
    n_answers: NDArray[np.intp]

    @property
    def side_bias(self) -> Array:
        """Share of blind answers "left" minus that of "right", from −1 to 1."""
        return np.asarray(self.shares[:, 1] - self.shares[:, 2])

    @property
    def slope(self) -> Array:
        """Weight of each participant's answers: 1 attentive, 0 guessing, −1 exchanged buttons."""
        return np.asarray(self.shares[:, 0] - self.shares[:, 3])

    @property
    def lapse(self) -> float:
        """Lapse rate of the group's median participant, for predictions about a new one."""
        return float(np.clip((1.0 - np.median(self.slope)) / 2.0, 0.0, 0.45))

    def mixture(
        self, participants: ArrayLike, left: ArrayLike | None = None
    ) -> tuple[Array, Array]:
        """Return floor and slope of the probability of each answer.

        Participants that are not among :attr:`people` are like the group.
        """
        who = np.asarray(participants)
        place = np.minimum(np.searchsorted(self.people, who), len(self.people) - 1)
        known = self.people[place] == who
        shares = np.where(known[:, None], self.shares[place], self.group)
        floor = np.maximum(_side(shares, left) + shares[:, 3], _SMALLEST_FLOOR)
        # Probabilities of the two answers must stay within 0 and 1.
        slope = np.clip(shares[:, 0] - shares[:, 3], _SMALLEST_FLOOR - floor, 1.0 - floor)
        return floor, slope


def estimate_reliability(
    attentive: ArrayLike, participants: ArrayLike, left: ArrayLike | None = None
) -> Reliability:
    """Estimate each participant's shares of attentive, left, right and opposite answers.

    Parameters
    ----------
    attentive : array of shape (n_answers,)
        Probability of each answer that was given, if its participant is attentive.
    participants : array of shape (n_answers,)
        Who gave each answer.
    left : array of bool, optional
        True if the left item was chosen. Without it, blind answers have probability ½.

    Examples
    --------
    >>> careful, careless = [0.9] * 38 + [0.1] * 2, [0.9] * 20 + [0.1] * 20
    >>> found = estimate_reliability(careful + careless, ["a"] * 40 + ["b"] * 40)
    >>> bool(found.slope[0] > 0.8 > 0.4 > found.slope[1])
    True
    """
    p = np.asarray(attentive, dtype=np.float64)
    who = np.asarray(participants)
    check(
        p.shape == who.shape and p.ndim == 1 and len(p) > 0,
        "estimate_reliability",
        "participants",
        f"an array with one entry per answer, shape {p.shape}, of at least one answer",
        who.shape,
    )
    people, person = np.unique(who, return_inverse=True)
    number = len(people)
    blind_left = np.full(len(p), 0.5) if left is None else np.asarray(left, dtype=np.float64)
    sources = np.stack([p, blind_left, 1.0 - blind_left, 1.0 - p], axis=1)
    counts = np.bincount(person, minlength=number)
    group = _USUAL.copy()
    shares = np.tile(group, (number, 1))
    for _ in range(_STEPS):
        joint = shares[person] * sources
        joint /= joint.sum(axis=1, keepdims=True)
        expected = np.stack([np.bincount(person, column, number) for column in joint.T], axis=1)
        new = (expected + _GROUP_WEIGHT * group) / (counts + _GROUP_WEIGHT)[:, None]
        group = (_USUAL_WEIGHT * _USUAL + new.sum(axis=0)) / (_USUAL_WEIGHT + number)
        change = float(np.abs(new - shares).max())
        shares = new
        if change < _CONVERGED:
            break
    low, high = _interval(p, blind_left, person, shares, group)
    return Reliability(people, shares, low, high, group, counts)


def _side(shares: Array, left: ArrayLike | None) -> Array:
    """Return the probability that a blind answer is the one that was given."""
    if left is None:
        return np.asarray((shares[:, 1] + shares[:, 2]) / 2.0)
    return np.where(np.asarray(left, dtype=bool), shares[:, 1], shares[:, 2])


def _interval(
    p: Array, blind_left: Array, person: NDArray[np.intp], shares: Array, group: Array
) -> tuple[Array, Array]:
    """Return the 95 % interval of each slope, given which side the blind answers prefer."""
    blind = np.maximum(shares[:, 1] + shares[:, 2], 1e-12)
    side = ((shares[:, 1] - shares[:, 2]) / blind)[person] * (2.0 * blind_left - 1.0)
    # The rest of the answers is blind; a negative slope belongs to opposite ones.
    floor = np.outer((1.0 + side) / 2.0, 1.0 - np.abs(_GRID)) + np.maximum(-_GRID, 0.0)
    mixed = np.log(np.maximum(floor + np.outer(p, _GRID), 1e-12))
    order = np.argsort(person, kind="stable")
    first = np.flatnonzero(np.r_[True, np.diff(person[order]) > 0])
    total = np.add.reduceat(mixed[order], first, axis=0)
    inside = np.clip((1.0 + _GRID) / 2.0, 1e-3, 1.0 - 1e-3)
    mean = (1.0 + group[0] - group[3]) / 2.0
    total += _GROUP_WEIGHT * (mean * np.log(inside) + (1.0 - mean) * np.log1p(-inside))
    density = np.exp(total - total.max(axis=1, keepdims=True))
    cumulative = np.cumsum(density, axis=1) / density.sum(axis=1, keepdims=True)
    last = len(_GRID) - 1
    low, high = (np.minimum((cumulative < q).sum(axis=1), last) for q in (0.025, 0.975))
    return _GRID[low], _GRID[high]
