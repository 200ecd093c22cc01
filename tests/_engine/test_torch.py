"""Private names of PyTorch that the engine depends on: one test each."""

from __future__ import annotations

import gc
import threading
import warnings
import weakref
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from accelerando._engine import _torch


def tensors(*values):
    return [torch.tensor([float(value)]) for value in values]


def values(tensors):
    return [float(tensor) for tensor in tensors]


def test_foreach_functions_change_all_tensors():
    a, b = tensors(1, 2), tensors(10, 20)
    _torch.foreach_add_(a, b)
    assert values(a) == [11, 22]
    _torch.foreach_add_(a, b, alpha=-0.5)
    assert values(a) == [6, 12]
    _torch.foreach_sub_(a, tensors(1, 1))
    assert values(a) == [5, 11]
    assert values(_torch.foreach_sub(b, a)) == [5, 9]
    _torch.foreach_mul_(a, 3.0)
    assert values(a) == [15, 33]
    _torch.foreach_div_(a, 3)
    assert values(a) == [5, 11]
    _torch.foreach_copy_(a, b)
    assert values(a) == [10, 20]
    assert a[0].data_ptr() != b[0].data_ptr()
    assert values(b) == [10, 20]


def test_unflatten_returns_views_in_order():
    flat = torch.arange(7.0)
    like = [torch.empty(2, 2, device="meta"), torch.empty((), device="meta"), torch.empty(2)]
    parts = _torch.unflatten(flat, like)
    assert [part.shape for part in parts] == [like.shape for like in like]
    assert parts[0].tolist() == [[0, 1], [2, 3]]
    assert parts[2].tolist() == [5, 6]
    parts[1].fill_(40)
    assert flat[4] == 40


def test_the_base_class_of_batch_norm():
    kinds = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
    assert all(issubclass(kind, _torch.batch_norm_class()) for kind in kinds)
    assert not issubclass(nn.GroupNorm, _torch.batch_norm_class())


def test_batch_norm_checks_its_input():
    _torch.check_batch_norm_input(nn.BatchNorm2d(3), torch.zeros(2, 3, 4, 4))
    with pytest.raises(ValueError, match="expected 4D"):
        _torch.check_batch_norm_input(nn.BatchNorm2d(3), torch.zeros(2, 3))


def test_a_scheduler_believes_that_the_optimizer_has_stepped():
    for mark in (False, True):
        optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        if mark:
            _torch.mark_optimizer_called(optimizer)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            scheduler.step()
        assert bool(caught) is not mark


def group_of(store, rank, size):
    return _torch.make_process_group(
        dist.PrefixStore("group", store),
        rank,
        size,
        backend="gloo",
        seconds=20.0,
        address="127.0.0.1",
        device=torch.device("cpu"),
    )


@pytest.fixture
def groups():
    """Two ranks in two threads of this process; the global registry knows neither."""
    store = dist.HashStore()
    made = {}

    def make(rank):
        made[rank] = group_of(store, rank, 2)

    threads = [threading.Thread(target=make, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [made[0], made[1]]


def test_process_groups_outside_the_registry(groups):
    assert not dist.is_initialized()
    assert [(group.rank(), group.size()) for group in groups] == [(0, 2), (1, 2)]
    data = [torch.tensor([1.0]), torch.tensor([2.0])]
    works = [group.allreduce([x]) for group, x in zip(groups, data, strict=True)]
    for work in works:
        work.wait()
    assert values(data) == [3, 3]
    backend = groups[0]._get_backend(torch.device("cpu"))
    assert backend.options._timeout == timedelta(seconds=20)


def test_a_collective_without_the_other_rank_times_out(groups):
    groups[0].set_timeout(timedelta(milliseconds=50))
    with pytest.raises(RuntimeError, match=r"[Tt]imed out"):
        groups[0].allreduce([torch.ones(1)]).wait()


def test_a_released_wrapper_lets_its_group_go():
    group = group_of(dist.HashStore(), 0, 1)
    wrapped = DistributedDataParallel(nn.Linear(2, 1), process_group=group, init_sync=False)
    wrapped(torch.ones(3, 2)).sum().backward()
    reducer = weakref.ref(wrapped.reducer)
    gc.disable()
    try:
        _torch.release_ddp(wrapped)
        assert reducer() is None, "another reference to DDP's reducer would keep the group"
        assert wrapped.process_group is None
    finally:
        gc.enable()
