"""The progress line of a fit: epoch, updates, batch size, learning rate, loss, speed, time left."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from accelerando._progress import LiveDisplay

if TYPE_CHECKING:
    from accelerando._engine.position import Position


class Progress:
    """Show the progress of a fit in one line, or print a line now and then into a log.

    Printed text, like skorch's table, appears above the line.

    Parameters
    ----------
    verbose : int
        0 shows nothing.
    console : rich.console.Console, optional
        Where to show it; standard output by default.
    """

    def __init__(self, verbose: int, console: Console | None = None) -> None:
        self._display = LiveDisplay(bool(verbose), console)
        self._started = time.monotonic()
        self._examples_before = 0

    def begin(self, position: Position) -> None:
        """Start to measure the speed that is shown."""
        self._started = time.monotonic()
        self._examples_before = position.examples

    def __enter__(self) -> Progress:
        self._display.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._display.__exit__(kind, error, trace)

    def update(
        self,
        position: Position,
        batch_size: int,
        loss: float,
        lr: float,
        cluster: Mapping[str, Any] | None = None,
    ) -> None:
        """Show the newest numbers, a few times per second.

        Parameters
        ----------
        position : Position
            Where the run is.
        batch_size : int
            Of the newest update.
        loss, lr : float
            Of the newest update.
        cluster : mapping, optional
            Measurements of the ranks: ``examples_per_second``, ``ranks``, ``bytes_per_second`` and
            ``waiting``, the share of the time in which ranks wait for each other.
        """

        def render() -> Text:
            if cluster is None:
                seconds = max(time.monotonic() - self._started, 1e-9)
                speed = (position.examples - self._examples_before) / seconds
                return Text(line(position, batch_size, loss, lr, speed))
            text = line(position, batch_size, loss, lr, cluster["examples_per_second"])
            return Text(
                f"{text}  {cluster['ranks']} ranks  {cluster['bytes_per_second'] / 1e6:,.1f} MB/s"
                f"  {cluster['waiting']:.0%} waiting"
            )

        self._display.show(render)


def line(position: Position, batch_size: int, loss: float, lr: float, speed: float) -> str:
    """Return the progress line.

    Examples
    --------
    >>> from accelerando._engine.position import Position
    >>> position = Position(epoch=2, until=10, update=151, n_examples=1000, cursor=500)
    >>> line(position, batch_size=64, loss=0.4321, lr=0.05, speed=2000.0)
    'epoch 3/10  50 %  update 151  batch 64  lr 0.05  loss 0.4321  2,000 examples/s  0:00:04 left'
    """
    fields = [f"epoch {min(position.epoch + 1, position.until)}/{position.until}"]
    if position.n_examples:
        share = min(1.0, position.cursor / position.n_examples)
        fields.append(f"{share:.0%}".replace("%", " %"))
    fields += [f"update {position.update}", f"batch {batch_size}", f"lr {lr:.4g}"]
    fields += [f"loss {loss:.4g}", f"{speed:,.0f} examples/s"]
    if position.n_examples and speed > 0:
        left = (position.until - position.epoch) * position.n_examples - position.cursor
        fields.append(f"{timedelta(seconds=round(left / speed))} left")
    return "  ".join(fields)
