"""What a policy would have decided in a run that is over."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from accelerando.policies._decision import Decision, Signals, Wish
from accelerando.policies._policy import as_policy, decide_all

_NOT_SIGNALS = ("seconds", "bytes", "wait_seconds", "workers")
_NEEDED = ("update", "epoch", "examples", "batch_size", "lr")


def replay(frame: pd.DataFrame, policy: Any, *, n_examples: int | None = None) -> pd.DataFrame:
    """Run a recorded training through a policy, without training.

    Parameters
    ----------
    frame : pandas.DataFrame
        What ``updates_frame()`` returned; its columns are the signals.
    policy : policy, function, or list of them
        What to ask before every update.
    n_examples : int, optional
        Rows of the training set.

    Returns
    -------
    pandas.DataFrame
        One row before the first update and one after each: what would hold for the next update.
        ``batch_size`` and ``lr`` are the recorded ones until the policy decides otherwise,
        ``momentum``, ``workers`` and ``period`` are ``nan`` until then; ``decided`` tells where it
        did decide. Losses stay as recorded, whatever it decides.

    Examples
    --------
    >>> import pandas as pd
    >>> from accelerando.policies import Decision, replay
    >>> frame = pd.DataFrame({"update": [1, 2], "epoch": 1, "examples": [8, 16], "batch_size": 8,
    ...                       "lr": 0.1, "loss": [1.0, 0.5]})
    >>> def grow(signals):
    ...     if signals.loss < 0.7:
    ...         return Decision(batch_size=2 * signals.batch_size)
    >>> replay(frame, grow)["batch_size"].tolist()
    [8.0, 8.0, 16.0]
    """
    missing = [name for name in _NEEDED if name not in frame.columns]
    if missing or frame.empty:
        raise ValueError(
            "replay needs the updates_frame() of a run with at least one update; this frame has "
            + (f"no column {', '.join(missing)}." if missing else "no row.")
        )
    policies = [as_policy(one) for one in _listed(policy)]
    states = [one.start() for one in policies]
    wish, rows = Wish(), []
    columns = [str(name) for name in frame.columns if name not in _NOT_SIGNALS]
    records: list[dict[str, Any]] = frame[columns].to_dict("records")  # type: ignore[assignment]
    for number in range(len(records) + 1):
        now = _signals(records, number, n_examples)
        base_lr = now["lr"]
        size = now["batch_size"] if wish.batch_size is None else wish.batch_size
        momentum = math.nan if wish.momentum is None else wish.momentum
        signals = Signals(
            {**now, "batch_size": size, "lr": base_lr * wish.lr_scale, "momentum": momentum}
        )
        decision, states = decide_all(policies, signals, states)
        wish = wish.after(decision, base_lr)
        rows.append(
            {
                "update": int(now["update"]),
                "batch_size": now["batch_size"] if wish.batch_size is None else wish.batch_size,
                "lr": base_lr * wish.lr_scale,
                "momentum": wish.momentum,
                "workers": wish.workers,
                "period": wish.period,
                "decided": decision != Decision(),
            }
        )
    kinds = dict.fromkeys(("batch_size", "lr", "momentum", "workers", "period"), "float64")
    return pd.DataFrame(rows).astype(kinds)


def _listed(policy: Any) -> Sequence[Any]:
    return policy if isinstance(policy, list | tuple) else [policy]


def _signals(
    records: list[dict[str, Any]], number: int, n_examples: int | None
) -> dict[str, float]:
    """Return what was known before update `number`, counted from 0."""
    coming = records[min(number, len(records) - 1)]
    length = math.nan if n_examples is None else float(n_examples)
    now = {"loss": math.nan, "grad_norm": math.nan, "ranks": 1.0, "momentum": math.nan}
    if number == 0:
        now.update(dict.fromkeys(records[0], math.nan), update=0.0, epoch=0.0, examples=0.0)
        now["ranks"] = float(records[0].get("ranks", 1.0))
    else:
        now.update({name: float(value) for name, value in records[number - 1].items()})
        now["epoch"] = float(coming["epoch"]) - 1.0  # epochs finished, and frames count from 1
    size = _size_before(records, number)
    return {**now, "n_examples": length, "batch_size": size, "lr": coming["lr"]}


def _size_before(records: list[dict[str, Any]], number: int) -> float:
    """Return the batch size that held before update `number`; the last of an epoch is cut short."""
    for last in range(min(number, len(records) - 1) - 1, -1, -1):
        if records[last]["epoch"] == records[last + 1]["epoch"]:
            return float(records[last]["batch_size"])
    return float(records[0]["batch_size"])
