"""Does a fit survive a rank that hangs, whenever that happens?

In each of 20 runs one of three workers is stopped (SIGSTOP), at a moment that a seeded generator
chooses: in every fourth run by the rank itself, after the last message of an epoch and before its
report, which no other rank notices; otherwise from outside, at any time of the fit. The run must
end, with the parameters of an undisturbed one. The stopped process continues afterwards and takes
part in the next run. A worker that hangs while ranks start is left behind after ten seconds.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import threading
import time
from typing import Any

import numpy as np
import torch
from distributed import Client
from torch import nn

from _cluster_common import local_cluster
from _common import console
from accelerando import NeuralNetClassifier

WORKERS, EPOCHS, GIVE_UP = 3, 4, 150.0


class Net(nn.Module):
    """A small network in double precision, slow enough for a signal to arrive."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 2)
        self.double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            time.sleep(0.002)
        return self.last(torch.tanh(self.first(x)))


def make(client: Client) -> NeuralNetClassifier:
    return NeuralNetClassifier(
        Net,
        criterion=nn.CrossEntropyLoss,
        optimizer__momentum=0.9,
        lr=0.05,
        batch_size=30,
        max_epochs=EPOCHS,
        train_split=None,
        random_state=0,
        verbose=0,
        client=client,
        min_workers=WORKERS,
        max_workers=WORKERS,
        rank_timeout=1.0,
    )


def stop_after_epoch(dask_worker: Any, epoch: int) -> None:
    """Let the rank of this worker stop its process once, when it is about to report an epoch."""
    from accelerando._cluster.worker.rank import Rank

    report = Rank._report_end

    def stopping(self: Rank, *args: Any) -> None:
        if self.state.position.epoch == epoch and self.group is not None:
            Rank._report_end = report
            os.kill(os.getpid(), signal.SIGSTOP)
        report(self, *args)

    Rank._report_end = stopping  # type: ignore[method-assign]


def disturbed(client: Client, rng: random.Random, at_end: bool, data: Any, usual: float) -> Any:
    """Return the net, the seconds that its fit took, and what was done to it."""
    pids = client.run(os.getpid)
    worker = rng.choice(sorted(pids))
    moment = rng.uniform(0.0, usual)
    timer = threading.Timer(moment, os.kill, [pids[worker], signal.SIGSTOP])
    if at_end:
        client.run(stop_after_epoch, epoch=rng.randrange(EPOCHS), workers=[worker])
    net, started = make(client), time.perf_counter()
    fitting = threading.Thread(target=net.fit, args=data, daemon=True)
    fitting.start()
    if not at_end:
        timer.start()
    fitting.join(GIVE_UP)
    seconds, ended = time.perf_counter() - started, not fitting.is_alive()
    timer.cancel()
    os.kill(pids[worker], signal.SIGCONT)
    fitting.join(GIVE_UP)
    what = "after the last message of an epoch" if at_end else f"after {moment:.2f} s"
    return net, seconds, ended, what


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--runs", type=int, default=20)
    options.add_argument("--seed", type=int, default=0)
    chosen = options.parse_args()
    rng, numbers = random.Random(chosen.seed), np.random.default_rng(0)
    X = numbers.normal(size=(600, 6))
    data = X, (X[:, 0] + X[:, 1] > 0).astype(np.int64)
    survived = 0
    with local_cluster(WORKERS) as client:
        make(client).fit(*data)  # imports
        started = time.perf_counter()
        expected = make(client).fit(*data)
        usual = time.perf_counter() - started
        for run in range(chosen.runs):
            at_end = run % 4 == 3
            net, seconds, ended, what = disturbed(client, rng, at_end, data, usual)
            found, wanted = (
                torch.cat([p.detach().flatten() for p in one.module_.parameters()])
                for one in (net, expected)
            )
            difference = float((found - wanted).abs().max())
            survived += ended and difference < 1e-9
            console.print(
                f"run {run + 1}: stopped {what}; {'ended' if ended else 'DID NOT END'} after "
                f"{seconds:.1f} s, parameters differ by {difference:.1e}"
            )
    console.print(f"{survived} of {chosen.runs} runs survived (undisturbed: {usual:.2f} s)")
    if survived < chosen.runs:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
