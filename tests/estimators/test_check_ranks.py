"""What ranks on a cluster can compute: the client, the rows to look at, and callbacks."""

from types import SimpleNamespace

import pytest
import torch
from skorch.callbacks import Callback, EpochScoring, LRScheduler, PrintLog

from accelerando import NeuralNetClassifier
from accelerando._engine.data.feed import ArrayFeed
from accelerando.estimators._check_ranks import (
    check_callbacks,
    check_client,
    rank_callbacks,
    some_rows,
)
from accelerando.exceptions import UnsupportedError
from tests.nets import classifier


def initialized(**params):
    return classifier(**params).initialize()


# -- the client -----------------------------------------------------------------------------------


def client(**facts):
    return SimpleNamespace(scheduler_info=dict, **facts)


def test_a_client_is_connected_and_synchronous():
    check_client(NeuralNetClassifier, client(status="running", asynchronous=False))
    for other in (client(status="closed"), client(asynchronous=True)):
        with pytest.raises(UnsupportedError, match="must be connected, and synchronous"):
            check_client(NeuralNetClassifier, other)
    for other in ("tcp://127.0.0.1:8786", SimpleNamespace(get_client=None, scheduler_info=dict)):
        with pytest.raises(TypeError, match=r"must be a distributed\.Client, or None"):
            check_client(NeuralNetClassifier, other)


# -- rows -----------------------------------------------------------------------------------------


def test_rows_to_compare_have_pairs_of_a_class_at_either_end():
    targets = torch.arange(64) % 8
    rows = some_rows(ArrayFeed([torch.zeros(64, 1), targets], None), 32)
    assert len(set(rows.tolist())) == len(rows)
    first, last = targets[rows[:8]].tolist(), targets[rows[-8:]].tolist()
    assert len(set(first)) == len(set(last)) == 4
    assert sorted(first) == sorted(last) == sorted(2 * list(set(first)))


# -- callbacks ------------------------------------------------------------------------------------


class PerBatch(Callback):
    def on_batch_end(self, net, **kwargs):
        pass


class OnGradients(Callback):
    def on_grad_computed(self, net, **kwargs):
        pass


class Both(OnGradients, PerBatch):
    pass


@pytest.mark.parametrize(
    ("callback", "remedy"),
    [
        (PerBatch(), "on_epoch_end"),
        (Both(), "on_epoch_end"),
        (EpochScoring("accuracy", on_train=True), "use_caching=False"),
    ],
)
def test_callbacks_that_need_every_batch_are_refused(callback, remedy):
    net = initialized(callbacks=[("mine", callback)])
    with pytest.raises(UnsupportedError, match=remedy) as caught:
        check_callbacks(net)
    assert "The callback mine" in str(caught.value)


@pytest.mark.parametrize(
    "callback",
    [
        OnGradients(),
        LRScheduler("StepLR", step_size=5),
        EpochScoring("accuracy", on_train=True, use_caching=False),
        EpochScoring("accuracy"),
        PrintLog(),
        Callback(),
    ],
    ids=lambda callback: type(callback).__name__,
)
def test_callbacks_that_can_do_without_are_accepted(callback):
    check_callbacks(initialized(callbacks=[("mine", callback)]))


def test_gradient_callbacks_are_those_that_do_nothing_else():
    net = initialized(callbacks=[("a", OnGradients()), ("b", Callback())])
    assert [name for name, _ in rank_callbacks(net)] == ["a"]
