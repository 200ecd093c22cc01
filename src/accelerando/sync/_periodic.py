"""Parameters averaged after a period that is given, or that shrinks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from accelerando.sync._strategy import (
    Average,
    Averaging,
    Rule,
    Signals,
    State,
    check_optimizer_state,
    check_whole,
)


@dataclass(frozen=True)
class PeriodicAveraging(Averaging):
    """Average the parameters after every `period` updates (CPSGD).

    Parameters
    ----------
    period : int
        Updates that ranks make by themselves.
    optimizer_state : "keep", "average" or "reset"
        What happens to momentum (and Adam's moments) at an average: every rank keeps its own;
        they are averaged, too, which sends as many bytes again for each moment; or they start
        from zero. The paper trains with momentum and does not say.

    Notes
    -----
    Ranks meet after updates p, 2p, 3p, ..., which is where the paper's V_t begins anew.

    With a period of 1 and SGD, momentum or not, it gives the parameters of :class:`AllReduce` up
    to rounding: everything is linear in the gradients.

    References
    ----------
    P. Jiang, G. Agrawal, *Adaptive periodic averaging*, arXiv:2007.06134, Algorithm 1.

    Examples
    --------
    >>> from accelerando.sync import PeriodicAveraging, replay
    >>> replay(PeriodicAveraging(3), spreads=[0.1] * 7)["averaged"].tolist()
    [False, False, True, False, False, True, False]
    """

    period: int
    optimizer_state: str = "keep"

    def __post_init__(self) -> None:
        check_whole(self, period=self.period)
        check_optimizer_state(self, self.optimizer_state)

    def next_period(self, signals: Signals, state: State) -> int:
        return self.period

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
    It is here to be compared with: Jiang and Agrawal show in their section V-B that the opposite,
    :class:`AdaptiveAveraging`, is right, since ranks drift apart most at the beginning.

    References
    ----------
    J. Wang, G. Joshi, *Adaptive communication strategies to achieve the best error-runtime
    trade-off in local-update SGD*, arXiv:1810.08313, section 4.

    Examples
    --------
    >>> from accelerando.sync import DecreasingAveraging, replay
    >>> frame = replay(DecreasingAveraging(8, every_epochs=1), spreads=[0.1] * 4,
    ...                losses=[4.0, 1.0, 1.0, 1.0], updates_per_epoch=1)
    >>> frame["period"].tolist()  # a half for want of progress, then √(1/4) of 8 is no shorter
    [8, 4, 2, 1]
    """

    initial_period: int = 16
    every_epochs: int = 10
    optimizer_state: str = "keep"
    needs_loss: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_whole(self, initial_period=self.initial_period, every_epochs=self.every_epochs)
        check_optimizer_state(self, self.optimizer_state)

    def start(self) -> State:
        return {"period": self.initial_period, "stretch": 0, "losses": 0.0, "count": 0}

    def next_period(self, signals: Signals, state: State) -> int:
        return int(self._turned(signals, state)["period"])

    def observe(self, signals: Signals, state: State) -> State:
        assert signals.loss is not None
        state = self._turned(signals, state)
        return {
            **state,
            "first": state.get("first", signals.loss),
            "losses": state["losses"] + signals.loss,
            "count": state["count"] + 1,
        }

    def _turned(self, signals: Signals, state: State) -> State:
        """Return the state after the change that is due when a new stretch of epochs begins."""
        stretch = signals.epoch // self.every_epochs
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
