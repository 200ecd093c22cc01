"""Model choice: which noise model, lapse rate and dimension predict held-out answers best.

Answers to random queries are held out in turn. Every candidate is fitted to all other answers, from
the same start, and predicts them. The candidate with the largest mean log-likelihood wins, unless a
*current* model is not significantly worse: a choice that changes back and forth would move the map
and the queries for nothing. Only random queries test a model. Chosen queries lie where the model in
use was unsure, so they would judge it by its own weak points.

References
----------
Held-out likelihood: Stone, "Cross-validatory choice", JRSS B 1974.
The standard error of paired differences: Breiman et al., "Classification and regression trees",
1984, section 3.4.3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from accelerando.crowd._noise import TSTE, Logistic, NoiseModel, noise_model
from accelerando.crowd._objective import Objective
from accelerando.crowd._solve import race
from accelerando.crowd._start import spectral_start
from accelerando.crowd._triplets import Triplets

__all__ = ["Candidate", "ModelChoice", "candidates", "choose_model", "log_likelihood"]

Array = NDArray[np.float64]

# Smaller rates protect too little from answers that contradict each other.
LAPSES = (0.05, 0.1, 0.15)
# Prior of the positions' scale. More of it predicts a few hundred answers better, but it shrinks
# the embedding, and a shrunken one chooses worse queries.
_RIDGES = {TSTE.name: 0.1, Logistic.name: 0.2}
_MIDDLE_LAPSE = 0.05
# So small a prior only matters if the answers do not determine the scale.
_SMALLEST_RIDGE = 1e-3
# What "auto" compares; the first is taken unless another is better.
_DIMENSIONS = (2, 1, 3)
_FOLDS = 3
# With more answers one held-out part of this size is enough, and a third of the work.
_ONE_FOLD_FROM = 20_000
_LARGEST_TEST = 3000
_STEPS = 60
_SIGNIFICANT = 1.0
# More than two dimensions have to be better by more, as in select_dimension: a map that has too
# many shows noise. A line is left as easily as it is taken: queries about it teach little else.
_SURE = 2.0
_FEW = 2
# In nats per answer. With very many answers even such a gain is "significant".
_TOO_SMALL_TO_MATTER = 1e-3
_TOL = 1e-4
_SCALES = 2.0 ** np.linspace(-1.0, 1.0, 7)


@dataclass(frozen=True)
class Candidate:
    """A noise model with a lapse rate in a number of dimensions, and a prior of their scale.

    Attributes
    ----------
    noise : NoiseModel
    lapse : float
    n_components : int
    ridge : float, default=0.1
        As in :class:`OrdinalEmbedding`.

    Examples
    --------
    >>> str(Candidate(TSTE(alpha=2.0), 0.05, 3))
    't-STE with α = 2, lapse rate 0.05, 3 dimensions'
    """

    noise: NoiseModel
    lapse: float
    n_components: int
    ridge: float = 0.1

    def __str__(self) -> str:
        unit = "dimension" if self.n_components == 1 else "dimensions"
        return f"{_name(self.noise)}, lapse rate {self.lapse:g}, {self.n_components} {unit}"


@dataclass(frozen=True)
class ModelChoice:
    """Result of :func:`choose_model`.

    Attributes
    ----------
    best : Candidate
        The candidate that was chosen.
    reason : str
        Why, in a sentence.
    tried : tuple of Candidate
        All candidates that were compared.
    log_likelihood : array of shape (n_tried,)
        Mean log-likelihood of held-out answers, in nats.
    n_tested : int
        Number of held-out answers.
    """

    best: Candidate
    reason: str
    tried: tuple[Candidate, ...]
    log_likelihood: Array
    n_tested: int


def candidates(
    dimensions: Sequence[int],
    noise: NoiseModel | None = None,
    lapse: float | None = None,
    ridge: float | None = None,
) -> list[Candidate]:
    """Return the models to compare: those given, or the usual ones.

    Parameters
    ----------
    dimensions : sequence of int
    noise : NoiseModel, optional
        Only this model. By default Logistic, and t-STE with α = 1 and with ``max(2, d − 1)``:
        lighter and heavier tails. The first one is taken unless another is better.
    lapse : float, optional
        Only this lapse rate; 0.05, 0.1 and 0.15 by default.
    ridge : float, optional
        Only this prior; by default one for each model.

    Examples
    --------
    >>> len(candidates([2])), len(candidates([2, 4], lapse=0.05))
    (9, 6)
    """
    found: list[Candidate] = []
    for d in dimensions:
        usual = [Logistic(), TSTE(), TSTE(alpha=max(2.0, d - 1.0))]
        for model in usual if noise is None else [noise]:
            prior = _RIDGES.get(model.name, 0.1) if ridge is None else ridge
            rates = LAPSES if lapse is None else [lapse]
            found.extend(Candidate(model, rate, d, prior) for rate in rates)
    return found


def tried_models(
    n_components: int | str, noise: str | NoiseModel, lapse: float | str, ridge: float | None
) -> list[Candidate]:
    """Return the models that the parameters of an :class:`OrdinalEmbedding` allow.

    Examples
    --------
    >>> tried_models(2, "tste", 0.05, None)
    [Candidate(noise=TSTE(alpha=1.0), lapse=0.05, n_components=2, ridge=0.001)]
    >>> len(tried_models("auto", "auto", "auto", None))
    27
    """
    rate = _MIDDLE_LAPSE if lapse == "estimate" else lapse
    prior = _SMALLEST_RIDGE if noise != "auto" and ridge is None else ridge
    dimensions = _DIMENSIONS if n_components == "auto" else (int(n_components),)
    return [
        candidate
        for d in dimensions
        for candidate in candidates(
            [d],
            None if noise == "auto" else noise_model(noise, d),
            None if rate == "auto" else float(rate),
            prior,
        )
    ]


def choose_model(
    triplets: Triplets,
    tried: Sequence[Candidate],
    *,
    n_items: int,
    weights: Array | None = None,
    fair: NDArray[np.bool_] | None = None,
    current: Candidate | None = None,
    starts: Mapping[int, Array] | None = None,
    seed: int = 0,
) -> ModelChoice:
    """Return the candidate that predicts held-out answers best.

    Noise models and dimensions are compared at one lapse rate first; the lapse rates are compared
    for the best of them.

    Parameters
    ----------
    triplets : array of shape (n_answers, 3)
        Rows ``(head, winner, loser)``.
    tried : sequence of Candidate
    n_items : int
    weights : array of shape (n_answers,), optional
        Weight of each answer in the fits.
    fair : array of bool, optional
        Answers to random queries, which may be held out; all by default.
    current : Candidate, optional
        Keep this one unless another is better by a standard error, or by two if it has more
        dimensions and more than two; the first of those tried by default.
    starts : mapping of int to array, optional
        Positions to start from, by dimension. Candidates of other dimensions start from the same
        positions with fewer or more dimensions and from spectral ones, whichever fits better.
    seed : int, default=0
        Seed of the split.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> line = rng.normal(size=12)
    >>> rows = np.array([rng.permutation(12)[:3] for _ in range(400)])
    >>> gap = np.abs(line[rows[:, :1]] - line[rows[:, 1:]])
    >>> rows = np.where((gap[:, 0] < gap[:, 1])[:, None], rows, rows[:, [0, 2, 1]])
    >>> choose_model(rows, candidates([1, 3], lapse=0.05), n_items=12).best.n_components
    1
    """
    rng = np.random.default_rng(seed)
    given = np.ones(len(triplets)) if weights is None else weights
    may = np.flatnonzero(given > 0) if fair is None else np.flatnonzero(fair & (given > 0))
    parts = _parts(rng.permutation(may), len(triplets))
    warm = dict(starts or {})
    begin: dict[int, list[Array]] = {}
    for d in dict.fromkeys(candidate.n_components for candidate in tried):
        # Cold starts alone would favor the present dimension: on answers to chosen queries they
        # find worse minima than positions that were there when the queries were chosen.
        cold = spectral_start(triplets, given, n_items, d, rng=rng)
        others = [with_dimensions(positions, d, rng) for positions in warm.values()]
        begin[d] = [warm[d]] if d in warm else [cold, *others]
    scores: dict[Candidate, Array] = {}

    def compare(some: Sequence[Candidate]) -> None:
        for candidate in some:
            if candidate not in scores:
                scores[candidate] = _held_out(
                    triplets, given, parts, candidate, begin[candidate.n_components], n_items
                )

    at = min({c.lapse for c in tried}, key=lambda lapse: abs(lapse - _MIDDLE_LAPSE))
    compare([c for c in tried if c.lapse == at])
    ahead = max(scores, key=lambda c: float(scores[c].mean()))
    same = (ahead.noise, ahead.n_components)
    compare([c for c in tried if (c.noise, c.n_components) == same])
    first = next(candidate for candidate in tried if candidate.lapse == at)
    known = first if current is None or current not in tried else current
    compare([known])
    best, reason = _decide(scores, known)
    order = tuple(scores)
    means = np.array([scores[c].mean() for c in order])
    return ModelChoice(best, reason, order, means, sum(len(part) for part in parts))


def present_model(
    tried: Sequence[Candidate], warm: Array | None, before: ModelChoice | None
) -> Candidate | None:
    """Return the model of the warm start; of positions from elsewhere only the dimension is known.

    Without it a restart of the service, or an analysis of its archive, could change the dimension
    of the map for no other reason.
    """
    if warm is None:
        return None
    if before is not None and before.best.n_components == warm.shape[1]:
        return before.best
    return next((one for one in tried if one.n_components == warm.shape[1]), None)


def with_dimensions(positions: Array, n_components: int, rng: np.random.Generator) -> Array:
    """Return positions with `n_components` columns: the widest directions, or a little noise added.

    Examples
    --------
    >>> line = with_dimensions(np.array([[0.0, 0.0], [3.0, 4.0]]), 1, np.random.default_rng(0))
    >>> float(np.abs(line[1] - line[0])[0])
    5.0
    """
    n_items, d = positions.shape
    if d == n_components:
        return positions
    if d < n_components:
        spread = float(positions.std()) or 1.0
        noise = 0.1 * spread * rng.normal(size=(n_items, n_components - d))
        return np.concatenate([positions, noise], axis=1)
    centered = positions - positions.mean(axis=0)
    _, _, axes = np.linalg.svd(centered, full_matrices=False)
    return np.asarray(centered @ axes[:n_components].T)


def log_likelihood(triplets: Triplets, positions: Array, noise: NoiseModel, lapse: float) -> Array:
    """Return the log-likelihood of each answer, at the scale of the positions that suits them best.

    Chosen queries are harder than random ones. A model that is not quite right fits them with a
    scale that is wrong for random ones, although the order of the distances may be right.
    """
    gaps = positions[triplets[:, :1]] - positions[triplets[:, 1:]]
    squared = np.einsum("ijk,ijk->ij", gaps, gaps)
    winner, loser = squared.T
    tried = [noise.probability(s**2 * winner, s**2 * loser, lapse) for s in _SCALES]
    logs = [np.log(np.maximum(chosen, 1e-12)) for chosen in tried]
    return np.asarray(max(logs, key=lambda values: float(values.mean())))


def refit(
    triplets: Triplets,
    weights: Array,
    candidate: Candidate,
    starts: list[Array],
    n_items: int,
) -> Array:
    """Return positions after a few steps from the best of these starts: a cheap warm fit."""
    objective = Objective(triplets, weights, n_items, candidate.noise, ridge=candidate.ridge)
    found = race(
        objective,
        starts,
        candidate.lapse,
        estimate_lapse=False,
        n_answers=float(weights.sum()),
        max_iter=_STEPS,
        tol=_TOL,
    )
    return found.positions


def _parts(order: NDArray[np.intp], n_answers: int) -> list[NDArray[np.intp]]:
    """Return the held-out parts: three, or one if there are very many answers."""
    if n_answers >= _ONE_FOLD_FROM:
        return [order[: min(_LARGEST_TEST, len(order) // _FOLDS)]]
    return np.array_split(order, _FOLDS)


def _held_out(
    triplets: Triplets,
    weights: Array,
    parts: Sequence[NDArray[np.intp]],
    candidate: Candidate,
    starts: list[Array],
    n_items: int,
) -> Array:
    scores = []
    for part in parts:
        kept = weights > 0
        kept[part] = False
        positions = refit(triplets[kept], weights[kept], candidate, starts, n_items)
        scores.append(log_likelihood(triplets[part], positions, candidate.noise, candidate.lapse))
    return np.concatenate(scores)


def _decide(scores: Mapping[Candidate, Array], current: Candidate) -> tuple[Candidate, str]:
    best = max(scores, key=lambda c: float(scores[c].mean()))
    tested = f"{len(scores[best]):,} held-out random answers"
    if current == best:
        others = [c for c in scores if c != best]
        if not others:
            return best, f"{best}: there is no other candidate."
        second = max(others, key=lambda c: float(scores[c].mean()))
        gain, error = _difference(scores[best], scores[second])
        return best, (
            f"{best}: predicts {tested} best, by {gain:.4f} ± {error:.4f} nats per answer; next is "
            f"{second}."
        )
    gain, error = _difference(scores[best], scores[current])
    by = f"by {gain:.4f} ± {error:.4f} nats per answer"
    more = best.n_components > max(current.n_components, _FEW)
    if gain > max((_SURE if more else _SIGNIFICANT) * error, _TOO_SMALL_TO_MATTER):
        return best, f"{best}: predicts {tested} better than {current} did, {by}."
    return current, f"{current}: {best} is better on {tested}, but not surely, {by}."


def _difference(one: Array, other: Array) -> tuple[float, float]:
    paired = one - other
    return float(paired.mean()), float(paired.std() / np.sqrt(len(paired)))


def _name(noise: NoiseModel) -> str:
    names = {"tste": "t-STE", "logistic": "Logistic"}
    name = names.get(noise.name, noise.name.upper())
    return f"{name} with α = {noise.alpha:g}" if isinstance(noise, TSTE) else name
