"""A state file from somebody else is refused or harmless."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import warnings

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from skorch.callbacks import Callback, Checkpoint, EarlyStopping, LRScheduler

from accelerando._engine import checkpoint
from accelerando.estimators._memories import fits, is_plain, restore
from accelerando.exceptions import AccelerandoError, StateError
from tests.nets import regressor


class Counting(Callback):
    """Has one attribute of every kind."""

    def on_train_begin(self, net, X=None, y=None, **kwargs):
        self.count_ = 0
        self.phase_ = "cold"
        self.best_ = None
        self.seen_ = []
        self.path_ = "/runs/one"
        self.function_ = print
        self._private_ = 1
        self.plain = 1


def build(folder):
    cosine = torch.optim.lr_scheduler.SequentialLR

    def schedule(optimizer, **_):
        parts = [torch.optim.lr_scheduler.ConstantLR(optimizer) for _ in range(2)]
        return cosine(optimizer, parts, milestones=[2])

    return regressor(
        max_epochs=3,
        callbacks=[
            ("checkpoint", Checkpoint(dirname=str(folder / "mine"), monitor="train_loss_best")),
            ("stop", EarlyStopping(monitor="train_loss", patience=9, load_best=True)),
            ("rate", LRScheduler(torch.optim.lr_scheduler.StepLR, step_size=2)),
            ("parts", LRScheduler(schedule)),
            ("counting", Counting()),
        ],
        train_split=None,
    )


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Return the folder, the data, and the content of the state of an interrupted run."""
    folder = tmp_path_factory.mktemp("saved")
    X = torch.linspace(-1, 1, 60).reshape(-1, 3)
    net = build(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        net.fit(X, X[:, :1])
    net.save_state(folder / "state")
    content = checkpoint.read(folder / "state")
    plain = json.loads(content["json"])
    plain["position"]["until"] = 4  # as if the run had been interrupted
    return folder, X, {**content, "json": json.dumps(plain)}


def attempt(saved, plain, tensors=None, path=None):
    """Load a tampered state and train; return the net, or None if it was refused."""
    folder, X, content = saved
    path = path or folder / "tampered"
    tampered = {"json": json.dumps(plain), "tensors": tensors or content["tensors"]}
    checkpoint.write(path, tampered)
    net = build(folder)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            net.load_state(path)
            net._state_.position.until = min(net._state_.position.until, 5)
            net.partial_fit(X, X[:, :1])
    except StateError:
        return None
    return net


def test_a_hostile_file_cannot_choose_where_a_checkpoint_is_written(saved):
    folder, _, content = saved
    plain, target = json.loads(content["json"]), folder / "bashrc"
    plain["host"]["callbacks"]["checkpoint"] = {
        "f_params": str(target), "dirname": "", "fn_prefix": "", "monitor": None, "f_pickle": "x",
    }  # fmt: skip
    net = attempt(saved, plain)
    assert not target.exists()
    assert dict(net.callbacks_)["checkpoint"].dirname == str(folder / "mine")


def test_only_what_saving_writes_and_the_callback_has_is_set():
    callback = Counting()
    callback.on_train_begin(None)
    hostile = {
        "count_": "7", "phase_": "../x", "best_": "/etc/x", "seen_": {"a": 1}, "path_": "/etc/x",
        "function_": "x", "_private_": 2, "plain": 2, "new_": 1, "__class__": 1, "__dict__": {},
    }  # fmt: skip
    before = dict(vars(callback))
    with pytest.warns(UserWarning, match="Counting that are not restored: 'count_', 'phase_'"):
        restore(callback, hostile, {"count_": {"a": torch.ones(1)}, "best_": {"a": 1}})
    assert vars(callback) == before
    harmless = {
        "count_": 7,
        "phase_": "warm",
        "best_": 0.5,
        "seen_": [1, "a"],
        "path_": "/runs/one",
    }
    restore(callback, harmless, {})
    assert vars(callback) == {**before, **harmless}
    restore(callback, {}, {"best_": {"a": torch.ones(1)}}, trusted=True)
    assert callback.best_ == {"a": torch.ones(1)}


def test_a_scheduler_takes_no_new_attributes_also_inside_others(saved):
    plain = json.loads(saved[2]["json"])
    memories = plain["host"]["callbacks"]
    memories["rate"]["lr_scheduler_"]["step"] = "x"
    memories["rate"]["lr_scheduler_"]["gamma"] = 0.25
    memories["parts"]["lr_scheduler_"]["_schedulers"][0]["optimizer"] = "x"
    callbacks = dict(attempt(saved, plain).callbacks_)
    assert callbacks["rate"].lr_scheduler_.gamma == 0.25
    assert callable(callbacks["rate"].lr_scheduler_.step)
    assert all(
        isinstance(one.optimizer, torch.optim.Optimizer)
        for one in callbacks["parts"].lr_scheduler_._schedulers
    )


@pytest.mark.parametrize("previous", ["../../etc/passwd", "records-00000000-00000001.pt"])
def test_records_are_read_from_the_folder_and_not_in_a_circle(saved, tmp_path, previous):
    content = saved[2]
    journal = {"json": "{}", "tensors": {}, "previous": previous}
    checkpoint.write(tmp_path / "records-00000000-00000001.pt", {**content, "journal": journal})
    checkpoint.write(tmp_path / "state-00000001.pt", {**content, "journal": journal})
    with pytest.raises(StateError, match="names impossible records"):
        build(tmp_path).load_state(tmp_path)


def places(value, path=()):
    """Yield the path of every value inside a JSON value."""
    yield path
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, one in items:
            yield from places(one, (*path, key))


TARGET = "owned/by/somebody"
LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 3), st.integers(), st.floats(), st.text(max_size=4),
    st.sampled_from([TARGET, "../" + TARGET, "__class__", "os.system"]),
)  # fmt: skip
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
    ),
)
NAMES = st.sampled_from([
    "f_params", "f_pickle", "dirname", "misses_", "best_model_weights_", "lr_scheduler_", "policy_",
    "function_", "on_batch_end", "on_epoch_end", "count_", "path_", "__class__", "__dict__", "x",
    "monitor", "sink_", "batch_idx_", "seen_",
])  # fmt: skip


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_state_file_is_refused_or_harmless(saved, data, tmp_path_factory):
    folder, _, content = saved
    plain = json.loads(content["json"])
    if data.draw(st.booleans()):  # any value anywhere
        *way, last = data.draw(st.sampled_from([p for p in places(plain) if p]))
        target = plain
        for key in way:
            target = target[key]
        target[last] = data.draw(VALUES)
    else:  # any value under an interesting name
        memories = plain["host"]["callbacks"]
        callback = data.draw(st.sampled_from(["checkpoint", "stop", "rate", "parts", "counting"]))
        memories.setdefault(callback, {}).update(data.draw(st.dictionaries(NAMES, VALUES)))
    before = os.getcwd()
    os.chdir(tmp_path_factory.getbasetemp())
    try:
        net = attempt(saved, plain)
    except (AccelerandoError, ArithmeticError, TypeError, ValueError):
        net = None  # refused while training: nothing was run or written
    finally:
        os.chdir(before)
    assert not list(tmp_path_factory.getbasetemp().glob("**/somebody"))
    assert {p.name for p in folder.iterdir()} <= {"mine", "state", "tampered"}
    fresh = dict(build(folder).callbacks)
    for name, callback in net.callbacks_ if net is not None else ():
        if name in fresh:
            assert type(callback) is type(fresh[name])
            for key in ("f_params", "f_pickle", "dirname", "monitor", "on_batch_end"):
                if key in vars(fresh[name]):
                    assert getattr(callback, key) == getattr(fresh[name], key)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    name=st.sampled_from(["modules", "optimizers", "rng", "updates", "host", "replicas"]),
    value=st.one_of(VALUES, st.just(torch.ones(2)), st.just({"a": {"b": torch.ones(1)}})),
)
def test_any_tensors_are_refused_or_harmless(saved, name, value):
    folder, _, content = saved
    with contextlib.suppress(AccelerandoError, ArithmeticError, TypeError, ValueError):
        attempt(saved, json.loads(content["json"]), {**content["tensors"], name: value})
    assert {p.name for p in folder.iterdir()} <= {"mine", "state", "tampered"}


def test_deep_json_is_refused(saved):
    folder, _, content = saved
    for text in ("[" * 100_000, "{}", "[]", "7", '{"parts": 9999}', '{"parts": "x"}'):
        checkpoint.write(folder / "tampered", {**content, "json": text})
        with pytest.raises(StateError, match="tampered"):
            build(folder).load_state(folder / "tampered")


def test_what_fits():
    assert fits(None, 0)
    assert fits("a b", None)
    assert not fits("a.b", None)
    assert not fits(None, print)
    assert not fits(1, True)
    assert fits([1, [2]], ())
    assert not fits([1, "/"], [])
    deep = []
    for _ in range(50):
        deep = [deep]
    assert not is_plain(copy.copy(deep))
