"""Learning-rate policies: scale with the batch, warm up, and decay on a plateau.

They multiply the present rate instead of setting it, so that they work together with each other and
with the schedulers of PyTorch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from accelerando._decisions import Decision, Policy, Signals, State
from accelerando._validation import check_number
from accelerando.monitor import GradientNoiseScale, LossTrend, Monitor

_FIRST = {None: "None (the size of the first update)"}


def _scaled(factor: float, signals: Signals, state: State) -> tuple[Decision | None, State]:
    """Return a decision that changes this policy's factor in the learning rate."""
    before = state.get("factor", 1.0)
    if factor == before:
        return None, state
    return Decision(lr=signals["lr"] * factor / before), {**state, "factor": factor}


@dataclass(frozen=True)
class _Scaling(Policy):
    """A learning rate that follows the batch, from the one that was chosen for some batch size."""

    reference: float | None = None

    def __post_init__(self) -> None:
        check_number(self, "reference", self.reference, above=0, also=_FIRST)

    def _reference(self, signals: Signals, state: State) -> tuple[float, State]:
        """Return the batch size for which the learning rate was chosen."""
        if self.reference is not None:
            return self.reference, state
        state = {**state, "reference": state.get("reference", signals["wanted_batch_size"])}
        return state["reference"], state


@dataclass(frozen=True)
class LinearScaling(_Scaling):
    r"""The learning rate grows with the batch, :math:`\gamma B / B_0`.

    Parameters
    ----------
    reference : float or None
        The batch size :math:`B_0` for which ``lr`` was chosen; that of the first update if None.

    References
    ----------
    P. Goyal et al., *Accurate, large minibatch SGD*, arXiv:1706.02677.

    Examples
    --------
    >>> from accelerando.policies import LinearScaling, Signals
    >>> LinearScaling(reference=64)(Signals({"wanted_batch_size": 256, "lr": 0.1})).lr
    0.4
    """

    def decide(self, signals: Signals, state: State) -> tuple[Decision | None, State]:
        reference, state = self._reference(signals, state)
        return _scaled(signals["wanted_batch_size"] / reference, signals, state)


@dataclass(frozen=True)
class SqrtScaling(_Scaling):
    r"""The learning rate grows with the root of the batch, :math:`\gamma \sqrt{B / B_0}`.

    The rule for Adam and its relatives.

    Parameters
    ----------
    reference : float or None
        The batch size :math:`B_0` for which ``lr`` was chosen; that of the first update if None.

    References
    ----------
    A. Krizhevsky, *One weird trick for parallelizing convolutional neural networks*,
    arXiv:1404.5997.

    Examples
    --------
    >>> from accelerando.policies import Signals, SqrtScaling
    >>> SqrtScaling(reference=64)(Signals({"wanted_batch_size": 256, "lr": 0.1})).lr
    0.2
    """

    def decide(self, signals: Signals, state: State) -> tuple[Decision | None, State]:
        reference, state = self._reference(signals, state)
        return _scaled(math.sqrt(signals["wanted_batch_size"] / reference), signals, state)


@dataclass(frozen=True)
class ConstantHalfLife(_Scaling):
    r"""Adam's second beta follows the batch, so that its half-life in examples stays.

    .. math:: \beta_2' = \beta_2^{B / B_0}

    The average of squared gradients then covers as many examples at any batch size. Use it together
    with :class:`SqrtScaling` or :class:`LinearScaling`, which change the learning rate.

    Parameters
    ----------
    reference : float or None
        The batch size :math:`B_0` for which :math:`\beta_2` was chosen; that of the first update if
        None.

    References
    ----------
    M. Marek et al., *Small batch size training for language models*, arXiv:2507.07101.

    Examples
    --------
    >>> from accelerando.policies import ConstantHalfLife, Signals
    >>> signals = Signals.known(update=1, wanted_batch_size=1, momentum=0.9, beta2=0.95)
    >>> [round(beta, 4) for beta in ConstantHalfLife(reference=512)(signals).betas]
    [0.9, 0.9999]
    """

    def decide(self, signals: Signals, state: State) -> tuple[Decision | None, State]:
        reference, state = self._reference(signals, state)
        size, beta2 = signals["wanted_batch_size"], signals["beta2"]
        if size == state.get("size"):
            return None, state
        # Also in the first update, so that an optimizer without betas is refused there. In a
        # replay they are not known: Adam's defaults.
        chosen = state.get("beta2", 0.999 if math.isnan(beta2) else beta2)
        beta1 = 0.9 if math.isnan(signals["momentum"]) else signals["momentum"]
        after = {**state, "size": size, "beta2": chosen}
        return Decision(betas=(beta1, chosen ** (size / reference))), after


@dataclass(frozen=True)
class AdaScale(_Scaling):
    r"""The learning rate grows with the gain of the larger batch, at most by the batch's ratio.

    .. math::

        r = \frac{B_\text{noise} / B_0 + 1}{B_\text{noise} / B + 1}, \qquad 1 \le r \le B / B_0

    With noisy gradients that is the linear rule; without noise the rate stays as it is.

    Parameters
    ----------
    reference : float or None
        The batch size :math:`B_0` for which ``lr`` was chosen; that of the first update if None.
    dwell : int
        Updates between two changes while the batch stays.

    References
    ----------
    T. Johnson et al., *AdaScale SGD: a user-friendly algorithm for distributed training*,
    arXiv:2007.05105.

    Examples
    --------
    >>> from accelerando.policies import AdaScale, Signals
    >>> signals = Signals.known(update=9, wanted_batch_size=256, lr=0.1, noise_scale=64.0)
    >>> round(AdaScale(reference=64)(signals).lr, 6)
    0.16
    """

    dwell: int = 20

    needs: ClassVar[tuple[str, ...]] = ("noise_scale",)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self, "dwell", self.dwell, above=0)

    def monitors(self) -> tuple[Monitor, ...]:
        return (GradientNoiseScale(),)

    def decide(self, signals: Signals, state: State) -> tuple[Decision | None, State]:
        reference, state = self._reference(signals, state)
        size, noise = signals["wanted_batch_size"], signals["noise_scale"]
        rests = signals["update"] - state.get("last", -math.inf) < self.dwell
        if math.isnan(noise) or (rests and size == state.get("size")):
            return None, state
        state = {**state, "last": int(signals["update"]), "size": size}
        return _scaled((noise / reference + 1) / (noise / size + 1), signals, state)


@dataclass(frozen=True)
class GradualWarmup(Policy):
    r"""The learning rate rises linearly from a share of itself over the first epochs.

    Parameters
    ----------
    epochs : float
        Number of epochs in which it rises.
    start_share : float
        The share it begins with; :math:`1/k` for a rate that was multiplied by :math:`k`.
    updates : int or None
        Number of updates in which it rises, instead of epochs; for streams of unknown length.

    References
    ----------
    P. Goyal et al., *Accurate, large minibatch SGD*, arXiv:1706.02677, section 2.2.

    Examples
    --------
    >>> from accelerando.policies import GradualWarmup, replay
    >>> run = {"loss": [1.0] * 4, "lr": [1.0] * 4, "batch_size": [8] * 4}
    >>> replay(GradualWarmup(updates=4, start_share=0.2), run)["lr"].round(2).tolist()
    [0.2, 0.4, 0.6, 0.8, 1.0]
    """

    epochs: float = 5.0
    start_share: float = 0.1
    updates: int | None = None

    def __post_init__(self) -> None:
        check_number(self, "epochs", self.epochs, above=0)
        check_number(self, "start_share", self.start_share, above=0, maximum=1)
        check_number(self, "updates", self.updates, above=0, also={None: "None (count epochs)"})

    def decide(self, signals: Signals, state: State) -> tuple[Decision | None, State]:
        if self.updates is not None:
            done = signals["update"] / self.updates
        elif math.isnan(signals["n_examples"]):
            done = signals["epoch"] / self.epochs  # a stream has no known length in its first epoch
        else:
            done = signals["examples"] / (signals["n_examples"] * self.epochs)
        share = self.start_share + (1.0 - self.start_share) * min(1.0, done)
        return _scaled(share, signals, state)


@dataclass(frozen=True)
class PlateauPolicy(Policy):
    """Grow the batch or lower the learning rate when the loss has stopped falling.

    Parameters
    ----------
    signal : str
        The signal that should fall.
    patience : int
        Updates without progress before a decision, and between two decisions.
    progress : float
        Share by which the signal must fall to count as progress.
    grow : float
        Factor on the batch size.
    decay : float
        Factor on the learning rate.

    Examples
    --------
    >>> from accelerando.policies import PlateauPolicy, Signals
    >>> policy = PlateauPolicy(signal="loss", patience=2, grow=2.0)
    >>> state, sizes = policy.start(), []
    >>> for update, loss in enumerate([1.0, 0.5, 0.6, 0.7, 0.4]):
    ...     signals = Signals.known(update=update, loss=loss, wanted_batch_size=32, lr=0.1)
    ...     decision, state = policy.decide(signals, state)
    ...     sizes.append(decision and decision.batch_size)
    >>> sizes
    [None, None, None, 64.0, None]
    """

    signal: str = "loss_average"
    patience: int = 200
    progress: float = 0.01
    grow: float = 2.0
    decay: float = 1.0

    def __post_init__(self) -> None:
        check_number(self, "patience", self.patience, above=0)
        check_number(self, "progress", self.progress, minimum=0, maximum=1)
        check_number(self, "grow", self.grow, above=0)
        check_number(self, "decay", self.decay, above=0, maximum=1)

    @property
    def needs(self) -> tuple[str, ...]:  # type: ignore[override]
        """The signal that should fall."""
        return (self.signal,)

    def monitors(self) -> tuple[Monitor, ...]:
        return (LossTrend(),) if self.signal in LossTrend.signals else ()

    def decide(self, signals: Signals, state: State) -> tuple[Decision | None, State]:
        now, update = signals[self.signal], int(signals["update"])
        if math.isnan(now):
            return None, state
        best = state.get("best", math.inf)
        # The share of the distance, whichever sign the signal has.
        if now < best - self.progress * abs(best) or math.isinf(best):
            return None, {"best": now, "since": update}
        if update - state["since"] < self.patience:
            return None, state
        decision = Decision(
            batch_size=signals["wanted_batch_size"] * self.grow if self.grow != 1.0 else None,
            lr=signals["lr"] * self.decay if self.decay != 1.0 else None,
        )
        return decision, {"best": min(best, now), "since": update}
