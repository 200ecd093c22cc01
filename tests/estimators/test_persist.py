"""Saving, resuming, interrupting, failing: nothing is lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch
from skorch.callbacks import Callback, EarlyStopping, LRScheduler
from torch import nn

from accelerando._engine import checkpoint
from accelerando._engine.position import Part
from accelerando.batch_size import Constant, GeoDamp, RadaDamp
from accelerando.exceptions import NotFiniteError, StateError
from tests.nets import classifier, parameters_of, regressor

SCHEDULES = {
    "none": list,
    "exponential": lambda: [LRScheduler(torch.optim.lr_scheduler.ExponentialLR, gamma=0.7)],
    "milestones": lambda: [
        LRScheduler(torch.optim.lr_scheduler.MultiStepLR, milestones=[1, 3], gamma=0.1)
    ],
    "per batch": lambda: [
        LRScheduler(torch.optim.lr_scheduler.StepLR, step_size=3, gamma=0.8, step_every="batch")
    ],
    "plateau": lambda: [
        LRScheduler(torch.optim.lr_scheduler.ReduceLROnPlateau, patience=0, monitor="valid_loss")
    ],
    "early stopping": lambda: [EarlyStopping(patience=2, threshold=0.2, load_best=True)],
}


class At(Callback):
    """Do something once, after a given update or epoch."""

    def __init__(self, action, update=None, epoch=None):
        self.action = action
        self.update = update
        self.epoch = epoch

    def on_batch_end(self, net, training=None, **kwargs):
        if training and net.position_.update == self.update:
            self.action(net)

    def on_epoch_end(self, net, **kwargs):
        if net.position_.epoch == self.epoch:
            self.action(net)


def interrupt(net):
    raise KeyboardInterrupt


def position_of(net):
    """Return everything but tensors and the clock."""
    plain = json.loads(net._state_.state_dict(Part.POSITION)["json"])
    return {**plain, "seconds": 0}


def make(callbacks=(), **params):
    settings = {
        "module__dropout": 0.2,
        "module__norm": True,
        "optimizer": torch.optim.Adam,
        "lr": 0.01,
        "batch_size": RadaDamp(20, memory=0.9),
        "max_epochs": 5,
        **params,
    }
    return classifier(callbacks=list(callbacks), **settings)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("at", [{"update": 1}, {"update": 30}, {"epoch": 2}])
def test_resuming_equals_never_having_stopped(digits, tmp_path, schedule, at):
    whole = make(SCHEDULES[schedule]()).fit(*digits)
    save = At(lambda net: net.save_state(tmp_path / "state"), **at)
    make([save, *SCHEDULES[schedule]()]).fit(*digits)

    torch.manual_seed(123)  # another process starts with another generator
    resumed = make(SCHEDULES[schedule]()).load_state(tmp_path / "state").partial_fit(*digits)

    assert torch.equal(parameters_of(resumed), parameters_of(whole))
    assert position_of(resumed) == position_of(whole)
    columns = ["update", "epoch", "examples", "batch_size", "lr", "loss", "grad_norm"]
    assert resumed.updates_frame()[columns].equals(whole.updates_frame()[columns])
    assert resumed.history[:, "valid_loss"] == whole.history[:, "valid_loss"]
    for (name, tensor), (_, other) in zip(
        resumed.module_.named_buffers(), whole.module_.named_buffers(), strict=True
    ):
        assert torch.equal(tensor, other), name


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_state_that_was_only_loaded_is_saved_as_it_was(digits, tmp_path, schedule):
    whole = make(SCHEDULES[schedule]()).fit(*digits)
    save = At(lambda net: net.save_state(tmp_path / "first"), epoch=2)
    make([save, *SCHEDULES[schedule]()]).fit(*digits)
    make(SCHEDULES[schedule]()).load_state(tmp_path / "first").save_state(tmp_path / "second")
    resumed = make(SCHEDULES[schedule]()).load_state(tmp_path / "second").partial_fit(*digits)
    assert torch.equal(parameters_of(resumed), parameters_of(whole))


# Not with EarlyStopping(load_best=True), which puts the best parameters back when interrupted.
@pytest.mark.parametrize("schedule", [name for name in SCHEDULES if name != "early stopping"])
def test_an_interrupted_net_continues_in_the_same_process(digits, schedule):
    whole = make(SCHEDULES[schedule]()).fit(*digits)
    stop = At(interrupt, update=37)
    net = make([*SCHEDULES[schedule](), stop]).fit(*digits)
    assert net.position_.update == 37
    assert net.predict(digits[0]).shape == (600,)
    net.partial_fit(*digits)
    assert torch.equal(parameters_of(net), parameters_of(whole))
    assert len(net.history_frame()) == len(whole.history_frame())


def test_an_unseeded_run_resumes_exactly_too(digits, tmp_path):
    save = At(lambda net: net.save_state(tmp_path / "state"), update=11)
    torch.manual_seed(9)
    whole = make([save], random_state=None, micro_batch_size=None).fit(*digits)
    torch.manual_seed(10)
    resumed = make(random_state=None, micro_batch_size=None)
    resumed.load_state(tmp_path / "state").partial_fit(*digits)
    assert torch.equal(parameters_of(resumed), parameters_of(whole))


def test_a_finished_run_is_trained_further(digits, tmp_path):
    net = make(max_epochs=2).fit(*digits)
    net.save_state(tmp_path / "state")
    resumed = make(max_epochs=2).load_state(tmp_path / "state").partial_fit(*digits)
    net.partial_fit(*digits)
    assert resumed.position_.epoch == 4
    assert torch.equal(parameters_of(resumed), parameters_of(net))
    assert resumed.classes_.tolist() == net.classes_.tolist()


def test_a_loaded_net_predicts_without_training(digits, tmp_path):
    net = make(max_epochs=1).fit(*digits)
    net.save_state(str(tmp_path / "state"))
    loaded = make(random_state=5).load_state(str(tmp_path / "state"))
    assert np.array_equal(loaded.predict_proba(digits[0]), net.predict_proba(digits[0]))
    assert loaded.history_frame().equals(net.history_frame())


def test_channels_last_nets_resume_exactly(digits, tmp_path):
    from tests.nets import CNN

    images = digits[0].reshape(-1, 1, 8, 8)
    settings = {"max_epochs": 3, "optimizer__momentum": 0.9}
    whole = classifier(CNN, **settings).fit(images, digits[1])
    save = At(lambda net: net.save_state(tmp_path / "state"), update=10)
    classifier(CNN, callbacks=[save], **settings).fit(images, digits[1])
    resumed = classifier(CNN, **settings).load_state(tmp_path / "state")
    assert torch.equal(parameters_of(resumed.partial_fit(images, digits[1])), parameters_of(whole))


def test_loading_runs_no_code(tmp_path):
    class Evil:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path / 'pwned'}",)

    torch.save({"format": "accelerando-state", "version": 1, "json": Evil()}, tmp_path / "evil")
    with pytest.raises(StateError, match="is not a state that save_state wrote"):
        regressor().load_state(tmp_path / "evil")
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize("damage", ["empty", "text", "cut", "params", "version"])
def test_a_damaged_file_is_refused(line, tmp_path, damage):
    net = regressor(max_epochs=1).fit(*line)
    path = tmp_path / "state"
    net.save_state(path)
    content = path.read_bytes()
    if damage == "params":
        net.save_params(f_params=str(path))
    elif damage == "version":
        torch.save({"format": "accelerando-state", "version": 99}, path)
    else:
        changed = {"empty": b"", "text": b"hello", "cut": content[: len(content) // 2]}
        path.write_bytes(changed[damage])
    before = parameters_of(net).clone()
    with pytest.raises(StateError):
        net.load_state(path)
    assert torch.equal(parameters_of(net), before)
    with pytest.raises(FileNotFoundError):
        net.load_state(tmp_path / "nowhere")


def test_another_module_or_policy_is_noticed(line, digits, tmp_path):
    classifier(max_epochs=1).fit(*digits).save_state(tmp_path / "state")
    with pytest.raises(StateError, match="with another module"):
        classifier(module__hidden=7).load_state(tmp_path / "state")
    with pytest.warns(UserWarning, match=r"saved with batch_size=Constant\(size=64\)") as caught:
        classifier(batch_size=GeoDamp(4)).load_state(tmp_path / "state")
    assert caught[0].filename == __file__, "the warning points at the line that loads"


def test_a_failed_write_leaves_the_old_file(line, tmp_path, monkeypatch):
    net = regressor(max_epochs=1).fit(*line)
    path = tmp_path / "state"
    net.save_state(path)
    before = path.read_bytes()

    def full_disk(content, file):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint.torch, "save", full_disk)
    with pytest.raises(OSError, match="No space left"):
        net.partial_fit(*line).save_state(path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["state"]


def test_other_data_after_an_interruption_begin_a_new_run(line):
    X, y = line
    net = regressor(callbacks=[At(interrupt, update=3)]).fit(X, y)
    net.callbacks = None
    with pytest.warns(UserWarning, match="interrupted epoch had 120 .* these data have 50"):
        net.set_params(max_epochs=2).partial_fit(X[:50], y[:50])
    assert net.position_.examples == 48 + 100


SCRIPT = """
    import sys, time, torch
    from skorch.callbacks import Callback
    from tests.nets import regressor
    import numpy as np

    class Slow(Callback):
        def on_grad_computed(self, net, named_parameters, **kwargs):
            print("update", net.position_.update, flush=True)
            time.sleep(0.02)

    X = np.linspace(-1, 1, 300, dtype="float32").reshape(100, 3)
    net = regressor(callbacks=[Slow()], max_epochs=200, batch_size=10).fit(X, X[:, :1])
    print("stopped", net.position_.update, net.position_.epoch, flush=True)
    net.save_state(sys.argv[1])
    net.predict(X)
"""


def test_ctrl_c_keeps_what_was_learned_between_two_updates(tmp_path):
    """A real SIGINT to a real process; its state continues to the parameters of a quiet run."""
    path = tmp_path / "state"
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SCRIPT), str(path)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    for text in process.stdout:
        if text.startswith("update 13"):
            process.send_signal(signal.SIGINT)
            break
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    updates = int(out.split("stopped ")[1].split()[0])
    assert 13 < updates < 200

    X = np.linspace(-1, 1, 300, dtype="float32").reshape(100, 3)
    epochs = updates // 10 + 2
    quiet = regressor(max_epochs=epochs, batch_size=10).fit(X, X[:, :1])
    resumed = regressor(batch_size=10).load_state(path)
    resumed._state_.position.until = epochs
    assert torch.equal(parameters_of(resumed.partial_fit(X, X[:, :1])), parameters_of(quiet))


def test_a_second_ctrl_c_stops_at_once(tmp_path):
    script = """
        import signal, time
        from accelerando._engine.runtime.process import Interrupt
        with Interrupt() as interrupt:
            print("ready", flush=True)
            try:
                while not interrupt.pending:
                    time.sleep(0.01)
                print("noted", flush=True)
                time.sleep(60)
            except KeyboardInterrupt:
                print("stopped", flush=True)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True
    )
    for expected in ("ready", "noted"):
        assert process.stdout.readline().strip() == expected
        process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=30)[0].strip() == "stopped"
    assert process.returncode == 0


class Sqrt(nn.Module):
    """Finite loss, infinite gradient at zero."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([1.0, 1.0, 0.0]))

    def forward(self, x):
        return (x * self.w).abs().sum(1, keepdim=True).add(0).clamp_min(0).sqrt()


def test_a_loss_that_is_not_finite_stops_with_the_last_finite_parameters(line):
    X, y = line
    X = X.copy()
    X[50] = np.nan
    net = regressor(iterator_train__shuffle=False, batch_size=16, lr=0.05)
    message = r"loss is nan at update 4 \(epoch 1\) with batch size 16 and lr 0.05"
    with pytest.raises(NotFiniteError, match=message):
        net.fit(X, y)
    assert net.position_.update == 3
    quiet = regressor(iterator_train__shuffle=False, batch_size=16, max_epochs=1)
    quiet.fit(X[:48], y[:48])
    assert torch.equal(parameters_of(net), parameters_of(quiet))


def test_statistics_of_batchnorm_stay_finite_and_the_run_can_continue(digits):
    X, y = digits
    broken = X.copy()
    broken[100] = np.nan
    schedule = LRScheduler(torch.optim.lr_scheduler.ExponentialLR, gamma=0.5)
    net = make([schedule], train_split=None, module__dropout=0.0)
    with pytest.raises(NotFiniteError):
        net.fit(broken, y)
    updates = net.position_.update
    assert bool(net.module_.norm.running_mean.isfinite().all())
    assert np.isfinite(net.predict_proba(X)).all()
    net.partial_fit(X, y)
    assert net.position_.epoch == 5
    assert net.position_.examples == 5 * 600
    quiet = make([LRScheduler(torch.optim.lr_scheduler.ExponentialLR, gamma=0.5)],
                 train_split=None, module__dropout=0.0).fit(X, y)  # fmt: skip
    assert updates < 30
    assert torch.equal(parameters_of(net), parameters_of(quiet))


def test_a_gradient_that_is_not_finite_stops_too():
    X = np.zeros((8, 3), dtype="float32")
    net = regressor(Sqrt, max_epochs=1)
    with pytest.raises(NotFiniteError, match="gradient's norm is"):
        net.fit(X, np.ones((8, 1), dtype="float32"))
    assert net.module_.w.tolist() == [1.0, 1.0, 0.0]


@pytest.mark.parametrize("lr", [1e30, 1e38, float("inf"), float("nan")])
def test_a_step_that_overflows_is_taken_back(line, lr):
    net = regressor(optimizer__momentum=0.9).initialize()
    net.optimizer_.param_groups[0]["lr"] = lr  # as a scheduler may do
    with pytest.raises(NotFiniteError):
        net.partial_fit(*line)
    assert bool(parameters_of(net).isfinite().all())


def test_huge_but_finite_gradients_are_no_error():
    """Their squares overflow in float32."""
    X = np.full((4, 3), 1e20, dtype="float32")
    net = regressor(lr=0.0, criterion=nn.L1Loss, max_epochs=1).fit(X, np.zeros((4, 1), "float32"))
    assert net.updates_frame()["grad_norm"].iloc[0] > 1e20


def test_lbfgs_that_runs_away_is_taken_back(line):
    net = regressor(optimizer=torch.optim.LBFGS, lr=1e30, batch_size=-1)
    with pytest.raises(NotFiniteError):
        net.fit(*line)
    assert bool(parameters_of(net).isfinite().all())


def test_saving_before_fitting_is_an_error(tmp_path):
    from sklearn.exceptions import NotFittedError

    with pytest.raises(NotFittedError):
        regressor().save_state(tmp_path / "state")


def test_the_file_is_tensors_and_json(line, tmp_path):
    regressor(max_epochs=2, batch_size=Constant(30)).fit(*line).save_state(tmp_path / "state")
    content = torch.load(tmp_path / "state", weights_only=True)
    plain = json.loads(content["json"])
    assert plain["position"]["update"] == 8
    assert len(plain["host"]["history"]) == 2


def test_settings_drawn_by_numpy_can_be_saved(digits, tmp_path):
    net = classifier(lr=np.float64(0.05), optimizer__momentum=np.float32(0.5), max_epochs=1)
    net.fit(*digits)
    net.save_state(tmp_path / "state")
    again = classifier(lr=0.05, optimizer__momentum=0.5, max_epochs=1)
    again.load_state(tmp_path / "state")
    torch.testing.assert_close(parameters_of(again), parameters_of(net))
    checkpoint.unpack(checkpoint.pack(net._state_.state_dict()))  # what goes to other ranks
