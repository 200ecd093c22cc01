"""Live display: a text or table in a terminal that is redrawn during a computation.

Training shows one line and removes it at the end. A search shows a table and keeps it. The rules
that both need are here: when a display is live, how often it is redrawn, and how it ends.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from rich.console import Console, RenderableType
from rich.errors import LiveError
from rich.live import Live

log = logging.getLogger("accelerando")

REFRESH_SECONDS = 0.25
PLAIN_SECONDS = 30.0


class LiveDisplay:
    """Redraw a rendering in a terminal, at most once per `REFRESH_SECONDS`.

    A notebook shows it in its own output, as the HTML of ``_repr_html_`` if the rendering has
    that, so that a saved notebook shows it, too. Where nothing can be redrawn, such as in the log
    of a job, its ``str`` is printed every `PLAIN_SECONDS`. Text that is printed meanwhile, such as
    skorch's table, appears above the display in a terminal.

    If the logger ``accelerando`` has level INFO, it gets the text as well, every `PLAIN_SECONDS`,
    whether or not the display is enabled.

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
        self._notebook: Any = None  # the handle of an output that can be updated
        self._logs, self._logged_at = False, -math.inf

    def __enter__(self) -> LiveDisplay:
        self._logs, self._logged_at = log.isEnabledFor(logging.INFO), time.monotonic()
        if self.enabled:
            self._drawn_at = time.monotonic()
            console = self._console = self._console or Console()
            if console.is_jupyter:
                # rich would need ipywidgets to redraw or remove something
                from IPython.display import display

                self._notebook = display({"text/plain": ""}, raw=True, display_id=True)
                self._drawn_at = -math.inf
            elif console.is_terminal:
                live = Live(console=console, auto_refresh=False, transient=not self.keep)
                try:
                    live.start()
                except LiveError:  # another display has the terminal, such as scikit-learn's bar
                    pass
                else:
                    self._live, self._drawn_at = live, -math.inf
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
        if self._logs and (now or time.monotonic() - self._logged_at >= PLAIN_SECONDS):
            self._logged_at = time.monotonic()
            log.info("%s", render())
        passed = time.monotonic() - self._drawn_at
        if self._live is not None:
            if not now and passed < REFRESH_SECONDS:
                return
            self._live.update(render(), refresh=True)
        elif self._notebook is not None:
            if not now and passed < REFRESH_SECONDS:
                return
            self._notebook.update(_for_notebook(render()), raw=True)
        else:
            console = self._console
            if not self.enabled or passed < PLAIN_SECONDS:
                return
            if console is None or console.is_terminal:
                return
            print(render(), file=console.file, flush=True)
        self._drawn_at = time.monotonic()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        render, self._render = self._render, None
        if self._logs and self.keep and render is not None:
            log.info("%s", render())
        if self._notebook is not None:
            shown = render if self.keep else None
            last = _for_notebook(shown()) if shown is not None else {"text/plain": ""}
            self._notebook.update(last, raw=True)
            self._notebook = None
            return
        live, self._live = self._live, None
        try:
            if self.enabled and self.keep and render is not None:
                if live is not None:
                    live.update(render(), refresh=True)
                elif self._console is not None:
                    self._console.print(render())
        finally:
            if live is not None:
                live.stop()


def _for_notebook(rendering: Any) -> dict[str, str]:
    """Return a rendering as a notebook stores it: plain HTML, without scripts, and text."""
    forms = {"text/plain": str(rendering)}
    if hasattr(rendering, "_repr_html_"):
        forms["text/html"] = rendering._repr_html_()
    return forms
