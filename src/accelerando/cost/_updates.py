"""The updates of a run that has not happened, or of one that has: epoch, rows, batch size."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from accelerando._decisions import Settings
from accelerando.policies._controller import Controller
from accelerando.policies._core import Policy, as_batch_policies


class Updates(NamedTuple):
    """One entry per model update.

    Attributes
    ----------
    epoch : array of int
        Counted from 1, as in ``history_frame()``.
    rows : array of int
        Examples of the batch; the last one of an epoch may be short.
    batch_size : array of int
        Examples that the policy wanted: the number of workers follows it.
    """

    epoch: np.ndarray
    rows: np.ndarray
    batch_size: np.ndarray


def of_schedule(
    batch_size: Any, n_examples: int, max_epochs: int, max_batch_size: int | None
) -> Updates:
    """Walk through the epochs as the training loop does, without training."""
    policy = as_policy(batch_size)
    if not policy.scheduled:
        raise ValueError(
            f"batch_size must be a number or a policy that is known ahead (Constant, Schedule, "
            f"GeoDamp, PadaDamp, FullBatch, the LR twins). {policy!r} looks at the model while it "
            "trains: train once and pass its updates_frame() to accelerando.cost.replay. If a "
            "policy of your own does not look, give its class `scheduled = True`."
        )
    controller = Controller((), (policy,), max_batch_size)
    memories, settings = controller.start(), Settings()
    epochs: list[int] = []
    rows: list[int] = []
    sizes: list[int] = []
    examples = last = 0
    for epoch in range(max_epochs):
        left = n_examples
        while left:
            values = {"update": len(rows), "epoch": epoch, "examples": examples, "rows": last}
            plan = controller.plan({**values, "n_examples": n_examples}, memories, settings, 1.0)
            memories.policies, settings, size = plan.policy_memories, plan.settings, plan.batch_size
            last = min(size, left)
            left -= last
            examples += last
            epochs.append(epoch + 1)
            rows.append(last)
            sizes.append(size)
    return Updates(np.array(epochs), np.array(rows), np.array(sizes))


def of_frame(frame: pd.DataFrame) -> Updates:
    """Take the updates of a recorded run from its ``updates_frame()``."""
    missing = [name for name in ("epoch", "batch_size") if name not in frame.columns]
    if missing or "update" not in frame.columns:
        hint = " This looks like a history_frame()." if "updates" in frame.columns else ""
        raise ValueError(
            f"run_frame must be what updates_frame() returned, with the columns update, epoch and "
            f"batch_size. Got {', '.join(map(str, frame.columns)) or 'no columns'} instead.{hint}"
        )
    if frame.empty:
        raise ValueError("run_frame has no update. Train for at least one update first.")
    epoch = frame["epoch"].to_numpy(int)
    rows = frame["batch_size"].to_numpy(int)
    # The record has the rows of a batch. What the policy wanted is the same but for the rest at the
    # end of an epoch, and the number of workers does not follow such a rest.
    ends = np.append(epoch[1:] != epoch[:-1], True)
    before = np.append(rows[:1], rows[:-1])
    begins = np.append(True, ends[:-1])
    sizes = np.where(ends & ~begins, np.maximum(rows, before), rows)
    return Updates(epoch, rows, sizes)


def as_policy(batch_size: Any) -> Policy:
    """Return the policy that decides the batch sizes."""
    return as_batch_policies(batch_size)[-1]
