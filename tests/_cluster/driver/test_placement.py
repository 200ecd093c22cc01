"""Training data on the workers: how ranks read them, when they are sent, who has which chunks."""

import gc
import pickle
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from accelerando._cluster.driver import placement
from accelerando._cluster.driver.chunks import Chunks
from accelerando._cluster.driver.placement import (
    ChunkAssignment,
    Placed,
    ValidationPlan,
    content_of,
    deposit,
    place,
    plan_feed,
    shares_memory,
    withdraw,
)
from accelerando._engine.data.chunks import ChunkFeed
from accelerando._engine.data.feed import ArrayFeed, epoch_order
from accelerando._engine.data.loader import LoaderFeed
from accelerando._engine.data.stream import StreamFeed
from accelerando.exceptions import UnsupportedError
from tests.nets import Items

X, Y = np.arange(20.0).reshape(10, 2), np.arange(10)


def first_batch(feed, rows=4):
    return feed.epoch(3, 0, 0).take(rows, 1).data


def sent(feed, options=None, validation=None):
    """Return the feed that a worker builds from what is pickled to it."""
    plan = pickle.loads(pickle.dumps(plan_feed(feed, options or {}, DataLoader)))
    return plan.build(Placed(pickle.loads(pickle.dumps(content_of(feed, validation)))))


# -- feeds ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("subset", [None, np.array([1, 3, 5, 7, 9])])
@pytest.mark.parametrize("kind", [np.asarray, torch.as_tensor])
def test_arrays_are_read_the_same_on_a_worker(kind, subset):
    feed = ArrayFeed([kind(X), kind(Y)], subset, order=epoch_order, drop_last=True)
    there = sent(feed)
    assert isinstance(there, ArrayFeed)
    assert there.drop_last
    for here, found in zip(first_batch(feed), first_batch(there), strict=True):
        assert torch.equal(torch.as_tensor(here), torch.as_tensor(found))


def test_tensors_travel_as_arrays_that_share_their_memory():
    tensors = [torch.as_tensor(X), torch.zeros(10, dtype=torch.bfloat16)]
    content = content_of(ArrayFeed(tensors, None), None)
    assert isinstance(content[0], np.ndarray)
    assert np.shares_memory(content[0], X)
    assert content[1] is tensors[1]  # NumPy has no such numbers


def test_data_sets_are_read_through_a_loader_on_a_worker():
    feed = LoaderFeed(Items(torch.as_tensor(X), Y), {}, order=epoch_order, drop_last=True)
    there = sent(feed, {"shuffle": True, "drop_last": True, "num_workers": 0})
    assert isinstance(there, LoaderFeed)
    assert there.drop_last
    assert torch.equal(first_batch(there)[0], first_batch(feed)[0])


class Stream(IterableDataset):
    def __iter__(self):
        return iter([(torch.tensor([float(n)]), n) for n in range(6)])


def test_streams_are_read_on_a_worker():
    there = sent(StreamFeed(Stream(), {}))
    assert isinstance(there, StreamFeed)


def test_chunks_are_assigned_later():
    feed = ChunkFeed([4, 6], drop_last=True)
    there = sent(feed)
    assert isinstance(there, ChunkFeed)
    assert (there.lengths, there.drop_last) == ([4, 6], True)
    assert content_of(feed, None) is None


def test_orders_that_ranks_cannot_share_are_refused():
    with pytest.raises(UnsupportedError, match="sampler draws its own order"):
        plan_feed(ArrayFeed([X, Y], None), {"sampler": object()}, DataLoader)
    with pytest.raises(UnsupportedError, match="shuffle=False"):
        plan_feed(ChunkFeed([4]), {"shuffle": False}, DataLoader)


# -- validation -----------------------------------------------------------------------------------


@pytest.mark.parametrize("in_arrays", [True, False])
def test_validation_batches_have_numbers(in_arrays):
    rows = np.array([1, 3, 5, 7, 9])
    content = [X, Y] if in_arrays else [None, Items(X[rows], Y[rows])]
    plan = ValidationPlan(rows if in_arrays else None, 2, 5, in_arrays=in_arrays)
    assert plan.n_batches == 3
    batch = plan.build(Placed(content))
    assert [batch(number)[1].tolist() for number in range(3)] == [[1, 3], [5, 7], [9]]
    assert torch.as_tensor(batch(2)[0]).tolist() == [[18.0, 19.0]]


def test_only_the_same_memory_is_the_same_data():
    tensor = torch.as_tensor(X)
    assert shares_memory([X, Y], [X, Y])
    assert shares_memory([tensor], [torch.as_tensor(X)])
    assert not shares_memory([X, Y], [X.copy(), Y])
    assert not shares_memory([X], [X, Y])
    assert not shares_memory([tensor], [tensor[:5]])


# -- sending --------------------------------------------------------------------------------------


class Array(np.ndarray):
    """An array that can have weak references, as a user's array can."""


class FakeClient:
    def __init__(self):
        self.scattered = 0

    def scatter(self, content, workers, hash=True):
        assert not hash
        assert workers == ["a"]
        self.scattered += 1
        return SimpleNamespace(status="finished")


def own(values):
    return np.array(values).view(Array)


def test_data_are_sent_once_while_the_users_arrays_exist():
    client, array = FakeClient(), own([1.0, 2.0])
    first = place(client, [array], [array], "a")
    assert place(client, [array], [array], "a") is first
    assert client.scattered == 1
    array[0] = 7.0  # the same array with other numbers is other data
    assert place(client, [array], [array], "a") is not first
    assert client.scattered == 2
    del first
    assert len(placement._kept[client]) == 2
    del array
    gc.collect()
    assert placement._kept[client] == {}


@pytest.mark.parametrize("reason", ["lost", "again"])
def test_data_of_a_dead_worker_are_sent_again(reason):
    client, array = FakeClient(), own([1.0, 2.0])
    first = place(client, [array], [array], "a")
    first.status = "lost" if reason == "lost" else "finished"
    second = place(client, [array], [array], "a", again=reason == "again")
    assert second is not first
    assert place(client, [array], [array], "a") is second


def test_data_without_an_owner_are_sent_with_each_fit():
    client = FakeClient()
    assert place(client, [X], [], "a") is not place(client, [X], [], "a")
    assert client.scattered == 2


@pytest.mark.parametrize("error", [Exception, OSError])
def test_a_data_set_whose_module_a_worker_does_not_have(error):
    class Bare(FakeClient):
        def scatter(self, *words, **options):
            raise error("""ModuleNotFoundError("No module named 'mine'")""")

    if error is OSError:  # the worker has left
        with pytest.raises(OSError, match="mine"):
            place(Bare(), [Items(X, Y)], [], "a")
        return
    said = "The Items cannot be loaded on worker a: .*No module named 'mine'.*upload_file"
    with pytest.raises(UnsupportedError, match=said):
        place(Bare(), [Items(X, Y)], [], "a")


# -- chunks ---------------------------------------------------------------------------------------


class ChunkClient:
    """Knows where chunks are, and runs deposits at once."""

    def __init__(self, **has):
        self.has = has
        self.submitted = []

    def who_has(self, futures):
        return self.has

    def submit(self, function, name, numbers, *futures, workers, **options):
        assert options["pure"] is False
        self.submitted.append((workers[0], name, numbers))
        function(name, numbers, *(future.value for future in futures))


def assignment(lengths=(4, 4, 4), **has):
    futures = [SimpleNamespace(key=f"c{n}", value=[n]) for n in range(len(lengths))]
    client = ChunkClient(**has)
    return ChunkAssignment(client, "run", Chunks(futures, list(lengths), None)), client


WORKERS = {"rank-0": "a", "rank-1": "b"}
INTACT = dict.fromkeys(WORKERS, True)


def test_chunks_go_first_to_ranks_on_the_workers_that_have_them():
    chunks, client = assignment(c0=["b"], c1=["a"], c2=["b"])
    given = chunks.assign(WORKERS, INTACT, segment=1)
    assert {rank: set(numbers) for rank, (numbers, _) in given.items()} == {
        "rank-0": {1},
        "rank-1": {0, 2},
    }
    # A rank gets them out of Dask's memory, on its own worker.
    assert {(worker, tuple(numbers)) for worker, _, numbers in client.submitted} == {
        ("a", (1,)),
        ("b", (0, 2)),
    }
    assert withdraw(given["rank-0"][1]) == {1: [1]}
    assert withdraw(given["rank-0"][1]) is None  # it was taken
    assert withdraw(given["rank-1"][1]) == {0: [0], 2: [2]}


def test_chunks_stay_where_they_are():
    chunks, client = assignment()
    before = chunks.assign(WORKERS, INTACT, segment=1)
    client.submitted.clear()
    after = chunks.assign(WORKERS, INTACT, segment=2)
    assert client.submitted == []
    assert {rank: numbers for rank, (numbers, _) in after.items()} == {
        rank: numbers for rank, (numbers, _) in before.items()
    }
    assert [name for _, name in after.values()] == [None, None]


def test_a_rank_that_may_have_lost_its_chunks_gets_them_again():
    chunks, client = assignment()
    before = chunks.assign(WORKERS, INTACT, segment=1)
    client.submitted.clear()
    chunks.assign(WORKERS, {"rank-0": True, "rank-1": False}, segment=2)
    assert client.submitted == [("b", "run/rank-1/2", list(before["rank-1"][0]))]


def test_chunks_of_a_lost_rank_go_to_the_others():
    chunks, client = assignment()
    before = chunks.assign(WORKERS, INTACT, segment=1)
    client.submitted.clear()
    after = chunks.assign({"rank-0": "a"}, {"rank-0": True}, segment=2)
    assert set(after["rank-0"][0]) == {0, 1, 2}
    ((worker, _, numbers),) = client.submitted
    assert worker == "a"
    assert set(numbers) == set(before["rank-1"][0])


def test_without_chunks_there_is_nothing_to_assign():
    chunks = ChunkAssignment(None, "run", None)
    assert chunks.assign(WORKERS, INTACT, segment=1) == dict.fromkeys(WORKERS, ((), None))


def test_deposits_of_segments_do_not_meet():
    deposit("run/rank-0/1", [0], [1.0])
    deposit("run/rank-0/2", [0], [2.0])
    assert withdraw("run/rank-0/2") == {0: [2.0]}
    assert withdraw("run/rank-0/1") == {0: [1.0]}
