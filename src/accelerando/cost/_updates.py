"""The updates of a planned or recorded run: epoch, rows and batch size of each."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from accelerando._decisions import Policy, Settings
from accelerando.policies._controller import Controller, as_batch_policies


class Updates(NamedTuple):
    """One entry per model update.

    Attributes
    ----------
    epoch : array of int
        The epoch, counted from 1, as in ``history_frame()``.
    rows : array of int
        The rows of the batch; the last batch of an epoch may be smaller.
    batch_size : array of int
        The batch size that the policy chose. The number of workers follows it.
    """

    epoch: np.ndarray
    rows: np.ndarray
    batch_size: np.ndarray


def of_schedule(
    batch_size: Any, n_examples: int, max_epochs: int, max_batch_size: int | None
) -> Updates:
    """Return the updates of a schedule, as the training loop would make them."""
    policy = as_policy(batch_size)
    if not policy.scheduled:
        raise ValueError(
            "The 'batch_size' parameter of plan must be a number or a policy whose sizes are known "
            f"in advance (Constant, Schedule, GeoDamp, PadaDamp, FullBatch). {policy!r} depends on "
            "the model: train once and pass the updates_frame() to accelerando.cost.replan. If a "
            "policy of your own does not depend on the model, give its class `scheduled = True`."
        )
    from accelerando._engine.data.feed import batch_rows  # not above: it imports torch

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
            last = batch_rows(left, size, 1, drop_last=False)
            left -= last
            examples += last
            epochs.append(epoch + 1)
            rows.append(last)
            sizes.append(size)
    return Updates(np.array(epochs), np.array(rows), np.array(sizes))


def of_frame(frame: pd.DataFrame) -> Updates:
    """Return the updates of a recorded run, from its ``updates_frame()``."""
    missing = [name for name in ("epoch", "batch_size") if name not in frame.columns]
    if missing or "update" not in frame.columns:
        hint = " This looks like a history_frame()." if "updates" in frame.columns else ""
        columns = ", ".join(map(str, frame.columns)) or "no columns"
        raise ValueError(
            "The 'run_frame' parameter of replan must be the result of updates_frame(), with the "
            f"columns update, epoch and batch_size. Got {columns} instead.{hint}"
        )
    if frame.empty:
        raise ValueError("run_frame has no update. Train for at least one update first.")
    epoch = frame["epoch"].to_numpy(int)
    rows = frame["batch_size"].to_numpy(int)
    # The record has the rows of a batch. They equal the size that the policy chose, except for the
    # last batch of an epoch, which does not change the number of workers.
    ends = np.append(epoch[1:] != epoch[:-1], True)
    before = np.append(rows[:1], rows[:-1])
    begins = np.append(True, ends[:-1])
    sizes = np.where(ends & ~begins, np.maximum(rows, before), rows)
    return Updates(epoch, rows, sizes)


def as_policy(batch_size: Any) -> Policy:
    """Return the policy that decides the batch sizes."""
    return as_batch_policies(batch_size)[-1]
