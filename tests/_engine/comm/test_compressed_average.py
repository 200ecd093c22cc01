"""Compressed averaging: real ranks and virtual ranks exchange the same differences."""

import pytest
import torch

from accelerando._engine.comm.compressed_average import CompressedExchange
from accelerando._engine.comm.members import VirtualGroup
from accelerando._engine.comm.replicas import ReplicaSet
from accelerando._engine.model import Components
from accelerando.compress import QSGD, Atomo, ErrorFeedback, TopK
from tests._engine.comm.ranks import on_ranks

CODECS = [QSGD(bits=3), ErrorFeedback(TopK(0.1)), Atomo(share=0.2)]


class At:
    """A state at an update, as far as an exchange reads it."""

    seed = 3

    def __init__(self, update):
        self.update = update

    def values(self):
        return {"update": self.update}


def replica_set(here, first=0):
    """Replicas that start from one model and have moved apart, each by its number."""
    module = torch.nn.Sequential(torch.nn.Linear(40, 120), torch.nn.BatchNorm1d(120))
    draw = torch.Generator().manual_seed(99)  # ranks are threads: they share the default generator
    for parameter in module.parameters():
        parameter.data = torch.randn(parameter.shape, generator=draw)
    sgd = torch.optim.SGD(module.parameters(), lr=0.1)
    replicas = ReplicaSet(Components({"module": module}, {}, {"optimizer": sgd}), here)
    replicas.keep_reference()
    for number, tensors in enumerate(replicas.tensors, start=first):
        draw = torch.Generator().manual_seed(number)
        for tensor in tensors:
            if tensor.is_floating_point():
                tensor += torch.randn(tensor.shape, generator=draw)
    return replicas


def averaged(members, codec, first=0, times=2):
    """Return the means of a few exchanges, and the memories after them."""
    replicas = replica_set(members.here, first)
    exchange, found = CompressedExchange(codec, members), []
    for update in range(times):
        exchange.begin(At(update))
        numbers, means = exchange.start(replicas, replicas.flatten(), [1.0])()
        found.append((numbers, torch.cat(means)))
    return found, replicas.memories, exchange.take_traffic()


@pytest.mark.parametrize("codec", CODECS, ids=repr)
@pytest.mark.parametrize("size", [3, 4], ids=["all to all", "two phases"])
def test_ranks_and_virtual_ranks_agree_bit_for_bit(codec, size):
    here, memories, virtual = averaged(VirtualGroup(size), codec)
    found = on_ranks(size, lambda group: averaged(group, codec, first=group.shard.rank))
    for rank, (means, memory, traffic) in enumerate(found):
        for (numbers, mean), (_, expected) in zip(means, here, strict=True):
            assert numbers == [float(size)]  # of all processes
            assert torch.equal(mean, expected)
        assert memory[0].keys() == memories[rank].keys()
        assert all(torch.equal(memory[0][name], memories[rank][name]) for name in memory[0])
        # Buffers have equal length on all ranks, and room for messages that grow.
        assert virtual.bytes <= traffic.bytes <= 1.3 * virtual.bytes


def test_small_tensors_and_statistics_travel_as_they_are():
    replicas, members = replica_set(2), VirtualGroup(2)
    exchange = CompressedExchange(TopK(1e-9), members)
    exchange.begin(At(0))
    _, means = exchange.start(replicas, replicas.flatten(), [])()
    parts = dict(zip(replicas.flat.numbers, replicas.flat.unflatten(means), strict=True))
    for number, mean in parts.items():
        exact = (replicas.tensors[0][number] + replicas.tensors[1][number]) / 2
        changed = (mean != replicas.flat.unflatten(replicas.agreed)[0]).sum() if not number else 0
        if number == 0:  # the weights: one entry of each replica
            assert 1 <= int(changed) <= 2
        else:
            torch.testing.assert_close(mean, exact)


def test_the_replicas_stay_where_they_are():
    replicas = replica_set(2)
    before = [[tensor.clone() for tensor in tensors] for tensors in replicas.tensors]
    agreed = [tensor.clone() for tensor in replicas.agreed]
    exchange = CompressedExchange(QSGD(), VirtualGroup(2))
    exchange.begin(At(0))
    exchange.start(replicas, replicas.flatten(), [])()
    for tensors, same in zip(replicas.tensors, before, strict=True):
        assert all(map(torch.equal, tensors, same))
    assert all(map(torch.equal, replicas.agreed, agreed))


def test_traffic_is_counted_once():
    replicas, exchange = replica_set(2), CompressedExchange(QSGD(), VirtualGroup(2))
    exchange.begin(At(0))
    exchange.start(replicas, replicas.flatten(), [])()
    assert exchange.take_traffic().bytes > 0
    assert exchange.take_traffic().bytes == 0
