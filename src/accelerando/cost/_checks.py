"""Arguments of the cost model, refused with a sentence."""

from __future__ import annotations

import math
from typing import Any

from accelerando._whole import is_whole


def check_number(
    name: str,
    value: Any,
    *,
    least: float | None = None,
    above: float | None = None,
    infinite: bool = False,
) -> None:
    """Raise unless it is a number within its bound."""
    bound = f"of at least {least}" if least is not None else f"above {above}"
    good = isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)
    good = good and (infinite or math.isfinite(value))
    good = good and (least is None or value >= least) and (above is None or value > above)
    if not good:
        raise ValueError(f"{name} must be a number {bound}. Got {value!r} instead.")


def check_whole(name: str, value: Any, *, least: int = 1) -> None:
    """Raise unless it is a whole number of at least `least`."""
    if not is_whole(value, least):
        raise ValueError(
            f"{name} must be a whole number of at least {least}. Got {value!r} instead."
        )
