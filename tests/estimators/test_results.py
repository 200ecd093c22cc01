"""What users read from an estimator: frames, signals, its position; and the live line."""

from __future__ import annotations

import io
import pickle
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console
from sklearn.exceptions import NotFittedError
from skorch.callbacks import Callback, LRScheduler

from accelerando._engine.runtime import progress
from accelerando._engine.runtime.progress import Progress
from accelerando.batch_size import GeoDamp
from accelerando.estimators._results import RunPosition
from accelerando.sync import PeriodicAveraging
from tests.nets import classifier, regressor


def test_history_frame_has_one_row_per_epoch(digits):
    net = classifier(batch_size=GeoDamp(48, 1, 2), max_batch_size=96, max_epochs=3).fit(*digits)
    frame = net.history_frame()
    assert list(frame.columns) == [
        "epoch", "batch_size", "lr", "updates", "examples", "seconds",
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


# -- the position, signals and checkpoints --------------------------------------------------------


def test_the_position_is_read_only_and_follows_the_run(line):
    seen = []

    class Look(Callback):
        def on_batch_end(self, net, training=None, **kwargs):
            if training:
                seen.append(net.position_)

    net = regressor(batch_size=50, max_epochs=2, callbacks=[Look()]).fit(*line)
    assert net.position_ == RunPosition(
        epoch=2, cursor=0, update=6, examples=240, until=2, n_examples=120, epoch_open=False
    )
    assert [p.update for p in seen] == [1, 2, 3, 4, 5, 6]
    assert [p.cursor for p in seen] == [50, 100, 120] * 2
    assert all(p.epoch_open for p in seen)
    with pytest.raises(AttributeError):
        net.position_.update = 3
    with pytest.raises(AttributeError):
        net.position_ = None


def test_before_training_there_is_no_position():
    with pytest.raises(AttributeError, match="NeuralNetRegressor has no position_ yet; call fit"):
        regressor().position_  # noqa: B018
    assert not hasattr(regressor(), "position_")
    assert regressor().initialize().position_.update == 0


def test_the_former_name_of_the_position_warns(line):
    net = regressor(batch_size=50, max_epochs=2).fit(*line)
    with pytest.warns(FutureWarning, match="run_ is deprecated .* use position_"):
        run = net.run_
    assert (run.update, run.epoch, run.seed, run.seeded) == (6, 2, 0, True)
    assert (run.batch_size, run.lr_scale, run.interrupted) == (50, 1.0, False)
    assert run.seconds > 0


def test_the_former_column_of_averagings_warns(line):
    net = regressor(virtual_ranks=2, sync=PeriodicAveraging(period=2), max_epochs=1).fit(*line)
    frame = net.updates_frame()
    assert "synchronisations" not in frame.columns
    with pytest.warns(FutureWarning, match="'synchronisations' is now called 'averagings'"):
        column = frame["synchronisations"]
    assert column.tolist() == frame["averagings"].tolist() == [0, 1, 1, 2]
    with pytest.raises(KeyError):
        frame["nothing"]
    with pytest.raises(KeyError):
        regressor(max_epochs=1).fit(*line).updates_frame()["averaging"]


def test_what_is_computed_from_the_frame_is_a_plain_frame(line):
    import pandas as pd

    frame = regressor(max_epochs=1).fit(*line).updates_frame()
    assert type(frame.head()) is pd.DataFrame
    assert type(frame[["loss", "lr"]]) is pd.DataFrame


def test_without_a_cluster_nothing_is_logged(line):
    net = regressor(max_epochs=1)
    assert net.fit(*line).world_log_ == []


def test_signals_are_the_newest_row_during_training_as_well(line):
    seen = []

    class Look(Callback):
        def on_batch_end(self, net, training=None, **kwargs):
            if training:
                seen.append(net.signals())

    net = regressor(max_epochs=1, callbacks=[Look()]).fit(*line)
    frame = net.updates_frame()
    assert [row["loss"] for row in seen] == frame["loss"].tolist()
    assert net.signals() == {name: float(frame[name].iloc[-1]) for name in frame.columns}
    assert all(type(value) is float for value in net.signals().values())
    assert regressor().initialize().signals() == {}


@pytest.mark.parametrize(("update", "loss"), [(99, 0.25), (1, None)])
def test_ranks_may_have_newer_signals(line, update, loss):
    net = regressor(max_epochs=1).fit(*line)
    before = net.signals()
    net._trainer_ = SimpleNamespace(live_signals={"update": float(update), "loss": 0.25})
    assert net.signals()["loss"] == (before["loss"] if loss is None else loss)
    assert net.signals()["examples"] == before["examples"]


def test_results_survive_pickle(line):
    net = regressor(max_epochs=2).fit(*line)
    loaded = pickle.loads(pickle.dumps(net))
    assert loaded.position_ == net.position_
    assert loaded.signals() == net.signals()
    assert loaded.history_frame().equals(net.history_frame())


def test_the_row_of_an_epoch_that_was_not_finished_is_left_out(line):
    class Stop(Callback):
        def on_batch_end(self, net, training=None, **kwargs):
            if training and net.position_.update == 5:
                raise KeyboardInterrupt

    net = regressor(batch_size=50, max_epochs=3, callbacks=[Stop()]).fit(*line)
    assert len(net.history) == 2
    assert len(net.history_frame()) == 1
    assert len(net.updates_frame()) == 5
