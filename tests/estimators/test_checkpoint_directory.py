"""A checkpoint directory: a new estimator continues a run that a power cut ended."""

from __future__ import annotations

import json
import pickle
import shutil
import uuid

import pandas as pd
import pytest
import torch
from skorch.callbacks import Callback, LRScheduler
from skorch.dataset import ValidSplit

from accelerando._engine import checkpoint, journal
from accelerando._engine.checkpoint_folder import states_in
from accelerando._folder import open_folder
from accelerando.sync import PeriodicAveraging
from tests.nets import classifier, parameters_of, regressor
from tests.object_store import ObjectStore
from tests.reference import saved_states


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
    net = regressor(
        batch_size=24, max_epochs=2, checkpoint=tmp_path / "run", checkpoint_every=3,
        checkpoint_keep=100, train_split=None,
    ).fit(*line)  # fmt: skip
    folder = open_folder(tmp_path / "run")
    written = [
        json.loads(checkpoint.read_from(folder, name)["json"])["position"]
        for name in reversed(states_in(folder))
    ]
    # Five updates in an epoch.
    per_epoch = -(-len(line[0]) // 24)
    expected = sorted([*range(3, 2 * per_epoch + 1, 3), per_epoch, 2 * per_epoch])
    assert [position["update"] for position in written] == expected
    assert written[-1]["epoch"] == 2
    assert net.position_.epoch == 2


def test_only_the_newest_and_the_best_are_kept(digits, tmp_path):
    net = classifier(
        checkpoint=tmp_path, checkpoint_keep=1, max_epochs=6, lr=2.0, train_split=ValidSplit(3)
    ).fit(*digits)
    losses = [row["valid_loss"] for row in net.history]
    best = losses.index(min(losses)) + 1
    names = states_in(open_folder(tmp_path))
    assert len(names) == (1 if best == 6 else 2)
    found = classifier().load_state(tmp_path, best=True)
    assert found.position_.epoch == best
    assert classifier().load_state(tmp_path).position_.epoch == 6
    assert classifier().load_state(tmp_path / names[-1]).position_.epoch == best


def test_no_best_one_is_kept_if_nothing_says_which_it_is(line, tmp_path):
    net = regressor(checkpoint=tmp_path, max_epochs=2, train_split=None).fit(*line)
    with pytest.raises(FileNotFoundError, match="no checkpoint of a best epoch"):
        net.load_state(tmp_path, best=True)
    with pytest.warns(
        UserWarning, match=r"checkpoint_best='r2': no callback has recorded 'r2_best'"
    ):
        regressor(checkpoint=tmp_path, checkpoint_best="r2", max_epochs=1).fit(*line)
    with pytest.raises(ValueError, match="best=True needs a checkpoint directory"):
        net.load_state(tmp_path / "nowhere.pt", best=True)
    with pytest.raises(ValueError, match=r"'checkpoint_best' parameter .* Got 3"):
        regressor(checkpoint_best=3).fit(*line)


@pytest.mark.parametrize("damage", ["empty", "cut"])
def test_a_damaged_checkpoint_costs_only_the_updates_since_the_one_before(digits, tmp_path, damage):
    params = {"max_epochs": 3, "checkpoint": tmp_path, "checkpoint_every": 3}
    whole = classifier(max_epochs=3).fit(*digits)
    with pytest.raises(RuntimeError, match="power cut"):
        classifier(callbacks=[PowerCut(14)], **params).fit(*digits)
    newest = tmp_path / states_in(open_folder(tmp_path))[0]
    content = newest.read_bytes()
    newest.write_bytes(b"" if damage == "empty" else content[: len(content) // 2])
    net = classifier(**params)
    with pytest.warns(UserWarning, match=f"{newest.name} is .* The run continues from"):
        net.fit(*digits)
    assert torch.equal(parameters_of(net), parameters_of(whole))
    assert net.updates_frame()["loss"].tolist() == whole.updates_frame()["loss"].tolist()


def test_a_full_disk_costs_the_checkpoints_and_not_the_run(digits, tmp_path, monkeypatch):
    def full_disk(content, file):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "dump", full_disk)
    net = classifier(max_epochs=3, checkpoint=tmp_path)
    with pytest.warns(UserWarning, match="No space left") as warned:
        net.fit(*digits)
    assert len(warned) == 1
    assert torch.equal(parameters_of(net), parameters_of(classifier(max_epochs=3).fit(*digits)))
    assert list(tmp_path.iterdir()) == []


def test_long_histories_continue_from_several_files(digits, tmp_path, monkeypatch):
    monkeypatch.setattr(journal, "ROWS_PER_FILE", 8)
    params = {"max_epochs": 5, "module__dropout": 0.2, "train_split": ValidSplit(3)}
    whole = classifier(**params).fit(*digits)
    params |= {"checkpoint": tmp_path, "checkpoint_every": 3}
    for cut in (15, 33):
        with pytest.raises(RuntimeError, match="power cut"):
            classifier(callbacks=[PowerCut(cut)], **params).fit(*digits)
    net = classifier(**params).fit(*digits)
    assert sum(path.name.startswith("records-") for path in tmp_path.iterdir()) > 2
    for found in (net, classifier(**params).load_state(tmp_path)):
        assert torch.equal(parameters_of(found), parameters_of(whole))
        times = ["seconds", "dur", "wait_seconds"]
        for name in ("updates_frame", "history_frame"):
            one, other = getattr(found, name)(), getattr(whole, name)()
            pd.testing.assert_frame_equal(
                one.drop(columns=times, errors="ignore"), other.drop(columns=times, errors="ignore")
            )
        assert (
            found.history[:, "batches", :, "train_loss"]
            == (whole.history[:, "batches", :, "train_loss"])
        )


def test_calls_of_partial_fit_continue_the_files(digits, tmp_path, monkeypatch):
    monkeypatch.setattr(journal, "ROWS_PER_FILE", 8)
    net = classifier(max_epochs=1, checkpoint=tmp_path)
    for _ in range(4):
        net.partial_fit(*digits)
    files = {path.name for path in tmp_path.iterdir() if path.name.startswith("records-")}
    net.partial_fit(*digits)
    assert files < {path.name for path in tmp_path.iterdir()}, "nothing is written twice"
    found = classifier(max_epochs=1).load_state(tmp_path)
    assert len(found.updates_frame()) == len(net.updates_frame()) == net.position_.update
    copy = pickle.loads(pickle.dumps(net)).partial_fit(*digits)
    assert copy.position_.epoch == 6


@pytest.mark.parametrize("protocol", ["memory", ObjectStore.protocol])
def test_a_store_of_fsspec_holds_checkpoints(protocol, digits):
    url = f"{protocol}://{uuid.uuid4().hex}/run"
    whole = classifier(max_epochs=3).fit(*digits)
    params = {"max_epochs": 3, "checkpoint": url, "checkpoint_every": 3}
    with pytest.raises(RuntimeError, match="power cut"):
        classifier(callbacks=[PowerCut(14)], **params).fit(*digits)
    net = classifier(**params).fit(*digits)
    assert torch.equal(parameters_of(net), parameters_of(whole))
    assert classifier().load_state(url).position_ == whole.position_
    net.save_state(url + "-end")
    assert classifier().load_state(url + "-end").position_ == whole.position_


@pytest.mark.parametrize(
    "path", ["nowhere://bucket/run", pytest.param(__file__, id="a file"), "README.md/run"]
)
def test_a_directory_that_cannot_be_is_refused_before_training(line, path):
    with pytest.raises(
        ValueError, match="'checkpoint' parameter of NeuralNetRegressor must be a folder"
    ):
        regressor(checkpoint=path).fit(*line)


def test_the_only_file_of_earlier_versions_is_continued(tmp_path):
    shutil.copy(saved_states.DATA / "states_v5" / "int.pt", tmp_path / "state.pt")
    state = saved_states.STATES["int"]
    net = state.build(checkpoint=tmp_path, checkpoint_keep=2).fit(*state.data())
    whole = state.build().fit(*state.data())
    assert (parameters_of(net) - parameters_of(whole)).abs().max() < 1e-12
    assert net.position_ == whole.position_
    assert "state.pt" not in [path.name for path in tmp_path.iterdir()], "newer ones replaced it"


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
