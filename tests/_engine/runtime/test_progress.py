"""The progress line of a fit."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from accelerando._engine.runtime import progress
from accelerando._engine.runtime.progress import Progress, line


def position(**fields):
    start = {"epoch": 0, "until": 2, "update": 1, "n_examples": 100, "cursor": 50, "examples": 50}
    return SimpleNamespace(**{**start, **fields})


def shown(verbose=1, terminal=True, cluster=None, **fields):
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=150)
    with Progress(verbose, console) as display:
        display.begin(position(examples=0))
        display.update(position(**fields), batch_size=16, loss=0.5, lr=0.1, cluster=cluster)
    return out.getvalue()


def test_a_terminal_shows_the_line():
    text = shown()
    for field in ("epoch 1/2", "50 %", "update 1", "batch 16", "lr 0.1", "loss 0.5", "examples/s"):
        assert field in text


@pytest.mark.parametrize("options", [{"verbose": 0}, {"terminal": False}])
def test_nothing_is_shown_without_verbose_or_terminal(options):
    assert shown(**options) == ""


def test_the_speed_counts_from_the_begin_of_this_fit(monkeypatch):
    out = io.StringIO()
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    clock = [10.0]
    with Progress(1, Console(file=out, force_terminal=True, width=150)) as display:
        display.begin(position(examples=1000))
        clock[0] = 12.0
        display.update(position(examples=1500), batch_size=16, loss=0.5, lr=0.1)
    assert "250 examples/s" in out.getvalue()


def test_a_cluster_adds_what_its_ranks_measured():
    ranks = {"examples_per_second": 300.0, "ranks": 3, "bytes_per_second": 2.5e6, "waiting": 0.25}
    text = shown(cluster=ranks)
    assert "300 examples/s" in text
    assert "3 ranks  2.5 MB/s  25% waiting" in text


def test_two_live_displays_do_not_fight():
    console = Console(file=io.StringIO(), force_terminal=True)
    with Progress(1, console), Progress(1, console) as second:
        second.update(position(), batch_size=16, loss=1.0, lr=0.1)


def test_a_stream_has_neither_percent_nor_time_left():
    text = line(position(n_examples=None), batch_size=16, loss=1.0, lr=0.1, speed=10.0)
    assert "%" not in text
    assert "left" not in text


def test_the_last_epoch_is_never_exceeded():
    done = position(epoch=2, cursor=0, examples=200)
    text = line(done, batch_size=16, loss=1.0, lr=0.1, speed=10.0)
    assert text.startswith("epoch 2/2")
    assert text.endswith("0:00:00 left")
    assert line(position(), 16, 1.0, 0.1, speed=10.0).endswith("0:00:15 left")
