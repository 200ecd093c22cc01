"""From what a user passes as ``sync`` to a strategy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
    >>> from accelerando.sync import PeriodicAveraging, as_strategy
    >>> as_strategy(PeriodicAveraging, {"period": 8})
    PeriodicAveraging(period=8, optimizer_state='keep')
    """
    params = dict(params or {})
    if sync is None and not params:
        return AllReduce()
    if isinstance(sync, type) and issubclass(sync, Strategy):
        fields: dict[str, Any] = getattr(sync, "__dataclass_fields__", {})
        unknown = sorted(set(params) - set(fields))
        if unknown:
            raise ValueError(
                f"{sync.__name__} has no parameter {', '.join(unknown)}. Its parameters: "
                f"{', '.join('sync__' + name for name in fields) or 'none'}."
            )
        try:
            return sync(**params)
        except TypeError as error:
            raise ValueError(
                f"sync={sync.__name__} needs more sync__x parameters: {error}."
            ) from error
    if isinstance(sync, Strategy):
        return sync.with_settings(**params) if params else sync
    if sync is None:
        raise ValueError(
            f"Parameters {sorted('sync__' + name for name in params)} are for a strategy, but sync "
            "is None. Pass a class of accelerando.sync as sync."
        )
    raise TypeError(
        "sync must be a strategy of accelerando.sync, like PeriodicAveraging(8), or None. Got "
        f"{sync!r}."
    )
