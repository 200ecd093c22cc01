"""Growth policies of 2024 to 2026: Seesaw, late switching, and branched measurement."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from accelerando._decisions import Decision, Measure, Policy, Signals, State
from accelerando._validation import check, check_choice, check_integer, check_number
from accelerando.monitor import Monitor

_NO_BOUND = {None: "None (no bound)"}


def _done(signals: Signals, epochs: float) -> float:
    """Return the share of the training that is done, counted in examples."""
    if math.isnan(signals["n_examples"]):  # a stream has no known length in its first epoch
        return signals["epoch"] / epochs
    examples = signals["examples"]
    return 0.0 if math.isnan(examples) else examples / (signals["n_examples"] * epochs)


@dataclass(frozen=True)
class Seesaw(Policy):
    r"""Grow the batch where a schedule would lower the learning rate, and lower it by the root.

    Whenever the schedule has fallen by another factor `cut` :math:`= a`, the learning rate is
    divided by :math:`\sqrt a` and the batch multiplied by :math:`a`. After :math:`n` cuts,

    .. math:: \gamma_n = \gamma_0 \, a^{-n/2}, \qquad B_n = B_0 \, a^n

    For normalized gradients, as Adam's, that has the loss of the schedule at equal examples. The
    cosine :math:`\cos(\pi t / 2)` then needs :math:`2 / \pi` of the updates, 36 % fewer.

    Parameters
    ----------
    initial : int
        Batch size :math:`B_0` of the first updates.
    epochs : float
        The length of the schedule.
    schedule : {"cosine", "half-cosine", "linear"}
        :math:`\cos(\pi t / 2)`, :math:`(1 + \cos \pi t) / 2` or :math:`1 - t` at the share
        :math:`t` of the examples.
    cut : float
        The factor :math:`a`. Near 1 the batch follows the schedule smoothly.
    largest : int or None
        Bound of the batch. Past it the learning rate falls as the schedule does.

    References
    ----------
    A. Meterez et al., *Seesaw: accelerating training by balancing learning rate and batch size
    scheduling*, arXiv:2510.14717.

    Examples
    --------
    >>> from accelerando.policies import Seesaw, Signals
    >>> seesaw = Seesaw(initial=64, epochs=10, schedule="linear")
    >>> seesaw(Signals.known(epoch=7, examples=7600, n_examples=1000))
    Decision(batch_size=256.0, lr_scale=0.5)
    """

    scheduled: ClassVar[bool] = True

    initial: int = 128
    epochs: float = 10
    schedule: str = "cosine"
    cut: float = 2.0
    largest: int | None = None

    def __post_init__(self) -> None:
        check_integer(self, "initial", self.initial)
        check_number(self, "epochs", self.epochs, above=0)
        check_choice(self, "schedule", self.schedule, ("cosine", "half-cosine", "linear"))
        check_number(self, "cut", self.cut, above=1)
        check_number(self, "largest", self.largest, minimum=self.initial, also=_NO_BOUND)

    def decide(self, signals: Signals, state: State) -> tuple[Decision | None, State]:
        share = max(1e-4, self._share(min(1.0, _done(signals, self.epochs))))
        cuts = math.floor(math.log(1.0 / share) / math.log(self.cut) + 1e-9)
        size, lr_scale = self.initial * self.cut**cuts, self.cut ** (-0.5 * cuts)
        if self.largest is not None and size > self.largest:
            size, within = float(self.largest), self.largest / self.initial
            lr_scale = within**0.5 * self.cut**-cuts
        return Decision(size, lr_scale=lr_scale), state

    def _share(self, done: float) -> float:
        """Return the learning rate of the schedule, as a share of the first one."""
        if self.schedule == "linear":
            return 1.0 - done
        if self.schedule == "cosine":
            return math.cos(0.5 * math.pi * done)
        return 0.5 * (1.0 + math.cos(math.pi * done))


@dataclass(frozen=True)
class LateSwitch(Policy):
    """Train with a small batch for most of the run, and with a large one at the end.

    A large batch removes the noise that a small one has left, and it does so within few updates
    (fast catch-up). So for hard tasks the examples are better spent on small batches until late in
    training. For easy tasks, where the loss falls fast, a batch that grows all the time is better.

    Parameters
    ----------
    initial, final : int
        Batch sizes before and after the switch.
    epochs : float
        The length of the training.
    share : float
        The share of the training's examples before the switch.

    References
    ----------
    J. Wang et al., *Fast catch-up, late switching: optimal batch size scheduling via functional
    scaling laws*, arXiv:2602.14208.

    Examples
    --------
    >>> from accelerando.policies import LateSwitch, Signals
    >>> late = LateSwitch(initial=64, final=1024, epochs=10, share=0.8)
    >>> [late(Signals.known(epoch=7, examples=k, n_examples=1000)).batch_size for k in (7999, 8000)]
    [64, 1024]
    """

    scheduled: ClassVar[bool] = True

    initial: int = 128
    final: int = 1024
    epochs: float = 10
    share: float = 0.8

    def __post_init__(self) -> None:
        check_integer(self, "initial", self.initial)
        check_integer(self, "final", self.final)
        check_number(self, "epochs", self.epochs, above=0)
        check_number(self, "share", self.share, above=0, below=1)

    def decide(self, signals: Signals, state: State) -> tuple[Decision | None, State]:
        late = _done(signals, self.epochs) >= self.share - 1e-12
        return Decision(self.final if late else self.initial), state


@dataclass(frozen=True)
class CriticalBatchSize(Policy):
    r"""Batch warm-up by branched measurement: grow the batch when a fork of the run does not lose.

    Every few updates two short forks of the run see the same number of examples: one with the
    present batch :math:`B`, one with :math:`k B` and the learning rate :math:`k^p \gamma`. If the
    second one's loss :math:`L'` on some training rows is not larger than the first one's :math:`L`
    by more than a tolerance,

    .. math:: L' \le (1 + \epsilon) L,

    the run continues with :math:`k B` and :math:`k^p \gamma`. Nothing of a fork remains:
    parameters, optimizers, buffers and random numbers are put back. The forks cost `fraction` of
    the training set twice per measurement.

    Parameters
    ----------
    initial : int
        Batch size of the first updates.
    every : int
        Updates between two measurements.
    growth : float
        The factor :math:`k`.
    power : float
        The exponent :math:`p`: 0.5 for Adam, 1 for SGD.
    tolerance : float
        The relative loss :math:`\epsilon` that does not count.
    fraction : float
        Share of the training set that a fork sees.
    largest : int or None
        Bound of the batch.

    References
    ----------
    W. Merrill et al., *Critical batch size revisited*, arXiv:2505.23971.

    Examples
    --------
    >>> from accelerando.policies import CriticalBatchSize, Signals
    >>> policy, state = CriticalBatchSize(initial=32, every=100), {}
    >>> signals = Signals.known(update=100, full_branch_gap=0.002)
    >>> decision, state = policy.decide(signals, state)
    >>> decision.batch_size, round(decision.lr_scale, 3)
    (64.0, 1.414)
    """

    initial: int = 128
    every: int = 200
    growth: float = 2.0
    power: float = 0.5
    tolerance: float = 0.01
    fraction: float = 0.05
    largest: int | None = None

    def __post_init__(self) -> None:
        check_integer(self, "initial", self.initial)
        check_integer(self, "every", self.every)
        check_number(self, "growth", self.growth, above=1)
        check_number(self, "power", self.power, minimum=0, maximum=1)
        check_number(self, "tolerance", self.tolerance, minimum=0)
        check_number(self, "fraction", self.fraction, above=0, maximum=1)
        check_number(self, "largest", self.largest, minimum=self.initial, also=_NO_BOUND)

    def measures(self, update: int) -> Measure | None:
        if update == 0 or update % self.every:
            return None
        return Measure("branch_gap", self.fraction, self.growth, self.power)

    def decide(self, signals: Signals, state: State) -> tuple[Decision | None, State]:
        size, scale = state.get("size", float(self.initial)), state.get("scale", 1.0)
        due = signals["update"] > 0 and signals["update"] % self.every == 0
        if due and signals["full_branch_gap"] <= self.tolerance:
            grown = size * self.growth
            if self.largest is None or grown <= self.largest:
                size, scale = grown, scale * self.growth**self.power
        return Decision(size, lr_scale=scale), {"size": size, "scale": scale}


@dataclass(frozen=True)
class WithWarmup(Policy):
    r"""Another policy, with a learning rate that rises linearly over the first updates.

    The factor of update :math:`k` is :math:`s + (1 - s) \min(1, k / K)`, on top of the factor that
    the policy decides.

    Parameters
    ----------
    policy : policy, function or integer
        What decides the batch size.
    updates : int
        The number of updates :math:`K` in which the learning rate rises.
    start_share : float
        The share :math:`s` it begins with.

    References
    ----------
    P. Goyal et al., *Accurate, large minibatch SGD*, arXiv:1706.02677, section 2.2.

    Examples
    --------
    >>> from accelerando.policies import GeoDamp, WithWarmup, replay
    >>> policy = WithWarmup(GeoDamp(initial=8, delay=2), updates=2, start_share=0.5)
    >>> frame = replay(policy, {"loss": [1.0] * 3})
    >>> frame["batch_size"].tolist(), frame["lr"].tolist()
    ([8, 8, 16, 16], [0.5, 0.75, 1.0, 1.0])
    """

    policy: Any = 128
    updates: int = 100
    start_share: float = 0.1

    def __post_init__(self) -> None:
        good = isinstance(self._inside, Policy)
        check(good, self, "policy", "a policy, a function or an integer", self.policy)
        check_integer(self, "updates", self.updates)
        check_number(self, "start_share", self.start_share, above=0, maximum=1)

    @property
    def _inside(self) -> Policy:
        from accelerando.policies._core import as_policy, from_short_form

        if isinstance(self.policy, Policy):  # which can be called, as a function can
            return self.policy
        return from_short_form(self.policy) or as_policy(self.policy)

    @property
    def initial(self) -> int:
        """The batch size of the first updates, if the policy inside has one."""
        inside: Any = self._inside
        found: int = inside.size if hasattr(inside, "size") else inside.initial
        return found

    @property
    def needs(self) -> tuple[str, ...]:  # type: ignore[override]
        """The signals that the policy inside needs."""
        return self._inside.needs

    @property
    def scheduled(self) -> bool:  # type: ignore[override]
        """Whether the decisions of the policy inside are known ahead."""
        return self._inside.scheduled

    @property
    def occasional(self) -> bool:  # type: ignore[override]
        """Whether the policy inside decides now and then only."""
        return self._inside.occasional

    def monitors(self) -> tuple[Monitor, ...]:
        return self._inside.monitors()

    def measures(self, update: int) -> Measure | None:
        return self._inside.measures(update)

    def start(self) -> State:
        return {"inside": dict(self._inside.start()), "warm": 0}

    def decide(self, signals: Signals, state: State) -> tuple[Decision | None, State]:
        from accelerando.policies._core import as_decision

        inside = self._inside
        given, memory = inside.decide(signals, state["inside"])
        decision = as_decision(given, inside)
        after = {"inside": dict(memory), "warm": int(signals["update"] >= self.updates)}
        if state["warm"]:
            return decision, after
        share = min(1.0, signals["update"] / self.updates)
        factor = self.start_share + (1.0 - self.start_share) * share
        decided = decision or Decision()
        own = 1.0 if decided.lr_scale is None else decided.lr_scale
        return decided._replace(lr_scale=own * factor), after
