"""Live display: a text or table in a terminal that is redrawn during a computation.

Training shows one line and removes it at the end. A search shows a table and keeps it. The rules
that both need are here: when a display is live, how often it is redrawn, and how it ends.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from types import TracebackType

from rich.console import Console, RenderableType
from rich.errors import LiveError
from rich.live import Live

REFRESH_SECONDS = 0.25


class LiveDisplay:
    """Redraw a rendering in a terminal, at most once per `REFRESH_SECONDS`.

    Outside a terminal nothing is drawn while the block runs. Text that is printed meanwhile, such
    as skorch's table, appears above the display.

    Parameters
    ----------
    enabled : bool
        False shows nothing.
    console : rich.console.Console, optional
        Where to draw; standard output by default.
    keep : bool, default=False
        Leave the last rendering on the screen when the block ends, and print it once if the
        display could not be live. Otherwise the display is removed.

    Examples
    --------
    >>> with LiveDisplay(enabled=True, keep=True) as display:
    ...     for done in range(3):
    ...         display.show(lambda: f"{done + 1} of 3")
    3 of 3
    """

    def __init__(
        self, enabled: bool, console: Console | None = None, *, keep: bool = False
    ) -> None:
        self.enabled = enabled
        self.keep = keep
        self._console = console
        self._live: Live | None = None
        self._render: Callable[[], RenderableType] | None = None
        self._drawn_at = -math.inf

    def __enter__(self) -> LiveDisplay:
        if self.enabled and (self._console is not None or self.keep or sys.stdout.isatty()):
            console = self._console = self._console or Console()
            # A notebook can redraw a table, too; a line that is removed again is of no use there.
            if console.is_terminal or (self.keep and console.is_jupyter):
                live = Live(console=console, auto_refresh=False, transient=not self.keep)
                try:
                    live.start()
                except LiveError:  # another display has the terminal, such as scikit-learn's bar
                    pass
                else:
                    self._live = live
        return self

    def show(self, render: Callable[[], RenderableType], *, now: bool = False) -> None:
        """Draw what `render` returns, unless the last drawing is too recent.

        Parameters
        ----------
        render : callable
            Returns a text, table or other rich renderable. It is called only when a drawing is
            due, and once more at the end if the display is kept.
        now : bool, default=False
            Draw at once.
        """
        self._render = render
        if self._live is None:
            return
        if now or time.monotonic() - self._drawn_at >= REFRESH_SECONDS:
            self._live.update(render(), refresh=True)
            self._drawn_at = time.monotonic()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        live, self._live = self._live, None
        render, self._render = self._render, None
        try:
            if self.enabled and self.keep and render is not None:
                if live is not None:
                    live.update(render(), refresh=True)
                elif self._console is not None:
                    self._console.print(render())
        finally:
            if live is not None:
                live.stop()
