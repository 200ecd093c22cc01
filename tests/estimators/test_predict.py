"""Predictions on a cluster."""

from __future__ import annotations

import os
from types import SimpleNamespace

import dask
import dask.array as da
import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from accelerando.exceptions import UnsupportedError
from tests._cluster.helpers import without_torch
from tests.leftovers import ignores_ctrl_c
from tests.nets import MLP, classifier, parameters_of

METHODS = ["predict", "predict_proba", "forward"]


class WithProcess(MLP):
    """The last output is the process that computed it."""

    def forward(self, x):
        assert not self.training
        return torch.cat([super().forward(x), torch.full((len(x), 1), float(os.getpid()))], 1)


class TwoOutputs(MLP):
    def forward(self, x):
        return super().forward(x), x[:, :1]


@pytest.fixture(scope="module")
def fitted(digits):
    return classifier(MLP, module__dropout=0.5, batch_size=64, max_epochs=1).fit(*digits)


def arrays(found):
    return np.asarray(found)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("known", [True, False])
def test_predictions_of_a_dask_array_are_lazy_and_those_of_the_array(method, known, fitted, digits):
    X = digits[0][:200]
    chunks = da.from_array(X, chunks=(70, 40))
    if not known:
        chunks = chunks[chunks[:, 0] >= -1.0]
    found = getattr(fitted, method)(chunks)
    assert isinstance(found, da.Array)
    with dask.config.set(scheduler="threads"):
        values = found.compute()
    assert values.dtype == found.dtype
    np.testing.assert_array_equal(values, arrays(getattr(fitted, method)(X)))


def test_predictions_are_those_of_the_time_they_were_asked_for(digits):
    X, y = digits
    net = classifier(max_epochs=1).fit(X, y)
    expected, lazy = net.predict_proba(X), net.predict_proba(da.from_array(X, chunks=100))
    training, before = net.module_.training, [p.clone() for p in parameters_of(net)]
    generator = torch.get_rng_state()
    with dask.config.set(scheduler="synchronous"):
        np.testing.assert_allclose(lazy.compute(), expected, rtol=1e-6)
        assert net.module_.training == training
        assert torch.equal(generator, torch.get_rng_state())
        for old, new in zip(before, parameters_of(net), strict=True):
            assert torch.equal(old, new)
        net.partial_fit(X, y)
        np.testing.assert_allclose(lazy.compute(), expected, rtol=1e-6)
    assert not np.allclose(net.predict_proba(X), expected)


def test_a_chunk_without_rows(fitted, digits):
    chunks = da.concatenate([da.from_array(digits[0][:3]), da.zeros((0, 64), dtype="float32")])
    with dask.config.set(scheduler="synchronous"):
        assert fitted.predict(chunks).compute().shape == (3,)


def test_what_no_dask_array_can_hold(digits):
    net = classifier(MLP, max_epochs=1).fit(*digits)
    two = classifier(TwoOutputs, criterion=nn.CrossEntropyLoss).initialize()
    chunks = da.from_array(digits[0][:10])
    with pytest.raises(UnsupportedError, match="several outputs"):
        two.forward(chunks)

    class Frame:
        __dask_graph__ = None

    with pytest.raises(UnsupportedError, match="to_dask_array"):
        net.predict(Frame())


def test_an_address_is_no_client(digits):
    net = classifier(max_epochs=1).fit(*digits).set_params(client="tcp://127.0.0.1:8786")
    with pytest.raises(TypeError, match=r"must be a distributed\.Client, or None .*Got 'tcp://"):
        net.predict(digits[0])


def test_with_a_client_the_cluster_predicts(digits, client):
    X, _y = digits
    net = classifier(WithProcess, max_epochs=1, batch_size=64, client=client).initialize()
    processes = net.forward(X)[:, -1].unique()
    assert os.getpid() not in processes.tolist()
    assert net.forward(X[:64])[:, -1].unique().tolist() == [os.getpid()]  # one batch
    chunks = net.forward(da.from_array(X, chunks=150)).compute()
    assert os.getpid() not in chunks[:, -1].tolist()
    net.set_params(client=None)
    assert net.forward(X)[:, -1].unique().tolist() == [os.getpid()]


@pytest.mark.parametrize("method", METHODS)
def test_the_cluster_predicts_what_this_process_does(method, digits, client, fitted):
    X = digits[0]
    here = getattr(fitted, method)(X)
    try:
        vars(fitted)["client"] = client
        there = getattr(fitted, method)(X)
        assert type(there) is type(here)
        np.testing.assert_array_equal(arrays(there), arrays(here))
        tensor = getattr(fitted, method)(torch.from_numpy(X))
        np.testing.assert_array_equal(arrays(tensor), arrays(here))
    finally:
        vars(fitted)["client"] = None


class Listening(nn.Linear):
    """Tells whether its process ignores Ctrl-C; raises at negative numbers."""

    def __init__(self):
        super().__init__(64, 10)

    def forward(self, x):
        if (x < 0).any():
            raise LookupError("a negative number")
        return torch.full((len(x), 10), float(ignores_ctrl_c()))


def test_workers_ignore_ctrl_c_while_they_predict_and_not_afterwards(digits, client):
    X = digits[0][:256]
    net = classifier(Listening, batch_size=64, client=client, predict_nonlinearity=None)
    net.initialize()
    assert not any(client.run(ignores_ctrl_c).values())
    assert (net.predict_proba(X) == 1.0).all()
    assert not any(client.run(ignores_ctrl_c).values())
    with pytest.raises(LookupError, match="a negative number"):
        net.predict_proba(-X)
    assert not any(client.run(ignores_ctrl_c).values())


def test_a_cluster_that_is_gone_is_not_needed(digits, fitted):
    class Closed:
        status = "closed"

    try:
        vars(fitted)["client"] = Closed()
        assert len(fitted.predict(digits[0])) == len(digits[0])
    finally:
        vars(fitted)["client"] = None


def test_frames_are_predicted_on_the_cluster(client):
    class OfColumns(nn.Module):
        def __init__(self):
            super().__init__()
            self.last = nn.Linear(2, 2)

        def forward(self, a, b):
            return self.last(torch.cat([a, b], 1))

    frame = pd.DataFrame({"a": np.arange(200.0), "b": 1.0}).astype("float32")
    net = classifier(OfColumns, client=client).initialize()
    there = net.predict_proba(frame)
    net.set_params(client=None)
    np.testing.assert_allclose(there, net.predict_proba(frame), rtol=1e-6)


def test_this_process_predicts_where_the_cluster_cannot(digits, client, monkeypatch):
    net = classifier(WithProcess, max_epochs=1, batch_size=64, client=client).initialize()
    text = "Error during deserialization of the task graph. This frequently\noccurs if ..."

    def fails(error):
        def gather(futures):
            raise error

        monkeypatch.setattr(client, "gather", gather)

    fails(RuntimeError(text))  # a scheduler without our packages
    assert set(net.forward(digits[0])[:, -1].tolist()) == {float(os.getpid())}
    fails(RuntimeError("of the module"))
    with pytest.raises(RuntimeError, match="of the module"):
        net.forward(digits[0])
    monkeypatch.undo()
    vars(net)["client"] = SimpleNamespace(status="running", asynchronous=True)
    assert set(net.forward(digits[0])[:, -1].tolist()) == {float(os.getpid())}


def test_nothing_is_sent_to_workers_without_our_packages(client, digits, monkeypatch):
    bare, *others = client.nthreads()
    pids = client.run(os.getpid)
    without = without_torch(monkeypatch)
    net = classifier(WithProcess, max_epochs=1, batch_size=16, client=client).initialize()
    without.add(bare)
    assert set(net.forward(digits[0])[:, -1].tolist()) <= {float(pids[w]) for w in others}
    without.update(others)
    assert set(net.forward(digits[0])[:, -1].tolist()) == {float(os.getpid())}
