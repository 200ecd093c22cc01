"""How long does training stand still when ranks come, die or hang?

grow   The policy doubles the batch and thereby asks for 4 ranks instead of 2; the cluster has 2
       workers and starts 2 more. Seconds until the first update on 4 ranks, most of which the new
       processes need to start and to import torch while training continues; and the pause: the
       longest time between two updates around the switch, less the time that an update takes.
kill   SIGKILL to one of 4 workers in the middle of training: seconds until the next update on 3.
hang   SIGSTOP to one of 4 workers: seconds until the next update on 3. The documentation bounds
       them: `rank_timeout` and 20 usual updates until a silent rank counts as lost, and 3 seconds
       until the others continue.

Times are written down by the ranks themselves at the end of each update. After a signal the next
update on 3 ranks is the one that ends the longest of the first three gaps: an update that all four
had already added up may still end after it. Of several ranks the last one counts.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from distributed import Client
from skorch.callbacks import Callback
from torch import nn

from _cluster_common import OtherLoad, local_cluster
from _common import Cache, console, mlp, output_path, parser, print_table, write
from _stamps import StampedSGD, Stamps, read_stamps
from accelerando import NeuralNetClassifier

SMALL, LARGE = 256, 512  # rows per batch: 2 ranks, 4 ranks
EXAMPLES_PER_WORKER = 128
GROW_AT = 150  # updates
STEADY = 100  # updates that every rank has made before a signal, and after whatever happened
UPDATES_PER_EPOCH = 200
FEATURES, CLASSES = 64, 10
GIVE_UP = 180.0  # seconds
TARGETS = {"pause": 0.25, "kill": 0.5}  # seconds; torchft: 0.25 and 1.0
RANK_TIMEOUT = 10.0  # seconds, the default


def bound(update: float) -> float:
    """Return what the documentation says a hang costs at most, by the seconds of an update."""
    return RANK_TIMEOUT + 20 * update + 3


# -- what the stamps tell: pure functions ----------------------------------------------------------


def switch(stamps: Stamps, old: list[int], grow_at: int) -> dict[str, float]:
    """Return how long 4 ranks took to train together, and the pause that the switch made.

    The old ranks make every update from the first one on, so their stamp number `grow_at` is the
    end of the update after which the policy asked for more.
    """
    new = [pid for pid in stamps if pid not in old]
    asked = max(stamps[pid][grow_at - 1] for pid in old)
    first, last = (pick(stamps[pid][0] for pid in new) for pick in (min, max))
    pauses, typical, starting = [], [], []
    for pid in old:
        ends = stamps[pid][grow_at:]
        gaps = np.diff(ends)
        around = (ends[1:] >= first - 1) & (ends[:-1] <= last + 1)
        typical.append(float(np.median(gaps)))
        pauses.append(float(gaps[around].max()) - typical[-1])
        before = gaps[ends[1:] < first - 1]
        starting.append(float(before.max()) if len(before) else 0.0)
    return {
        "to_first_update": float(last - asked),
        "pause": max(pauses),
        "update": float(np.median(typical)),
        "longest_gap_while_they_started": max(starting),
    }


def recovery(stamps: Stamps, signalled: float, survivors: list[int]) -> dict[str, float]:
    """Return the seconds from a signal to the next update of all survivors."""
    nexts, typical = [], []
    for pid in survivors:
        ends = stamps[pid]
        after = int(np.searchsorted(ends, signalled))
        gaps = np.diff(ends[max(0, after - 1) : after + 3])
        longest = int(np.argmax(gaps))
        nexts.append(float(ends[max(0, after - 1) + longest + 1] - signalled))
        typical.append(float(np.median(np.diff(ends[:after]))))
    return {"to_next_update": max(nexts), "update": float(np.median(typical))}


# -- the experiments -------------------------------------------------------------------------------


class StopWhen(Callback):
    """End training after an epoch at whose end enough has been seen."""

    def __init__(self, folder: str, seen: Callable[[Stamps], bool]) -> None:
        self.folder, self.seen = folder, seen

    def on_train_begin(self, net: Any, **kwargs: Any) -> None:
        self.began_ = time.monotonic()

    def on_epoch_end(self, net: Any, **kwargs: Any) -> None:
        if self.seen(read_stamps(self.folder)):
            raise KeyboardInterrupt  # as skorch's EarlyStopping does
        if time.monotonic() - self.began_ > GIVE_UP:
            raise TimeoutError(f"What was to be measured did not happen in {GIVE_UP:.0f} seconds.")


def grows(signals: Any) -> int:
    """Ask for twice the batch after some updates; a function, so that nobody can see it coming."""
    return SMALL if signals.update < GROW_AT else LARGE


def train(client: Client, folder: str, batch_size: Any, seen: Callable[[Stamps], bool]) -> Any:
    """Train until enough was seen; return the estimator."""
    rows = UPDATES_PER_EPOCH * LARGE
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, FEATURES)).astype(np.float32)
    y = rng.integers(CLASSES, size=rows)
    net = NeuralNetClassifier(
        mlp(FEATURES, 512, 512, CLASSES),
        criterion=nn.CrossEntropyLoss,
        optimizer=StampedSGD,
        optimizer__folder=folder,
        optimizer__momentum=0.9,
        lr=0.01,
        batch_size=batch_size,
        max_epochs=10_000,
        train_split=None,
        callbacks=[("stop", StopWhen(folder, seen))],
        random_state=0,
        verbose=0,
        client=client,
        examples_per_worker=EXAMPLES_PER_WORKER,
        min_workers=1,
        max_workers=4,
    )
    net.fit(x, y)
    return net


def grow(seed: int) -> dict[str, Any]:
    """Let the policy ask for 4 ranks where there are 2 workers."""
    with local_cluster(2) as client, tempfile.TemporaryDirectory() as folder:
        old = list(client.run(os.getpid).values())

        def four_train(stamps: Stamps) -> bool:
            return len(stamps) >= 4 and all(len(times) >= STEADY for times in stamps.values())

        net = train(client, folder, grows, four_train)
        return {**switch(read_stamps(folder), old, GROW_AT), **_told(net)}


def signal_one(seed: int, number: signal.Signals) -> dict[str, Any]:
    """Send a signal to one of 4 workers that train together."""
    sent: dict[str, float] = {}
    with local_cluster(4) as client, tempfile.TemporaryDirectory() as folder:
        pids = sorted(client.run(os.getpid).values())
        victim = random.Random(seed).choice(pids)
        survivors = [pid for pid in pids if pid != victim]

        def strike() -> None:
            stop = time.monotonic() + GIVE_UP
            while time.monotonic() < stop:
                stamps = read_stamps(folder)
                if all(len(stamps.get(pid, ())) >= STEADY for pid in pids):
                    time.sleep(random.Random(seed).uniform(0, 0.05))  # anywhere in an update
                    sent["at"] = time.time()
                    os.kill(victim, number)
                    return
                time.sleep(0.02)

        def others_go_on(stamps: Stamps) -> bool:
            return "at" in sent and all(
                (stamps[pid] > sent["at"]).sum() >= STEADY for pid in survivors
            )

        thread = threading.Thread(target=strike, daemon=True)
        thread.start()
        try:
            net = train(client, folder, LARGE, others_go_on)
        finally:
            thread.join()
            if number == signal.SIGSTOP and "at" in sent:
                os.kill(victim, signal.SIGCONT)
        return {**recovery(read_stamps(folder), sent["at"], survivors), **_told(net)}


def stops(count: int, seed: int = 0) -> dict[str, Any]:
    """Let members hang at random moments, one after the other; the fit must continue each time.

    Epochs are short, so that some hang after the last message of a segment.
    """
    rng, over = random.Random(seed), threading.Event()
    done: list[int] = []
    with local_cluster(4) as client:
        rows = np.random.default_rng(0).normal(size=(20 * LARGE, FEATURES)).astype(np.float32)

        class Enough(Callback):
            def on_epoch_end(self, net: Any, **kwargs: Any) -> None:
                if len(done) >= count:
                    raise KeyboardInterrupt

        net = NeuralNetClassifier(
            mlp(FEATURES, 512, 512, CLASSES),
            criterion=nn.CrossEntropyLoss,
            batch_size=LARGE,
            max_epochs=100_000,
            train_split=None,
            callbacks=[("enough", Enough())],
            random_state=0,
            verbose=0,
            client=client,
            examples_per_worker=EXAMPLES_PER_WORKER,
            min_workers=1,
            max_workers=4,
            rank_timeout=1.0,
        )

        def strike() -> None:
            pids = client.run(os.getpid)
            while len(done) < count and not over.is_set():
                trainer = getattr(net, "_trainer_", None)
                members = [] if trainer is None else [info.worker for info in trainer.membership]
                if len(members) < 2:
                    over.wait(0.05)
                    continue
                over.wait(rng.uniform(0.0, 3.0))  # within 20 updates of a group it takes a minute
                pid, at = pids[rng.choice(members)], trainer.newest_update
                os.kill(pid, signal.SIGSTOP)
                stop = time.monotonic() + GIVE_UP
                try:
                    while trainer.newest_update < at + 30 and not over.is_set():
                        if time.monotonic() > stop:
                            raise TimeoutError(f"Training stands still after hang {len(done) + 1}.")
                        time.sleep(0.02)
                finally:
                    os.kill(pid, signal.SIGCONT)
                done.append(at)
                console.print(f"hang {len(done)}, at update {at}: training continues")

        thread = threading.Thread(target=strike, daemon=True)
        thread.start()
        try:
            net.fit(rows, np.arange(len(rows)) % CLASSES)
        finally:
            over.set()
            thread.join()
    if len(done) < count:
        raise RuntimeError(f"Only {len(done)} of {count} hangs happened.")
    return {"stops": len(done), "updates": int(net.position_.update)}


def kill(seed: int) -> dict[str, Any]:
    return signal_one(seed, signal.SIGKILL)


def hang(seed: int) -> dict[str, Any]:
    return signal_one(seed, signal.SIGSTOP)


def _told(net: Any) -> dict[str, Any]:
    """Return what the library itself says: the ranks of its updates, and its log."""
    frame = net.updates_frame()
    ranks = frame["ranks"].to_numpy() if "ranks" in frame else np.array([])
    changes = [int(ranks[0])] if len(ranks) else []
    changes += [int(b) for a, b in pairwise(ranks) if a != b]
    log = getattr(net, "world_log_", None) or []
    texts = [
        str(entry.get("text", entry)) if isinstance(entry, dict) else str(entry) for entry in log
    ]
    return {"ranks": changes, "log": texts}


# -- report ----------------------------------------------------------------------------------------


def summarize(runs: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return one row per question: median and range of the seconds, and the target."""
    hang = min((bound(run["update"]) for run in runs.get("hang", [])), default=None)
    questions = (
        ("asked for 4 ranks, to the first update on 4", "grow", "to_first_update", None),
        ("pause made by the switch from 2 to 4", "grow", "pause", TARGETS["pause"]),
        ("SIGKILL to one of 4, to the next update on 3", "kill", "to_next_update", TARGETS["kill"]),
        ("SIGSTOP to one of 4, to the next update on 3", "hang", "to_next_update", hang),
    )
    rows = []
    for question, experiment, what, target in questions:
        seconds = [run[what] for run in runs.get(experiment, [])]
        if not seconds:
            continue
        middle = float(np.median(seconds))
        rows.append(
            {
                "question": question,
                "seconds": middle,
                "range": [min(seconds), max(seconds)],
                "runs": len(seconds),
                "target": target,
                "met": None if target is None else middle < target,
                "seconds_per_update": float(np.median([run["update"] for run in runs[experiment]])),
                "processors_taken": float(
                    np.median([run["processors_taken"] for run in runs[experiment]])
                ),
            }
        )
    return rows


def report(rows: list[dict[str, Any]]) -> None:
    print_table(
        "Seconds, median over runs (range)",
        ["from … to", "seconds", "target", "verdict", "runs", "an update takes", "taken by others"],
        [
            [
                row["question"],
                f"{row['seconds']:.3f} ({row['range'][0]:.3f}–{row['range'][1]:.3f})",
                None if row["target"] is None else f"< {row['target']:.3g}",
                {True: "met", False: "MISSED", None: None}[row["met"]],
                row["runs"],
                f"{row['seconds_per_update']:.4f}",
                f"{row['processors_taken']:.2f}",
            ]
            for row in rows
        ],
    )


EXPERIMENTS = {"grow": grow, "kill": kill, "hang": hang}


def arguments() -> argparse.Namespace:
    made = parser(__doc__ or "", data=False)
    made.add_argument("--runs", type=int, help="runs of each experiment (default: 7, quick: 1)")
    made.add_argument(
        "--only", nargs="+", choices=tuple(EXPERIMENTS), default=tuple(EXPERIMENTS), help="some"
    )
    made.add_argument(
        "--stops", type=int, help="instead: let members hang this number of times in one fit"
    )
    args = made.parse_args()
    args.runs = args.runs or (1 if args.quick else 7)
    return args


def main() -> None:
    args = arguments()
    torch.set_num_threads(1)  # the driver must not compete with the ranks
    if args.stops:
        console.print(stops(args.stops))
        return
    cache = Cache(args.cache)
    runs: dict[str, list[dict[str, Any]]] = {}
    for name in args.only:
        runs[name] = []
        for seed in range(args.runs):
            if f"{name}/{seed}" not in cache:
                others = OtherLoad()
                run = EXPERIMENTS[name](seed)
                cache[f"{name}/{seed}"] = {"seed": seed, **run, "processors_taken": others.taken()}
            runs[name].append(cache[f"{name}/{seed}"])
        console.print(f"{name}: ranks {runs[name][0]['ranks']}", *runs[name][0]["log"], sep="\n  ")
    rows = summarize(runs)
    report(rows)
    settings = {
        "quick": args.quick,
        "model": f"dense {FEATURES}-512-512-{CLASSES}, batch {LARGE} on 4 ranks",
        "cluster": "LocalCluster, single-thread workers with nannies, on one machine",
        "runs": args.runs,
        "processors_taken": "by processes of others",
    }
    write(output_path(args, __file__), __file__, settings, rows=rows, runs=runs)


if __name__ == "__main__":
    main()
