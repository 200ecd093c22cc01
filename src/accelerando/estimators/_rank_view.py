"""The net that the user's code finds on a rank: history, position, attributes as on the driver.

Callbacks that act on gradients, and ``get_loss`` or ``infer`` of a subclass, may read the net. What
they change there themselves, such as a counter, stays on the rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from skorch.history import History

from accelerando._engine.state import TrainState
from accelerando.exceptions import UnsupportedError


class RankView:
    """Keeps the history and the attributes of a net on a rank.

    Parameters
    ----------
    net : estimator
        Of the rank.
    """

    def __init__(self, net: Any) -> None:
        self.net = net
        self._before: EpochRows | None = None
        self._place: int | None = None  # the update whose row in the history is open
        self._own: dict[str, Any] = {}

    def adopt(self, sent: Mapping[str, Any]) -> None:
        """Take over what the driver has sent; what it has not changed stays as it is here."""
        own = dict(sent)
        rows = own.pop("history_rows")
        self.net.history_ = History({**row, "batches": []} for row in rows)
        self._place, self._before = None, own.pop("history_open")
        new = {k: v for k, v in own.items() if _differs(v, self._own.get(k, self))}
        vars(self.net).update(new)

    def note(self, present: Mapping[str, Any]) -> None:
        """Remember what a patch of the driver's will change: attributes as they are here now."""
        self._own = dict(present)

    def begin_update(self, state: TrainState) -> None:
        """Open a row in the history."""
        place, rows = state.position.update, self.net.history_[-1]["batches"]
        if self._place != place - 1 or not state.position.cursor:
            rows[:] = rows_of_epoch(state, self._before)
        rows.append({})
        self._place = place


def rows_of_epoch(state: TrainState, before: EpochRows | None) -> list[dict[str, Any]]:
    """Return what the history says of the updates of the current epoch: `before`, and since."""
    table, position = state.records.updates, state.position
    if before is None or before.epoch != position.epoch:
        before = EpochRows(position.epoch, 0, [])
    columns = [table.columns.index(name) for name in ("epoch", "update", "loss", "batch_size")]
    return [
        *before.rows,
        *(
            {"train_loss": loss, "train_batch_size": int(size)}
            for epoch, update, loss, size in table.tensor()[:, columns].tolist()
            if epoch == position.epoch + 1 and update > before.update
        ),
    ]


class EpochRows(NamedTuple):
    """The rows of the history of an epoch up to an update, which were made before this fit."""

    epoch: int
    update: int
    rows: list[dict[str, Any]]

    @classmethod
    def of(cls, net: Any) -> EpochRows:
        """Return what this process has."""
        position = net._state_.position
        rows = net.history_[-1]["batches"] if net.history_ and position.epoch_open else []
        keys = ("train_loss", "train_batch_size")
        known = [{key: row[key] for key in keys if key in row} for row in rows]
        return cls(position.epoch, position.update, known)


def _differs(value: Any, before: Any) -> bool:
    """Return True if an attribute is not the one that was sent before."""
    plain = type(value) in (bool, int, float, str) and type(value) is type(before)
    return bool(value != before) if plain else value is not before


class OwnRows:
    """What a callback finds as the batch on one of several ranks: each has other rows."""

    def _refuse(self, *args: Any) -> Any:
        raise UnsupportedError(
            "A callback reads the batch in on_grad_computed, and every rank has other rows: their "
            "gradients would not stay the same. Make what it does depend on the gradients, or "
            "train on one rank (max_workers=1) or in this process (client=None)."
        )

    __getitem__ = __iter__ = __len__ = __getattr__ = _refuse
