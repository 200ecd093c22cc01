"""Adaptive averaging: the period follows the spread of the replicas (Jiang and Agrawal)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from accelerando._decisions import Signals, State
from accelerando._validation import check_integer, check_number
from accelerando._warmup import in_warmup
from accelerando.sync._strategy import Average, Averaging, Rule, check_optimizer_state


@dataclass(frozen=True)
class AdaptiveAveraging(Averaging):
    r"""Average the parameters after a period that keeps their spread at γ C₂ (ADPSGD).

    The first `warmup_epochs` have a period of 1. Then it is `initial_period`, and while
    :math:`k < K_s` a constant is sampled at every average, the mean of

    .. math:: C_2 = S_k / \gamma_k, \qquad S_k = \frac1n \sum_i \|\bar w - w_i\|^2 .

    From then on every average makes the period longer by one if
    :math:`S_k < \text{low} \cdot \gamma_k C_2`, and shorter by one if
    :math:`S_k > \text{high} \cdot \gamma_k C_2`.

    Parameters
    ----------
    initial_period : int
        p_init in the paper, where 2 to 5 give almost the same accuracy and 8 less.
    sample : float
        The part of the fit in which C₂ is sampled, K_s / K.
    low, high : float
        The period stays if the ratio of the spread to γ C₂ lies between them.
    warmup_epochs : float
        Epochs in which ranks average after every update, because the spread is largest at first;
        0.5 is half of the first epoch.
    optimizer_state : "keep", "average" or "reset"
        As for :class:`PeriodicAveraging`.

    Notes
    -----
    The period is never below 1. If ranks do not average while C₂ is sampled, the first averaging
    after that is the sample: without C₂ there is nothing to compare with.

    References
    ----------
    P. Jiang, G. Agrawal, *Adaptive periodic averaging: a practical approach to reducing
    communication in distributed learning*, arXiv:2007.06134, Algorithm 2 and section IV-B.

    Examples
    --------
    >>> from accelerando.policies import replay
    >>> from accelerando.sync import AdaptiveAveraging
    >>> run = {"lr": [0.1] * 6 + [0.01] * 5, "spread": [1.0] * 6 + [0.01] * 5}
    >>> frame = replay(AdaptiveAveraging(2, sample=0.5, warmup_epochs=0), run)
    >>> frame["period"].astype(int).tolist()  # the rate falls by ten, the spread by a hundred
    [2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 4]
    """

    initial_period: int = 4
    sample: float = 0.25
    low: float = 0.7
    high: float = 1.3
    warmup_epochs: float = 1
    optimizer_state: str = "keep"

    def __post_init__(self) -> None:
        check_integer(self, "initial_period", self.initial_period)
        check_number(self, "sample", self.sample, minimum=0, below=1)
        check_number(self, "low", self.low, minimum=0)
        check_number(self, "high", self.high, minimum=0)
        if not self.low < self.high:
            raise ValueError(
                "AdaptiveAveraging needs low < high, or the period would grow and shrink at once. "
                f"Got low={self.low!r}, high={self.high!r}."
            )
        check_number(self, "warmup_epochs", self.warmup_epochs, minimum=0)
        check_optimizer_state(self, self.optimizer_state)

    def start(self) -> State:
        return {"period": self.initial_period, "c2": 0.0, "samples": 0}

    def next_period(self, signals: Signals, state: State) -> int:
        return 1 if in_warmup(signals, self.warmup_epochs) else int(state["period"])

    def observe(self, signals: Signals, state: State) -> State:
        spread, lr = signals.spread, signals.lr
        if math.isnan(spread) or in_warmup(signals, self.warmup_epochs) or not lr > 0.0:
            return state
        last = self.sample * signals.total_updates  # K_s; unknown while K is
        if state["samples"] == 0 or math.isnan(last) or signals.update < last:
            samples = state["samples"] + 1
            c2 = state["c2"] + (spread / lr - state["c2"]) / samples
            return {**state, "c2": c2, "samples": samples}
        wanted = lr * state["c2"]
        period = int(state["period"])
        if spread < self.low * wanted:
            period += 1
        elif spread > self.high * wanted:
            period = max(1, period - 1)
        return {**state, "period": period}

    def rule(self, ranks: int) -> Rule:
        return Average(self.optimizer_state)
