"""The estimator's side of a cluster: what it hands over, a rank's model, what it refuses."""

import pickle
import threading
from types import SimpleNamespace

import cloudpickle
import dask.array as da
import numpy as np
import pytest
import torch
from skorch.callbacks import Callback, GradientNormClipping
from skorch.dataset import Dataset
from skorch.helper import predefined_split
from torch.utils.data import DataLoader

from accelerando._engine.data.chunks import ChunkFeed
from accelerando._engine.data.feed import ArrayFeed, Batch
from accelerando._engine.state import TrainState
from accelerando.estimators import _cluster as module
from accelerando.estimators import _data as data_module
from accelerando.estimators._check_ranks import rank_callbacks
from accelerando.estimators._cluster import NetBuilder
from accelerando.estimators._data import chunks_of
from accelerando.exceptions import UnsupportedError
from accelerando.sync import ModelAveraging, PeriodicAveraging
from tests.nets import MLP, Items, classifier, parameters_of


def initialized(**params):
    return classifier(**params).initialize()


def built(net, fit_params=None):
    """Return a rank's model, from what is pickled to it."""
    builder = NetBuilder(module._settings_for_ranks(net), rank_callbacks(net), fit_params or {})
    return cloudpickle.loads(cloudpickle.dumps(builder)).build()


# -- a rank's model -------------------------------------------------------------------------------


class Unpicklable(Callback):
    """Stays in the driver's process."""

    def __reduce__(self):
        raise TypeError("this callback cannot be sent")


def test_a_rank_has_a_net_without_client_callbacks_and_data_split():
    net = initialized(callbacks=[("mine", Unpicklable())], verbose=1, module__hidden=7)
    net.client, net.checkpoint, net.sync = object(), "somewhere", PeriodicAveraging(3)
    replica = built(net).net
    for name in ("client", "checkpoint", "train_split", "sync"):
        assert getattr(replica, name) is None
    assert replica.verbose == 0
    assert replica.callbacks_ == []
    assert replica.module_.first.out_features == 7
    assert net.callbacks[0][0] == "mine"  # the user's net is as it was
    assert net.client is not None


def test_settings_that_cannot_be_sent_are_refused_and_those_of_callbacks_stay_here():
    net = initialized(callbacks__print_log__sink=lambda text: None)
    assert "callbacks__print_log__sink" not in vars(built(net).net)
    held = MLP()
    held.lock = threading.Lock()
    with pytest.raises(TypeError, match=r"cannot be pickled: .*lock.*holds a lock"):
        module._settings_for_ranks(initialized(module=held))


def test_a_rank_gets_the_settings_of_a_users_class_and_nothing_fitted():
    class Own(type(classifier())):
        def __init__(self, *args, smoothing=0.0, **kwargs):
            super().__init__(*args, **kwargs)
            self.smoothing = smoothing

    net = Own(MLP, smoothing=0.25, verbose=0, criterion__ignore_index=9).initialize()
    net.history_.new_epoch()
    twin = built(net).net
    assert type(twin).__name__ == "Own"
    assert twin.smoothing == 0.25
    assert twin.criterion_.ignore_index == 9
    assert len(twin.history_) == 1  # its own first epoch
    assert twin.module_ is not net.module_


def test_the_model_of_a_rank_trains_and_evaluates(digits):
    net = initialized(module__dropout=0.5)
    rank = built(net)
    assert rank.device == torch.device("cpu")
    assert rank.model.module is rank.net.module_
    X, y = torch.as_tensor(digits[0][:10]), torch.as_tensor(digits[1][:10])
    loss, y_pred = rank.evaluate((X, y))
    assert y_pred.shape == (10, 10)
    rank.net.module_.eval()  # dropout is off in an evaluation
    with torch.no_grad():
        torch.testing.assert_close(y_pred, rank.net.module_(X))
    torch.testing.assert_close(loss, torch.nn.functional.cross_entropy(y_pred, y))


def test_convolutions_get_their_memory_format_on_a_rank(digits):
    from tests.nets import CNN

    images = digits[0].reshape(-1, 1, 8, 8)
    rank = built(initialized(module=CNN, channels_last=True))
    rank.prepare(ArrayFeed([torch.as_tensor(images), torch.as_tensor(digits[1])], None))
    weight = rank.net.module_.conv.weight
    assert weight.stride() == torch.empty_like(weight, memory_format=torch.channels_last).stride()


def test_every_rank_calls_its_own_gradient_callbacks(digits):
    clip = GradientNormClipping(0.01)
    net = initialized(callbacks=[("clip", clip), ("other", Unpicklable())])
    rank = built(net)
    assert [name for name, _ in rank.net.callbacks_] == ["clip"]
    assert rank.net.callbacks_[0][1] is not clip
    for parameter in rank.net.module_.parameters():
        parameter.grad = torch.ones_like(parameter)
    state = TrainState()
    rank.gradients_ready(Batch([torch.zeros(1)], 1, 1, None), state, alone=True)
    grads = [p.grad.flatten() for p in rank.net.module_.parameters()]
    assert torch.cat(grads).norm() == pytest.approx(0.01, rel=1e-4)


def test_ranks_start_from_the_drivers_parameters_not_from_their_own(digits):
    net = initialized()
    assert torch.equal(parameters_of(built(net).net), parameters_of(net))  # the same seed


# -- Dask arrays ----------------------------------------------------------------------------------


def dask_arrays(digits):
    return da.from_array(digits[0], chunks=(200, -1)), da.from_array(digits[1], chunks=200)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"client": None}, "pass client="),
        ({"data": "replicate"}, 'data="shard"'),
        ({"train_split": classifier().train_split}, "train_split=None"),
    ],
)
def test_dask_arrays_need_a_cluster_and_no_split(digits, params, message):
    net = classifier(**{"client": object(), "data": "shard", "train_split": None, **params})
    with pytest.raises(UnsupportedError, match=message):
        chunks_of(net, *dask_arrays(digits))


def test_dask_arrays_come_in_pairs_of_the_same_length(digits):
    net = classifier(client=object(), data="shard", train_split=None)
    X, y = dask_arrays(digits)
    with pytest.raises(UnsupportedError, match=r"both dask\.array arrays; got Array and ndarray"):
        chunks_of(net, X, digits[1])
    with pytest.raises(ValueError, match="X has 600 rows and y has 500"):
        chunks_of(net, X, y[:500])


def test_a_given_validation_set_is_no_split(digits, monkeypatch):
    split = predefined_split(Dataset(*digits))
    net = classifier(client="client", data="shard", train_split=split)
    seen = []
    monkeypatch.setattr(data_module, "compute_chunks", lambda client, *rest: seen.append(client))
    chunks_of(net, *dask_arrays(digits))
    assert seen == ["client"]


# -- validation on ranks --------------------------------------------------------------------------


def plan(digits, dataset=None, feed=None, **params):
    X, y = (torch.as_tensor(part) for part in digits)
    net = initialized(**params)
    dataset = Dataset(X, y) if dataset is None else dataset
    return module._plan_validation(net, dataset, feed or ArrayFeed([X, y], None))


def test_validation_rows_of_the_training_arrays_are_evaluated_by_ranks(digits):
    X, y = (torch.as_tensor(part) for part in digits)
    rows = torch.utils.data.Subset(Dataset(X, y), np.arange(100, 150))
    found = plan(digits, rows, ArrayFeed([X, y], None))
    assert found.in_arrays
    assert (found.n_examples, found.rows, found.n_batches) == (50, 64, 1)
    assert found.subset.tolist() == list(range(100, 150))


def test_other_rows_are_evaluated_here(digits):
    X, y = (torch.as_tensor(part) for part in digits)
    assert plan(digits, Dataset(X.clone(), y.clone()), ArrayFeed([X, y], None)) is None
    assert plan(digits, feed=ChunkFeed([300, 300])) is None
    assert plan(digits, iterator_valid=type("Own", (DataLoader,), {})) is None
    assert plan(digits, iterator_valid__num_workers=1) is None
    net = initialized()
    assert module._plan_validation(net, None, ArrayFeed([X, y], None)) is None


def test_data_sets_are_sent_to_ranks_for_validation(digits):
    feed = SimpleNamespace()  # neither arrays nor chunks
    found = plan(digits, Items(*digits), feed, iterator_valid__batch_size=100)
    assert not found.in_arrays
    assert (found.rows, found.n_batches) == (100, 6)


# -- limits ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("strategy", "chunks", "averages", "replicas", "with_rows"),
    [
        (None, None, False, None, None),
        (PeriodicAveraging(3), None, True, None, None),
        (ModelAveraging(4), [3, 0, 5], True, 4, 2),
        (ModelAveraging("auto"), None, True, "auto", None),
    ],
)
def test_limits_are_those_of_the_user(strategy, chunks, averages, replicas, with_rows):
    net = classifier(examples_per_worker=32, min_workers=2, max_workers=5)
    fit = SimpleNamespace(spec=SimpleNamespace(strategy=strategy, min_rows=2))
    chunks = None if chunks is None else SimpleNamespace(lengths=chunks)
    limits = module._limits(net, fit, chunks)
    assert (limits.examples_per_worker, limits.min_workers, limits.max_workers) == (32, 2, 5)
    assert (limits.averages, limits.replicas, limits.chunks) == (averages, replicas, with_rows)
    assert limits.min_rows == 2


def test_a_trainer_is_not_pickled_with_the_estimator():
    net = initialized()
    net.client = net._trainer_ = Unpicklable()
    copy = pickle.loads(pickle.dumps(net))
    assert copy.client is None
    assert copy._trainer_ is None
