"""What happened, one row per update and one per epoch, as columns that grow."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import pandas as pd
import torch

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
EPOCH_COLUMNS = ("epoch", "updates", "examples", "batch_size", "lr", "seconds")
_WHOLE = {"update", "epoch", "examples", "batch_size", "updates", "ranks", "bytes"}


class Table:
    """Named columns of numbers; a row costs less than a microsecond to add."""

    def __init__(self, columns: tuple[str, ...]) -> None:
        self.columns = columns
        self.values = array("d")

    def add(self, *row: float) -> None:
        """Append one value per column."""
        self.values.extend(row)

    def amend(self, back: int, **values: float) -> None:
        """Set values of the row that so many others follow."""
        row = len(self.values) - (back + 1) * len(self.columns)
        for name, value in values.items():
            self.values[row + self.columns.index(name)] = value

    def __len__(self) -> int:
        return len(self.values) // len(self.columns)

    def tensor(self) -> torch.Tensor:
        """Return the rows as a matrix, to be saved."""
        return torch.tensor(self.values, dtype=torch.float64).reshape(-1, len(self.columns))

    def load(self, rows: torch.Tensor, columns: Sequence[str] | None = None) -> None:
        """Take up saved rows; what they have no column for is not a number."""
        if columns is not None and tuple(columns) != self.columns:
            known = torch.full((len(rows), len(self.columns)), float("nan"), dtype=rows.dtype)
            for number, name in enumerate(self.columns):
                if name in columns:
                    known[:, number] = rows[:, list(columns).index(name)]
            rows = known
        self.values = array("d", rows.flatten().tolist())

    def frame(self) -> pd.DataFrame:
        """Return the rows as a frame with whole numbers where they are whole."""
        table = pd.DataFrame(self.tensor().numpy(), columns=list(self.columns))
        return table.astype({name: "int64" for name in self.columns if name in _WHOLE})


class Records:
    """The two tables of a run."""

    def __init__(self, signals: tuple[str, ...] = ()) -> None:
        self.updates = Table((*UPDATE_COLUMNS, *signals))
        self.epochs = Table(EPOCH_COLUMNS)

    def watch(self, signals: tuple[str, ...]) -> None:
        """Record other signals from now on; those of earlier updates stay where they are known."""
        table = Table((*UPDATE_COLUMNS, *signals))
        if table.columns == self.updates.columns:
            return
        table.load(self.updates.tensor(), self.updates.columns)
        self.updates = table

    def history_frame(self, history: Any) -> pd.DataFrame:
        """Join the table of epochs with the losses and scores of skorch's history."""
        ours = self.epochs.frame()
        scores = pd.DataFrame([_scores(row) for row in history[: len(ours)]], index=ours.index)
        return pd.concat([ours, scores], axis=1)


def last_row(history: Any) -> dict[str, Any]:
    """Return the history's last epoch; its own indexing takes as long as a small layer."""
    row: dict[str, Any] = list.__getitem__(history, -1)
    return row


def _scores(row: dict[str, Any]) -> dict[str, Any]:
    skip = {"batches", "epoch", "train_batch_count", "valid_batch_count", "dur"}
    return {key: value for key, value in row.items() if key not in skip and key[-5:] != "_best"}
