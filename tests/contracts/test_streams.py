"""Streams and random augmentation: the same result in this process and on ranks, or a refusal."""

from __future__ import annotations

import contextlib
import random

import numpy as np
import pytest
import torch
from skorch.callbacks import Callback
from torch import nn
from torch.utils.data import Dataset, IterableDataset, default_collate

from accelerando.exceptions import ClusterError, StateError, UnsupportedError
from tests.nets import parameters_of, regressor

N = 61


def row(number):
    x = np.sin(np.arange(3) * (number + 1.0))
    return x, np.array([x.sum()])


class Rows(IterableDataset):
    """Read as a whole by every rank."""

    def __iter__(self):
        return map(row, range(N))


class Strided(Rows):
    def shard(self, rank, size):
        return map(row, range(rank, N, size))


class ByEpoch(Rows):
    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return map(row, np.random.default_rng(self.epoch).permutation(N))


class Dictionaries(Rows):
    def __iter__(self):
        return ({"x": x, "name": "n", "y": y} for x, y in map(row, range(N)))


class Whole(Rows):
    """Batches of several sizes, as libraries of streams make them."""

    def __iter__(self):
        start = 0
        for size in (7, 1, 30, 23):
            rows = [row(number) for number in range(start, start + size)]
            yield tuple(np.stack(part) for part in zip(*rows, strict=True))
            start += size


def doubled(batch):
    """A function of a whole batch."""
    x, y = batch
    return torch.as_tensor(x) * 2.0, torch.as_tensor(y)


def pairs(rows):
    return default_collate([(row["x"], row["y"]) for row in rows])


class Augmented(Dataset):
    """Draws from the three global generators."""

    def __len__(self):
        return 24

    def __getitem__(self, number):
        x, y = row(number)
        noise = torch.rand(1).item() + np.random.random() + random.random()
        return x * (1 + 0.1 * noise), y


class Double(nn.Linear):
    def __init__(self):
        super().__init__(3, 1, dtype=torch.float64)


def fitted(data, **params):
    return regressor(Double, **{"max_epochs": 2, **params}).fit(data, None)


def net_on(client, ranks, **params):
    return {"client": client, "min_workers": ranks, "max_workers": ranks, **params}


CASES = {
    "read by all": (Rows, {}),
    "shards": (Strided, {}),
    "another order in each epoch": (ByEpoch, {}),
    "dictionaries": (Dictionaries, {"iterator_train__collate_fn": pairs}),
    "whole batches": (Whole, {"iterator_train__batch_size": None}),
    "functions of whole batches": (
        Whole,
        {"iterator_train__batch_size": None, "iterator_train__collate_fn": doubled},
    ),
    "without the last batch": (Strided, {"iterator_train__drop_last": True}),
    "augmentation": (Augmented, {}),
}


@pytest.mark.parametrize("case", CASES)
def test_ranks_do_not_change_the_result(case, client):
    kind, params = CASES[case]
    alone = fitted(kind(), **params)
    for ranks in (1, 2, 3) if kind is Strided else (2,):
        net = fitted(kind(), **params, **net_on(client, ranks))
        assert set(net.updates_frame()["ranks"]) == {ranks}
        torch.testing.assert_close(parameters_of(net), parameters_of(alone), rtol=1e-12, atol=1e-12)


def test_whole_batches_are_cut_to_the_batch_size():
    whole = fitted(Whole(), iterator_train__batch_size=None)
    assert torch.equal(parameters_of(whole), parameters_of(fitted(Rows())))


def test_worker_processes_do_not_change_the_result(client):
    """They work in Dask's workers, which are daemonic, and end with the fit."""
    alone = fitted(Augmented())
    here = fitted(Augmented(), iterator_train__num_workers=2)
    there = fitted(Augmented(), iterator_train__num_workers=1, **net_on(client, 2))
    for net in (here, there):
        torch.testing.assert_close(parameters_of(net), parameters_of(alone), rtol=1e-12, atol=1e-12)
    assert set(client.run(children).values()) == {0}


def children():
    """Wait for the processes of this Dask worker that are about to end; count the others."""
    import multiprocessing

    for process in multiprocessing.active_children():
        process.join(60)
    return len(multiprocessing.active_children())


class Unseeded(Rows):
    def __iter__(self):
        return map(row, np.random.default_rng().permutation(N))


class WholeFiles(Rows):
    def shard(self, rank, size):
        return map(row, range(rank * N // size, (rank + 1) * N // size))


class Raises(Strided):
    def shard(self, rank, size):
        yield from map(row, range(rank, 40, size))
        raise OSError("the disk is gone")


@pytest.mark.parametrize(
    ("kind", "error", "says"),
    [
        (Unseeded, ClusterError, "different rows on different ranks"),
        (WholeFiles, ClusterError, "of shard"),
        (Raises, OSError, "the disk is gone"),
    ],
)
def test_streams_that_differ_between_ranks_stop_the_fit(kind, error, says, client):
    net = regressor(Double, **net_on(client, 2))
    with pytest.raises(error, match=says):
        net.fit(kind(), None)
    assert len(net.updates_frame()) == 0


def test_what_cannot_be_sent_is_refused(client):
    class Once(IterableDataset):
        def __init__(self):
            self.rows = (row(n) for n in range(N))

        def __iter__(self):
            return self.rows

    with pytest.raises(UnsupportedError, match="cannot be sent to the workers"):
        fitted(Once(), **net_on(client, 2))
    with pytest.raises(ValueError, match=r"yields nothing in epoch 2.*new iterator"):
        fitted(Once())


class StopAfter(Callback):
    """Ctrl-C after some updates."""

    def __init__(self, updates):
        self.updates = updates

    def on_batch_end(self, net, training=True, **kwargs):
        if training and len(net.updates_frame()) == self.updates:
            raise KeyboardInterrupt


@pytest.mark.parametrize("kind", [Rows, Strided, ByEpoch])
def test_a_stream_resumes_on_ranks_where_it_was(kind, client, tmp_path):
    whole = fitted(kind(), max_epochs=3)
    net = regressor(Double, max_epochs=3, callbacks=[StopAfter(6)])
    with contextlib.suppress(KeyboardInterrupt):
        net.fit(kind(), None)
    assert net.position_.cursor == 32
    net.save_state(tmp_path / "state")
    for params in ({}, net_on(client, 2)):
        other = regressor(Double, max_epochs=3, **params).initialize()
        other.load_state(tmp_path / "state")
        other.partial_fit(kind(), None)
        assert other.position_.epoch == 3
        torch.testing.assert_close(
            parameters_of(other), parameters_of(whole), rtol=1e-12, atol=1e-12
        )


def test_a_stream_that_shuffles_anew_is_not_resumed(client):
    net = regressor(Double, callbacks=[StopAfter(2)])
    with contextlib.suppress(KeyboardInterrupt):
        net.fit(Unseeded(), None)
    before = parameters_of(net).clone()
    for params in ({}, net_on(client, 1)):
        net.set_params(**params)
        with pytest.raises(StateError, match="does not repeat the 32 rows of epoch 1"):
            net.set_params(callbacks=None).partial_fit(Unseeded(), None)
        assert torch.equal(parameters_of(net), before)
