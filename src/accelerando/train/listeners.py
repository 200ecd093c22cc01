"""Which callbacks hear of which event."""

from __future__ import annotations

import copy
from typing import Any

from skorch.callbacks import Callback, PrintLog, ProgressBar


class Listeners:
    """The callbacks that do anything at an event, looked up once."""

    def __init__(self) -> None:
        self._of: tuple[Any, Any] = (None, None)
        self._known: dict[str, list[Callback]] = {}

    def at(self, event: str, callbacks: list[tuple[str, Callback]], verbose: Any) -> list[Callback]:
        """Return those of a net's callbacks that do anything.

        Parameters
        ----------
        event : str
            The name of the method that hears of it.
        callbacks : list of (str, Callback)
            The net's.
        verbose : int
            The net's: at 0 nobody reads what would be printed.
        """
        if self._of[0] is not callbacks or self._of[1] != verbose:
            self._of, self._known = (callbacks, verbose), {}
        if event not in self._known:
            idle = getattr(Callback, event)
            self._known[event] = [
                callback
                for _, callback in callbacks
                if (hook := getattr(type(callback), event)) is not idle
                and not getattr(hook, "is_idle", False)
                and not _prints_for_nobody(callback, verbose)
            ]
        return self._known[event]


def counting(callback: Any) -> Any:
    """Let a progress bar learn the number of batches from the epoch before."""
    if isinstance(callback, ProgressBar) and callback.batches_per_epoch == "auto":
        callback = copy.copy(callback)
        callback.batches_per_epoch = "count"
    return callback


def _prints_for_nobody(callback: Callback, verbose: Any) -> bool:
    """Tell whether a callback would format a table only to throw it away.

    On small data that takes longer than many an epoch.
    """
    return type(callback) is PrintLog and callback.sink is print and not verbose
