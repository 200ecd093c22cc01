"""Deprecated functions of ``batch_size`` and ``sync``, on top of their replacements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from accelerando._decisions import Policy
from accelerando.policies._controller import as_batch_policies
from accelerando.policies._replay import replay

if TYPE_CHECKING:
    import pandas as pd


def as_batch_policy(batch_size: Any, params: Mapping[str, Any] | None = None) -> Policy:
    """Return the policy that ``batch_size=`` describes, as ``batch_size.as_policy`` did."""
    return as_batch_policies(batch_size, params)[-1]


def replay_losses(
    policy: Any,
    losses: Sequence[float],
    *,
    grad_norms: Sequence[float] | None = None,
    updates_per_epoch: int = 1,
    n_examples: int | None = None,
    max_batch_size: int | None = None,
) -> list[int]:
    """Return the batch sizes that a policy chooses for losses, as ``batch_size.replay`` did."""
    norms = [0.0] * len(losses) if grad_norms is None else list(grad_norms)
    frame = replay(
        policy,
        {"loss": list(losses), "grad_norm": norms},
        n_examples=n_examples,
        max_batch_size=max_batch_size,
        updates_per_epoch=updates_per_epoch,
    )
    sizes: list[int] = frame["batch_size"].tolist()
    return sizes


def replay_spreads(
    strategy: Any,
    spreads: Sequence[float],
    *,
    lrs: Sequence[float] | None = None,
    losses: Sequence[float] | None = None,
    updates_per_epoch: int = 1,
) -> pd.DataFrame:
    """Return the periods that a strategy chooses, as ``sync.replay`` did."""
    ones = [1.0] * len(spreads)
    recorded = {"spread": list(spreads), "lr": lrs or ones, "loss": losses or ones}
    frame = replay(strategy, recorded, updates_per_epoch=updates_per_epoch)
    periods = frame["period"].iloc[:-1].astype(int)
    averaged = frame["averaged"].iloc[1:].reset_index(drop=True)
    return frame.iloc[:-1].assign(period=periods, averaged=averaged)[["period", "averaged"]]
