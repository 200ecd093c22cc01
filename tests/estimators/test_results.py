"""Frames of what happened, and the live line."""

from __future__ import annotations

import io

import pytest
import torch
from rich.console import Console
from sklearn.exceptions import NotFittedError
from skorch.callbacks import LRScheduler

from accelerando._engine.position import Position
from accelerando._engine.runtime import progress
from accelerando._engine.runtime.progress import Progress
from accelerando.batch_size import GeoDamp
from tests.nets import classifier, regressor


def test_history_frame_has_one_row_per_epoch(digits):
    net = classifier(batch_size=GeoDamp(48, 1, 2), max_batch_size=96, max_epochs=3).fit(*digits)
    frame = net.history_frame()
    assert list(frame.columns) == [
        "epoch", "updates", "examples", "batch_size", "lr", "seconds",
        "train_loss", "valid_loss", "valid_acc",
    ]  # fmt: skip
    assert frame["epoch"].tolist() == [1, 2, 3]
    assert frame["updates"].tolist() == [10, 15, 20]
    assert frame["examples"].tolist() == [480, 960, 1440]
    assert frame["batch_size"].tolist() == [48, 96, 96]
    assert frame["lr"].tolist() == pytest.approx([0.1, 0.1, 0.05])
    assert frame["seconds"].is_monotonic_increasing
    assert frame["valid_acc"].tolist() == net.history[:, "valid_acc"]


def test_updates_frame_has_one_row_per_update(line):
    net = regressor(batch_size=50, max_epochs=2).fit(*line)
    frame = net.updates_frame()
    assert list(frame.columns) == [
        "update", "epoch", "examples", "batch_size", "lr", "loss", "grad_norm", "seconds",
        "ranks", "bytes", "wait_seconds", "encode_seconds", "decode_seconds",
    ]  # fmt: skip
    assert frame["update"].tolist() == [1, 2, 3, 4, 5, 6]
    assert frame["epoch"].tolist() == [1, 1, 1, 2, 2, 2]
    assert frame["batch_size"].tolist() == [50, 50, 20] * 2
    assert frame["loss"].tolist() == [
        loss for epoch in net.history for loss in (b["train_loss"] for b in epoch["batches"])
    ]


def test_train_loss_of_an_epoch_weighs_batches_by_their_rows(line):
    net = regressor(batch_size=50, max_epochs=1).fit(*line)
    frame = net.updates_frame()
    mean = (frame["loss"] * frame["batch_size"]).sum() / 120
    assert net.history_frame()["train_loss"].iloc[0] == pytest.approx(mean)


def test_lr_in_the_frame_is_the_one_used(line):
    schedule = LRScheduler(torch.optim.lr_scheduler.ExponentialLR, gamma=0.5)
    net = regressor(callbacks=[schedule], batch_size=120, max_epochs=3, lr=0.2).fit(*line)
    assert net.history_frame()["lr"].tolist() == pytest.approx([0.2, 0.1, 0.05])
    assert net.updates_frame()["lr"].tolist() == pytest.approx([0.2, 0.1, 0.05])


def test_frames_need_a_fitted_net():
    with pytest.raises(NotFittedError):
        regressor().history_frame()
    with pytest.raises(NotFittedError):
        regressor().updates_frame()


def test_history_is_skorchs(line):
    net = regressor(batch_size=50, max_epochs=1).fit(*line)
    assert set(net.history[0]) == {
        "batches", "epoch", "train_batch_count", "dur", "train_loss", "train_loss_best",
    }  # fmt: skip
    assert net.history[0, "train_batch_count"] == 3
    assert net.history[:, "batches", :, "train_batch_size"] == [[50, 50, 20]]


def test_the_live_line_shows_in_a_terminal_and_nowhere_else(line, monkeypatch):
    shown = {}
    for name, terminal, verbose in [("tty", True, 1), ("quiet", True, 0), ("file", False, 1)]:
        out = io.StringIO()
        console = Console(file=out, force_terminal=terminal, width=150)
        monkeypatch.setattr(progress, "Progress", lambda v, c=console: Progress(v, c))
        regressor(max_epochs=2, verbose=verbose, callbacks__print_log=None).fit(*line)
        shown[name] = out.getvalue()
    assert "epoch 1/2" in shown["tty"]
    assert "batch 16" in shown["tty"]
    assert "examples/s" in shown["tty"]
    assert shown["quiet"] == shown["file"] == ""


def test_two_live_displays_do_not_fight():
    console = Console(file=io.StringIO(), force_terminal=True)
    with Progress(1, console), Progress(1, console) as second:
        second.update(Position(until=1), 8, loss=1.0, lr=0.1)


def test_the_table_is_printed_when_asked_for(line, capsys):
    net = regressor(max_epochs=2, verbose=1).fit(*line)
    assert "train_loss" in capsys.readouterr().out
    net.set_params(verbose=0).partial_fit(*line)
    assert capsys.readouterr().out == ""
    net.set_params(verbose=1).partial_fit(*line)
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_a_table_for_somebody_else_is_printed_without_verbose(line):
    from skorch.callbacks import PrintLog

    lines = []
    regressor(max_epochs=2, callbacks=[PrintLog(sink=lines.append)]).fit(*line)
    assert len(lines) == 4
