"""Policies that watch the model: the better it gets, the larger its batches."""

from __future__ import annotations

from dataclasses import dataclass

from accelerando.batch_size._policy import (
    BatchSizePolicy,
    Damping,
    Measure,
    Signals,
    State,
    ceil,
    check_positive,
    check_rows,
    check_share,
    instead_of_growing,
)


def _grown(initial: int, first: float, now: float, signals: Signals) -> float:
    """Return ``initial * first / now``, and all rows where `now` has nothing more to say."""
    if now <= 0:
        return float(signals.n_examples or initial)
    return initial * first / now


def _as_before(initial: int, state: State) -> tuple[Damping, State]:
    return Damping(state.get("size", initial)), state


def _measured(initial: int, now: float, signals: Signals, state: State) -> tuple[Damping, State]:
    first = state.get("first", now)
    size = _grown(initial, first, now, signals)
    return Damping(size), {"first": first, "size": size}


@dataclass(frozen=True)
class AdaDamp(BatchSizePolicy):
    r"""Batch size inversely proportional to the training loss still to go.

    .. math:: B_k = \left\lceil B_0 \frac{F(w_0) - F^*}{F(w_k) - F^*} \right\rceil

    With it, SGD needs about as many model updates as gradient descent and about as many gradient
    computations as SGD (Theorems 2 and 3 of the dissertation). The price is the loss
    :math:`F(w_k)` on the training set; :class:`RadaDamp` estimates it for nothing.

    Parameters
    ----------
    initial : int
        Batch size :math:`B_0` of the first update.
    best_loss : float
        The least loss :math:`F^*` that training can reach; about 0 for most neural nets.
    dwell : int
        Updates between two measurements; 1 is the theorem's own.
    fraction : float
        Share of the training set on which the loss is measured; 1 is exact.

    References
    ----------
    S. Sievert, *Improving the convergence of SGD through adaptive batch sizes*, arXiv:1910.08222.

    Examples
    --------
    >>> from accelerando.batch_size import AdaDamp, replay
    >>> replay(AdaDamp(initial=8, dwell=1), losses=[4.0, 2.0, 1.0])
    [8, 8, 16, 32]
    """

    initial: int = 128
    best_loss: float = 0.0
    dwell: int = 20
    fraction: float = 1.0

    def __post_init__(self) -> None:
        check_rows(self, initial=self.initial, dwell=self.dwell)
        check_share(self, fraction=self.fraction)

    def measures(self, update: int) -> Measure | None:
        return Measure("loss", self.fraction) if update % self.dwell == 0 else None

    def decide(self, signals: Signals, state: State) -> tuple[Damping, State]:
        if signals.full_loss is None:
            return _as_before(self.initial, state)
        return _measured(self.initial, signals.full_loss - self.best_loss, signals, state)


@dataclass(frozen=True)
class GradDamp(BatchSizePolicy):
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
    >>> from accelerando.batch_size import GradDamp, replay
    >>> replay(GradDamp(initial=8, dwell=1), losses=[1.0] * 2, grad_norms=[2.0, 1.0])
    [8, 8, 32]
    """

    initial: int = 128
    dwell: int = 20
    fraction: float = 1.0

    def __post_init__(self) -> None:
        check_rows(self, initial=self.initial, dwell=self.dwell)
        check_share(self, fraction=self.fraction)

    def measures(self, update: int) -> Measure | None:
        return Measure("grad_norm", self.fraction) if update % self.dwell == 0 else None

    def decide(self, signals: Signals, state: State) -> tuple[Damping, State]:
        if signals.full_grad_norm is None:
            return _as_before(self.initial, state)
        return _measured(self.initial, signals.full_grad_norm**2, signals, state)


def _rolling(
    initial: int, memory: float, regularization: float, dwell: int, signals: Signals, state: State
) -> tuple[Damping, State]:
    """Lines 8 to 13 of Algorithm 1."""
    if signals.loss is None or signals.grad_norm is None:
        return Damping(initial), state
    here = signals.loss + regularization * signals.grad_norm**2
    rolling = memory * state["rolling"] + (1 - memory) * here if "rolling" in state else here
    first = state.get("first", rolling)
    size = state.get("size", initial)
    if signals.update % dwell == 0:
        size = ceil(_grown(initial, first, rolling, signals))
    return Damping(size), {"first": first, "rolling": rolling, "size": size}


@dataclass(frozen=True)
class RadaDamp(BatchSizePolicy):
    r"""AdaDamp for practice: a rolling average of what every update yields anyway.

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
        Weight :math:`\rho` of the past in the rolling average.
    regularization : float
        Weight :math:`\lambda` of the squared gradient norm beside the loss.
    dwell : int
        Updates between two changes of the batch size.

    References
    ----------
    Dissertation, section 3.1.4.2, Algorithm 1; S. Sievert, arXiv:1910.08222.

    Examples
    --------
    >>> from accelerando.batch_size import RadaDamp, replay
    >>> replay(RadaDamp(initial=64, memory=0.5), losses=[2.0, 1.0, 1.0, 1.0])
    [64, 64, 86, 103, 114]
    """

    initial: int = 128
    memory: float = 0.999
    regularization: float = 1e-3
    dwell: int = 1

    def __post_init__(self) -> None:
        check_rows(self, initial=self.initial, dwell=self.dwell)
        if not 0 <= self.memory < 1:
            raise ValueError(
                f"The 'memory' parameter of {type(self).__name__} must lie in [0, 1): 0 forgets "
                f"everything, values near 1 average over 1 / (1 - memory) updates. Got "
                f"{self.memory!r} instead."
            )
        if self.regularization != 0:
            check_positive(self, regularization=self.regularization)

    def decide(self, signals: Signals, state: State) -> tuple[Damping, State]:
        settings = (self.initial, self.memory, self.regularization, self.dwell)
        return _rolling(*settings, signals, state)


@dataclass(frozen=True)
class RadaDampLR(BatchSizePolicy):
    """The twin of :class:`RadaDamp` that keeps the batch and lowers the learning rate.

    It is Algorithm 1 with a maximum batch size of `initial`: where RadaDamp grows the batch by a
    factor, the learning rate falls by that factor.

    Parameters
    ----------
    initial, memory, regularization, dwell
        As for :class:`RadaDamp`.

    Examples
    --------
    >>> from accelerando.batch_size import RadaDampLR, replay
    >>> replay(RadaDampLR(initial=64, memory=0.5), losses=[2.0, 1.0, 1.0, 1.0])
    [64, 64, 64, 64, 64]
    """

    initial: int = 128
    memory: float = 0.999
    regularization: float = 1e-3
    dwell: int = 1

    def __post_init__(self) -> None:
        # The twin checks the settings they share.
        RadaDamp(self.initial, self.memory, self.regularization, self.dwell)

    def decide(self, signals: Signals, state: State) -> tuple[Damping, State]:
        settings = (self.initial, self.memory, self.regularization, self.dwell)
        grown, state = _rolling(*settings, signals, state)
        return instead_of_growing(self.initial, grown), state
