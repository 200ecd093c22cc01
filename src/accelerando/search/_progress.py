"""A search as it can be watched in a terminal."""

from __future__ import annotations

import math
import time
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from accelerando.search._run import Run

__all__ = ["Progress"]

REFRESH_SECONDS = 0.25


class Progress:
    """A table: brackets, models alive, best score, time left."""

    def __init__(
        self, plan: dict[str, Any], prefix: str = "", console: Console | None = None
    ) -> None:
        self.plan = plan
        self.prefix = prefix
        self.live = Live(console=console, auto_refresh=False)
        self._last = -math.inf
        self._run: Run | None = None
        self.live.start()

    def update(self, run: Run, now: bool = False) -> None:
        """Draw, but not more often than an eye can follow."""
        self._run = run
        if now or time.monotonic() - self._last > REFRESH_SECONDS:
            self.live.update(self.table(run), refresh=True)
            self._last = time.monotonic()

    def close(self) -> None:
        """Draw the last state and leave it on the screen."""
        if self._run is not None:
            self.update(self._run, now=True)
        self.live.stop()

    def table(self, run: Run) -> Table:
        """Return the picture of one moment."""
        best = run.best
        score = "–" if best is None or best.score is None else f"{best.score:.4f}"
        left = time_left(run, self.plan["partial_fit_calls"])
        name = f"{self.prefix}: " if self.prefix else ""
        table = Table(
            title=f"{name}best {score} · {run.calls}/{self.plan['partial_fit_calls']} calls · "
            f"{run.elapsed:.0f} s, {left} left"
        )
        for heading in ("bracket", "models", "alive", "calls", "best"):
            table.add_column(heading, justify="right")
        for entry in self.plan["brackets"]:
            own = [m for m in list(run.models.values()) if m.track.index == entry["bracket"]]
            scores = [m.score for m in own if m.score is not None and not math.isnan(m.score)]
            table.add_row(
                str(entry["bracket"]),
                str(entry["n_models"]),
                str(sum(m.number in run.live for m in own)),
                f"{sum(m.calls for m in own)}/{entry['partial_fit_calls']}",
                f"{max(scores):.4f}" if scores else "–",
            )
        return table


def time_left(run: Run, planned_calls: int) -> str:
    """Guess from the pace so far."""
    if not run.calls:
        return "?"
    left = run.elapsed / run.calls * max(0, planned_calls - run.calls)
    if run.settings.max_seconds is not None:
        left = min(left, max(0.0, run.settings.max_seconds - run.elapsed))
    return f"{left:.0f} s"
