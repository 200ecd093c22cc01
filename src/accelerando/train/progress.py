"""One live line while training: epoch, updates, batch size, lr, loss, speed, time left."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from datetime import timedelta
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from accelerando.train.run import Run

REFRESH_SECONDS = 0.25


class Progress:
    """Show where training stands, in a terminal only.

    Printed text, like skorch's table, appears above the line.

    Parameters
    ----------
    verbose : int
        0 shows nothing.
    console : rich.console.Console, optional
        Where to show it; standard output unless told otherwise.
    """

    def __init__(self, verbose: int, console: Console | None = None) -> None:
        self._console = console
        self._live: Live | None = None
        self._enabled = bool(verbose)
        self._next = 0.0
        self._began = time.monotonic()
        self._examples_before = 0

    def begin(self, run: Run) -> None:
        """Start the clock of the speed shown."""
        self._began = time.monotonic()
        self._examples_before = run.examples

    def __enter__(self) -> Progress:
        if self._enabled and (self._console is not None or sys.stdout.isatty()):
            console = self._console or Console()
            if console.is_terminal:
                # Two live displays cannot share a terminal; scikit-learn's bar may be there first.
                live = Live(console=console, auto_refresh=False, transient=True)
                try:
                    live.start()
                except Exception:
                    return self
                self._live = live
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def update(
        self, run: Run, loss: float, lr: float, cluster: Mapping[str, Any] | None = None
    ) -> None:
        """Show the newest numbers, a few times a second.

        `cluster` has what ranks elsewhere have measured themselves.
        """
        if self._live is None:
            return
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + REFRESH_SECONDS
        seconds = max(now - self._began, 1e-9)
        speed = (run.examples - self._examples_before) / seconds
        text = line(run, loss, lr, cluster["examples_per_second"] if cluster else speed)
        if cluster:
            text += (
                f"  {cluster['ranks']} ranks  {cluster['bytes_per_second'] / 1e6:,.1f} MB/s"
                f"  {cluster['waiting']:.0%} waiting"
            )
        self._live.update(Text(text), refresh=True)


def line(run: Run, loss: float, lr: float, speed: float) -> str:
    """Return the progress line.

    Examples
    --------
    >>> run = Run(epoch=2, until=10, update=151, n_examples=1000, cursor=500, batch_size=64)
    >>> line(run, loss=0.4321, lr=0.05, speed=2000.0)
    'epoch 3/10  50 %  update 151  batch 64  lr 0.05  loss 0.4321  2,000 examples/s  0:00:04 left'
    """
    fields: list[Any] = [f"epoch {min(run.epoch + 1, run.until)}/{run.until}"]
    if run.n_examples:
        fields.append(f"{min(1.0, run.cursor / run.n_examples):.0%}".replace("%", " %"))
    fields += [f"update {run.update}", f"batch {run.batch_size}", f"lr {lr:.4g}"]
    fields += [f"loss {loss:.4g}", f"{speed:,.0f} examples/s"]
    if run.n_examples and speed > 0:
        left = (run.until - run.epoch) * run.n_examples - run.cursor
        fields.append(f"{timedelta(seconds=round(left / speed))} left")
    return "  ".join(fields)
