"""Periodic averaging: the period is constant, or shrinks as the loss falls."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from accelerando._decisions import Signals, State
from accelerando._validation import check, check_integer, check_number, is_integer
from accelerando._warmup import in_warmup
from accelerando.sync._strategy import Average, Averaging, Rule, check_optimizer_state


@dataclass(frozen=True)
class PeriodicAveraging(Averaging):
    """Average the parameters after every `period` updates (CPSGD).

    Parameters
    ----------
    period : int or mapping of int to int
        Updates between two averagings, or a schedule: ``{0: 2, 10: 8}`` averages every 2 updates
        and, from epoch 10 on, every 8.
    optimizer_state : "keep", "average" or "reset"
        What happens to momentum (and Adam's moments) at an averaging: every rank keeps its own;
        they are averaged as well, which sends as many bytes again for each moment; or they restart
        from zero. The paper trains with momentum and does not say which.
    warmup_epochs : float
        Epochs in which ranks average after every update, because replicas diverge most at the
        beginning; 0.5 is half of the first epoch.

    Notes
    -----
    Ranks average after updates p, 2p, 3p, ..., which is where V_t of the paper restarts.

    With a period of 1 and SGD, with or without momentum, the parameters are those of
    :class:`AllReduce` up to rounding, because everything is linear in the gradients.

    References
    ----------
    P. Jiang, G. Agrawal, *Adaptive periodic averaging*, arXiv:2007.06134, Algorithm 1.

    Examples
    --------
    >>> from accelerando.policies import replay
    >>> from accelerando.sync import PeriodicAveraging
    >>> frame = replay(PeriodicAveraging(3), {"spread": [0.1] * 7})
    >>> frame["update"][frame["averaged"]].tolist()
    [3, 6]
    """

    period: int | Mapping[int, int]
    optimizer_state: str = "keep"
    warmup_epochs: float = 0

    def __post_init__(self) -> None:
        if isinstance(self.period, Mapping):
            epochs = list(self.period)
            check(
                all(is_integer(epoch, 0) for epoch in epochs)
                and all(is_integer(period, 1) for period in self.period.values())
                and 0 in epochs,
                self,
                "period",
                "an integer of at least 1, or a dictionary from epochs, 0 among them, to such "
                "integers",
                self.period,
            )
        else:
            check_integer(self, "period", self.period)
        check_optimizer_state(self, self.optimizer_state)
        check_number(self, "warmup_epochs", self.warmup_epochs, minimum=0)

    def __repr__(self) -> str:
        # Saved states contain this text: without a warm-up it is that of earlier versions.
        warmup = f", warmup_epochs={self.warmup_epochs!r}" if self.warmup_epochs else ""
        settings = f"period={self.period!r}, optimizer_state={self.optimizer_state!r}{warmup}"
        return f"{type(self).__name__}({settings})"

    def next_period(self, signals: Signals, state: State) -> int:
        if self.warmup_epochs and in_warmup(signals, self.warmup_epochs):
            return 1
        if not isinstance(self.period, Mapping):
            return self.period
        return self.period[max(epoch for epoch in self.period if epoch <= signals.epoch)]

    def rule(self, ranks: int) -> Rule:
        return Average(self.optimizer_state)


@dataclass(frozen=True)
class DecreasingAveraging(Averaging):
    r"""A long period at first, and a shorter one as the loss falls (Wang and Joshi's AdaComm).

    After every `every_epochs` epochs, with the mean loss :math:`F_l` of those just done and the
    loss :math:`F_0` of the first update,

    .. math:: p_l = \bigl\lceil \sqrt{F_l / F_0}\; p_0 \bigr\rceil,

    and :math:`\lceil p_{l-1} / 2 \rceil` if that is not below :math:`p_{l-1}`.

    Parameters
    ----------
    initial_period : int
        :math:`p_0`.
    every_epochs : int
        Epochs between two changes. Wang and Joshi count seconds, which would make the result
        depend on the machine.
    optimizer_state : "keep", "average" or "reset"
        As for :class:`PeriodicAveraging`.

    Notes
    -----
    It is a baseline: Jiang and Agrawal show in their section V-B that the opposite,
    :class:`AdaptiveAveraging`, is right, because replicas diverge most at the beginning.

    References
    ----------
    J. Wang, G. Joshi, *Adaptive communication strategies to achieve the best error-runtime
    trade-off in local-update SGD*, arXiv:1810.08313, section 4.

    Examples
    --------
    >>> from accelerando.policies import replay
    >>> from accelerando.sync import DecreasingAveraging
    >>> run = {"loss": [4.0, 1.0, 1.0], "spread": [0.1] * 3}
    >>> frame = replay(DecreasingAveraging(8, every_epochs=1), run, updates_per_epoch=1)
    >>> frame["period"].astype(int).tolist()  # halved, because √(F / 4) of 8 is not shorter
    [8, 4, 2, 1]
    """

    initial_period: int = 16
    every_epochs: int = 10
    optimizer_state: str = "keep"

    needs: ClassVar[tuple[str, ...]] = ("loss",)

    def __post_init__(self) -> None:
        check_integer(self, "initial_period", self.initial_period)
        check_integer(self, "every_epochs", self.every_epochs)
        check_optimizer_state(self, self.optimizer_state)

    def start(self) -> State:
        return {"period": self.initial_period, "stretch": 0, "losses": 0.0, "count": 0}

    def next_period(self, signals: Signals, state: State) -> int:
        return int(self._turned(signals, state)["period"])

    def observe(self, signals: Signals, state: State) -> State:
        state = self._turned(signals, state)
        if math.isnan(signals.loss):
            return state
        return {
            **state,
            "first": state.get("first", signals.loss),
            "losses": state["losses"] + signals.loss,
            "count": state["count"] + 1,
        }

    def _turned(self, signals: Signals, state: State) -> State:
        """Return the state after the change that is due when `every_epochs` more have ended."""
        stretch = int(signals.epoch // self.every_epochs)
        if stretch <= state["stretch"] or not state["count"]:
            return state
        before = int(state["period"])
        ratio = state["losses"] / state["count"] / state["first"] if state["first"] > 0 else 1.0
        period = math.ceil(math.sqrt(max(ratio, 0.0)) * self.initial_period - 1e-9)
        if period >= before:
            period = math.ceil(before / 2)
        return {**state, "period": max(1, period), "stretch": stretch, "losses": 0.0, "count": 0}

    def rule(self, ranks: int) -> Rule:
        return Average(self.optimizer_state)
