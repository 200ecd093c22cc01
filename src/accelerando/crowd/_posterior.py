"""Posterior of the items' positions: how likely is an item at each place of the embedding?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted

from accelerando._validation import check_number, parameter_error
from accelerando.crowd._embedding import OrdinalEmbedding
from accelerando.crowd._noise import NoiseModel, noise_model
from accelerando.crowd._triplets import Triplets, as_triplets, as_weights

__all__ = ["Posterior", "as_posterior", "log_posterior"]

Array = NDArray[np.float64]
Single = NDArray[np.float32]
Items = NDArray[np.intp]

# Answers × places per block: a few megabytes, independent of the number of answers.
_BLOCK = 1 << 18


@dataclass(frozen=True)
class Posterior:
    """An embedding and the uncertainty about the place of each head in it.

    The place of head h is one of the positions ``x_1 … x_n`` (as in the crowd-kernel paper), with
    posterior ``τ_hi ∝ exp(β Σ log p_i(answer))`` over the answers that mention h, where ``p_i`` is
    the probability of an answer if h were at ``x_i``. β < 1 *tempers* the posterior: the exact one
    takes the rest of the embedding as the truth and is overconfident early on.

    Parameters
    ----------
    positions : array of shape (n_items, n_components)
    places : array of shape (n_places, n_components)
        Possible positions of a head: the positions themselves, or a sample of them.
    log_posterior : array of shape (n_items, n_places)
        Row h: ``Σ log p_i`` for each place i, up to a constant.
    noise : NoiseModel
    lapse : float
    temper : float in (0, 1], default=0.3
        The exponent β.
    trust : float in [0, 1], default=1
        Share of the sampler's chosen queries that is allowed; see
        :mod:`accelerando.crowd._guard`.

    Examples
    --------
    >>> answers = [[0, 1, 2], [1, 0, 2], [2, 1, 0], [3, 2, 0], [2, 3, 1], [3, 2, 1]]
    >>> model = OrdinalEmbedding(random_state=0).fit(answers)
    >>> posterior = Posterior.from_embedding(model, answers)
    >>> posterior.probabilities().sum(axis=1)
    array([1., 1., 1., 1.])
    """

    positions: Array
    places: Array
    log_posterior: Array
    noise: NoiseModel
    lapse: float = 0.0
    temper: float = 0.3
    trust: float = 1.0
    dissimilarity: Array = field(init=False, repr=False)

    def __post_init__(self) -> None:
        shape = len(self.positions), len(self.places)
        if self.log_posterior.shape != shape:
            allowed = f"an array of shape {shape}, one row per head and one column per place"
            raise parameter_error(self, "log_posterior", allowed, self.log_posterior.shape)
        check_number(self, "temper", self.temper, above=0, maximum=1)
        check_number(self, "lapse", self.lapse, minimum=0, below=0.5)
        check_number(self, "trust", self.trust, minimum=0, maximum=1)
        table = _dissimilarity(self.positions, self.places, self.noise)
        object.__setattr__(self, "dissimilarity", table)

    @classmethod
    def from_embedding(
        cls,
        model: OrdinalEmbedding,
        triplets: ArrayLike,
        *,
        temper: float = 0.3,
        lapse: float = 0.0,
        trust: float = 1.0,
        feet: float = 1.0,
        max_places: int = 1000,
        weights: ArrayLike | None = None,
    ) -> Posterior:
        """Return the posterior of a fitted model given these answers.

        The lapse rate is 0 by default, whatever the model was fitted with: tempering already
        accounts for careless answers, and accounting for them twice costs a tenth more answers.
        ``feet`` is the weight of an answer for the places of its feet (:func:`log_posterior`), and
        ``weights`` has one entry per answer, such as the reliability of who gave it.

        With more than ``max_places`` items, the places are an evenly spaced sample of the
        positions. Memory then grows linearly with the number of items.
        """
        noise = model.noise_
        positions = model.embedding_
        chosen = np.linspace(0, len(positions) - 1, min(max_places, len(positions))).astype(int)
        places = positions[chosen]
        rows = as_triplets(triplets, n_items=model.n_items_)
        table = log_posterior(
            positions, rows, noise, lapse=lapse, places=places, feet=feet, weights=weights
        )
        return cls(positions, places, table, noise, lapse, temper, trust)

    @property
    def n_items(self) -> int:
        """Number of items."""
        return len(self.positions)

    def probabilities(self, heads: ArrayLike | None = None) -> Array:
        """Return ``τ`` for the given heads (all by default). Each row sums to one."""
        rows = self.log_posterior if heads is None else self.log_posterior[np.asarray(heads)]
        tempered = self.temper * rows
        # The largest term becomes exp(0): a million answers cannot underflow every entry.
        tempered = np.exp(tempered - tempered.max(axis=1, keepdims=True))
        return np.asarray(tempered / tempered.sum(axis=1, keepdims=True))


def as_posterior(model: OrdinalEmbedding | Posterior) -> Posterior:
    """Return the posterior of a fitted model given the answers it was fitted to.

    A :class:`Posterior` is returned unchanged.

    Examples
    --------
    >>> model = OrdinalEmbedding(random_state=0).fit([[0, 1, 2], [1, 0, 2]])
    >>> as_posterior(model).n_items
    3
    """
    if isinstance(model, Posterior):
        return model
    if not isinstance(model, OrdinalEmbedding):
        raise TypeError(f"model must be a fitted OrdinalEmbedding. Got {model!r} instead.")
    check_is_fitted(model, "embedding_")
    return Posterior.from_embedding(model, model._triplets)


def log_posterior(
    positions: ArrayLike,
    triplets: ArrayLike,
    noise: str | NoiseModel = "tste",
    *,
    lapse: float = 0.0,
    places: ArrayLike | None = None,
    feet: float = 1.0,
    weights: ArrayLike | None = None,
) -> Array:
    """Return ``Σ log p_i(winner, loser)`` for every head and place i.

    The sum is over the answers that mention the head. An answer contributes to the places of all
    its three items: to that of its head, as in the crowd-kernel paper, and with the weight ``feet``
    to those of its winner and its loser, given the positions of the head and the other foot.

    Parameters
    ----------
    positions : array of shape (n_items, n_components)
        The embedding.
    triplets : array of shape (n_answers, 3)
        Rows ``(head, winner, loser)``.
    noise : str or NoiseModel, default="tste"
        Probability of an answer given the distances; see :func:`noise_model`.
    lapse : float, default=0.0
        Share of answers that are random guesses.
    places : array of shape (n_places, n_components), optional
        Possible positions of an item; the positions themselves by default.
    feet : float, default=1.0
        Weight of an answer for the places of its winner and its loser.
    weights : array of shape (n_answers,), optional
        Weight of each answer; 1 by default.

    Returns
    -------
    array of shape (n_items, n_places)
        Up to a constant in each row.

    Examples
    --------
    >>> table = log_posterior([[0.0], [1.0], [4.0]], [[0, 1, 2]])
    >>> table.argmax(axis=1).tolist()
    [1, 0, 2]
    >>> log_posterior([[0.0], [1.0], [4.0]], [[0, 1, 2]], feet=0.0)[1].tolist()
    [0.0, 0.0, 0.0]
    """
    spots = np.asarray(positions, dtype=np.float64)
    where = spots if places is None else np.asarray(places, dtype=np.float64)
    model = noise_model(noise, spots.shape[1])
    rows: Triplets = as_triplets(triplets, n_items=len(spots))
    share = as_weights(weights, len(rows))
    # Single precision within a block of answers, double precision for the sum over blocks.
    table = _dissimilarity(spots, where, model).astype(np.float32)

    def between(one: Items, other: Items) -> Single:
        squared = np.square(spots[one] - spots[other]).sum(axis=1)
        return model.dissimilarity(squared).astype(np.float32)[:, None]

    def summed(role: int, margin: Callable[[Items, Items, Items], Single]) -> Array:
        total = np.zeros((len(spots), len(where)))
        order = np.argsort(rows[:, role], kind="stable")
        ordered, counted = rows[order], share[order].astype(np.float32)
        step = max(1, _BLOCK // len(where))
        for begin in range(0, len(ordered), step):
            block = ordered[begin : begin + step]
            item = block[:, role]
            logs = model.log_probability(margin(*block.T), lapse)
            if weights is not None:
                logs = logs * counted[begin : begin + step, None]
            first = np.flatnonzero(np.r_[True, item[1:] != item[:-1]])
            total[item[first]] += np.add.reduceat(logs, first, axis=0)
        return total

    total = summed(0, lambda _, winner, loser: table[loser] - table[winner])
    if feet > 0.0:
        total += feet * summed(1, lambda head, _, loser: between(head, loser) - table[head])
        total += feet * summed(2, lambda head, winner, _: table[head] - between(head, winner))
    return total


def _dissimilarity(positions: Array, places: Array, noise: NoiseModel) -> Array:
    """Return the dissimilarity of every item (row) and place (column)."""
    item, place = (np.einsum("ij,ij->i", points, points) for points in (positions, places))
    squared = np.maximum(item[:, None] - 2.0 * (positions @ places.T) + place, 0.0)
    return np.asarray(noise.dissimilarity(squared), dtype=np.float64)
