"""Replay: what a policy or an averaging strategy would have decided in a recorded run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from accelerando._decisions import Decision, Measure, Policy, Settings, Signals, State
from accelerando._deprecation import warn_deprecated
from accelerando._validation import check_integer
from accelerando.policies._controller import Controller, as_batch_policies
from accelerando.policies._core import as_decision, as_policy

if TYPE_CHECKING:
    import pandas as pd

# Columns of updates_frame() that are no signals.
_NOT_SIGNALS = ("seconds", "bytes", "wait_seconds", "workers")


def replay(
    policy: Any,
    frame: pd.DataFrame | Mapping[str, Any],
    *,
    n_examples: int | None = None,
    max_batch_size: int | None = None,
    updates_per_epoch: int | None = None,
) -> pd.DataFrame:
    """Run a recorded training through a policy or a strategy, without training.

    Parameters
    ----------
    policy : policy, function, integer, strategy, or list of policies
        What an estimator accepts as ``batch_size``, in ``policies`` or as ``sync``.
    frame : pandas.DataFrame or mapping of columns
        The ``updates_frame()`` of a run, or columns such as ``{"loss": [...]}`` with one entry per
        update. Its columns are the signals. Without them the learning rate is 1, the gradient norm
        0 and the number of ranks 1. Losses stay as recorded, whatever is decided. A policy that
        measures on the training set gets the recorded numbers instead.
    n_examples : int, optional
        Rows of the training set; no batch is larger.
    max_batch_size : int, optional
        The largest batch, as for an estimator.
    updates_per_epoch : int, optional
        Updates of an epoch, instead of the column ``epoch``; 1 if there is no such column.

    Returns
    -------
    pandas.DataFrame
        One row before the first update and one after each, with the settings of the next update:
        ``update`` (updates done), ``batch_size``, ``lr``, ``momentum``, ``workers``, ``period``
        (``nan`` if nothing decided them), ``averaged`` (whether a strategy averaged after the
        update just done) and ``decided`` (whether a setting changed).

    Notes
    -----
    If there is a column ``batch_size``, the recorded sizes hold until the policy decides. If there
    is none, the policy is asked as ``batch_size=`` is; of a list, the first one is.

    In the frame of a run with ``policies=``, which has a column ``workers``, the recorded size may
    be the decision that is to be replayed: there a policy sees the size of the update before.

    Examples
    --------
    >>> from accelerando.policies import Decision, GeoDamp, replay
    >>> replay(GeoDamp(8, delay=1), {"loss": [1.0, 0.9, 0.8]})["batch_size"].tolist()
    [8, 16, 32, 64]
    >>> def grow(signals):
    ...     if signals.loss < 0.7:
    ...         return Decision(batch_size=2 * signals.batch_size)
    >>> replay(grow, {"loss": [1.0, 0.5], "batch_size": [8, 8]})["batch_size"].tolist()
    [8, 8, 16]
    """
    if isinstance(policy, Mapping) or hasattr(policy, "columns"):
        warn_deprecated("replay(frame, policy)", "Write replay(policy, frame).", stacklevel=3)
        policy, frame = frame, policy
    if updates_per_epoch is not None:
        check_integer("replay", "updates_per_epoch", updates_per_epoch)
    run = Recorded.of(frame, n_examples, updates_per_epoch)
    if hasattr(policy, "next_period"):
        return _table(_rows_of_strategy(policy, run))
    return _table(_rows_of_policy(policy, run, max_batch_size))


@dataclass(frozen=True)
class Recorded:
    """The updates of a recorded run, as signals.

    Parameters
    ----------
    records : list of dict
        One per update, by the names of the columns.
    n_examples : int or None
        Rows of the training set.
    updates_per_epoch : int or None
        None takes the column ``epoch``.
    had_policies : bool
        Whether policies in ``policies=`` may have decided the recorded sizes.
    """

    records: list[dict[str, float]]
    n_examples: int | None
    updates_per_epoch: int | None
    had_policies: bool = False

    @classmethod
    def of(cls, frame: Any, n_examples: int | None, updates_per_epoch: int | None) -> Recorded:
        import pandas as pd  # takes long, and training does without it

        if not (isinstance(frame, Mapping) or hasattr(frame, "columns")):
            raise TypeError(
                "replay needs a policy or strategy, and what updates_frame() returned or a mapping "
                f"of columns such as {{'loss': [...]}}. Got {frame!r} instead of the latter."
            )
        table = pd.DataFrame(frame).drop(columns=list(_NOT_SIGNALS), errors="ignore")
        if table.empty:
            raise ValueError("replay needs at least one update; this frame has no row.")
        table = table.select_dtypes("number").astype(float)
        records: list[dict[str, Any]] = table.to_dict("records")  # type: ignore[assignment]
        if updates_per_epoch is None and "epoch" not in table.columns:
            updates_per_epoch = 1
        return cls(records, n_examples, updates_per_epoch, had_policies="workers" in frame)

    def has(self, column: str) -> bool:
        """Return True if there is such a column."""
        return column in self.records[0]

    def coming(self, number: int, column: str, default: float = math.nan) -> float:
        """Return a value of the update with this number, counted from 0, or of the last one."""
        return self.records[min(number, len(self.records) - 1)].get(column, default)

    def size(self, number: int) -> float:
        """Return the batch size for which an update was planned.

        The last batch of an epoch may be shorter than that; its predecessor says by how much.
        """
        number = min(number, len(self.records) - 1)
        size = self.coming(number, "batch_size")
        before = self.coming(number - 1, "batch_size") if number else size
        last = number == len(self.records) - 1 or self._epoch(number + 1) != self._epoch(number)
        same_epoch = number > 0 and self._epoch(number - 1) == self._epoch(number)
        return max(size, before) if last and same_epoch else size

    def size_before(self, number: int) -> float:
        """Return the batch size that held before an update; a last batch may have been shorter."""
        for last in range(min(number, len(self.records) - 1) - 1, -1, -1):
            if self._epoch(last) == self._epoch(last + 1):
                return self.coming(last, "batch_size")
        return self.coming(0, "batch_size")

    def _epoch(self, number: int) -> float:
        if self.updates_per_epoch is not None:
            return number // self.updates_per_epoch
        return self.coming(number, "epoch") - 1.0  # signals count from 0, frames from 1

    def values(self, number: int) -> dict[str, float]:
        """Return what was known before the update with this number, counted from 0."""
        last = self.records[number - 1] if number else {}
        return {
            **dict.fromkeys(self.records[0], math.nan),
            **({"ranks": 1.0, "grad_norm": 0.0} if number else {"grad_norm": math.nan}),
            **last,
            "update": last.get("update", float(number)),
            "epoch": self._epoch(number),
            "ranks": last.get("ranks", self.coming(0, "ranks", 1.0)),
            "rows": last.get("batch_size", math.nan),
            "n_examples": math.nan if self.n_examples is None else float(self.n_examples),
            "total_updates": float(len(self.records)),
            "spread": math.nan,
        }


@dataclass(frozen=True)
class _RecordedSizes(Policy):
    """The batch sizes of a recorded run as the base policy."""

    run: Recorded

    def start(self) -> State:
        return {"number": 0}

    def decide(self, signals: Signals, state: State) -> tuple[Decision | None, State]:
        number = state["number"]
        size = self.run.size_before if self.run.had_policies else self.run.size
        return Decision(size(number)), {"number": number + 1}


@dataclass(frozen=True, repr=False)
class _Standing(Policy):
    """A policy whose numbers are batch sizes, also where recorded sizes are the base."""

    policy: Policy

    def start(self) -> State:
        return self.policy.start()

    def measures(self, update: int) -> Measure | None:
        return self.policy.measures(update)

    def decide(self, signals: Signals, state: State) -> tuple[Decision | None, State]:
        given, state = self.policy.decide(signals, state)
        return as_decision(given, self.policy), state

    def __repr__(self) -> str:
        return repr(self.policy)


def _controller(policy: Any, run: Recorded, max_batch_size: int | None) -> Controller:
    given = list(policy) if isinstance(policy, list | tuple) else [policy]
    if not given:
        raise ValueError("replay needs at least one policy. Got an empty list instead.")
    if not run.has("batch_size"):
        standing = tuple(as_policy(one) for one in given[1:])
        return Controller((), (*as_batch_policies(given[0]), *standing), max_batch_size)
    # As in batch_size=, an integer or a class is a policy, too.
    found = [one if isinstance(one, Policy) else as_batch_policies(one)[-1] for one in given]
    return Controller((), (_RecordedSizes(run), *map(_Standing, found)), max_batch_size)


def _rows_of_policy(policy: Any, run: Recorded, max_batch_size: int | None) -> list[dict[str, Any]]:
    controller = _controller(policy, run, max_batch_size)
    memories, settings, rows = controller.start(), Settings(), []
    examples, size, factor = 0.0, math.nan, math.nan
    for number in range(len(run.records) + 1):
        values = run.values(number)
        if not run.has("examples"):
            values["examples"] = examples
        if not run.has("batch_size"):
            values["rows"] = size
        measure = controller.needs_measure(int(values["update"]))
        if measure is not None:
            values[f"full_{measure.quantity}"] = values.get(measure.quantity, math.nan)
        base_lr = run.coming(number, "lr", 1.0)
        plan = controller.plan({**values, "batch_size": size}, memories, settings, base_lr)
        now, before = plan.settings, settings
        if run.has("batch_size"):  # recorded changes are no decisions
            now, before = (one._replace(base_batch_size=None) for one in (now, before))
        changed = now != before or (not run.has("batch_size") and plan.lr_scale != factor)
        rows.append(_row(values["update"], plan.batch_size, base_lr * plan.lr_scale, plan.settings))
        rows[-1]["decided"] = changed
        memories.policies, settings = plan.policy_memories, plan.settings
        size, factor = float(plan.batch_size), plan.lr_scale
        examples += plan.batch_size
    return rows


def _rows_of_strategy(strategy: Any, run: Recorded) -> list[dict[str, Any]]:
    if isinstance(strategy, type):
        raise TypeError(f"replay needs an instance of {strategy.__name__}, not the class.")
    state: State = strategy.start()
    since, averaged, rows = 0, False, []
    for number in range(len(run.records) + 1):
        lr = run.coming(number, "lr", 1.0)
        known = {**run.values(number), "lr": lr, "loss": math.nan, "batch_size": run.size(number)}
        signals = Signals.known(**known)
        period = int(strategy.next_period(signals, state))
        settings = Settings(period=period)
        rows.append(_row(signals.update, run.size(number), lr, settings))
        rows[-1]["averaged"] = averaged
        rows[-1]["decided"] = number > 0 and period != rows[-2]["period"]
        since += 1
        averaged = since >= period
        since = 0 if averaged else since
        spread = run.coming(number, "spread") if averaged else math.nan
        done = signals.but(loss=run.coming(number, "loss"), spread=spread)
        state = strategy.observe(done, state)
    return rows


def _row(update: float, size: float, lr: float, settings: Settings) -> dict[str, Any]:
    momentum = settings.momentum if settings.betas is None else settings.betas[0]
    return {
        "update": int(update),
        "batch_size": size,
        "lr": lr,
        "momentum": momentum,
        "workers": settings.workers,
        "period": settings.period,
        "averaged": False,
        "decided": False,
    }


def _table(rows: list[dict[str, Any]]) -> pd.DataFrame:
    import pandas as pd

    table = pd.DataFrame(rows)
    kinds = dict.fromkeys(("lr", "momentum", "workers", "period"), "float64")
    whole = table["batch_size"].notna().all()
    return table.astype({**kinds, "batch_size": "int64" if whole else "float64"})
