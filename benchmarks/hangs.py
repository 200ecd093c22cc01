"""Does a fit survive a rank that hangs, whenever that happens?

In each of 20 runs one of three workers is stopped (SIGSTOP), at a moment that a seeded generator
chooses: in every fourth run by the rank itself, after the last message of an epoch and before its
report, which no other rank notices; otherwise from outside, at any time of the fit. The run must
end, with the parameters of an undisturbed one. The stopped process continues afterwards and takes
part in the next run. A worker that hangs while ranks start is left behind after ten seconds.
Every run draws from its own generator, so that ``--cache FILE --at-most 5`` does them in pieces.
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
from _common import Cache, console, output_path, parser, print_table, write
from accelerando import NeuralNetClassifier

WORKERS, EPOCHS, GIVE_UP, SLOW = 3, 4, 150.0, 30.0


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


def one_run(client: Client, seed: int, number: int, data: Any) -> dict[str, Any]:
    """Return what became of a disturbed fit, and how long an undisturbed one takes."""
    started = time.perf_counter()
    expected = make(client).fit(*data)
    usual = time.perf_counter() - started
    rng = random.Random(f"{seed}/{number}")
    net, seconds, ended, what = disturbed(client, rng, number % 4 == 3, data, usual)
    found, wanted = (
        torch.cat([p.detach().flatten() for p in one.module_.parameters()])
        for one in (net, expected)
    )
    return {
        "stopped": what,
        "ended": ended,
        "seconds": seconds,
        "undisturbed": usual,
        "updates": net.position_.update,
        "difference": float((found - wanted).abs().max()),
        "log": [f"{entry['time']:.1f} s: {entry['text']}" for entry in net.world_log_],
    }


def survived(row: dict[str, Any]) -> bool:
    return bool(row["ended"]) and row["difference"] < 1e-9


def arguments() -> argparse.Namespace:
    made = parser(__doc__ or "", data=False)
    made.add_argument("--runs", type=int, help="how many (default: 20, quick: 2)")
    made.add_argument("--at-most", type=int, metavar="N", help="end after N runs that are new")
    made.add_argument("--seed", type=int, default=0)
    args = made.parse_args()
    args.runs = args.runs or (2 if args.quick else 20)
    return args


def main() -> None:
    args = arguments()
    numbers = np.random.default_rng(0)
    X = numbers.normal(size=(600, 6))
    data = X, (X[:, 0] + X[:, 1] > 0).astype(np.int64)
    cache = Cache(args.cache)
    rows: list[dict[str, Any]] = []
    new = [number for number in range(args.runs) if f"{args.seed}/{number}" not in cache]
    new = new[: args.at_most]
    with local_cluster(WORKERS) as client:
        make(client).fit(*data)  # imports
        for number in range(args.runs):
            key = f"{args.seed}/{number}"
            if number in new:
                row = one_run(client, args.seed, number, data)
                cache[key] = row
                if row["seconds"] > SLOW or not survived(row):
                    console.print(*row["log"], sep="\n  ")
            if key not in cache.rows:
                return  # the remaining runs are another call's
            rows.append(cache[key])
            console.print(
                f"run {number + 1}: stopped {rows[-1]['stopped']}; "
                f"{'ended' if rows[-1]['ended'] else 'DID NOT END'} after "
                f"{rows[-1]['seconds']:.1f} s, parameters differ by {rows[-1]['difference']:.1e}"
            )
    seconds = sorted(row["seconds"] for row in rows)
    print_table(
        "A rank that hangs",
        ["runs", "survived", "median s", "longest s", "undisturbed s", "largest difference"],
        [
            [
                str(len(rows)),
                sum(map(survived, rows)),
                f"{float(np.median(seconds)):.1f}",
                f"{seconds[-1]:.1f}",
                f"{float(np.median([row['undisturbed'] for row in rows])):.2f}",
                f"{max(row['difference'] for row in rows):.1e}",
            ]
        ],
    )
    settings = {"workers": WORKERS, "epochs": EPOCHS, "rank_timeout": 1.0, "seed": args.seed}
    write(output_path(args, __file__), __file__, settings, rows=rows)
    if not all(map(survived, rows)):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
