"""Process groups, with ranks as threads of this process."""

import math
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from accelerando._engine.comm import process_group
from accelerando._engine.comm.process_group import (
    LostContact,
    ProcessGroup,
    form,
)
from accelerando.exceptions import ClusterError
from tests._engine.comm.ranks import CPU, on_ranks

GPU = torch.device("cuda", 0)


# -- forming --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "backend"),
    [
        ([""], "gloo"),
        (["", ""], "gloo"),
        (["a 1"], "nccl"),
        (["a 1", "a 2", "b 1"], "nccl"),
        (["a 1", "a 2", "a 1"], "gloo"),
    ],
    ids=["one CPU", "CPUs", "one GPU", "a GPU each", "two on one GPU"],
)
def test_two_ranks_on_a_gpu_cannot_use_nccl(names, backend):
    assert process_group.backend_for(names) == backend


def test_ranks_exchange_the_names_of_their_gpus(monkeypatch):
    """A rank that asks first waits for the others."""
    monkeypatch.setattr(process_group, "device_name", lambda device: f"GPU {device.index // 2}")
    store = dist.HashStore()
    with ThreadPoolExecutor(3) as pool:
        asked = [
            pool.submit(process_group.device_names, store, rank, 3, torch.device("cuda", rank))
            for rank in range(3)
        ]
        names = [one.result(timeout=20) for one in asked]
    assert names == [["GPU 0", "GPU 0", "GPU 1"]] * 3


def test_names_of_cpus_are_not_exchanged():
    assert process_group.device_names(None, 1, 3, CPU) == ["", "", ""]


def test_a_gpu_has_a_name_that_no_other_has(monkeypatch):
    class Properties:
        uuid = "1234-5678"

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Properties)
    monkeypatch.setattr(process_group, "socket", SimpleNamespace(gethostname=lambda: "node1"))
    assert process_group.device_name(GPU) == "node1 1234-5678"


# -- sums -----------------------------------------------------------------------------------------


def test_numbers_and_tensors_are_summed_over_the_ranks():
    def work(group):
        rank = group.shard.rank
        small, large = torch.tensor([1.0, rank]), torch.full((2, 2), rank, dtype=torch.float64)
        # In single precision the number would be rounded.
        (number,) = group.sum_tensors([small, large], [2.0**30 + rank + 0.5])
        return small.tolist(), large.tolist(), number, group.sum(), group.sum(rank, 1.0)

    expected = ([3.0, 3.0], [[3.0, 3.0]] * 2, 3 * 2.0**30 + 4.5, [], [3.0, 3.0])
    assert on_ranks(3, work) == [expected] * 3


def test_ranks_may_work_while_a_sum_is_on_its_way():
    def work(group):
        rank = group.shard.rank
        tensor = torch.tensor([float(rank)])
        first = group.start_sum([tensor], [1.0])
        second = group.start_sum([], [float(rank)])
        return first(), tensor.tolist(), second()

    assert on_ranks(2, work) == [([2.0], [1.0], [1.0])] * 2


def test_a_single_rank_sends_nothing():
    def work(group):
        tensor = torch.ones(2)
        return group.sum_tensors([tensor], [3.0]), tensor.tolist(), group.take_traffic()

    ((numbers, tensor, traffic),) = on_ranks(1, work)
    assert (numbers, tensor, traffic.bytes) == ([3.0], [1.0, 1.0], 0)


def test_gradients_are_summed_and_a_missing_one_counts_as_zero():
    def work(group):
        one, other = torch.zeros(2), torch.zeros(3)
        one.grad = torch.tensor([1.0, 2.0]).to_sparse() if group.shard.rank else torch.ones(2)
        if group.shard.rank:
            other.grad = torch.full((3,), 5.0)
        group.sum_gradients([one, other])
        return one.grad.tolist(), other.grad.tolist()

    assert on_ranks(2, work) == [([2.0, 3.0], [5.0, 5.0, 5.0])] * 2


@pytest.mark.parametrize("content", [b"", b"state of rank 1" * 1000])
def test_bytes_are_sent_from_one_rank_to_all(content):
    def work(group):
        return group.broadcast(content if group.shard.rank == 1 else None, source=1)

    assert on_ranks(3, work) == [content] * 3


# -- agreement ------------------------------------------------------------------------------------


def test_a_pause_and_a_switch_of_one_rank_reach_all_with_the_next_exchange():
    def work(group):
        if group.shard.rank == 1:
            group.pause = group.switch = True
        before = group.paused, group.switching
        tensor = torch.ones(1)
        sums = group.start_exchange([1.0], [tensor])()
        after = group.paused, group.switching
        group.start_exchange([])()
        kept = group.paused
        group.begin_segment()
        return before, sums, tensor.item(), after, kept, group.paused, group.pause

    expected = ((False, False), [2.0], 2.0, (True, True), True, False, False)
    assert on_ranks(2, work) == [expected] * 2


def test_clocks_travel_with_the_next_exchange():
    def work(group):
        rank = group.shard.rank
        first = group.mean_seconds(1.0 + rank, 0.5 * rank)
        group.start_exchange([])()
        return first, group.mean_seconds(9.0, 9.0)

    for first, second in on_ranks(2, work):
        assert all(math.isnan(number) for number in first)
        assert second == (1.5, 0.25)
    assert on_ranks(1, work) == [((1.0, 0.0), (9.0, 0.0))]


def test_different_plans_are_an_error_on_all_ranks():
    def work(group):
        group.fingerprint = 7.0 + (group.shard.rank == 2)
        with pytest.raises(ClusterError, match="decided differently on different ranks"):
            group.start_exchange([])()
        group.fingerprint = 4095.0
        return group.start_exchange([1.0])()

    assert on_ranks(3, work) == [[3.0]] * 3


def test_bytes_of_numbers_are_counted_once():
    def work(group):
        group.start_exchange([1.0, 2.0], [torch.ones(100)])()
        first = group.take_traffic()
        return first.bytes, first.wait_seconds > 0, group.take_traffic()

    for n_bytes, waited, later in on_ranks(3, work):
        assert n_bytes == 2 * 2 * 8 * (5 + 2)  # tensors are counted by those who send them
        assert waited
        assert later == (0, 0.0, 0.0, 0.0)


def test_dropout_of_a_rank_is_seeded_always(monkeypatch):
    seeds = []
    generator = SimpleNamespace(manual_seed=seeds.append)
    monkeypatch.setattr(torch, "default_generator", generator)
    on_ranks(2, lambda group: group.seed_dropout(3, 7, 0, seeded=False))
    assert sorted(seeds) == [(3 * 1_000_003 + 7) * 1_009 + rank for rank in (0, 1)]


# -- lost contact ---------------------------------------------------------------------------------


def test_a_rank_that_leaves_is_noticed_by_those_who_wait_for_it():
    def work(group):
        group.sum(1.0)  # all have met
        if group.shard.rank == 1:
            group.close()
            return None
        with pytest.raises(LostContact) as caught:
            group.sum(1.0)
        assert caught.value.__context__ is None or caught.value.__context__.__traceback__ is None
        return True

    assert on_ranks(2, work) == [True, None]


def test_a_silent_rank_counts_as_lost_after_the_timeout():
    def work(group):
        group.sum(1.0)
        if group.shard.rank == 1:
            return done.wait(20)
        group.set_timeout(0.2)
        with pytest.raises(LostContact):
            group.sum(1.0)
        done.set()
        return True

    done = threading.Event()
    assert on_ranks(2, work) == [True, True]


def test_a_failure_after_the_step_is_kept_without_its_frames():
    formed = form(dist.HashStore(), 0, 1, seconds=5.0, address="127.0.0.1", device=CPU)
    group = ProcessGroup(formed, CPU)
    assert not group.is_lost(RuntimeError("the user's"))
    assert group.failure is None
    with pytest.raises(RuntimeError) as caught:
        raise LostContact("gloo: gone")
    assert caught.value.__traceback__ is not None
    assert group.is_lost(caught.value)
    assert str(group.failure) == "gloo: gone"
    assert group.failure.__traceback__ is None
    group.begin_segment()
    assert group.failure is None
    group.close()
    with pytest.raises(LostContact, match="left"):
        group.set_timeout(1.0)
