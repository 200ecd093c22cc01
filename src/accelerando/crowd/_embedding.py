"""From triplet answers to positions: the scikit-learn estimator."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from accelerando.crowd._metrics import triplet_accuracy
from accelerando.crowd._noise import NoiseModel, noise_model
from accelerando.crowd._objective import Objective
from accelerando.crowd._solve import Solution, minibatch, race
from accelerando.crowd._start import starting_points
from accelerando.crowd._triplets import Triplets, as_triplets, as_weights

__all__ = ["OrdinalEmbedding"]

Array = NDArray[np.float64]

# Full batches of more answers than this need gigabytes; measured 3 s for a million, 10⁴ items.
_FULL_BATCH_UP_TO = 2_000_000
_LAPSE_AT_START = 0.05


class OrdinalEmbedding(BaseEstimator):  # type: ignore[misc]
    """Positions of items from answers to "is a or b more like h?".

    Minimises the mean loss of the answers, ``Σ w ℓ(x_h, x_winner, x_loser) / Σ w``, where the noise
    model gives ``ℓ`` (:mod:`accelerando.crowd._noise`). Several starts race for a few steps of
    L-BFGS: positions read off the answers by one eigen-decomposition, random ones, and the present
    embedding if there is one. The one with the smallest loss goes on until it has converged.

    Parameters
    ----------
    n_components : int, default=2
        Dimensions of the embedding.
    noise : str or NoiseModel, default="tste"
        "tste", "ste", "ckl", "logistic", "gnmds", "soe", or a model with its settings such as
        ``TSTE(alpha=2)``.
    lapse : float in [0, 0.5) or "estimate", default=0.05
        Share ε of careless answers, ``p → ε + (1 − 2ε) p``; estimated together with the positions
        (at most 0.3) on request. The hinge losses of GNMDS and SOE have no probability, so
        there it only enters :meth:`predict_proba`.
    n_items : int, optional
        How many items there are; by default the largest item number in the answers plus one.
    n_init : int, default=3
        Cold starts of :meth:`fit`: one spectral, the others random.
    max_iter : int, default=200
        L-BFGS steps; with mini-batches passes over the answers are limited to a tenth of it.
    tol : float, default=1e-5
        L-BFGS stops when a step improves the loss by less than this, or when no slope is larger.
    ridge : float, default=1e-3
        Adds ``ridge/2 · ‖X‖²`` to the sum of the losses: so little that it only shows where the
        answers leave the scale open, which would then grow without end.
    solver : {"auto", "lbfgs", "minibatch"}, default="auto"
        Full batches or growing mini-batches; "auto" takes mini-batches above two million answers.
    warm_start : bool, default=False
        :meth:`fit` also starts from the present embedding. Answers to actively chosen queries
        need it: cold starts on such data end in bad local minima.
    random_state : int, RandomState or None, default=None
        Seed of the random starts and the order of mini-batches.

    Attributes
    ----------
    embedding_ : array of shape (n_items, n_components)
    loss_ : float
        What was minimised: mean loss of the answers, the ridge and, with an estimated lapse rate,
        minus its log prior per answer.
    lapse_ : float
        The lapse rate used or estimated.
    n_items_, n_iter_, n_answers_ : int

    Examples
    --------
    >>> from accelerando.crowd import OrdinalEmbedding
    >>> answers = [[0, 1, 2], [1, 0, 2], [2, 1, 0], [3, 2, 0], [2, 3, 1], [3, 2, 1]]
    >>> model = OrdinalEmbedding(n_components=1, random_state=0).fit(answers)
    >>> model.score(answers)
    1.0
    >>> model.embedding_.shape
    (4, 1)
    """

    def __init__(
        self,
        n_components: int = 2,
        noise: str | NoiseModel = "tste",
        lapse: float | Literal["estimate"] = 0.05,
        *,
        n_items: int | None = None,
        n_init: int = 3,
        max_iter: int = 200,
        tol: float = 1e-5,
        ridge: float = 1e-3,
        solver: Literal["auto", "lbfgs", "minibatch"] = "auto",
        warm_start: bool = False,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.n_components = n_components
        self.noise = noise
        self.lapse = lapse
        self.n_items = n_items
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.ridge = ridge
        self.solver = solver
        self.warm_start = warm_start
        self.random_state = random_state

    def fit(
        self,
        triplets: ArrayLike,
        answers: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        *,
        init: ArrayLike | None = None,
    ) -> OrdinalEmbedding:
        """Fit to these answers, forgetting earlier ones.

        Parameters
        ----------
        triplets : array of shape (n_answers, 3)
            Rows ``(head, winner, loser)``, or queries ``(head, left, right)`` with ``answers``.
        answers : array of shape (n_answers,), optional
            True for left, or the number of the chosen item.
        sample_weight : array of shape (n_answers,), optional
            How much each answer counts.
        init : array of shape (n_items, n_components), optional
            One more start, in place of the warm one: positions from another fit.
        """
        rows = as_triplets(triplets, answers, n_items=self.n_items)
        warm = self.embedding_ if self.warm_start and hasattr(self, "embedding_") else None
        if init is not None:
            warm = np.asarray(init, dtype=np.float64)
        return self._fit(rows, as_weights(sample_weight, len(rows)), warm, self.n_init)

    def partial_fit(
        self,
        triplets: ArrayLike,
        answers: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> OrdinalEmbedding:
        """Add these answers to those seen before and go on from the present embedding.

        All answers are remembered ("follow the leader"), so many small calls end where one large
        call would. The first call is a :meth:`fit`.
        """
        if not hasattr(self, "embedding_"):
            return self.fit(triplets, answers, sample_weight)
        rows = as_triplets(triplets, answers, n_items=self.n_items)
        weights = as_weights(sample_weight, len(rows))
        return self._fit(
            np.concatenate([self._triplets, rows]),
            np.concatenate([self._weights, weights]),
            self.embedding_,
            0,
        )

    def transform(self, items: ArrayLike | None = None) -> Array:
        """Positions of the given item numbers, by default of all items."""
        check_is_fitted(self, "embedding_")
        if items is None:
            return np.asarray(self.embedding_)
        return np.asarray(self.embedding_[np.asarray(items, dtype=np.intp)])

    def fit_transform(
        self,
        triplets: ArrayLike,
        answers: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> Array:
        """Fit and return the positions of all items."""
        return self.fit(triplets, answers, sample_weight).transform()

    def predict_proba(self, queries: ArrayLike) -> Array:
        """Probability of the answers "left" and "right" to each query ``(head, left, right)``."""
        check_is_fitted(self, "embedding_")
        rows = as_triplets(queries, n_items=self.n_items_)
        gaps = self.embedding_[rows[:, :1]] - self.embedding_[rows[:, 1:]]
        squared = np.einsum("ijk,ijk->ij", gaps, gaps)
        model = noise_model(self.noise)
        left = model.probability(squared[:, 0], squared[:, 1], self.lapse_)
        return np.stack([left, 1.0 - left], axis=1)

    def predict(self, queries: ArrayLike) -> NDArray[np.intp]:
        """The item of each query ``(head, left, right)`` that lies nearer to the head."""
        check_is_fitted(self, "embedding_")
        rows = as_triplets(queries, n_items=self.n_items_)
        left = self.predict_proba(rows)[:, 0] >= 0.5
        return np.asarray(np.where(left, rows[:, 1], rows[:, 2]))

    def score(
        self,
        triplets: ArrayLike,
        answers: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> float:
        """Share of the answers that the embedding predicts; a tie counts one half."""
        check_is_fitted(self, "embedding_")
        rows = as_triplets(triplets, answers, n_items=self.n_items_)
        return triplet_accuracy(self.embedding_, rows, sample_weight=sample_weight)

    def _fit(
        self, triplets: Triplets, weights: Array, warm: Array | None, n_cold: int
    ) -> OrdinalEmbedding:
        self._check(triplets, weights, n_cold if warm is None else 1)
        n_items = int(triplets.max()) + 1 if self.n_items is None else self.n_items
        if warm is not None and self.n_items is None:
            n_items = max(n_items, len(warm))
        if warm is not None and (
            warm.ndim != 2 or warm.shape[1] != self.n_components or len(warm) > n_items
        ):
            raise ValueError(
                f"a start must have shape ({n_items}, {self.n_components}), n_items and "
                f"n_components; got {warm.shape}. Give matching positions, or fit a new estimator."
            )
        rng = np.random.default_rng(check_random_state(self.random_state).randint(2**31))
        kept = weights > 0
        noise = noise_model(self.noise)
        starts = starting_points(
            triplets[kept],
            weights[kept],
            (n_items, self.n_components),
            warm=warm,
            n_cold=n_cold,
            rng=rng,
        )
        lapse = _LAPSE_AT_START if self.lapse == "estimate" else float(self.lapse)
        full = kept.sum() <= _FULL_BATCH_UP_TO or self.lapse == "estimate"
        if self.solver == "lbfgs" or (self.solver == "auto" and full):
            best = race(
                Objective(triplets[kept], weights[kept], n_items, noise, ridge=self.ridge),
                starts,
                lapse,
                estimate_lapse=self.lapse == "estimate",
                n_answers=float(weights.sum()),
                max_iter=self.max_iter,
                tol=self.tol,
            )
        else:
            best = minibatch(
                triplets[kept],
                weights[kept],
                noise,
                Solution(starts[0], lapse, np.inf, 0),
                ridge=self.ridge,
                epochs=max(1, min(8, self.max_iter // 10)),
                rng=rng,
            )
        # The loss does not see where the centre is; a fixed one keeps embeddings comparable.
        self.embedding_: Array = best.positions - best.positions.mean(axis=0)
        self.lapse_ = best.lapse
        self.loss_ = best.loss
        self.n_iter_ = best.n_iter
        self.n_items_ = n_items
        self.n_answers_ = len(triplets)
        self._triplets, self._weights = triplets, weights
        return self

    def _check(self, triplets: Triplets, weights: Array, n_starts: int) -> None:
        _require_count("n_components", self.n_components, 1)
        _require_count("n_init", self.n_init, 0)
        _require_count("max_iter", self.max_iter, 1)
        if self.n_items is not None:
            _require_count("n_items", self.n_items, 3)
        if n_starts == 0:
            raise ValueError("n_init must be at least 1 unless a warm start is there; got 0.")
        if self.lapse == "estimate":
            if not noise_model(self.noise).probabilistic:
                raise ValueError(
                    f"lapse='estimate' needs a noise model with probabilities; {self.noise!r} has "
                    "a hinge loss. Take noise='tste' or 'ckl', or give a number."
                )
        elif not isinstance(self.lapse, (int, float, np.number)) or not 0.0 <= self.lapse < 0.5:
            raise ValueError(
                f"lapse must be a number in [0, 0.5) or 'estimate'; got {self.lapse!r}."
            )
        if self.solver not in ("auto", "lbfgs", "minibatch"):
            raise ValueError(f"solver must be 'auto', 'lbfgs' or 'minibatch'; got {self.solver!r}.")
        if self.solver == "minibatch" and self.lapse == "estimate":
            raise ValueError(
                "lapse='estimate' needs full batches (solver='lbfgs'): a mini-batch is too small "
                "to tell carelessness from distance. Give a number instead."
            )
        if not self.tol > 0.0:
            raise ValueError(f"tol must be positive; got {self.tol!r}.")
        if not 0.0 <= self.ridge < np.inf:
            raise ValueError(f"ridge must be at least 0; got {self.ridge!r}.")
        if len(triplets) == 0:
            raise ValueError("triplets must hold at least one answer; got none.")
        if not weights.any():
            raise ValueError("sample_weight must not be zero for every answer.")


def _require_count(name: str, value: int, smallest: int) -> None:
    if not isinstance(value, (int, np.integer)) or value < smallest:
        raise ValueError(f"{name} must be a whole number of at least {smallest}; got {value!r}.")
