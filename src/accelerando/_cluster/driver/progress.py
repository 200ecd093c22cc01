"""The progress of the ranks, as the driver receives and shows it."""

from __future__ import annotations

import dataclasses
from typing import Any

from accelerando._cluster.messages import ProgressSeen
from accelerando._engine.runtime.progress import Progress
from accelerando._engine.state import TrainState


class LiveProgress:
    """The newest progress event of the first member.

    Parameters
    ----------
    state : TrainState
        The driver's.
    display : Progress or None
        The progress line.
    """

    def __init__(self, state: TrainState, display: Progress | None) -> None:
        self.state, self.display = state, display
        self.newest: dict[str, Any] = {}
        self._unseen: dict[str, Any] | None = None

    def receive(self, event: tuple[float, dict[str, Any]]) -> None:
        """Keep the newest event; called from a thread of Dask."""
        self._unseen = self.newest = event[1]

    @property
    def update(self) -> int:
        """The newest update that was reported."""
        return int(self.newest.get("update", 0))

    def signals(self) -> dict[str, float]:
        """Return the newest numbers by the names of ``updates_frame()``."""
        newest = dict(self.newest)
        monitored = newest.pop("signals", {})
        numbers = {k: v for k, v in newest.items() if isinstance(v, int | float)}
        if "epoch" in numbers:
            numbers["epoch"] += 1
        return {**numbers, **monitored}

    def show(self) -> ProgressSeen | None:
        """Show what arrived since the last call, and return it for the machine."""
        seen, self._unseen = self._unseen, None
        if seen is None:
            return None
        if self.display is not None:
            names = ("epoch", "cursor", "update")
            position = dataclasses.replace(
                self.state.position, **{name: seen[name] for name in names}
            )
            self.display.update(position, seen["batch_size"], seen["loss"], seen["lr"], seen)
        seconds = seen["batch_size"] / max(seen["examples_per_second"], 1e-9)
        return ProgressSeen(seen["update"], seconds, int(seen["period"]))
