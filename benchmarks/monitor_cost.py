"""What does watching cost? Time per update without and with each monitor, and with all of them.

Variants take turns within one run, in an order that is drawn anew in each round, so that a busy
machine slows all of them alike. What counts is the ratio to training without monitors in the same
round; the median over the rounds is printed, with the lowest and the highest. The time
per update is that of its faster quarter; in one process the processor's time is measured, too.

The monitors of gradients look at every row in the first hundred updates, and afterwards as
often as costs about two percent; what counts here is the time after those. On two ranks the numbers
ride with the gradients.
"""

from __future__ import annotations

import time
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import nn

from _cluster_common import OtherLoad, local_cluster
from _common import cnn, console, mlp, output_path, parser, print_table, write
from accelerando import NeuralNetClassifier
from accelerando.monitor import (
    CommunicationTime,
    GradientDiversity,
    GradientNoiseScale,
    GradientVariance,
    LossTrend,
    Throughput,
)

MONITORS: dict[str, list[Any]] = {
    "none": [],
    "GradientNoiseScale": [GradientNoiseScale()],
    "GradientVariance": [GradientVariance()],
    "GradientDiversity": [GradientDiversity()],
    "LossTrend": [LossTrend()],
    "Throughput": [Throughput()],
    "CommunicationTime": [CommunicationTime()],
}
MONITORS["all"] = [monitor for some in MONITORS.values() for monitor in some]
LIMIT = 1.03


def build(case: str) -> nn.Module:
    torch.manual_seed(0)
    return mlp(784, 128, 64, 10) if case == "mlp" else cnn()


def data(rows: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, 1, 28, 28)).astype("float32")
    return X, rng.integers(0, 10, size=rows)


def estimator(case: str, batch: int, monitors: list[Any], where: dict[str, Any]) -> Any:
    return NeuralNetClassifier(
        build(case),
        criterion=nn.CrossEntropyLoss,
        lr=0.01,
        optimizer__momentum=0.9,
        batch_size=batch,
        max_epochs=1,
        train_split=None,
        callbacks="disable",
        random_state=0,
        verbose=0,
        monitors=monitors,
        **where,
    )


def seconds_per_update(net: Any, X: Any, y: Any) -> tuple[float, float]:
    """Train one epoch more; return the usual seconds of an update, and those of the processor."""
    before, cpu = net.position_.update, time.process_time()
    net.partial_fit(X, y)
    cpu = (time.process_time() - cpu) / (net.position_.update - before)
    stamps = net.updates_frame()["seconds"].to_numpy()[before:]
    # A good part of the updates gets the processor undisturbed; the first ones warm up.
    return float(np.quantile(np.diff(stamps[3:]), 0.25)), cpu


def measure(case: str, batch: int, updates: int, rounds: int, where: dict[str, Any]) -> dict:
    X, y = data(batch * updates)
    nets = {name: estimator(case, batch, some, where) for name, some in MONITORS.items()}
    for net in nets.values():
        net.fit(X[: 8 * batch], y[: 8 * batch])
    rng = np.random.default_rng(1)
    rows: dict[str, list[tuple[float, float]]] = {name: [] for name in nets}
    for _ in range(rounds):
        for name in rng.permutation(list(nets)):
            rows[name].append(seconds_per_update(nets[name], X, y))
    return {
        name: {
            "milliseconds": 1e3 * median(wall for wall, _ in found),
            "ratios": [wall / w for (wall, _), (w, _) in zip(found, rows["none"], strict=True)],
            "cpu_ratios": [cpu / c for (_, cpu), (_, c) in zip(found, rows["none"], strict=True)],
        }
        for name, found in rows.items()
    }


def main() -> None:
    arguments = parser(__doc__ or "", data=False, cache=False)
    arguments.add_argument("--ranks", type=int, default=2, help="ranks of the second half")
    args = arguments.parse_args()
    torch.set_num_threads(1)
    quick = args.quick
    rounds, updates = (3, 40) if quick else (15, 150)
    cases = [("mlp", 256), ("conv", 64)] + ([] if quick else [("mlp", 64), ("conv", 256)])
    load, results = OtherLoad(), {}
    for case, batch in cases:
        few = updates if case == "mlp" else max(40, updates // 3)
        results[f"1 process, {case} {batch}"] = measure(case, batch, few, rounds, {})
    with local_cluster(args.ranks) as client:
        where = {"client": client, "min_workers": args.ranks, "max_workers": args.ranks}
        for case, batch in cases:
            few = updates if case == "mlp" else max(40, updates // 3)
            key = f"{args.ranks} ranks, {case} {batch}"
            results[key] = measure(case, batch, few, max(3, rounds // 3), where)
    for key, found in results.items():
        rows = [
            [
                name,
                f"{one['milliseconds']:.3f}",
                f"{median(one['ratios']):.3f}",
                f"{min(one['ratios']):.2f} - {max(one['ratios']):.2f}",
                f"{median(one['cpu_ratios']):.3f}" if key.startswith("1 process") else None,
            ]
            for name, one in found.items()
        ]
        print_table(key, ["monitors", "ms / update", "ratio", "range", "cpu ratio"], rows)
    over = {k: median(f["all"]["ratios"]) for k, f in results.items()}
    console.print(
        "All monitors: "
        + ", ".join(f"{key}: {ratio - 1:+.1%}" for key, ratio in over.items())
        + f" (aim: at most {LIMIT - 1:+.0%}). Other load: {load.taken():.1f} processors."
    )
    write(
        output_path(args, __file__),
        __file__,
        {"rounds": rounds, "updates": updates, "ranks": args.ranks},
        results=results,
        other_load=load.taken(),
    )


if __name__ == "__main__":
    main()
