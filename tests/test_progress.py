"""A live display: only in a terminal, redrawn rarely, and ended in one of two ways."""

import io
import logging
import sys
import types

import pytest
from rich.console import Console
from rich.errors import LiveError
from rich.live import Live
from rich.text import Text

from accelerando import _progress
from accelerando._progress import LiveDisplay


def console(terminal):
    return Console(file=io.StringIO(), force_terminal=terminal, width=60)


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still until a test sets it."""
    now = [0.0]
    monkeypatch.setattr(_progress.time, "monotonic", lambda: now[0])
    return now


class Counted:
    def __init__(self):
        self.calls = 0

    def __call__(self):
        self.calls += 1
        return f"drawing {self.calls}"


def test_a_terminal_sees_each_drawing(clock):
    screen = console(terminal=True)
    with LiveDisplay(True, screen) as display:
        display.show(lambda: "half")
        assert "half" in screen.file.getvalue()
        display.show(lambda: "whole", now=True)
    assert "whole" in screen.file.getvalue()


def test_drawings_are_rare_unless_asked_for(clock):
    render = Counted()
    with LiveDisplay(True, console(terminal=True)) as display:
        for second in (0.0, 0.1, 0.2, 0.25, 0.3, 0.49, 0.5):
            clock[0] = second
            display.show(render)
        assert render.calls == 3
        display.show(render, now=True)
        assert render.calls == 4
        display.show(render)
        assert render.calls == 4


@pytest.mark.parametrize("terminal", [True, False])
def test_the_last_rendering_is_kept_or_removed(terminal, clock):
    shown = {}
    for keep in (True, False):
        screen = console(terminal)
        with LiveDisplay(True, screen, keep=keep) as display:
            display.show(lambda: "first")
            display.show(lambda: "last")  # too soon to be drawn
        shown[keep] = screen.file.getvalue()
    assert "last" in shown[True]
    assert "last" not in shown[False]
    if not terminal:
        assert shown == {True: "last\n", False: ""}


@pytest.mark.parametrize("terminal", [True, False])
def test_nothing_is_drawn_when_disabled(terminal):
    screen, render = console(terminal), Counted()
    with LiveDisplay(False, screen, keep=True) as display:
        display.show(render, now=True)
    assert (screen.file.getvalue(), render.calls) == ("", 0)


def test_standard_output_that_is_no_terminal_sees_only_what_is_kept(capsys):
    for keep in (False, True):
        with LiveDisplay(True, keep=keep) as display:
            display.show(lambda: "done", now=True)
        assert capsys.readouterr().out == ("done\n" if keep else "")


def test_a_terminal_that_is_taken_stays_with_its_display(monkeypatch):
    def taken(live, refresh=False):
        raise LiveError("Only one live display may be active at once")

    monkeypatch.setattr(Live, "start", taken)
    screen = console(terminal=True)
    with LiveDisplay(True, screen, keep=True) as display:
        display.show(lambda: "ours", now=True)
        assert screen.file.getvalue() == ""
    assert screen.file.getvalue() == "ours\n"


def test_an_error_ends_the_display_and_passes_through():
    screen = console(terminal=True)
    with pytest.raises(ZeroDivisionError), LiveDisplay(True, screen) as display:
        display.show(lambda: str(1 / 0), now=True)
    with LiveDisplay(True, screen) as display:  # the terminal is free again
        display.show(lambda: "again", now=True)
    assert "again" in screen.file.getvalue()


# -- logs and notebooks ---------------------------------------------------------------------------


def test_a_log_gets_a_plain_line_now_and_then(monkeypatch, capsys):
    now = [100.0]
    monkeypatch.setattr(_progress.time, "monotonic", lambda: now[0])
    with LiveDisplay(enabled=True) as display:
        for second in range(95):
            now[0] = 100.0 + second
            display.show(lambda second=second: Text(f"second {second}"))
    assert capsys.readouterr().out == "second 30\nsecond 60\nsecond 90\n"


def test_a_silent_display_prints_nothing_into_a_log(monkeypatch, capsys):
    now = [100.0]
    monkeypatch.setattr(_progress.time, "monotonic", lambda: now[0])
    with LiveDisplay(enabled=False) as display:
        now[0] += 1000
        display.show(lambda: "line")
    assert capsys.readouterr().out == ""


def test_a_notebook_has_a_line_that_is_updated_and_removed(monkeypatch):
    shown = []

    class Handle:
        def update(self, data, raw):
            shown.append(data["text/plain"])

    def display(data, raw, display_id):
        shown.append(data["text/plain"])
        return Handle()

    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    module = types.ModuleType("IPython.display")
    module.display = display
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    console = Console(file=io.StringIO(), force_jupyter=True)
    with LiveDisplay(enabled=True, console=console) as line:
        line.show(lambda: Text("update 1"), now=True)
        line.show(lambda: Text("update 2"), now=True)
    assert shown == ["", "update 1", "update 2", ""]


def test_a_notebook_keeps_plain_html(monkeypatch):
    shown = []

    class Handle:
        def update(self, forms, raw):
            shown.append(forms)

    module = types.ModuleType("IPython.display")
    module.display = lambda forms, raw, display_id: Handle()
    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", module)

    class Page:
        def _repr_html_(self):
            return "<p>half</p>"

        def __str__(self):
            return "half"

    screen = Console(file=io.StringIO(), force_jupyter=True)
    with LiveDisplay(enabled=True, console=screen, keep=True) as display:
        display.show(Page)
    assert shown == [{"text/plain": "half", "text/html": "<p>half</p>"}] * 2
    assert screen.file.getvalue() == ""


def test_a_log_of_python_gets_the_text_even_if_nothing_is_shown(monkeypatch, caplog):
    now = [0.0]
    monkeypatch.setattr(_progress.time, "monotonic", lambda: now[0])
    with (
        caplog.at_level(logging.INFO, logger="accelerando"),
        LiveDisplay(enabled=False, keep=True) as display,
    ):
        for now[0] in (1.0, 31.0, 32.0):
            display.show(lambda: f"second {now[0]:.0f}")
    assert [record.getMessage() for record in caplog.records] == ["second 31", "second 32"]


def test_without_a_log_nothing_is_rendered_for_it(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(_progress.time, "monotonic", lambda: now[0])
    with LiveDisplay(enabled=False, keep=True) as display:
        now[0] = 31.0
        display.show(lambda: pytest.fail("rendered"))
