"""A live display: only in a terminal, redrawn rarely, and ended in one of two ways."""

import io

import pytest
from rich.console import Console
from rich.errors import LiveError
from rich.live import Live

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
