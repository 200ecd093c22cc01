"""skorch's table of epochs with batch size, learning rate and ranks; the same facts go to a log.

A terminal gets a row of text per epoch, a notebook a table in HTML that grows.
"""

from __future__ import annotations

import html
import logging
import re
from typing import Any
from weakref import WeakKeyDictionary

from rich.console import Console
from skorch.callbacks import PrintLog
from tabulate import tabulate

log = logging.getLogger("accelerando")


class EpochTable(PrintLog):  # type: ignore[misc]
    """Print a row per epoch, and log it at level INFO to the logger ``accelerando``.

    It has the parameters of :class:`skorch.callbacks.PrintLog` and is in its place under the name
    ``print_log``.
    """

    def on_train_begin(self, net: Any, **kwargs: Any) -> None:
        """Begin a new table in a notebook."""
        _NOTEBOOKS.pop(self, None)

    def on_epoch_end(self, net: Any, **kwargs: Any) -> None:
        """Print and log the row of the epoch that ends."""
        self.facts_ = facts(net)
        try:
            if self.sink is print and net.verbose and Console().is_jupyter:
                table = _NOTEBOOKS.setdefault(self, NotebookTable())
                table.add(dict(self._yield_keys_formatted({**self.facts_, **net.history[-1]})))
            else:
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


class NotebookTable:
    """A table in the output of a notebook's cell, to which rows are added.

    skorch marks the best value of a column with a color of the terminal; here it is bold.
    """

    def __init__(self) -> None:
        self._rows: list[dict[str, str]] = []
        self._handle: Any = None

    def add(self, row: dict[str, Any]) -> None:
        """Add a row and show the table."""
        self._rows.append({name: str(cell) for name, cell in row.items()})
        forms = {"text/plain": self._text(), "text/html": self._html()}
        if self._handle is None:
            from IPython.display import display

            self._handle = display(forms, raw=True, display_id=True)
        else:
            self._handle.update(forms, raw=True)

    def _names(self) -> list[str]:
        return list(dict.fromkeys(name for row in self._rows for name in row))

    def _text(self) -> str:
        names = self._names()
        cells = [[_ANSI.sub("", row.get(name, "")) for name in names] for row in self._rows]
        return str(tabulate(cells, names, stralign="right", disable_numparse=True))

    def _html(self) -> str:
        head = "".join(f"<th>{html.escape(name)}</th>" for name in self._names())
        body = "".join(
            f"<tr>{''.join(_cell(row.get(name, '')) for name in self._names())}</tr>"
            for row in self._rows
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


# Not attributes of the callbacks: checkpoints and pickles keep what callbacks hold.
_NOTEBOOKS: WeakKeyDictionary[EpochTable, NotebookTable] = WeakKeyDictionary()
_ANSI = re.compile(r"\x1b\[\d*m")


def _cell(text: str) -> str:
    plain = html.escape(_ANSI.sub("", text))
    return f"<td><b>{plain}</b></td>" if _ANSI.search(text) else f"<td>{plain}</td>"


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
