"""Central-model strategies: replicas are tied to a model that no rank trains."""

from __future__ import annotations

import math
from dataclasses import dataclass

from accelerando._decisions import Signals, State
from accelerando._validation import check_integer, check_number
from accelerando.sync._strategy import Averaging, Outer, Pull, Rule

_FALL = 0.5  # of the learning rate; a schedule that lowers it gradually is no reason to restart


@dataclass(frozen=True)
class ModelAveraging(Averaging):
    r"""Independent replicas that a central average model corrects (CROSSBOW's SMA).

    Replicas train on distinct batches of ``batch_size`` rows. When they have taken `period` steps,
    the next one is

    .. math::

        c_i &= \alpha (w_i - z), \quad w_i \leftarrow w_i - \gamma g_i(w_i) - c_i \\
        z &\leftarrow z + \textstyle\sum_i c_i + \mu (z - z_\text{before}).

    Corrections depend on the parameters before the step: replicas exchange them while they compute
    their gradients, and wait only for a replica that is a whole step behind. The estimator returns
    the central model :math:`z`. When the learning rate has fallen to half or less since the last
    correction, all replicas restart from it.

    Parameters
    ----------
    replicas : int or "auto"
        Number of replicas: virtual ranks of this process, or workers with ``client=``. With
        "auto", which needs a client, training begins with one that has all threads of its
        machine; replicas are added, and threads divided among them, while the rows per second
        grow by at least 5 %. The log (``net.world_log_``) and the rows of ``net.history``
        ("replicas", "replicas_throughput") have the measurements.
    momentum : float
        Momentum μ of the central model; CROSSBOW uses 0.9. The optimizer of the replicas should
        then have none, because the two multiply. The default is 0: in ``benchmarks/replicas.py``
        replicas whose optimizer has momentum learned more, with the best step size for each.
    correction : float or None
        α; None is one over the number of replicas, with which :math:`z` is their average. A
        smaller one averages over time as well, over about 1 / (n α) corrections. In
        ``benchmarks/replicas.py`` that needed fewer epochs.
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
        check_integer(self, "replicas", self.replicas, minimum=2, also={"auto": "'auto'"})
        check_number(self, "momentum", self.momentum, minimum=0, below=1)
        average = {None: "None (one over the number of replicas)"}
        check_number(self, "correction", self.correction, above=0, maximum=1, also=average)
        check_integer(self, "period", self.period)

    def next_period(self, signals: Signals, state: State) -> int:
        return self.period

    def rule(self, ranks: int) -> Rule:
        alpha = 1.0 / ranks if self.correction is None else self.correction
        return Pull(alpha, self.momentum)

    def observe(self, signals: Signals, state: State) -> State:
        return state if math.isnan(signals.spread) else {**state, "lr": signals.lr}

    def begins_anew(self, signals: Signals, state: State) -> bool:
        return bool(signals.lr <= _FALL * state.get("lr", 0.0))

    def ranks_wanted(self) -> int | str | None:
        return self.replicas


@dataclass(frozen=True)
class ElasticAveraging(Averaging):
    r"""An elastic force between the ranks and a central model (EASGD, synchronous).

    When ranks have taken `period` steps, the next one is, with :math:`\alpha = \beta / n`,

    .. math::

        w_i &\leftarrow w_i - \gamma g_i(w_i) - \alpha (w_i - z) \\
        z &\leftarrow (1 - \beta) z + \beta \bar w .

    The estimator returns the central model :math:`z`.

    Parameters
    ----------
    period : int
        Updates between two exchanges, τ in the paper.
    beta : float
        The part of its distance by which the central model moves to the average of the ranks.

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
        check_integer(self, "period", self.period)
        check_number(self, "beta", self.beta, above=0, maximum=1)

    def next_period(self, signals: Signals, state: State) -> int:
        return self.period

    def rule(self, ranks: int) -> Rule:
        return Pull(self.beta / ranks)


@dataclass(frozen=True)
class OuterOptimizer(Averaging):
    r"""An outer optimizer steps along the mean change of the ranks (DiLoCo).

    After every `inner_steps` updates, with the parameters :math:`z` from which all ranks started,

    .. math::

        \Delta &= z - \bar w, \quad v \leftarrow \mu v + \Delta \\
        z &\leftarrow z - \eta (\Delta + \mu v),

    and all ranks continue from :math:`z`; each keeps the state of its optimizer.

    Parameters
    ----------
    inner_steps : int
        Updates of each rank between two outer steps.
    lr : float
        η of the outer step; 1 with ``momentum=0`` is :class:`PeriodicAveraging`.
    momentum : float
        μ of the outer step (Nesterov).

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
        check_integer(self, "inner_steps", self.inner_steps)
        check_number(self, "lr", self.lr, minimum=0)
        check_number(self, "momentum", self.momentum, minimum=0, below=1)

    def next_period(self, signals: Signals, state: State) -> int:
        return self.inner_steps

    def rule(self, ranks: int) -> Rule:
        return Outer(self.lr, self.momentum)
