"""Noise models: the probability of an answer given the positions of the items.

Every model consists of the same two steps, so that one implementation serves fitting, query
scoring and simulation:

1. a *dissimilarity* ``f(δ)``, an increasing function of the squared Euclidean distance δ, and
2. a *link* on the margin ``z = f(δ_loser) − f(δ_winner)``: the loss of an answer, its slope, and
   the probability that a participant gives it.

========  ==============================  =====================================
model     ``f(δ)``                        link
========  ==============================  =====================================
STE       ``δ``                           logistic, ``p = 1 / (1 + exp(−z))``
t-STE     ``(α+1)/2 · log(1 + δ/α)``      logistic
CKL       ``log(μ + δ)``                  logistic
Logistic  ``√δ``                          logistic
GNMDS     ``δ``                           hinge, ``max(0, 1 − z)``
SOE       ``√δ``                          squared hinge, ``max(0, 1 − z)²``
========  ==============================  =====================================

With the logistic link CKL reads ``p = (μ + δ_loser) / (2μ + δ_winner + δ_loser)``, as in its
paper, and t-STE with α = 1 *is* CKL with μ = 1.

Inattentive participants answer at random: with a *lapse rate* ε the probability becomes
``ε + (1 − 2ε) p``. One careless answer then costs at most ``−log ε`` and cannot distort the
embedding.

References
----------
STE, t-STE: van der Maaten and Weinberger, "Stochastic triplet embedding", MLSP 2012.
CKL: Tamuz et al., "Adaptively learning the crowd kernel", ICML 2011.
GNMDS: Agarwal et al., "Generalized non-metric multidimensional scaling", AISTATS 2007.
SOE: Terada and von Luxburg, "Local ordinal embedding", ICML 2014.
Lapse rate: Wichmann and Hill, "The psychometric function", Perception & Psychophysics 2001.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from accelerando._validation import check_number, parameter_error

__all__ = ["CKL", "GNMDS", "SOE", "STE", "TSTE", "Logistic", "NoiseModel", "noise_model"]

Floats = NDArray[np.floating[Any]]

# exp(700) is finite in double precision, exp(80) in single precision.
_LARGEST_MARGIN = {np.dtype(np.float64): 700.0, np.dtype(np.float32): 80.0}
# Added under the square root of SOE and Logistic: items at one place have slope 0, not nan.
_TINY = 1e-12


class LinkTerms(NamedTuple):
    """Loss of each answer with its slopes in the margin and in the lapse rate."""

    loss: Floats
    margin_slope: Floats
    lapse_slope: Floats


def _growth(margin: Floats) -> Floats:
    """Return ``exp(−z)`` without overflow."""
    limit = _LARGEST_MARGIN[margin.dtype]
    return np.exp(-np.clip(margin, -limit, limit))


@dataclass(frozen=True)
class NoiseModel(ABC):
    """Base class of noise models; subclasses define ``f``, its slope and a link."""

    name: ClassVar[str]
    probabilistic: ClassVar[bool]

    @abstractmethod
    def dissimilarity(self, squared: Floats) -> Floats:
        """Return ``f(δ)`` for squared distances δ."""

    @abstractmethod
    def dissimilarity_slope(self, squared: Floats) -> Floats:
        """Return ``f′(δ)`` for squared distances δ."""

    @abstractmethod
    def link(self, margin: Floats, lapse: float) -> LinkTerms:
        """Return the loss of an answer with margin z, and its slopes."""

    def mixed_link(self, margin: Floats, floor: Floats, slope: Floats) -> LinkTerms:
        """Return the loss ``−log(floor + slope · p)`` of an answer with margin z, and its slopes.

        Floor and slope describe who answered (:mod:`accelerando.crowd._reliability`), so the loss
        has no slope in a common lapse rate.
        """
        attentive = self.choice(margin)
        answered = floor + slope * attentive
        return LinkTerms(
            -np.log(answered),
            -slope * attentive * (1.0 - attentive) / answered,
            np.zeros_like(attentive),
        )

    @abstractmethod
    def log_odds(self, margin: Floats) -> Floats:
        """Return ``log(p / (1 − p))`` of an answer with margin z, without lapses."""

    def choice(self, margin: Floats) -> Floats:
        """Return the probability of an answer with margin z, without lapses."""
        return np.asarray(1.0 / (1.0 + _growth(self.log_odds(margin))))

    def log_probability(self, margin: Floats, lapse: float = 0.0) -> Floats:
        """Return the log-probability of an answer with margin z, accurate for small ones."""
        growth = _growth(self.log_odds(margin))
        if lapse == 0.0:
            return np.asarray(-np.log1p(growth))
        return np.asarray(np.log(lapse + (1.0 - 2.0 * lapse) / (1.0 + growth)))

    def probability(self, winner: Floats, loser: Floats, lapse: float = 0.0) -> Floats:
        """Return the probability that the item at squared distance ``winner`` is chosen.

        Parameters
        ----------
        winner, loser : array
            Squared distances from the head.
        lapse : float in [0, 0.5)
            The lapse rate ε: ``p → ε + (1 − 2ε) p``.

        Examples
        --------
        >>> float(CKL(mu=1.0).probability(np.array(0.0), np.array(2.0)))
        0.75
        >>> round(float(CKL(mu=1.0).probability(np.array(0.0), np.array(2.0), lapse=0.1)), 3)
        0.7
        """
        margin = self.dissimilarity(np.asarray(loser)) - self.dissimilarity(np.asarray(winner))
        return lapse + (1.0 - 2.0 * lapse) * self.choice(margin)

    def loss(
        self, winner: Floats, loser: Floats, lapse: float = 0.0
    ) -> tuple[Floats, Floats, Floats]:
        """Return the loss of each answer and its slopes in the two squared distances."""
        winner, loser = np.asarray(winner), np.asarray(loser)
        terms = self.link(self.dissimilarity(loser) - self.dissimilarity(winner), lapse)
        return (
            terms.loss,
            -terms.margin_slope * self.dissimilarity_slope(winner),
            terms.margin_slope * self.dissimilarity_slope(loser),
        )


class _LogisticLink(NoiseModel):
    """``p = ε + (1 − 2ε) / (1 + exp(−z))``; the loss is ``−log p``."""

    probabilistic = True

    def log_odds(self, margin: Floats) -> Floats:
        return margin

    def link(self, margin: Floats, lapse: float) -> LinkTerms:
        growth = _growth(margin)
        attentive = 1.0 / (1.0 + growth)
        missed = growth * attentive  # 1 − p, without the cancellation
        if lapse == 0.0:
            return LinkTerms(np.log1p(growth), -missed, (missed - attentive) / attentive)
        answered = lapse + (1.0 - 2.0 * lapse) * attentive
        return LinkTerms(
            -np.log(answered),
            -(1.0 - 2.0 * lapse) * attentive * missed / answered,
            (attentive - missed) / answered,
        )


class _HingeLink(NoiseModel):
    """The loss of an answer is ``max(0, 1 − z) ** power``.

    A hinge loss is not a likelihood. Where a probability is needed (scores, simulation) it is the
    Gibbs distribution of the loss, ``p = exp(−ℓ(z)) / (exp(−ℓ(z)) + exp(−ℓ(−z)))``.
    """

    probabilistic = False
    power: ClassVar[int]

    def _cost(self, margin: Floats) -> Floats:
        return np.asarray(np.maximum(1.0 - margin, 0.0) ** self.power)

    def log_odds(self, margin: Floats) -> Floats:
        return np.asarray(self._cost(-margin) - self._cost(margin))

    def link(self, margin: Floats, lapse: float) -> LinkTerms:
        # A hinge has no lapse rate; OrdinalEmbedding raises if it should estimate one.
        missing = np.maximum(1.0 - margin, 0.0)
        slope = -float(self.power) * np.where(missing > 0.0, missing ** (self.power - 1), 0.0)
        return LinkTerms(missing**self.power, slope, np.zeros_like(missing))


class _SquaredDistance(NoiseModel):
    def dissimilarity(self, squared: Floats) -> Floats:
        return squared

    def dissimilarity_slope(self, squared: Floats) -> Floats:
        return np.ones_like(squared)


class _Distance(NoiseModel):
    def dissimilarity(self, squared: Floats) -> Floats:
        return np.asarray(np.sqrt(squared + _TINY))

    def dissimilarity_slope(self, squared: Floats) -> Floats:
        return np.asarray(0.5 / np.sqrt(squared + _TINY))


@dataclass(frozen=True)
class STE(_LogisticLink, _SquaredDistance):
    """Stochastic triplet embedding: ``p ∝ exp(−δ)``."""

    name: ClassVar[str] = "ste"


@dataclass(frozen=True)
class TSTE(_LogisticLink):
    """t-distributed STE: ``p ∝ (1 + δ/α)^(−(α+1)/2)``, heavy tails.

    Parameters
    ----------
    alpha : float, default=1
        Degrees of freedom; STE is the limit for large values. The name "tste" means
        ``max(1, d − 1)`` in d dimensions, as in the paper.
    """

    alpha: float = 1.0
    name: ClassVar[str] = "tste"

    def __post_init__(self) -> None:
        check_number(self, "alpha", self.alpha, above=0)

    def dissimilarity(self, squared: Floats) -> Floats:
        if self.alpha == 1.0:
            return np.log1p(squared)
        return np.asarray((self.alpha + 1.0) / 2.0 * np.log1p(squared / self.alpha))

    def dissimilarity_slope(self, squared: Floats) -> Floats:
        return np.asarray((self.alpha + 1.0) / 2.0 / (self.alpha + squared))


@dataclass(frozen=True)
class CKL(_LogisticLink):
    """Crowd kernel: ``p = (μ + δ_loser) / (2μ + δ_winner + δ_loser)``.

    Parameters
    ----------
    mu : float, default=0.05
        Bounds the probability away from 1 if winner and head are at one place.
    """

    mu: float = 0.05
    name: ClassVar[str] = "ckl"

    def __post_init__(self) -> None:
        check_number(self, "mu", self.mu, above=0)

    def dissimilarity(self, squared: Floats) -> Floats:
        return np.asarray(np.log(self.mu + squared))

    def dissimilarity_slope(self, squared: Floats) -> Floats:
        return np.asarray(1.0 / (self.mu + squared))


@dataclass(frozen=True)
class Logistic(_LogisticLink, _Distance):
    """Logistic link on distances: ``p ∝ exp(−√δ)``. (On squared distances it would be STE.)"""

    name: ClassVar[str] = "logistic"


@dataclass(frozen=True)
class GNMDS(_HingeLink, _SquaredDistance):
    """Generalized non-metric multidimensional scaling: hinge loss on squared distances."""

    name: ClassVar[str] = "gnmds"
    power: ClassVar[int] = 1


@dataclass(frozen=True)
class SOE(_HingeLink, _Distance):
    """Soft ordinal embedding: squared hinge loss on distances."""

    name: ClassVar[str] = "soe"
    power: ClassVar[int] = 2


_MODELS: dict[str, type[NoiseModel]] = {
    model.name: model for model in (STE, TSTE, CKL, GNMDS, SOE, Logistic)
}


def noise_model(noise: str | NoiseModel, n_components: int = 2) -> NoiseModel:
    """Return the noise model with this name, or the given noise model.

    Parameters
    ----------
    noise : str or NoiseModel
        "ckl", "gnmds", "logistic", "soe", "ste" or "tste" for the model with its default settings,
        or a model, which is returned unchanged.
    n_components : int, default=2
        Dimensions of the embedding: t-STE has ``α = max(1, d − 1)`` degrees of freedom by default
        (van der Maaten and Weinberger, 2012, section 4).

    Examples
    --------
    >>> noise_model("ckl")
    CKL(mu=0.05)
    >>> noise_model("tste", n_components=5)
    TSTE(alpha=4.0)
    >>> noise_model(TSTE(alpha=2.0))
    TSTE(alpha=2.0)
    """
    if isinstance(noise, NoiseModel):
        return noise
    if noise == TSTE.name:
        return TSTE(alpha=max(1.0, n_components - 1.0))
    if isinstance(noise, str) and noise in _MODELS:
        return _MODELS[noise]()
    names = ", ".join(map(repr, sorted(_MODELS)))
    allowed = f"{names} or a noise model such as TSTE(alpha=2)"
    raise parameter_error("OrdinalEmbedding", "noise", allowed, noise)
