"""PyTorch's own data-parallel training as a peer: a process for each rank, DDP, gloo.

:func:`native` starts the processes, wherever they are to be; run as a script this is one of them.
A rank is single-threaded. BatchNorm's statistics are those of each rank's rows, as DDP has it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as powersgd
from torch.nn.parallel import DistributedDataParallel

PORT = 29_577


@dataclass
class Job:
    """What to train; it is pickled, so that all ways begin with the same weights."""

    module: nn.Module
    x: torch.Tensor
    y: torch.Tensor
    x_test: torch.Tensor
    y_test: torch.Tensor
    rows: int  # of each rank's batch
    epochs: int
    lr: float
    momentum: float = 0.9
    milestones: Sequence[int] = ()  # epochs after which the rate falls to a tenth
    seed: int = 0
    powersgd_rank: int | None = None
    test_every_epoch: bool = True


def native(
    job: Job,
    ranks: int,
    address: str,
    interface: str,
    words: Callable[[int, list[str]], list[str]] = lambda _, command: command,
    timeout: float = 900.0,
) -> dict[str, Any]:
    """Train on this many processes; `words` says how to run the command of a rank.

    Returns `seconds` and `epochs` of each update, the mean `loss` of each epoch on the first rank,
    the `accuracies`, and the `whole` time from the first update on.
    """
    path = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": interface,  # names of hosts need not be known in a namespace
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        "PYTHONPATH": path,
    }
    started: list[subprocess.Popen[str]] = []
    with tempfile.TemporaryDirectory() as folder:
        file, found = Path(folder) / "job.pt", Path(folder) / "found.json"
        torch.save(job, file)
        try:
            for rank in range(ranks):
                command = [sys.executable, __file__, str(rank), str(ranks), address]
                started.append(
                    subprocess.Popen(
                        words(rank, [*command, str(file), str(found)]),
                        env=environment,
                        stderr=subprocess.PIPE,
                        text=True,
                    )
                )
            for process in started:
                _, said = process.communicate(timeout=timeout)
                if process.returncode:
                    raise RuntimeError(f"A rank of native DDP has failed. {said[-2000:]}")
            return dict(json.loads(found.read_text()))
        finally:
            for process in started:
                if process.poll() is None:
                    process.kill()
                    process.communicate()


# -- one rank --------------------------------------------------------------------------------------


def train(job: Job, rank: int, ranks: int) -> dict[str, Any]:
    """Train as PyTorch's tutorial on DDP does."""
    net = DistributedDataParallel(job.module)
    if job.powersgd_rank is not None:
        # Without error feedback of its first updates it may begin at the second, not before.
        state = powersgd.PowerSGDState(
            None, matrix_approximation_rank=job.powersgd_rank, start_powerSGD_iter=2
        )
        net.register_comm_hook(state, powersgd.powerSGD_hook)
    optimizer = torch.optim.SGD(net.parameters(), lr=job.lr, momentum=job.momentum)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, list(job.milestones))
    generator = torch.Generator().manual_seed(job.seed)
    ends, epochs, losses, accuracies = [], [], [], []
    dist.barrier()
    began = time.perf_counter()
    for epoch in range(1, job.epochs + 1):
        order, total = torch.randperm(len(job.x), generator=generator), 0.0
        for batch in order.split(ranks * job.rows):
            mine = batch.tensor_split(ranks)[rank]
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(job.x[mine]), job.y[mine])
            loss.backward()
            optimizer.step()
            total += loss.item() * len(mine)
            ends.append(time.perf_counter() - began)
            epochs.append(epoch)
        schedule.step()
        losses.append(total / (len(job.x) / ranks))
        if rank == 0 and (job.test_every_epoch or epoch == job.epochs):
            accuracies.append(accuracy(job))
    return {
        "seconds": ends,
        "epochs": epochs,
        "loss": losses,
        "accuracies": accuracies,
        "whole": time.perf_counter() - began,
    }


@torch.no_grad()
def accuracy(job: Job) -> float:
    job.module.eval()
    parts = zip(job.x_test.split(500), job.y_test.split(500), strict=True)
    right = sum(int((job.module(x).argmax(1) == y).sum()) for x, y in parts)
    job.module.train()
    return right / len(job.y_test)


def main() -> None:
    rank, ranks, address, file, found = sys.argv[1:]
    torch.set_num_threads(1)
    job: Job = torch.load(file, weights_only=False)
    dist.init_process_group(
        "gloo", init_method=f"tcp://{address}:{PORT}", rank=int(rank), world_size=int(ranks)
    )
    result = train(job, int(rank), int(ranks))
    if rank == "0":
        Path(found).write_text(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.modules["_peer_ddp"] = sys.modules["__main__"]  # the job was pickled by whoever imported it
    main()
