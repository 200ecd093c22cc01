"""Shards of streams, and what was read of them."""

from __future__ import annotations

import sys
from itertools import islice
from types import ModuleType

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset

from accelerando._engine.data.feed import Shard
from accelerando._engine.data.shards import (
    ShardReader,
    checksum,
    digest_of,
    sharding_of,
    stream_state,
)


class HuggingFace(IterableDataset):
    """The interface of datasets.IterableDataset; its ``shard`` has other arguments than ours."""

    __module__ = "datasets.iterable_dataset"

    def __init__(self, rows, num_shards):
        self.rows, self.num_shards, self.epoch = rows, num_shards, 0

    def __iter__(self):
        return iter(self.rows)

    def shard(self, num_shards, index, contiguous=True):
        raise AssertionError("this gives whole files to ranks")

    def set_epoch(self, epoch):
        self.epoch = epoch


def by_strategy(dataset, rank, world_size, strategy="auto"):
    assert strategy == "examples"
    return list(islice(dataset, rank, None, world_size))


def by_number(dataset, rank, world_size):
    assert dataset.num_shards % world_size, "whole files would go to ranks"
    return list(islice(dataset, rank, None, world_size))


@pytest.mark.parametrize("split", [by_strategy, by_number])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_hugging_face_is_split_by_examples(split, size, monkeypatch):
    library, distributed = ModuleType("datasets"), ModuleType("datasets.distributed")
    distributed.split_dataset_by_node = split
    monkeypatch.setitem(sys.modules, "datasets", library)
    monkeypatch.setitem(sys.modules, "datasets.distributed", distributed)
    reader = ShardReader(HuggingFace(list(range(10)), 4), 0)
    for rank in range(size):
        reader.move(Shard(rank, size), 3)
        assert list(reader) == list(range(rank, 10, size))
    assert reader.dataset.epoch == 3


def test_a_stream_without_shards():
    class Plain(IterableDataset):
        shard = "a"

        def __iter__(self):
            return iter(())

    class Other(Plain):
        def shard(self, index):
            return index

    assert sharding_of(Plain()) is None
    assert sharding_of(Other()) is None


@pytest.mark.parametrize(
    ("some", "other"),
    [
        (1, 1.0),
        ("1", 1),
        (None, "None"),
        ((1, 2), (2, 1)),
        (([1], 2), ([1, 2],)),
        ({"a": 1}, {"b": 1}),
        (np.zeros(2), np.zeros(3)),
        (np.zeros(2), torch.zeros(2, dtype=torch.float64)),
        (torch.zeros(2, 3), torch.zeros(3, 2)),
        (torch.zeros(2), torch.zeros(2, dtype=torch.int32)),
        (b"a", b"b"),
        ({1, 2}, {1, 3}),
        (complex(1), complex(2)),
    ],
)
def test_other_values_have_other_checksums(some, other):
    assert checksum(some) == checksum(some) != checksum(other)


def test_what_cannot_be_pickled_is_known_by_its_type():
    assert checksum(x for x in [1]) == checksum(x for x in [2]) != checksum(lambda: None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.complex64])
def test_the_digest_sees_every_row_and_its_place(dtype):
    rows = torch.eye(3).to(dtype)
    digest = digest_of({"x": rows}, range(3), items=False)
    assert digest == digest_of({"x": rows.clone()}, range(3), items=False)
    for other in (rows[[1, 0, 2]], rows[:, [1, 0, 2]]):
        assert digest_of({"x": other}, range(3), items=False) != digest
    assert digest_of({"x": rows}, range(1, 4), items=False) != digest
    assert digest_of([torch.zeros(2, 0)], range(2), items=False) > 0


def test_only_states_of_plain_values_are_kept():
    class Stateful:
        def __init__(self, state):
            self.state = state

        def state_dict(self):
            return self.state

        def load_state_dict(self, state):
            self.state = state

    assert stream_state(Stateful({"a": [1, None]})) == {"a": [1, None]}
    assert stream_state(Stateful({"a": np.zeros(2)})) is None
    assert stream_state(Stateful({1: "a key that JSON changes"})) is None
    assert stream_state(object()) is None
