"""Private names of PyTorch that the engine depends on: one test each."""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import threading
import warnings
import weakref
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

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
    c = tensors(0, 8)
    _torch.foreach_lerp_(c, tensors(4, 4), 0.25)
    assert values(c) == [1, 7]


def test_unflatten_returns_views_in_order():
    flat = torch.arange(7.0)
    like = [torch.empty(2, 2, device="meta"), torch.empty((), device="meta"), torch.empty(2)]
    parts = _torch.unflatten(flat, like)
    assert [part.shape for part in parts] == [like.shape for like in like]
    assert parts[0].tolist() == [[0, 1], [2, 3]]
    assert parts[2].tolist() == [5, 6]
    parts[1].fill_(40)
    assert flat[4] == 40


def test_versions_count_changes_in_place_but_not_those_of_the_data():
    parameter = nn.Parameter(torch.zeros(2))
    before = _torch.version_of(parameter)
    parameter.data.fill_(1.0)
    parameter.data = torch.ones(2)
    assert _torch.version_of(parameter) == before
    with torch.no_grad():
        parameter.zero_()
    assert _torch.version_of(parameter) == before + 1


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


def test_a_scheduler_believes_that_it_tracks_an_unpickled_optimizer():
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    del optimizer.step  # as after unpickling
    _torch.track_steps(optimizer)
    scheduler.step()  # warnings are errors
    assert optimizer.step() is None


def test_hooks_of_a_tensor():
    parameter = nn.Parameter(torch.zeros(1))
    assert _torch.hooks_of(parameter) == []
    first, second = (lambda gradient: gradient), (lambda tensor: None)
    parameter.register_hook(first)
    parameter.register_post_accumulate_grad_hook(second)
    assert _torch.hooks_of(parameter) == [first, second]


def test_the_class_of_a_parametrized_module():
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))
    made = _torch.parametrize_like(nn.Linear, ["weight"])
    vars(made).update(vars(layer))
    assert torch.equal(made.weight, layer.weight)


def test_bytes_as_tensors():
    assert _torch.from_tensor(_torch.as_tensor(b"abc")) == b"abc"


def group_of(store, rank, size, ports=None):
    return _torch.make_process_group(
        dist.PrefixStore("group", store),
        rank,
        size,
        backend="gloo",
        seconds=20.0,
        address="127.0.0.1",
        device=torch.device("cpu"),
        ports=ports,
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


LOWER = (36000, 37999)  # the system chooses gloo's ports from 32768 to 46883


def test_gloo_listens_on_a_port_of_the_range(monkeypatch):
    monkeypatch.setattr(_torch, "_gloo_devices", {})
    store, made = dist.HashStore(), {}

    def make(rank):
        made[rank] = group_of(store, rank, 2, ports=LOWER)

    before = _torch._listening()
    threads = [threading.Thread(target=make, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    data = [torch.tensor([1.0]), torch.tensor([2.0])]
    for work in [made[rank].allreduce([data[rank]]) for rank in range(2)]:
        work.wait()
    assert values(data) == [3, 3]
    new = {port for key, port in _torch._listening().items() if key not in before}
    assert new
    assert all(LOWER[0] <= port <= LOWER[1] for port in new)
    assert list(_torch._gloo_devices) == [("127.0.0.1", LOWER)]
    device = _torch._gloo_devices["127.0.0.1", LOWER]
    assert _torch._gloo_device("127.0.0.1", LOWER) is device, "to find a port takes a while"


def test_a_range_from_which_the_system_does_not_choose_is_refused(monkeypatch):
    monkeypatch.setattr(_torch, "_GLOO_SECONDS", 0.2)
    with pytest.raises(ValueError, match=r"no port of 1024:2000 \(accelerando.ports\) for gloo"):
        group_of(dist.HashStore(), 0, 1, ports=(1024, 2000))
    assert ("127.0.0.1", (1024, 2000)) not in _torch._gloo_devices


def test_a_system_that_does_not_tell_the_port_is_refused(monkeypatch):
    def nothing(path):
        raise FileNotFoundError(path)

    monkeypatch.setattr(_torch.os, "listdir", nothing)
    with pytest.raises(ValueError, match="on Linux only"):
        group_of(dist.HashStore(), 0, 1, ports=(1024, 2000))


def test_nccl_cannot_honor_a_range_of_ports():
    with pytest.raises(ValueError, match="NCCL has no setting for its ports"):
        _torch.make_process_group(
            dist.HashStore(), 0, 1, backend="nccl", seconds=1.0, address="127.0.0.1",
            device=torch.device("cpu"), ports=LOWER,
        )  # fmt: skip


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


def test_stores_connect_with_errors_only_and_the_level_is_restored(monkeypatch):
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    level = ctypes.c_int.in_dll(library, "FLAGS_caffe2_log_level")
    before, seen = level.value, []
    monkeypatch.setattr(dist, "TCPStore", lambda *args, **options: seen.append(level.value))
    with _torch._only_errors():
        _torch.make_store("127.0.0.1", 1)
    assert seen == [max(2, before)]
    assert level.value == before


def test_other_builds_of_torch_have_no_level(monkeypatch):
    monkeypatch.setattr(torch, "__file__", "/nowhere/torch/__init__.py")
    with _torch._only_errors():
        pass


def test_workers_of_a_loader_start_in_a_daemonic_process_and_end(monkeypatch):
    settings = multiprocessing.current_process()._config
    monkeypatch.setitem(settings, "daemon", True)
    loader = DataLoader(torch.arange(4), num_workers=1, persistent_workers=True)
    others = set(multiprocessing.active_children())  # of tests before this one
    delivering = _torch.start_workers(loader)
    assert settings["daemon"]
    assert [int(x) for x in delivering] == [0, 1, 2, 3]
    workers = set(multiprocessing.active_children()) - others
    assert len(workers) == 1
    _torch.end_workers(loader, delivering)
    assert not any(worker.is_alive() for worker in workers)


def test_a_function_is_called_after_the_backward_pass_in_which_it_was_asked_for():
    calls = []

    class Ask(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            for number in (1, 2):
                _torch.after_backward(lambda number=number: calls.append((number, w.grad.item())))
            return gradient

    w = torch.ones((), requires_grad=True)
    Ask.apply(w * 2.0).backward()
    assert calls == [(1, 2.0), (2, 2.0)]
