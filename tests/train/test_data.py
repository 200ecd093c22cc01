"""Data of every kind that skorch takes give the same batches."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from skorch.dataset import Dataset as SkorchDataset
from torch import nn
from torch.utils.data import Subset, TensorDataset

from accelerando import NeuralNet
from accelerando.exceptions import UnsupportedError
from accelerando.train.data import MemoryFeed, in_memory, make_feed
from accelerando.train.loader import LoaderFeed
from accelerando.train.order import epoch_order, sample_rows
from tests.nets import parameters_of, regressor

X = np.arange(60, dtype="float32").reshape(20, 3)
Y = np.arange(20, dtype="float32").reshape(20, 1)


def readonly(array):
    array = array.copy()
    array.flags.writeable = False
    return array


KINDS = {
    "numpy": lambda tmp: (X, Y),
    "torch": lambda tmp: (torch.from_numpy(X), torch.from_numpy(Y)),
    "read-only": lambda tmp: (readonly(X), readonly(Y)),
    "strided": lambda tmp: (np.repeat(X, 2, axis=0)[::2], Y[::-1][::-1]),
    "memory-mapped": lambda tmp: (memory_map(tmp / "x.npy", X), memory_map(tmp / "y.npy", Y)),
    "sparse": lambda tmp: (sparse.csr_matrix(X), Y),
    "pandas y": lambda tmp: (X, pd.DataFrame(Y)),
}


def memory_map(path, array):
    np.save(path, array)
    return np.load(path, mmap_mode="r")


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_array_gives_the_same_batches(kind, tmp_path):
    feed = make_feed(SkorchDataset(*KINDS[kind](tmp_path)), {})
    assert isinstance(feed, MemoryFeed)
    stream = feed.epoch(seed=1, epoch=2, cursor=0)
    order = epoch_order(1, 2, 20)
    for size, rows in [(6, order[:6]), (11, order[6:17]), (50, order[17:])]:
        batch = stream.take(size)
        assert batch.rows.tolist() == rows.tolist()
        assert torch.equal(torch.as_tensor(batch.data[0]), torch.from_numpy(X[rows]))
        assert torch.equal(torch.as_tensor(batch.data[1]).reshape(-1, 1), torch.from_numpy(Y[rows]))
    assert stream.take(1) is None


def test_memory_mapped_arrays_stay_on_disk(tmp_path):
    data, _ = in_memory(SkorchDataset(memory_map(tmp_path / "x.npy", X), Y))
    assert isinstance(data[0], np.memmap)


def test_dictionaries_frames_and_tuples():
    frame = pd.DataFrame({"a": [1.0, 2.0, 3.0], "b": [4.0, 5.0, 6.0]})
    feed = make_feed(SkorchDataset(frame, Y[:3]), {"shuffle": False})
    batch = feed.epoch(0, 0, 0).take(2).data
    assert batch[0]["a"].tolist() == [[1.0], [2.0]]
    nested = {"left": X, "right": [X + 1, X + 2]}
    batch = make_feed(SkorchDataset(nested, Y), {"shuffle": False}).epoch(0, 0, 0).take(2).data
    assert torch.equal(batch[0]["right"][1], torch.from_numpy(X[:2] + 2))


def test_dict_inputs_train():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(3, 1), nn.Linear(3, 1)

        def forward(self, left, right):
            return self.a(left) + self.b(right)

    scaled = {"left": X / 60, "right": -X / 60}
    net = regressor(Two, max_epochs=2).fit(scaled, Y / 20)
    assert net.predict(scaled).shape == (20, 1)
    assert net.run_.examples == 40


def test_pandas_frame_trains_by_column_name():
    class Columns(nn.Module):
        def __init__(self):
            super().__init__()
            self.last = nn.Linear(2, 1)

        def forward(self, a, b):
            return self.last(torch.cat([a, b], 1))

    frame = pd.DataFrame({"a": X[:, 0] / 60, "b": X[:, 1] / 60})
    assert regressor(Columns, max_epochs=2).fit(frame, Y / 20).run_.examples == 40


def test_float64_data_and_module():
    module = nn.Linear(3, 1).double()
    net = regressor(module, max_epochs=1, lr=1e-5).fit(X.astype("float64"), Y.astype("float64"))
    assert parameters_of(net).dtype == torch.float64


def test_subsets_of_subsets_are_looked_through():
    dataset = Subset(Subset(SkorchDataset(X, Y), [3, 4, 5, 6]), np.array([2, 0]))
    feed = make_feed(dataset, {"shuffle": False})
    assert feed.epoch(0, 0, 0).take(5).data[1].ravel().tolist() == [5.0, 3.0]


def test_a_data_set_with_its_own_items_is_left_alone():
    class Noisy(SkorchDataset):
        def transform(self, X, y):
            return X * 0, y

    assert in_memory(Noisy(X, Y)) is None
    assert in_memory(TensorDataset(torch.zeros(2))) is None
    assert in_memory(SkorchDataset([1, 2, 3], [1, 2, 3])) is None
    assert in_memory(SkorchDataset(np.array(["a", "b"]), Y[:2])) is None


def test_no_y_becomes_a_placeholder():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.last = nn.Linear(3, 1)

        def forward(self, x):
            return self.last(x).square().mean()

    class First(nn.Module):
        def forward(self, y_pred, y):
            return y_pred

    net = NeuralNet(Own, First, max_epochs=1, train_split=None, verbose=0, lr=1e-6, batch_size=5)
    net.fit(X)
    assert net.run_.update == 4


@settings(max_examples=50, deadline=None)
@given(
    n=st.integers(1, 40),
    chunk=st.integers(1, 9),
    sizes=st.lists(st.integers(1, 15), min_size=1, max_size=10),
    cursor=st.integers(0, 40),
    raw=st.booleans(),
)
def test_chunks_become_batches_of_any_size(n, chunk, sizes, cursor, raw):
    """What the DataLoader brings in chunks comes out as asked for, in order, nothing lost."""
    options = {"collate_fn": torch.utils.data.default_collate} if raw else {}
    data = TensorDataset(torch.arange(n), torch.arange(n) * 2)
    feed = LoaderFeed(data, options, order=epoch_order, chunk=chunk)
    stream = feed.epoch(7, 1, cursor)
    seen = []
    for size in [*sizes, *[10] * 5]:
        batch = stream.take(size)
        if batch is None:
            break
        assert batch.size == min(size, n - cursor - len(seen))
        assert batch.data[0].tolist() == batch.rows.tolist()
        assert torch.equal(batch.data[1], 2 * batch.data[0])
        seen += batch.rows.tolist()
    assert seen == epoch_order(7, 1, n)[cursor:].tolist()[: len(seen)]


@pytest.mark.parametrize("memory", [True, False])
def test_a_single_row_left_over_comes_with_the_batch_before(memory):
    data = TensorDataset(torch.arange(13), torch.arange(13))
    feed = make_feed(data, {"shuffle": False})
    if not memory:
        feed = LoaderFeed(data, {}, order=lambda seed, epoch, n: np.arange(n), chunk=4)
    stream = feed.epoch(0, 0, 0)
    assert [stream.take(4, fewest=2).size for _ in range(3)] == [4, 4, 5]
    assert stream.take(4, fewest=2) is None


@given(st.integers(0, 2**31), st.integers(0, 10**6), st.integers(0, 200))
def test_an_epochs_order_is_a_permutation_that_depends_on_seed_and_epoch(seed, epoch, n):
    assert sorted(epoch_order(seed, epoch, n)) == list(range(n))
    assert epoch_order(seed, epoch, n).tolist() == epoch_order(seed, epoch, n).tolist()


def test_sampled_rows_are_distinct_and_change_with_the_update():
    rows = sample_rows(0, 5, 100, 0.2)
    assert len(set(rows.tolist())) == 20
    assert rows.tolist() != sample_rows(0, 6, 100, 0.2).tolist()
    assert sample_rows(0, 5, 10, 1.0).tolist() == list(range(10))


def test_what_a_loader_cannot_do_is_said_before_training(line):
    X, y = line
    with pytest.raises(UnsupportedError, match="iterator_train__batch_sampler decides"):
        regressor(iterator_train__batch_sampler=[[0, 1]]).fit(X, y)
    with pytest.raises(UnsupportedError, match="iterator_train must be torch's DataLoader"):
        regressor(iterator_train=list).fit(X, y)


def test_items_that_are_no_tensors_ask_for_a_collate_function():
    class Words(torch.utils.data.Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, i):
            return "word", torch.zeros(1)

    with pytest.raises(UnsupportedError, match="Pass iterator_train__collate_fn"):
        regressor(max_epochs=1).fit(Words(), None)


def test_no_examples_is_an_error():
    with pytest.raises(ValueError, match="no training examples"):
        regressor().fit(X[:0], Y[:0])
