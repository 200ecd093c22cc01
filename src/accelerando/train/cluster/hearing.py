"""What the driver hears from the ranks while they train, and shows to the user."""

from __future__ import annotations

import dataclasses
from typing import Any

from accelerando.train.loop import Training


class Hearing:
    """The newest progress events.

    Parameters
    ----------
    training : Training
        With the run as the driver knows it, and the display.
    """

    def __init__(self, training: Training) -> None:
        self.training = training
        self.newest: dict[str, Any] = {}
        self.update_seconds = 0.0  # what an update takes
        self._unshown: dict[str, Any] | None = None

    def hear(self, event: tuple[float, dict[str, Any]]) -> None:
        """Keep the newest event; called from Dask's own thread."""
        self._unshown = self.newest = event[1]

    @property
    def update(self) -> int:
        """The newest update this process has heard of."""
        return max(int(self.newest.get("update", 0)), self.training.run.update)

    def show(self) -> None:
        """Show what came since this was called before."""
        heard, self._unshown = self._unshown, None
        if heard is None:
            return
        self.update_seconds = heard["batch_size"] / max(heard["examples_per_second"], 1e-9)
        names = ("epoch", "cursor", "update", "batch_size")
        now = dataclasses.replace(self.training.run, **{name: heard[name] for name in names})
        self.training.progress.update(now, heard["loss"], heard["lr"], cluster=heard)
