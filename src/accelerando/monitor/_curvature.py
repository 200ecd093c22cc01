"""Curvature of the loss: the trace of its Hessian, and its largest eigenvalue."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from accelerando._validation import check_integer
from accelerando.monitor._monitor import UNKNOWN, Monitor, Observation, Setting, State


@dataclass(frozen=True)
class Curvature(Monitor):
    r"""The trace of the Hessian, by Hutchinson's estimate, and its largest eigenvalue.

    .. math:: \operatorname{tr} H \approx \frac1m \sum_{i=1}^m v_i^\top H v_i,
        \qquad v_i \in \{-1, 1\}^n \text{ at random}

    The Hessian is that of the loss of the batch after the update, in evaluation mode. A product
    with it costs about two gradients of the batch.

    Parameters
    ----------
    every : int
        The number of updates between two measurements.
    samples : int
        The number of random vectors :math:`m`.
    iterations : int
        Iterations of the power method; 0 leaves the largest eigenvalue out.

    Notes
    -----
    Signals: ``hessian_trace``, ``hessian_top``, and ``curvature_seconds``, the time that the last
    measurement took.

    References
    ----------
    M. Hutchinson, *A stochastic estimator of the trace of the influence matrix*, Communications in
    Statistics 19, 1990. L. Mai et al., ACM SIGOPS Operating Systems Review 53, 2019, name such
    monitors.

    Examples
    --------
    >>> from accelerando.monitor import Curvature, watch
    >>> watch(Curvature(every=10), losses=[1.0])
    [{'hessian_trace': nan, 'hessian_top': nan, 'curvature_seconds': nan}]
    """

    every: int = 100
    samples: int = 1
    iterations: int = 0

    signals: ClassVar[tuple[str, ...]] = ("hessian_trace", "hessian_top", "curvature_seconds")

    def __post_init__(self) -> None:
        check_integer(self, "every", self.every)
        check_integer(self, "samples", self.samples)
        check_integer(self, "iterations", self.iterations, minimum=0)

    def observe(self, seen: Observation, state: State) -> tuple[tuple[float, ...], State]:
        if seen.curvature is not None:
            state = dict(zip(self.signals, seen.curvature, strict=True))
            state = {name: value for name, value in state.items() if not math.isnan(value)}
        return tuple(state.get(name, UNKNOWN) for name in self.signals), state

    def undefined(self, setting: Setting) -> str | None:
        """Return the reason why it is undefined: ranks have their own parameters."""
        if setting.averages_parameters:
            return (
                "looks at the Hessian at the parameters of the model, and here every rank has its "
                "own parameters. Leave it out, or train with sync=None"
            )
        return None
