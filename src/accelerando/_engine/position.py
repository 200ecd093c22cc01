"""Position of a training run: the plain values of its state, and the parts that are saved.

These are values without behavior; :class:`~accelerando._engine.state.TrainState` owns and changes
them.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

UPDATE_COLUMNS = (
    "update",
    "epoch",
    "examples",
    "batch_size",
    "lr",
    "loss",
    "grad_norm",
    "seconds",
    "ranks",
    "bytes",
    "wait_seconds",
    "encode_seconds",
    "decode_seconds",
)
AVERAGING_COLUMNS = ("period", "spread", "averagings")
EPOCH_COLUMNS = ("epoch", "updates", "examples", "batch_size", "lr", "seconds")


class Part(enum.Flag):
    """Parts of a state that are saved or sent separately."""

    MODEL = enum.auto()
    POSITION = enum.auto()
    REPLICAS = enum.auto()
    RECORDS = enum.auto()
    RNG = enum.auto()
    HOST = enum.auto()
    ALL = MODEL | POSITION | REPLICAS | RECORDS | RNG | HOST


@dataclass
class Position:
    """Position of a run.

    Attributes
    ----------
    epoch, cursor : int
        Epochs finished, and rows of the current epoch's order already used.
    update, examples : int
        Updates done, and examples seen.
    until : int
        The epoch at which the current call of ``fit`` ends.
    n_examples : int or None
        Rows of the training set; None while the length of a stream is unknown.
    epoch_open : bool
        Whether the current epoch has begun, so that the history has a row for it.
    """

    epoch: int = 0
    cursor: int = 0
    update: int = 0
    examples: int = 0
    until: int = 0
    n_examples: int | None = None
    epoch_open: bool = False


class LastUpdate(NamedTuple):
    """Results of the newest update; nan before the first one."""

    rows: int = 0
    loss: float = math.nan
    grad_norm: float = math.nan


@dataclass
class AveragingState:
    """Updates since the replicas were last averaged, and the number of averagings so far."""

    since: int = 0
    count: int = 0


@dataclass
class HostState:
    """Data of the estimator that is saved with the run; the engine does not look inside."""

    plain: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, Any] = field(default_factory=dict)


def plain_number(value: Any) -> Any:
    """Return the Python value of a NumPy or PyTorch number or array."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} in the history cannot be saved as JSON.")
