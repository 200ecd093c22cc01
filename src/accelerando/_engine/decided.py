"""Decisions of policies, checked against what a fit has: momentum, betas, a period, a precision."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from accelerando._decisions import Settings
from accelerando.exceptions import UnsupportedError

if TYPE_CHECKING:
    from accelerando._engine.loop import Fit


def check_settings(fit: Fit, settings: Settings, momentum: float, beta2: float) -> None:
    """Raise if a policy decided something that this fit does not have."""
    optimizer = type(fit.model.optimizers[0]).__name__
    if settings.precision not in (None, "float32"):
        raise UnsupportedError(
            f"A policy decided precision={settings.precision!r}; training computes in the dtype of "
            "the module. Let the policy decide something else."
        )
    if settings.period is not None and math.isnan(fit.comm.period(fit.state, 1)):
        raise UnsupportedError(
            f"A policy decided period={settings.period}, the updates between two averagings of "
            "parameters; here ranks average their gradients in every update, and there is no "
            "period. Pass sync=PeriodicAveraging(...) or another strategy that averages."
        )
    if settings.momentum is not None and math.isnan(momentum):
        raise UnsupportedError(
            f"A policy decided momentum={settings.momentum}, and {optimizer} has none. Use SGD or "
            "an optimizer with betas, or let the policy decide something else."
        )
    if settings.betas is not None and math.isnan(beta2):
        raise UnsupportedError(
            f"A policy decided betas={settings.betas}, and {optimizer} has none. Use an optimizer "
            "with betas, such as Adam, or let the policy decide momentum."
        )
