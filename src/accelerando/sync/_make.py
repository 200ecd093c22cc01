"""The conversion of ``sync=`` into a strategy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from accelerando._validation import as_piece
from accelerando.sync._strategy import AllReduce, Strategy


def as_strategy(sync: Any, params: Mapping[str, Any] | None = None) -> Strategy:
    """Return the strategy that ``sync`` and ``sync__x`` parameters describe.

    Parameters
    ----------
    sync : strategy, class of one, or None
        None is :class:`AllReduce`.
    params : mapping
        The ``sync__x`` parameters.

    Examples
    --------
    >>> from accelerando.sync import PeriodicAveraging
    >>> as_strategy(PeriodicAveraging, {"period": 8})
    PeriodicAveraging(period=8, optimizer_state='keep')
    """
    return as_piece(
        "sync",
        sync,
        Strategy,
        settings=params,
        convert=lambda given: AllReduce() if given is None else None,
        allowed="a strategy of accelerando.sync, like PeriodicAveraging(8), or None",
    )
