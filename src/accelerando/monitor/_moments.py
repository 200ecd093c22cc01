"""Moments of the gradient: unbiased estimates of its variance and its squared norm."""

from __future__ import annotations

from typing import NamedTuple

from accelerando.monitor._monitor import Observation


class Moments(NamedTuple):
    r"""Unbiased estimates from one update.

    With :math:`m` parts of :math:`b_i` rows and a batch of :math:`B` rows,

    .. math::

        \widehat{\operatorname{tr}\Sigma} &= \frac{1}{m - 1}
            \Bigl(\sum_i b_i \|G_i\|^2 - B \|G\|^2\Bigr) \\
        \widehat{\|g\|^2} &= \|G\|^2
            - \Bigl(\frac1B - \frac1N\Bigr) \widehat{\operatorname{tr}\Sigma}

    The parts may have any sizes. The first estimate is never negative. The second one is for a
    batch drawn without replacement from :math:`N` rows.

    Attributes
    ----------
    variance : float
        The variance of the gradients of single rows, summed over the parameters.
    square : float
        The squared norm of the gradient on the training set. It can be negative.
    """

    variance: float
    square: float


def moments(seen: Observation) -> Moments | None:
    """Return the estimates of one update; None if the parts of the batch were not measured.

    Parameters
    ----------
    seen : Observation
        The measurements; ``parts`` is at least 2 if the parts of the batch were measured.

    Returns
    -------
    Moments or None
        Variance and squared norm.

    Examples
    --------
    >>> moments(Observation(1, batch_size=64, n_examples=None, loss=1.0, grad_square=2.0, parts=2,
    ...                     parts_square=3.0))
    Moments(variance=64.0, square=1.0)
    """
    if seen.parts < 2:
        return None
    between = max(0.0, seen.parts_square - seen.grad_square)
    variance = seen.batch_size * between / (seen.parts - 1)
    share = 1.0 / seen.batch_size
    if seen.n_examples is not None:
        share = max(0.0, share - 1.0 / seen.n_examples)
    return Moments(variance, seen.grad_square - share * variance)
