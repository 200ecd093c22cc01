"""The guard of active asking: random queries are its control group.

Chosen queries help only if the embedding is about right. Two tests decide how many there are.

**Cold start.** Before a refit uses new answers to random queries, the embedding predicts them.
Queries are chosen only when these predictions beat chance by a tested margin: with k of the m
predictions of the later half correct, ``k/m − ½ ≥ margin + z · ½/√m``. Until then all queries come
from a coverage design (:func:`accelerando.crowd._sampler.cover`).

**Which answers are worth more?** Random answers are held out in turn. The rest is fitted twice from
the same start: once without m of the random answers, once without m of the chosen ones. The
difference of the log-likelihoods of the held-out answers,

    D = log p(held-out | without m chosen) − log p(held-out | without m random),

is positive where random answers are worth more. With the model right, D is negative: chosen answers
carry more information. Where people see more dimensions than are fitted, chosen answers refine
details of a wrong map, and D grows with their share.

If D is significantly above 0, the share of chosen queries falls by a factor; if it is significantly
below 0, the share rises again. So the share settles where an answer of either kind is worth the
same. The test is repeated whenever the number of answers has grown by a quarter; its threshold is
Pocock's constant for ten looks. All fits start from the present embedding, so D sees what answers
change in it, not whether another start would have led elsewhere.

References
----------
Pocock, "Group sequential methods in the design and analysis of clinical trials", Biometrika 1977.
Misspecified models and chosen data: Sugiyama, "Active learning in approximately linear regression
based on conditional expectation of generalization error", JMLR 2006.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from accelerando.crowd._choice import Candidate, log_likelihood, refit
from accelerando.crowd._triplets import Triplets

__all__ = ["Guard", "Trial", "beats_chance", "compare_shares", "next_share"]

Array = NDArray[np.float64]

# Margin above chance, and standard errors beyond it, before queries are chosen.
_MARGIN = 0.02
_SURE = 2.33
_FEWEST_PREDICTIONS = 20
# Pocock's constant for ten looks at the 5 % level, one-sided.
_SIGNIFICANT = 2.27
_GROWTH = 1.25
_FOLDS = 3
_FEWEST_OF_A_KIND = 60
_STEP = 0.6
_LEAST = 0.15


@dataclass(frozen=True)
class Trial:
    """Result of :func:`compare_shares`.

    Attributes
    ----------
    gain, error : float
        Mean of −D in nats per answer, positive if chosen answers are worth more, and its standard
        error.
    n_tested, n_removed : int
        Number of held-out answers; number of answers that each fit went without.
    """

    gain: float
    error: float
    n_tested: int
    n_removed: int

    @property
    def z(self) -> float:
        """The gain in standard errors."""
        return self.gain / max(self.error, 1e-12)


def beats_chance(correct: int, predictions: int) -> bool:
    """Return True if predictions beat chance by a margin that is not luck.

    Examples
    --------
    >>> beats_chance(8, 10), beats_chance(52, 100), beats_chance(70, 100)
    (False, False, True)
    """
    if predictions < _FEWEST_PREDICTIONS:
        return False
    return bool(correct / predictions - 0.5 >= _MARGIN + _SURE * 0.5 / np.sqrt(predictions))


def compare_shares(
    triplets: Triplets,
    chosen: NDArray[np.bool_],
    model: Candidate,
    positions: Array,
    *,
    weights: Array | None = None,
    seed: int = 0,
) -> Trial | None:
    """Test whether chosen or random answers are worth more; None while there are too few of either.

    Parameters
    ----------
    triplets : array of shape (n_answers, 3)
    chosen : array of bool
        True for answers to queries that a score chose.
    model : Candidate
    positions : array of shape (n_items, n_components)
        The present embedding, from which all fits start.
    weights : array, optional
        Weight of each answer.
    seed : int, default=0
        Seed of the splits.
    """
    rng = np.random.default_rng(seed)
    given = np.ones(len(triplets)) if weights is None else weights
    random, active = (rng.permutation(np.flatnonzero(k & (given > 0))) for k in (~chosen, chosen))
    if min(len(random), len(active)) < _FEWEST_OF_A_KIND:
        return None
    removed = min(len(random) // _FOLDS, len(active) // 2)
    gains = []
    for part in np.array_split(random, _FOLDS):
        rest = rng.permutation(np.setdiff1d(random, part))
        scores = []
        for without in (rest[:removed], rng.permutation(active)[:removed]):
            kept = given > 0
            kept[part] = False
            kept[without] = False
            found = refit(triplets[kept], given[kept], model, [positions], len(positions))
            scores.append(log_likelihood(triplets[part], found, model.noise, model.lapse))
        gains.append(scores[0] - scores[1])  # −D
    paired = np.concatenate(gains)
    error = float(paired.std() / np.sqrt(len(paired)))
    return Trial(float(paired.mean()), error, len(paired), removed)


def next_share(share: float, trial: Trial) -> float:
    """Return the share of chosen queries after a trial.

    Examples
    --------
    >>> next_share(1.0, Trial(-0.01, 0.002, 300, 100))
    0.6
    >>> next_share(0.6, Trial(0.01, 0.002, 300, 100)), next_share(0.6, Trial(0.0, 0.002, 300, 100))
    (1.0, 0.6)
    """
    if trial.z < -_SIGNIFICANT:
        return max(_LEAST, _STEP * share)
    if trial.z > _SIGNIFICANT:
        return min(1.0, share / _STEP)
    return share


@dataclass
class Guard:
    """Share of active questions that is allowed at present, with the reason.

    Parameters
    ----------
    share : float, default=1
        Share of the sampler's chosen queries that is allowed once it has begun.
    begun : bool, default=False
        Whether predictions have beaten chance.
    looked_at : int, default=0
        Number of answers at the last trial.
    reason : str
        Why, in a sentence.
    answer, correct : list
        Number of each random answer that was predicted, and whether the prediction was correct.

    Examples
    --------
    >>> Guard().trust
    0.0
    """

    share: float = 1.0
    begun: bool = False
    looked_at: int = 0
    reason: str = "No query is chosen yet: there is no embedding."
    answer: list[int] = field(default_factory=list)
    correct: list[bool] = field(default_factory=list)

    @property
    def trust(self) -> float:
        """Share of the sampler's chosen queries that is allowed now."""
        return self.share if self.begun else 0.0

    def predict(
        self, triplets: Triplets, chosen: NDArray[np.bool_], n_known: int, x: Array
    ) -> None:
        """Test positions on new answers to random queries, which they were not fitted to."""
        rows = triplets[n_known:][~chosen[n_known:]]
        if self.begun or len(rows) == 0:
            return
        gaps = np.square(x[rows[:, :1]] - x[rows[:, 1:]]).sum(axis=2)
        self.answer.extend((n_known + np.flatnonzero(~chosen[n_known:])).tolist())
        self.correct.extend((gaps[:, 0] < gaps[:, 1]).tolist())
        late = np.array(self.answer) >= len(triplets) // 2
        right, predictions = int(np.array(self.correct)[late].sum()), int(late.sum())
        self.begun = beats_chance(right, predictions)
        facts = f"{right:,} of {predictions:,} new answers to random queries were predicted"
        self.reason = (
            f"Queries are chosen: {facts}, more than by chance."
            if self.begun
            else f"No query is chosen yet: {facts}, which is not surely more than by chance."
        )

    def look(
        self,
        triplets: Triplets,
        chosen: NDArray[np.bool_],
        model: Candidate,
        positions: Array,
        *,
        weights: Array | None = None,
    ) -> Trial | None:
        """Run a trial if the number of answers has grown by a quarter since the last one."""
        if not self.begun or len(triplets) < _GROWTH * self.looked_at:
            return None
        trial = compare_shares(
            triplets, chosen, model, positions, weights=weights, seed=len(triplets)
        )
        if trial is None:
            return None
        self.looked_at = len(triplets)
        before, self.share = self.share, next_share(self.share, trial)
        worth = "more" if trial.gain > 0 else "less"
        facts = (
            f"an answer to a chosen query is worth {worth} than one to a random query "
            f"({trial.gain:+.4f} ± {trial.error:.4f} nats, {trial.n_tested:,} held-out answers)"
        )
        did = {-1: "Fewer queries are chosen", 0: "The share stays", 1: "More queries are chosen"}
        self.reason = f"{did[int(np.sign(self.share - before))]}: {facts}."
        return trial
