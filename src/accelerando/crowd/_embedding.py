"""Ordinal embedding: the scikit-learn estimator of positions from triplet answers."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from accelerando._validation import parameter_error
from accelerando.crowd._choice import (
    ModelChoice,
    choose_model,
    present_model,
    tried_models,
    with_dimensions,
)
from accelerando.crowd._fit_checks import check_settings
from accelerando.crowd._joint import joint_fit
from accelerando.crowd._metrics import triplet_accuracy
from accelerando.crowd._noise import TSTE, NoiseModel, noise_model
from accelerando.crowd._objective import Objective
from accelerando.crowd._reliability import Reliability
from accelerando.crowd._solve import Solution, minibatch, race
from accelerando.crowd._start import starting_points
from accelerando.crowd._triplets import Triplets, as_column, as_triplets, as_weights, joined

__all__ = ["OrdinalEmbedding"]

Array = NDArray[np.float64]

# Full batches of more answers than this need gigabytes; measured 3 s for a million, 10⁴ items.
_FULL_BATCH_UP_TO = 2_000_000


class OrdinalEmbedding(TransformerMixin, BaseEstimator, auto_wrap_output_keys=None):  # type: ignore[misc, call-arg]
    """Positions of items from answers to "is a or b more like h?".

    Minimizes the mean loss of the answers, ``Σ w ℓ(x_h, x_winner, x_loser) / Σ w``, where the noise
    model defines ``ℓ``. Several starts run for a few steps of L-BFGS: spectral positions from one
    eigendecomposition, random ones, and the present embedding if there is one. The one with the
    smallest loss continues until it has converged.

    Parameters
    ----------
    n_components : int or "auto", default=2
        Dimensions of the embedding. "auto" compares 1, 2 and 3 by the likelihood of held-out
        answers at every :meth:`fit`.
    noise : str or NoiseModel, default="tste"
        "tste" (with α = max(1, d − 1) in d dimensions), "ste", "ckl", "logistic", "gnmds", "soe",
        or a noise model such as ``TSTE(alpha=2)``. "auto" compares Logistic and t-STE by the
        likelihood of held-out answers at every :meth:`fit`.
    lapse : float in [0, 0.5), "estimate" or "auto", default=0.05
        Lapse rate ε, the share of careless answers: ``p → ε + (1 − 2ε) p``. "estimate" fits it (at
        most 0.3) with the positions; "auto" compares 0.05, 0.1 and 0.15 on held-out answers. The
        hinge losses of GNMDS and SOE have no probability; there ε only enters
        :meth:`predict_proba`.
    n_items : int, optional
        Number of items; by default the largest item number in the answers plus one.
    n_init : int, default=3
        Cold starts of :meth:`fit`: one spectral, the others random.
    max_iter : int, default=200
        Maximum number of L-BFGS steps. With mini-batches a tenth of it is the maximum number of
        epochs.
    tol : float, default=1e-5
        L-BFGS stops when a step improves the loss by less, or when all slopes are smaller.
    ridge : float, optional
        Adds ``ridge/2 · ‖X‖²`` to the sum of the losses. By default 0.001: so small a term only
        matters if the answers do not determine the scale, which would then grow without bound.
        With ``noise="auto"`` the default is a prior for each model, 0.1 or 0.2.
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
        The lapse rate used, estimated or chosen.
    noise_ : NoiseModel
        The noise model used or chosen.
    ridge_ : float
        The ridge used.
    choice_ : ModelChoice or None
        What "auto" compared, with the reason of its choice.
    reliability_ : Reliability or None
        Shares of attentive and other answers of each participant, after a fit with participants.
    n_items_, n_components_, n_iter_, n_answers_ : int

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

    embedding_: Array
    noise_: NoiseModel
    lapse_: float
    ridge_: float
    n_components_: int
    loss_: float
    choice_: ModelChoice | None
    reliability_: Reliability | None
    _participants: NDArray[Any] | None
    _left: NDArray[Any] | None

    def __init__(
        self,
        n_components: int | Literal["auto"] = 2,
        noise: str | NoiseModel = "tste",
        lapse: float | Literal["estimate", "auto"] = 0.05,
        *,
        n_items: int | None = None,
        n_init: int = 3,
        max_iter: int = 200,
        tol: float = 1e-5,
        ridge: float | None = None,
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

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False  # rows are queries, not features of samples
        return tags

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "embedding_" in state and "noise_" not in state:  # an earlier version, with α = 1
            self.ridge_, self.n_components_ = state["ridge"], self.embedding_.shape[1]
            self.noise_ = TSTE() if self.noise == "tste" else noise_model(self.noise)
            self.choice_, self.reliability_ = None, None
            self._participants, self._left = None, None

    def fit(
        self,
        triplets: ArrayLike,
        answers: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        *,
        init: ArrayLike | None = None,
        participants: ArrayLike | None = None,
        left: ArrayLike | None = None,
        fair: ArrayLike | None = None,
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
        participants : array of shape (n_answers,), optional
            Who gave each answer. The positions and each participant's lapse rate are then fitted
            jointly, in place of the common lapse rate: answers of people who guess count for
            little, and nobody has to be excluded.
        left : array of bool of shape (n_answers,), optional
            True if the winner was shown on the left; with participants, to find one-sided ones.
        fair : array of bool of shape (n_answers,), optional
            Answers to random queries. Only these are held out to choose a noise model; all by
            default.
        """
        rows = as_triplets(triplets, answers, n_items=self.n_items)
        weights = as_weights(sample_weight, len(rows))
        warm = self.embedding_ if self.warm_start and hasattr(self, "embedding_") else None
        if init is not None:
            warm = np.asarray(init, dtype=np.float64)
        who, side, may = (
            as_column(name, values, len(rows))
            for name, values in (("participants", participants), ("left", left), ("fair", fair))
        )
        n_starts, n_warm = (self.n_init, 0) if warm is None else (1, len(warm))
        check_settings(self, rows, weights, n_starts, n_warm)
        self._choose(rows, weights, warm, None if may is None else may.astype(bool))
        if who is not None and not self.noise_.probabilistic:
            allowed = "None, because the loss of this noise model has no probability"
            raise parameter_error("OrdinalEmbedding.fit", "participants", allowed, "an array")
        return self._fit(rows, weights, warm, self.n_init, who, side)

    def partial_fit(
        self,
        triplets: ArrayLike,
        answers: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        *,
        participants: ArrayLike | None = None,
        left: ArrayLike | None = None,
    ) -> OrdinalEmbedding:
        """Add these answers to the earlier ones and continue from the present embedding.

        The estimator keeps all answers ("follow the leader"), therefore small calls give the result
        of one large call. The first call is a :meth:`fit`; later calls keep its noise model.
        """
        if not hasattr(self, "embedding_"):
            return self.fit(triplets, answers, sample_weight, participants=participants, left=left)
        rows = as_triplets(triplets, answers, n_items=self.n_items)
        weights = np.concatenate([self._weights, as_weights(sample_weight, len(rows))])
        who, side = (
            joined(name, before, as_column(name, values, len(rows)))
            for name, before, values in (
                ("participants", self._participants, participants),
                ("left", self._left, left),
            )
        )
        rows = np.concatenate([self._triplets, rows])
        check_settings(self, rows, weights, 1, len(self.embedding_))
        return self._fit(rows, weights, self.embedding_, 0, who, side)

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
        left = self.noise_.probability(squared[:, 0], squared[:, 1], self.lapse_)
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

    def _choose(
        self, triplets: Triplets, weights: Array, warm: Array | None, fair: NDArray[np.bool_] | None
    ) -> None:
        """Set the dimension, the noise model, its prior and the lapse rate of the fit."""
        tried = tried_models(self.n_components, self.noise, self.lapse, self.ridge)
        before: ModelChoice | None = getattr(self, "choice_", None)
        self.choice_ = None
        best = tried[0]
        if len(tried) > 1:
            n_items = self._count_items(triplets, warm)
            starts = {} if warm is None or len(warm) < n_items else {warm.shape[1]: warm}
            seed = int(check_random_state(self.random_state).randint(2**31))
            choice = choose_model(
                triplets,
                tried,
                n_items=n_items,
                weights=weights,
                fair=fair,
                current=present_model(tried, warm, before),
                starts=starts,
                seed=seed,
            )
            self.choice_, best = choice, choice.best
        self.noise_ = best.noise
        self.lapse_, self.ridge_, self.n_components_ = best.lapse, best.ridge, best.n_components

    def _fit(
        self,
        triplets: Triplets,
        weights: Array,
        warm: Array | None,
        n_cold: int,
        participants: NDArray[Any] | None = None,
        left: NDArray[Any] | None = None,
    ) -> OrdinalEmbedding:
        n_items = self._count_items(triplets, warm)
        kept = weights > 0
        goes_on = n_cold == 0 and participants is not None
        if goes_on and warm is not None and len(warm) == n_items:
            best = Solution(warm, self.lapse_, self.loss_, 0)
        else:
            best = self._minimize(triplets[kept], weights[kept], n_items, warm, n_cold)
        self.reliability_ = None
        if participants is not None:
            best, self.reliability_ = joint_fit(
                triplets[kept],
                weights[kept],
                self.noise_,
                best,
                participants[kept],
                None if left is None else left[kept].astype(bool),
                ridge=self.ridge_,
                max_iter=self.max_iter,
                tol=self.tol,
            )
        # The loss does not depend on the center; a fixed one keeps embeddings comparable.
        self.embedding_ = best.positions - best.positions.mean(axis=0)
        self.lapse_ = best.lapse
        self.loss_ = best.loss
        self.n_iter_ = best.n_iter
        self.n_items_ = n_items
        self.n_answers_ = len(triplets)
        self._triplets, self._weights = triplets, weights
        self._participants, self._left = participants, left
        return self

    def _count_items(self, triplets: Triplets, warm: Array | None) -> int:
        """Return the number of items; raise ValueError if the warm start does not match it."""
        n_items = int(triplets.max()) + 1 if self.n_items is None else self.n_items
        if warm is None:
            return n_items
        if self.n_items is None:
            n_items = max(n_items, len(warm))
        d = self.n_components
        if warm.ndim != 2 or d not in ("auto", warm.shape[1]) or len(warm) > n_items:
            raise ValueError(
                f"A start must have shape ({n_items}, {d}), n_items and "
                f"n_components. Got shape {warm.shape} instead. Pass matching positions as init, "
                "or fit a new estimator."
            )
        return n_items

    def _minimize(
        self, triplets: Triplets, weights: Array, n_items: int, warm: Array | None, n_cold: int
    ) -> Solution:
        """Return the best solution from all starts with the chosen solver."""
        rng = np.random.default_rng(check_random_state(self.random_state).randint(2**31))
        shape = n_items, self.n_components_
        if warm is not None:
            warm = with_dimensions(warm, self.n_components_, rng)
        starts = starting_points(triplets, weights, shape, warm=warm, n_cold=n_cold, rng=rng)
        full = len(triplets) <= _FULL_BATCH_UP_TO or self.lapse == "estimate"
        if self.solver == "lbfgs" or (self.solver == "auto" and full):
            return race(
                Objective(triplets, weights, n_items, self.noise_, ridge=self.ridge_),
                starts,
                self.lapse_,
                estimate_lapse=self.lapse == "estimate",
                n_answers=float(weights.sum()),
                max_iter=self.max_iter,
                tol=self.tol,
            )
        return minibatch(
            triplets,
            weights,
            self.noise_,
            Solution(starts[0], self.lapse_, np.inf, 0),
            ridge=self.ridge_,
            epochs=max(1, min(8, self.max_iter // 10)),
            rng=rng,
        )
