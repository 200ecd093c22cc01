"""What counts as a whole number: Python's and NumPy's, and no truth value."""

from __future__ import annotations

from typing import Any


def is_whole(value: Any, least: int) -> bool:
    """Tell whether a value is a whole number and not below the least that is allowed.

    Examples
    --------
    >>> [is_whole(value, 1) for value in (3, 0, True, 2.0, "3")]
    [True, False, False, False, False]
    """
    return not isinstance(value, bool) and hasattr(value, "__index__") and bool(value >= least)
