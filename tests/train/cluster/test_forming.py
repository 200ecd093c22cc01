"""What ranks talk through, and how they find out."""

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from accelerando.train.cluster import forming

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


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
    assert forming.backend_for(names) == backend


def test_ranks_tell_each_other_their_gpus(monkeypatch):
    """Whichever asks first waits for the others."""
    monkeypatch.setattr(forming, "name_of", lambda device: f"GPU {device.index // 2}")
    store = dist.HashStore()
    with ThreadPoolExecutor(3) as pool:
        asked = [
            pool.submit(forming.devices, store, rank, 3, torch.device("cuda", rank))
            for rank in range(3)
        ]
        heard = [one.result(timeout=20) for one in asked]
    assert heard == [["GPU 0", "GPU 0", "GPU 1"]] * 3


def test_cpus_need_not_be_told():
    assert forming.devices(None, 1, 3, CPU) == ["", "", ""]


def test_a_gpu_has_a_name_that_no_other_has(monkeypatch):
    class Properties:
        uuid = "1234-5678"

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Properties)
    monkeypatch.setattr(forming, "socket", SimpleNamespace(gethostname=lambda: "node1"))
    assert forming.name_of(GPU) == "node1 1234-5678"


def test_a_group_adds_up_over_its_ranks():
    store = dist.HashStore()

    def total(rank):
        group = forming.form(store, rank, 2, seconds=20.0, address="127.0.0.1", device=CPU)
        tensor = torch.tensor([1.0, 10.0 * rank])
        group.allreduce([tensor]).wait()
        return tensor.tolist()

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(total, range(2))) == [[2.0, 10.0]] * 2
