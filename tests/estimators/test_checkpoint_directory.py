"""A checkpoint directory: a new estimator continues a run that a power cut ended."""

from __future__ import annotations

import json

import pytest
import torch
from skorch.callbacks import Callback, LRScheduler

from accelerando._engine import checkpoint
from accelerando.sync import PeriodicAveraging
from tests.nets import classifier, parameters_of, regressor


class PowerCut(Callback):
    def __init__(self, update):
        self.update = update

    def on_batch_begin(self, net, training=None, **kwargs):
        if training and net.position_.update == self.update:
            raise RuntimeError("power cut")


SETTINGS = {
    "plain": {},
    "scheduler per batch": {
        "callbacks": [
            LRScheduler(torch.optim.lr_scheduler.StepLR, step_size=3, gamma=0.8, step_every="batch")
        ]
    },
    "averaging": {"virtual_ranks": 2, "sync": PeriodicAveraging(period=3), "batch_size": 24},
}


@pytest.mark.parametrize("kind", SETTINGS)
@pytest.mark.parametrize("cut", [1, 14, 20])
def test_a_checkpoint_lets_a_new_estimator_continue(digits, tmp_path, kind, cut):
    params = {"max_epochs": 4, "module__dropout": 0.2, **SETTINGS[kind]}
    whole = classifier(**params).fit(*digits)
    params |= {"checkpoint": tmp_path / "run", "checkpoint_every": 3}
    callbacks = [*params.pop("callbacks", []), PowerCut(cut)]
    with pytest.raises(RuntimeError, match="power cut"):
        classifier(callbacks=callbacks, **params).fit(*digits)
    second = classifier(callbacks=callbacks[:-1], **params).fit(*digits)
    assert torch.equal(parameters_of(second), parameters_of(whole))
    assert second.position_ == whole.position_
    assert second.updates_frame()["lr"].tolist() == whole.updates_frame()["lr"].tolist()


def test_checkpoints_are_written_every_few_updates_and_after_every_epoch(line, tmp_path):
    written = []

    class Look(Callback):
        def on_batch_end(self, net, training=None, **kwargs):
            file = tmp_path / "run" / "state.pt"
            if training and file.exists():
                plain = json.loads(checkpoint.read(file)["json"])
                written.append((net.position_.update, plain["position"]["update"]))

    regressor(
        callbacks=[Look()], batch_size=24, max_epochs=2, checkpoint=tmp_path / "run",
        checkpoint_every=3,
    ).fit(*line)  # fmt: skip
    # Five updates in an epoch: after 3, 5, 6, 9 and 10.
    assert written == [(4, 3), (5, 3), (6, 5), (7, 6), (8, 6), (9, 6), (10, 9)]
    plain = json.loads(checkpoint.read(tmp_path / "run" / "state.pt")["json"])
    assert plain["position"]["epoch"] == 2


def test_a_finished_run_is_not_continued(line, tmp_path):
    settings = {"checkpoint": tmp_path / "run", "max_epochs": 2}
    first = regressor(**settings).fit(*line)
    second = regressor(**settings).fit(*line)
    assert torch.equal(parameters_of(second), parameters_of(first))
    assert second.position_.epoch == 2
    third = first.partial_fit(*line)
    assert third.position_.epoch == 4, "an estimator that has trained continues with what it has"


def test_without_a_directory_nothing_is_written(line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    regressor(max_epochs=1).fit(*line)
    assert list(tmp_path.iterdir()) == []
