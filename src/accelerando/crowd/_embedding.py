"""Ordinal embedding: the scikit-learn estimator of positions from triplet answers."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from accelerando._validation import check_choice, check_integer, check_number, parameter_error
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

    Minimizes the mean loss of the answers, ``Σ w ℓ(x_h, x_winner, x_loser) / Σ w``, where the noise
    model defines ``ℓ``. Several starts run for a few steps of L-BFGS: spectral positions from one
    eigendecomposition, random ones, and the present embedding if there is one. The one with the
    smallest loss continues until it has converged.

    Parameters
    ----------
    n_components : int, default=2
        Dimensions of the embedding.
    noise : str or NoiseModel, default="tste"
        "tste", "ste", "ckl", "logistic", "gnmds", "soe", or a noise model such as
        ``TSTE(alpha=2)``.
    lapse : float in [0, 0.5) or "estimate", default=0.05
        Lapse rate ε, the share of careless answers: ``p → ε + (1 − 2ε) p``. "estimate" fits it (at
        most 0.3) with the positions. The hinge losses of GNMDS and SOE have no probability; there
        ε only enters :meth:`predict_proba`.
    n_items : int, optional
        Number of items; by default the largest item number in the answers plus one.
    n_init : int, default=3
        Cold starts of :meth:`fit`: one spectral, the others random.
    max_iter : int, default=200
        Maximum number of L-BFGS steps. With mini-batches a tenth of it is the maximum number of
        epochs.
    tol : float, default=1e-5
        L-BFGS stops when a step improves the loss by less, or when all slopes are smaller.
    ridge : float, default=1e-3
        Adds ``ridge/2 · ‖X‖²`` to the sum of the losses. The term is small: it only matters if the
        answers do not determine the scale, which would then grow without bound.
    solver : {"auto", "lbfgs", "minibatch"}, default="auto"
        Full batches or growing mini-batches; "auto" uses mini-batches above two million answers.
    warm_start : bool, default=False
        :meth:`fit` also starts from the present embedding. Answers to actively chosen queries
        need it: cold starts on such data converge to bad local minima.
    random_state : int, RandomState or None, default=None
        Seed of the random starts and the order of mini-batches.

    Attributes
    ----------
    embedding_ : array of shape (n_items, n_components)
    loss_ : float
        The minimum: mean loss of the answers, the ridge and, with an estimated lapse rate, minus
        its log prior per answer.
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
        """Fit to these answers; earlier ones are discarded.

        Parameters
        ----------
        triplets : array of shape (n_answers, 3)
            Rows ``(head, winner, loser)``, or queries ``(head, left, right)`` with ``answers``.
        answers : array of shape (n_answers,), optional
            True for left, or the number of the chosen item.
        sample_weight : array of shape (n_answers,), optional
            Weight of each answer.
        init : array of shape (n_items, n_components), optional
            Positions from another fit; they replace the warm start.
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
        """Add these answers to the earlier ones and continue from the present embedding.

        The estimator keeps all answers ("follow the leader"), so many small calls give the result
        of one large call. The first call is a :meth:`fit`.
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
        """Return the positions of the given items, by default of all items."""
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
        """Return the probabilities of "left" and "right" for each query ``(head, left, right)``."""
        check_is_fitted(self, "embedding_")
        rows = as_triplets(queries, n_items=self.n_items_)
        gaps = self.embedding_[rows[:, :1]] - self.embedding_[rows[:, 1:]]
        squared = np.einsum("ijk,ijk->ij", gaps, gaps)
        model = noise_model(self.noise)
        left = model.probability(squared[:, 0], squared[:, 1], self.lapse_)
        return np.stack([left, 1.0 - left], axis=1)

    def predict(self, queries: ArrayLike) -> NDArray[np.intp]:
        """Return the item of each query ``(head, left, right)`` that is nearer to the head."""
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
        """Return the share of the answers that the embedding predicts; a tie counts one half."""
        check_is_fitted(self, "embedding_")
        rows = as_triplets(triplets, answers, n_items=self.n_items_)
        return triplet_accuracy(self.embedding_, rows, sample_weight=sample_weight)

    def _fit(
        self, triplets: Triplets, weights: Array, warm: Array | None, n_cold: int
    ) -> OrdinalEmbedding:
        self._check(triplets, weights, n_cold if warm is None else 1)
        n_items = self._count_items(triplets, warm)
        kept = weights > 0
        best = self._minimize(triplets[kept], weights[kept], n_items, warm, n_cold)
        # The loss does not depend on the center; a fixed one keeps embeddings comparable.
        self.embedding_: Array = best.positions - best.positions.mean(axis=0)
        self.lapse_ = best.lapse
        self.loss_ = best.loss
        self.n_iter_ = best.n_iter
        self.n_items_ = n_items
        self.n_answers_ = len(triplets)
        self._triplets, self._weights = triplets, weights
        return self

    def _count_items(self, triplets: Triplets, warm: Array | None) -> int:
        """Return the number of items; raise ValueError if the warm start does not match it."""
        n_items = int(triplets.max()) + 1 if self.n_items is None else self.n_items
        if warm is None:
            return n_items
        if self.n_items is None:
            n_items = max(n_items, len(warm))
        if warm.ndim != 2 or warm.shape[1] != self.n_components or len(warm) > n_items:
            raise ValueError(
                f"A start must have shape ({n_items}, {self.n_components}), n_items and "
                f"n_components. Got shape {warm.shape} instead. Pass matching positions as init, "
                "or fit a new estimator."
            )
        return n_items

    def _minimize(
        self, triplets: Triplets, weights: Array, n_items: int, warm: Array | None, n_cold: int
    ) -> Solution:
        """Return the best solution from all starts with the chosen solver."""
        rng = np.random.default_rng(check_random_state(self.random_state).randint(2**31))
        noise = noise_model(self.noise)
        shape = n_items, self.n_components
        starts = starting_points(triplets, weights, shape, warm=warm, n_cold=n_cold, rng=rng)
        lapse = _LAPSE_AT_START if self.lapse == "estimate" else float(self.lapse)
        full = len(triplets) <= _FULL_BATCH_UP_TO or self.lapse == "estimate"
        if self.solver == "lbfgs" or (self.solver == "auto" and full):
            return race(
                Objective(triplets, weights, n_items, noise, ridge=self.ridge),
                starts,
                lapse,
                estimate_lapse=self.lapse == "estimate",
                n_answers=float(weights.sum()),
                max_iter=self.max_iter,
                tol=self.tol,
            )
        return minibatch(
            triplets,
            weights,
            noise,
            Solution(starts[0], lapse, np.inf, 0),
            ridge=self.ridge,
            epochs=max(1, min(8, self.max_iter // 10)),
            rng=rng,
        )

    def _check(self, triplets: Triplets, weights: Array, n_starts: int) -> None:
        check_integer(self, "n_components", self.n_components)
        check_integer(self, "n_init", self.n_init, minimum=0)
        check_integer(self, "max_iter", self.max_iter)
        check_integer(self, "n_items", self.n_items, minimum=3, also={None: "None"})
        if n_starts == 0:
            allowed = "an integer of at least 1 unless there is a warm start"
            raise parameter_error(self, "n_init", allowed, self.n_init)
        check_number(
            self, "lapse", self.lapse, minimum=0, below=0.5, also={"estimate": "'estimate'"}
        )
        check_choice(self, "solver", self.solver, ("auto", "lbfgs", "minibatch"))
        if self.lapse == "estimate":
            if not noise_model(self.noise).probabilistic:
                allowed = f"a number, because the loss of noise={self.noise!r} has no probability"
                raise parameter_error(self, "lapse", allowed, self.lapse)
            if self.solver == "minibatch":
                # A mini-batch is too small to distinguish lapses from small distances.
                allowed = "a number with solver='minibatch'"
                raise parameter_error(self, "lapse", allowed, self.lapse)
        check_number(self, "tol", self.tol, above=0)
        check_number(self, "ridge", self.ridge, minimum=0)
        if len(triplets) == 0:
            raise ValueError("triplets must contain at least one answer. Got none.")
        if not weights.any():
            raise ValueError("sample_weight must contain a weight above 0. All weights are 0.")
