"""Signals for Prometheus and TensorBoard."""

from __future__ import annotations

from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from skorch.callbacks import Callback

from accelerando.monitor import GradientVariance, LossTrend
from accelerando.monitor.export import MetricsServer, TensorBoardSignals
from tests.nets import regressor


class Collect(Callback):
    """Read the endpoint while training runs, as Prometheus would."""

    def on_batch_end(self, net, training=None, **kwargs):
        if training and net.position_.update == 10:
            with urlopen(net.server.url) as answer:
                net.text, net.kind = answer.read().decode(), answer.headers["Content-Type"]


def test_prometheus_reads_the_newest_update_while_training_runs(line):
    net = regressor(monitors=[LossTrend(), GradientVariance()], callbacks=[Collect()])
    net.initialize()
    with MetricsServer(net) as server:
        vars(net)["server"] = server
        net.partial_fit(*line)
        assert server.host == "127.0.0.1"
        with pytest.raises(HTTPError, match="404"):
            urlopen(server.url.replace("metrics", "other"))
    frame = net.updates_frame()
    values = dict(row.split(" ") for row in net.text.splitlines() if not row.startswith("#"))
    assert values["accelerando_update"] == "10.0"
    assert float(values["accelerando_loss"]) == frame["loss"].iloc[9]
    assert float(values["accelerando_loss_trend"]) == frame["loss_trend"].iloc[9]
    assert net.kind.startswith("text/plain; version=0.0.4")
    with pytest.raises(OSError, match="refused"):
        urlopen(server.url)


def test_tensorboard_gets_every_update_once(line):
    class Writer:
        rows = []  # noqa: RUF012  one for the test

        def add_scalar(self, name, value, step):
            self.rows.append((name, value, step))

    writer = Writer()
    net = regressor(
        monitors=[LossTrend()], callbacks=[TensorBoardSignals(writer, ["loss", "loss_trend"])]
    ).fit(*line)
    frame = net.updates_frame()
    losses = [(step, value) for name, value, step in Writer.rows if name == "loss"]
    assert losses == list(zip(frame["update"], frame["loss"], strict=True))
    assert len([1 for name, *_ in Writer.rows if name == "loss_trend"]) == len(frame) - 1


def test_a_cluster_writes_the_same_rows(client, line):
    """Its batch hooks do nothing, so that the workers need not call them."""

    class Writer:
        def __init__(self):
            self.steps = []

        def add_scalar(self, name, value, step):
            self.steps.append(step)

    writer = Writer()
    net = regressor(client=client, max_epochs=2, callbacks=[TensorBoardSignals(writer, ["loss"])])
    net.fit(*line)
    assert writer.steps == net.updates_frame()["update"].tolist()


def test_the_callback_has_every_hook_of_skorch_and_only_one_does_anything():
    hooks = [name for name in vars(Callback) if name.startswith("on_")]
    active = [
        name for name in hooks if not getattr(getattr(TensorBoardSignals, name), "is_idle", 0)
    ]
    assert active == ["on_epoch_end"]
    assert not issubclass(TensorBoardSignals, Callback)


def test_skorch_can_read_and_set_its_parameters():
    callback = TensorBoardSignals("writer", columns=["loss"])
    assert callback.get_params() == {"writer": "writer", "columns": ["loss"]}
    assert callback.set_params(columns=None).columns is None
    assert callback.initialize() is callback
