"""skorch's table of epochs with batch size, learning rate and ranks; the same facts go to a log."""

from __future__ import annotations

import logging
from typing import Any

from skorch.callbacks import PrintLog
from tabulate import tabulate

log = logging.getLogger("accelerando")


class EpochTable(PrintLog):  # type: ignore[misc]
    """Print a row per epoch, and log it at level INFO to the logger ``accelerando``.

    It has the parameters of :class:`skorch.callbacks.PrintLog` and is in its place under the name
    ``print_log``.
    """

    def on_epoch_end(self, net: Any, **kwargs: Any) -> None:
        """Print and log the row of the epoch that ends."""
        self.facts_ = facts(net)
        try:
            super().on_epoch_end(net, **kwargs)
        finally:
            found = self.__dict__.pop("facts_")  # checkpoints keep what callbacks hold
        if log.isEnabledFor(logging.INFO):
            row = {**found, **net.history[-1]}
            names = [name for name in row if name in found or _is_result(name, row[name])]
            text = ", ".join(f"{name} {_short(row[name])}" for name in names)
            log.info("epoch %s: %s", row["epoch"], text)
            for reason in reasons(net):
                log.info("epoch %s: %s.", row["epoch"], reason)

    def table(self, row: dict[str, Any]) -> Any:
        """Return the row as text, with a header."""
        cells = dict(self._yield_keys_formatted({**getattr(self, "facts_", {}), **row}))
        # skorch's own call rounds a learning rate of 0.00001 to 0.0000.
        return tabulate(
            [list(cells.values())],
            headers=list(cells),
            tablefmt=self.tablefmt,
            stralign=self.stralign,
            disable_numparse=True,
        )


def facts(net: Any) -> dict[str, Any]:
    """Return batch size and learning rate as in ``history_frame()``; on a cluster, ranks, too."""
    state = vars(net).get("_state_")
    if state is None or not len(state.records.epochs):
        return {}
    epoch, update = state.records.epochs.newest(), state.records.updates.newest()
    # The learning rate has the same width in most rows, which are written one by one.
    found: dict[str, Any] = {"batch_size": int(epoch["batch_size"]), "lr": f"{epoch['lr']:#.4g}"}
    if net.client is not None and "ranks" in update:
        found["ranks"] = int(update["ranks"])
    return found


def reasons(net: Any) -> list[str]:
    """Return why policies decided what holds now, as far as they say so."""
    state = vars(net).get("_state_")
    memories = [] if state is None else state.memories.policies
    return [memory["reason"] for memory in memories if "reason" in memory]


def _is_result(name: str, value: Any) -> bool:
    known = ("epoch", "batches", "train_batch_count", "valid_batch_count")
    return name not in known and not name.endswith("_best") and isinstance(value, int | float)


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
