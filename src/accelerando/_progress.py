"""A live display in the terminal, redrawn a few times per second."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType

from rich.console import Console, RenderableType
from rich.errors import LiveError
from rich.live import Live

REFRESH_SECONDS = 0.25


class LiveDisplay:
    """Show something that changes; printed text appears above it.

    Nothing is shown if the output is not a terminal, or if another live display is there already.

    Parameters
    ----------
    enabled : bool
        False shows nothing.
    console : rich.console.Console, optional
        Where to show it; standard output by default.
    transient : bool
        Remove the display at the end.

    Examples
    --------
    >>> with LiveDisplay(enabled=False) as display:
    ...     display.show(lambda: "epoch 1/10")
    """

    def __init__(
        self, enabled: bool, console: Console | None = None, *, transient: bool = True
    ) -> None:
        self._enabled = enabled
        self._console = console
        self._transient = transient
        self._live: Live | None = None
        self._next = 0.0

    def __enter__(self) -> LiveDisplay:
        if self._enabled and (self._console is not None or sys.stdout.isatty()):
            console = self._console or Console()
            if console.is_terminal:
                live = Live(console=console, auto_refresh=False, transient=self._transient)
                try:
                    live.start()
                except LiveError:
                    return self  # two live displays cannot share a terminal
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

    def show(self, render: Callable[[], RenderableType], *, now: bool = False) -> None:
        """Draw what `render` returns, unless the last drawing is too recent.

        Parameters
        ----------
        render : callable
            Called only if something is drawn.
        now : bool
            Draw in any case.
        """
        if self._live is None:
            return
        moment = time.monotonic()
        if not now and moment < self._next:
            return
        self._next = moment + REFRESH_SECONDS
        self._live.update(render(), refresh=True)
