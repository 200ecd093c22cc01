"""What a strategy would have done, without training."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from accelerando.sync._strategy import Averaging, Signals


def replay(
    strategy: Averaging,
    spreads: Sequence[float],
    *,
    lrs: Sequence[float] | None = None,
    losses: Sequence[float] | None = None,
    updates_per_epoch: int = 1,
) -> pd.DataFrame:
    """Return the periods a strategy would choose for recorded numbers, one row per update.

    Parameters
    ----------
    strategy : Averaging
        What to ask.
    spreads : sequence of float
        What S_k would be at each update, were ranks to meet there.
    lrs : sequence of float, optional
        Learning rates; 1 if not given.
    losses : sequence of float, optional
        Training losses; 1 if not given.
    updates_per_epoch : int
        How many updates an epoch has.

    Returns
    -------
    pandas.DataFrame
        ``period``, and ``averaged``: whether ranks meet after the update.

    Examples
    --------
    >>> from accelerando.sync import PeriodicAveraging, replay
    >>> int(replay(PeriodicAveraging(4), spreads=[0.1] * 12)["averaged"].sum())
    3
    """
    state, since = strategy.start(), 0
    rows = []
    for update, spread in enumerate(spreads):
        signals = Signals(
            update,
            update // updates_per_epoch,
            float(len(spreads)),
            1.0 if lrs is None else lrs[update],
        )
        period = strategy.next_period(signals, state)
        since += 1
        averaged = since >= period
        loss = 1.0 if losses is None else losses[update]
        signals = signals._replace(loss=loss, spread=spread if averaged else None)
        state = strategy.observe(signals, state)
        since = 0 if averaged else since
        rows.append((period, averaged))
    return pd.DataFrame(rows, columns=["period", "averaged"])
