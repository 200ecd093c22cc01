"""Variance and diversity of the gradients in a batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from accelerando.monitor._moments import moments
from accelerando.monitor._monitor import (
    UNKNOWN,
    Averaged,
    Observation,
    State,
    blend,
)


@dataclass(frozen=True)
class GradientVariance(Averaged):
    r"""The variance of the gradients of single rows, :math:`\operatorname{tr} \Sigma`.

    Parameters
    ----------
    memory : float
        The number of observations over which it is averaged.

    Notes
    -----
    Signals: ``gradient_variance``, and ``gradient_square``, the squared norm of the batch's
    gradient over the same memory. The norm test compares their quotient, divided by the batch size,
    with a threshold.

    References
    ----------
    R. Byrd et al., *Sample size selection in optimization methods for machine learning*,
    Mathematical Programming 134, 2012.

    Examples
    --------
    >>> from accelerando.monitor import GradientVariance, watch
    >>> watch(GradientVariance(), losses=[1.0], batch_size=64, grad_square=2.0, parts=2,
    ...       parts_square=3.0)
    [{'gradient_variance': 64.0, 'gradient_square': 2.0}]
    """

    signals: ClassVar[tuple[str, ...]] = ("gradient_variance", "gradient_square")
    looks_at_parts: ClassVar[bool] = True

    def observe(self, seen: Observation, state: State) -> tuple[tuple[float, ...], State]:
        found = moments(seen)
        if found is not None:
            count = state.get("count", 0.0) + 1.0
            state = {
                "count": count,
                "variance": blend(state.get("variance", 0.0), found.variance, count, self.memory),
                "square": blend(state.get("square", 0.0), seen.grad_square, count, self.memory),
            }
        return (state.get("variance", UNKNOWN), state.get("square", UNKNOWN)), state


@dataclass(frozen=True)
class GradientDiversity(Averaged):
    r"""The diversity of the gradients :math:`g_r` of a batch's rows.

    .. math:: \Delta = \frac{\sum_r \|g_r\|^2}{\|\sum_r g_r\|^2}

    It is near 1 if the gradients are orthogonal and :math:`1/B` if they are equal. A batch of more
    than about :math:`B \Delta` rows converges slower per row than a small one. The numerator is
    estimated from the parts of the batch. Numerator and denominator are averaged separately.

    Parameters
    ----------
    memory : float
        The number of observations over which it is averaged.

    Notes
    -----
    Signals: ``gradient_diversity``, and ``diversity_batch_size``, which is :math:`B \Delta`.

    References
    ----------
    D. Yin et al., *Gradient diversity: a key ingredient for scalable distributed learning*,
    arXiv:1706.05699.

    Examples
    --------
    >>> from accelerando.monitor import GradientDiversity, watch
    >>> watch(GradientDiversity(), losses=[1.0], batch_size=64, grad_square=2.0, parts=2,
    ...       parts_square=3.0)[0]["diversity_batch_size"]
    32.5
    """

    signals: ClassVar[tuple[str, ...]] = ("gradient_diversity", "diversity_batch_size")
    looks_at_parts: ClassVar[bool] = True

    def observe(self, seen: Observation, state: State) -> tuple[tuple[float, ...], State]:
        found = moments(seen)
        if found is not None:
            count = state.get("count", 0.0) + 1.0
            # Inside the batch: its mean gradient and the scatter of its rows around the mean.
            of_rows = seen.grad_square + found.variance * (1.0 - 1.0 / seen.batch_size)
            state = {
                "count": count,
                "rows": blend(state.get("rows", 0.0), of_rows, count, self.memory),
                "batch": blend(state.get("batch", 0.0), seen.grad_square, count, self.memory),
                "size": float(seen.batch_size),
            }
        if not state or state["batch"] <= 0.0:
            return (UNKNOWN, UNKNOWN), state
        useful = state["rows"] / state["batch"]
        return (useful / state["size"], useful), state
