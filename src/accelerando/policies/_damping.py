"""Damping policies: the batch size grows as the model improves.

They follow the training loss or the gradient norm, measured on the training set (:class:`AdaDamp`,
:class:`GradDamp`) or estimated from the batches (:class:`RadaDamp`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from accelerando._decisions import Decision, Measure, Policy, Signals, State, ceil
from accelerando._validation import check_integer, check_number


def _grown(initial: int, first: float, now: float, signals: Signals) -> float:
    """Return ``initial * first / now``, or all rows if `now` is not positive."""
    if now <= 0:
        n_examples = signals["n_examples"]
        return float(n_examples if n_examples > 0 else initial)
    return initial * first / now


def _follow(
    initial: int, now: float, signals: Signals, state: State
) -> tuple[Decision | None, State]:
    """Decide from a measurement, or keep the size if there is none in this update."""
    if math.isnan(now):
        return Decision(state.get("size", initial)), state
    first = _first(state, now)
    size = _grown(initial, first, now, signals)
    return Decision(size), {"first": first, "size": size}


def _first(state: State, now: float) -> float:
    """Return the first positive distance; one that is not is below what was said to be best."""
    first: float = state.get("first", now)
    return first if first > 0 else now


@dataclass(frozen=True)
class AdaDamp(Policy):
    r"""Batch size inversely proportional to the distance of the training loss from its minimum.

    .. math:: B_k = \left\lceil B_0 \frac{F(w_0) - F^*}{F(w_k) - F^*} \right\rceil

    With it, SGD needs about as many model updates as gradient descent and about as many gradient
    computations as SGD (Theorems 2 and 3 of the dissertation). The price is the loss
    :math:`F(w_k)` on the training set; :class:`RadaDamp` estimates it at no cost.

    Parameters
    ----------
    initial : int
        Batch size :math:`B_0` of the first update.
    best_loss : float
        The smallest loss :math:`F^*` that training can reach; about 0 for most neural nets.
    dwell : int
        Updates between two measurements; 1 is the choice of the theorem.
    fraction : float
        Share of the training set on which the loss is measured; 1 is exact.

    References
    ----------
    S. Sievert, *Improving the convergence of SGD through adaptive batch sizes*, arXiv:1910.08222.

    Examples
    --------
    >>> from accelerando.policies import AdaDamp, replay
    >>> replay(AdaDamp(initial=8, dwell=1), {"loss": [4.0, 2.0, 1.0]})["batch_size"].tolist()
    [8, 8, 16, 32]
    """

    initial: int = 128
    best_loss: float = 0.0
    dwell: int = 20
    fraction: float = 1.0

    def __post_init__(self) -> None:
        _check_measured(self, self.initial, self.dwell, self.fraction)
        check_number(self, "best_loss", self.best_loss)

    def measures(self, update: int) -> Measure | None:
        return Measure("loss", self.fraction) if update % self.dwell == 0 else None

    def decide(self, signals: Signals, state: State) -> tuple[Decision | None, State]:
        due = signals["update"] % self.dwell == 0  # another policy may measure more often
        now = signals["full_loss"] - self.best_loss if due else math.nan
        return _follow(self.initial, now, signals, state)


@dataclass(frozen=True)
class GradDamp(Policy):
    r"""Batch size inversely proportional to the squared gradient norm.

    .. math:: B_k = \left\lceil B_0 \frac{\|\nabla F(w_0)\|^2}{\|\nabla F(w_k)\|^2} \right\rceil

    The choice of Theorem 5 for smooth functions that need not be convex. On a `fraction` of the
    data the norm is biased upwards by the noise of the sample, so the batch grows more slowly.

    Parameters
    ----------
    initial : int
        Batch size :math:`B_0` of the first update.
    dwell : int
        Updates between two measurements.
    fraction : float
        Share of the training set on which the gradient is measured; 1 is exact.

    References
    ----------
    Dissertation, Theorem 5 and equation (3.4); S. Sievert, arXiv:1910.08222.

    Examples
    --------
    >>> from accelerando.policies import GradDamp, replay
    >>> frame = replay(GradDamp(initial=8, dwell=1), {"loss": [1.0, 1.0], "grad_norm": [2.0, 1.0]})
    >>> frame["batch_size"].tolist()
    [8, 8, 32]
    """

    initial: int = 128
    dwell: int = 20
    fraction: float = 1.0

    def __post_init__(self) -> None:
        _check_measured(self, self.initial, self.dwell, self.fraction)

    def measures(self, update: int) -> Measure | None:
        return Measure("grad_norm", self.fraction) if update % self.dwell == 0 else None

    def decide(self, signals: Signals, state: State) -> tuple[Decision | None, State]:
        due = signals["update"] % self.dwell == 0
        now = signals["full_grad_norm"] ** 2 if due else math.nan
        return _follow(self.initial, now, signals, state)


def _check_measured(policy: Policy, initial: int, dwell: int, fraction: float) -> None:
    check_integer(policy, "initial", initial)
    check_integer(policy, "dwell", dwell)
    check_number(policy, "fraction", fraction, above=0, maximum=1)


def _rolling(policy: RadaDamp | RadaDampLR, signals: Signals, state: State) -> tuple[float, State]:
    """Return the batch size of lines 8 to 13 of Algorithm 1, and the rolling average."""
    loss, norm = signals["loss"], signals["grad_norm"]
    if math.isnan(loss) or math.isnan(norm):
        return policy.initial, state
    memory, now = policy.memory, loss + policy.regularization * norm**2
    rolling = memory * state["rolling"] + (1 - memory) * now if "rolling" in state else now
    first = _first(state, rolling)
    size = state.get("size", policy.initial)
    if signals["update"] % policy.dwell == 0:
        size = max(1, ceil(_grown(policy.initial, first, rolling, signals)))
    return size, {"first": first, "rolling": rolling, "size": size}


@dataclass(frozen=True)
class RadaDamp(Policy):
    r"""AdaDamp with a rolling average of the numbers that every update yields.

    Algorithm 1 of the dissertation. With the loss :math:`\hat L_k` of batch :math:`k`,

    .. math::

        t_k &= \hat L_k + \lambda \|\nabla \hat L_k\|^2 \\
        \hat d_0 &= t_0, \quad \hat d_k = \rho \hat d_{k-1} + (1 - \rho) t_k \\
        B_{k+1} &= \lceil B_0 \hat d_0 / \hat d_k \rceil

    Past ``max_batch_size`` the learning rate becomes :math:`\gamma B_{\max} / B_k`.

    Parameters
    ----------
    initial : int
        Batch size :math:`B_0` of the first update.
    memory : float
        Weight :math:`\rho` of the past in the rolling average: 0 forgets everything, values near 1
        average over 1 / (1 - memory) updates.
    regularization : float
        Weight :math:`\lambda` of the squared gradient norm, which is added to the loss.
    dwell : int
        Updates between two changes of the batch size.

    References
    ----------
    Dissertation, section 3.1.4.2, Algorithm 1; S. Sievert, arXiv:1910.08222.

    Examples
    --------
    >>> from accelerando.policies import RadaDamp, replay
    >>> frame = replay(RadaDamp(initial=64, memory=0.5), {"loss": [2.0, 1.0, 1.0, 1.0]})
    >>> frame["batch_size"].tolist()
    [64, 64, 86, 103, 114]
    """

    initial: int = 128
    memory: float = 0.999
    regularization: float = 1e-3
    dwell: int = 1

    def __post_init__(self) -> None:
        check_integer(self, "initial", self.initial)
        check_number(self, "memory", self.memory, minimum=0, below=1)
        check_number(self, "regularization", self.regularization, minimum=0)
        check_integer(self, "dwell", self.dwell)

    def decide(self, signals: Signals, state: State) -> tuple[Decision | None, State]:
        size, state = _rolling(self, signals, state)
        return Decision(size), state


@dataclass(frozen=True)
class RadaDampLR(Policy):
    """The counterpart of :class:`RadaDamp` that keeps the batch and lowers the learning rate.

    It is Algorithm 1 with a maximum batch size of `initial`: where RadaDamp grows the batch by a
    factor, the learning rate falls by that factor.

    Parameters
    ----------
    initial, memory, regularization, dwell
        As for :class:`RadaDamp`.

    Examples
    --------
    >>> from accelerando.policies import RadaDampLR, replay
    >>> frame = replay(RadaDampLR(initial=64, memory=0.5), {"loss": [2.0, 1.0, 1.0]})
    >>> frame["batch_size"].tolist(), frame["lr"].round(2).tolist()
    ([64, 64, 64, 64], [1.0, 1.0, 0.74, 0.62])
    """

    initial: int = 128
    memory: float = 0.999
    regularization: float = 1e-3
    dwell: int = 1

    def __post_init__(self) -> None:
        RadaDamp(self.initial, self.memory, self.regularization, self.dwell)  # checks the settings

    def decide(self, signals: Signals, state: State) -> tuple[Decision | None, State]:
        size, state = _rolling(self, signals, state)
        return instead_of_growing(self.initial, size), state


def instead_of_growing(initial: int, size: float) -> Decision:
    """Return a decision that lowers the learning rate by the factor by which the batch outgrew.

    >>> instead_of_growing(64, 256)
    Decision(batch_size=64, lr_scale=0.25)
    """
    rows = max(1, ceil(size))  # the quotient of a loss that explodes is below one row
    if rows <= initial:
        return Decision(size, lr_scale=1.0)
    return Decision(initial, lr_scale=initial / rows)
