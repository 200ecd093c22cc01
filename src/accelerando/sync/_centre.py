"""Strategies with a central model beside those of the ranks."""

from __future__ import annotations

import math
from dataclasses import dataclass

from accelerando._whole import is_whole
from accelerando.sync._strategy import (
    Averaging,
    Outer,
    Pull,
    Rule,
    Signals,
    State,
    check_between,
    check_whole,
)

_FALL = 0.5  # of the learning rate; schedules that lower it little by little are no reason to stop


@dataclass(frozen=True)
class ModelAveraging(Averaging):
    r"""Independent replicas that a central average model corrects (CROSSBOW's SMA).

    Replicas train on distinct batches of ``batch_size`` rows. When they have taken `period` steps,
    the next one is

    .. math::

        c_i &= \alpha (w_i - z), \quad w_i \leftarrow w_i - \gamma g_i(w_i) - c_i \\
        z &\leftarrow z + \textstyle\sum_i c_i + \mu (z - z_\text{before}).

    Corrections depend on the parameters before the step: replicas tell each other about them while
    they compute their gradients, and wait for no one who is not a whole step behind. The central
    model :math:`z` is what the estimator returns. When the learning rate has fallen to half or less
    since they last met, all replicas begin anew from it.

    Parameters
    ----------
    replicas : int or "auto"
        How many there are: virtual ranks of this process, or workers with ``client=``. With
        "auto", which needs a client, training begins with one that has all threads of its
        machine; replicas are added, and threads divided among them, while that makes rows per
        second grow by at least 5 %. The log (``net.world_log_``) and the rows of ``net.history``
        ("replicas", "replicas_throughput") say what was measured.
    momentum : float
        μ of the central model; CROSSBOW's is 0.9. The replicas' own optimizer should then have
        none: together they would multiply. It is 0 by default: in ``benchmarks/replicas.py``
        replicas with momentum of their own learned more, with the best step size for each.
    correction : float or None
        α; None is one over the number of replicas, with which :math:`z` is their average. With
        less it is an average over time, too: of about 1 / (n α) meetings. In
        ``benchmarks/replicas.py`` that learned in fewer epochs.
    period : int
        Updates between two corrections.

    References
    ----------
    A. Koliousis et al., *Crossbow: scaling deep learning with small batch sizes on multi-GPU
    servers*, arXiv:1901.02244, Algorithm 1.

    Examples
    --------
    >>> from accelerando.sync import ModelAveraging
    >>> ModelAveraging(4).rule(ranks=4)
    Pull(alpha=0.25, momentum=0.0)
    """

    replicas: int | str
    momentum: float = 0.0
    correction: float | None = None
    period: int = 1

    def __post_init__(self) -> None:
        check_whole(self, period=self.period)
        if self.replicas != "auto" and not is_whole(self.replicas, 2):
            raise ValueError(
                "The 'replicas' parameter of ModelAveraging must be 'auto' or a whole number of at "
                f"least 2: one has nobody to be averaged with. Got {self.replicas!r} instead."
            )
        check_between(self, 0.0, 1.0, momentum=self.momentum)
        if self.correction is not None:
            check_pull(self, "correction", self.correction)

    def next_period(self, signals: Signals, state: State) -> int:
        return self.period

    def rule(self, ranks: int) -> Rule:
        alpha = 1.0 / ranks if self.correction is None else self.correction
        return Pull(alpha, self.momentum)

    def observe(self, signals: Signals, state: State) -> State:
        return state if signals.spread is None else {**state, "lr": signals.lr}

    def begins_anew(self, signals: Signals, state: State) -> bool:
        return signals.lr <= _FALL * state.get("lr", 0.0)

    def ranks_wanted(self) -> int | str | None:
        return self.replicas


@dataclass(frozen=True)
class ElasticAveraging(Averaging):
    r"""Ranks bound to a central model by a spring (EASGD, synchronous).

    When ranks have taken `period` steps, the next one is, with :math:`\alpha = \beta / n`,

    .. math::

        w_i &\leftarrow w_i - \gamma g_i(w_i) - \alpha (w_i - z) \\
        z &\leftarrow (1 - \beta) z + \beta \bar w .

    The central model :math:`z` is what the estimator returns.

    Parameters
    ----------
    period : int
        Updates between two exchanges, the paper's τ.
    beta : float
        How far the central model moves to the average of the ranks.

    References
    ----------
    S. Zhang, A. Choromanska, Y. LeCun, *Deep learning with elastic averaging SGD*,
    arXiv:1412.6651, section 3.

    Examples
    --------
    >>> from accelerando.sync import ElasticAveraging
    >>> ElasticAveraging(period=10).rule(ranks=3)
    Pull(alpha=0.3, momentum=0.0)
    """

    period: int = 10
    beta: float = 0.9

    def __post_init__(self) -> None:
        check_whole(self, period=self.period)
        check_pull(self, "beta", self.beta)

    def next_period(self, signals: Signals, state: State) -> int:
        return self.period

    def rule(self, ranks: int) -> Rule:
        return Pull(self.beta / ranks)


@dataclass(frozen=True)
class OuterOptimizer(Averaging):
    r"""An outer optimizer steps along what ranks have changed on average (DiLoCo).

    After every `inner_steps` updates, with the parameters :math:`z` from which all ranks went,

    .. math::

        \Delta &= z - \bar w, \quad v \leftarrow \mu v + \Delta \\
        z &\leftarrow z - \eta (\Delta + \mu v),

    and all ranks go on from :math:`z`, each with the state that its own optimizer has.

    Parameters
    ----------
    inner_steps : int
        Updates of each rank between two outer steps.
    lr : float
        η of the outer step; 1 with ``momentum=0`` is :class:`PeriodicAveraging`.
    momentum : float
        μ of the outer step, Nesterov's.

    References
    ----------
    A. Douillard et al., *DiLoCo: distributed low-communication training of language models*,
    arXiv:2311.08105, Algorithm 1.

    Examples
    --------
    >>> from accelerando.sync import OuterOptimizer
    >>> OuterOptimizer(inner_steps=50).rule(ranks=8)
    Outer(lr=0.7, momentum=0.9)
    """

    inner_steps: int = 50
    lr: float = 0.7
    momentum: float = 0.9

    def __post_init__(self) -> None:
        check_whole(self, inner_steps=self.inner_steps)
        check_between(self, 0.0, math.inf, lr=self.lr)
        check_between(self, 0.0, 1.0, momentum=self.momentum)

    def next_period(self, signals: Signals, state: State) -> int:
        return self.inner_steps

    def rule(self, ranks: int) -> Rule:
        return Outer(self.lr, self.momentum)


def check_pull(strategy: object, name: str, value: float) -> None:
    """Raise unless a pull moves towards the centre and not beyond it."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 < value <= 1:
        raise ValueError(
            f"The '{name}' parameter of {type(strategy).__name__} must lie above 0 and not above "
            f"1. Got {value!r} instead."
        )
