"""What Dask does on a worker while a rank trains there."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from accelerando.train.cluster.calm import calm
from tests.nets import classifier


def worker_with(**milliseconds):
    chores = {name: SimpleNamespace(callback_time=time) for name, time in milliseconds.items()}
    return SimpleNamespace(periodic_callbacks=chores)


def times_of(worker):
    return {name: chore.callback_time for name, chore in worker.periodic_callbacks.items()}


def test_chores_are_rare_inside_and_as_before_afterwards():
    before = {"profile": 10.0, "tick": 20.0, "heartbeat": 900.0}
    worker = worker_with(**before)
    with calm(worker):
        assert times_of(worker) == {"profile": 500.0, "tick": 500.0, "heartbeat": 900.0}
        with calm(worker):
            pass
        assert times_of(worker)["profile"] == 500.0
    assert times_of(worker) == before


def test_what_a_user_has_made_rarer_stays():
    worker = worker_with(tick=2000.0)
    with calm(worker):
        assert times_of(worker) == {"tick": 2000.0}


def test_chores_come_back_after_an_error():
    worker = worker_with(tick=20.0)
    with pytest.raises(OSError, match="gone"), calm(worker):
        raise OSError("gone")
    assert times_of(worker) == {"tick": 20.0}


def test_a_worker_without_such_chores_is_left_alone():
    with calm(SimpleNamespace()):
        pass


def test_a_worker_is_as_before_after_training(digits, client):
    def chores(dask_worker):
        return times_of(dask_worker)

    before = client.run(chores)
    assert all(times["tick"] < 500 for times in before.values())
    classifier(client=client, batch_size=64, examples_per_worker=32, max_epochs=1).fit(*digits)
    after = client.run(chores)
    for address in before:
        for name in ("profile", "tick"):
            assert after[address].get(name) == before[address].get(name)
