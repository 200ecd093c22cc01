"""How far off are the predictions of accelerando.cost?

Trains one dense network on 1, 2 and 4 ranks whose network is limited to three bandwidths, and
compares the time of an update with what ``accelerando.cost`` says before: from ``measure`` (a
short run in one process), the bandwidth, and the latency of a connection.

Every rank is a Dask worker in its own network namespace; ``tc tbf`` limits what it sends. The
namespaces have no way out, and are removed at the end. Needs root; iproute2 is installed if it is
missing and apt-get can do it.

Where there are more ranks than processors, they take turns, and no formula for a cluster knows of
that: the prediction's time per example is then multiplied by ranks per processor, and said so.

Takes about three minutes on two quiet cores, and one with --quick. Other work on the machine makes
the predictions wrong, since times are measured in turns: see processors_taken_by_others.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from _cluster_common import OtherLoad
from _common import console, count_parameters, mlp, output_path, parser, print_table, write
from _namespace_cluster import cluster, found_inside, leave_properly
from _namespaces import machines, why_not
from accelerando import NeuralNetClassifier
from accelerando.cost import Network, measure, plan

RANKS = (1, 2, 4)
BANDWIDTHS = (100e6, 300e6, 1000e6)
BATCH, ROWS, FEATURES, CLASSES = 512, 4096, 784, 10
WIDTHS = (FEATURES, 512, 512, CLASSES)
SKIP = 4  # updates at the start of a run that are not timed


def main() -> None:
    made = parser(__doc__ or "", data=False, cache=False)
    made.add_argument("--inside", nargs=2, metavar=("TAG", "FILE"), help=argparse.SUPPRESS)
    args = made.parse_args()
    if args.inside:
        leave_properly()
        inside(args.inside[0], Path(args.inside[1]), quick=args.quick)
        return
    reason = why_not()
    if reason is not None:
        console.print(f"{reason} Nothing was measured.")
        return
    results = found_inside(__file__, max(RANKS), *(["--quick"] if args.quick else []))
    show(results["rows"])
    write(output_path(args, __file__), __file__, **results, evidence=evidence(results["rows"]))


def evidence(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Say for the evidence page how good the predictions were."""
    errors = [abs(row["error"]) for row in rows]
    rates = ", ".join(f"{rate / 1e6:g}" for rate in sorted({row["bandwidth"] for row in rows}))
    measured = (
        f"predicted time of an update, {', '.join(map(str, RANKS[:-1]))} and {RANKS[-1]} ranks at "
        f"{rates} Mb/s: median error {100 * statistics.median(errors):.0f} %, largest "
        f"{100 * max(errors):.0f} %"
    )
    verdict = "yes" if max(errors) <= 0.25 else "partly"
    return {"cost-model": {"measured": measured, "verdict": verdict}}


def show(rows: list[dict[str, Any]]) -> None:
    """Print the table."""
    print_table(
        "Seconds of an update: predicted by accelerando.cost, and measured",
        ["bandwidth", "ranks", "predicted ms", "measured ms", "error"],
        [
            [
                f"{row['bandwidth'] / 1e6:.0f} Mb/s",
                row["ranks"],
                f"{1e3 * row['predicted']:.1f}",
                f"{1e3 * row['measured']:.1f}",
                f"{100 * row['error']:+.0f} %",
            ]
            for row in rows
        ],
    )
    errors = [abs(row["error"]) for row in rows]
    console.print(
        f"Absolute error: median {statistics.median(errors):.0%}, largest {max(errors):.0%}"
    )


# -- in the hub's namespace ------------------------------------------------------------------------


def inside(tag: str, result: Path, *, quick: bool) -> None:
    """Run scheduler, workers and driver; write what was found."""
    torch.set_num_threads(1)
    hub, ranks = machines(max(RANKS), tag)
    x, y = data()
    with cluster(hub, ranks) as client:
        net = estimator(client=None)
        measured = measure(net, x, y, batch_sizes=(BATCH // 4, BATCH // 2, BATCH))
        rows = []
        for bandwidth in BANDWIDTHS[1:] if quick else BANDWIDTHS:
            for machine in ranks:
                machine.limit(bandwidth)
            latency = client.submit(
                connect_seconds, list(client.scheduler_info(n_workers=-1)["workers"]), pure=False
            ).result()
            for count in RANKS:
                row = one(client, x, y, count, bandwidth, latency, measured, quick=quick)
                console.print(
                    f"{bandwidth / 1e6:.0f} Mb/s, {count} ranks: {1e3 * row['measured']:.1f} ms"
                )
                rows.append(row)
    settings = {
        "quick": quick,
        "model": f"dense {WIDTHS}, {count_parameters(mlp(*WIDTHS))} parameters",
        "batch_size": BATCH,
        "measured": measured._asdict(),
        "predicted": "overhead + rows of a rank x seconds per example + ring all-reduce; "
        "overhead and seconds per example times ranks / processors where that is above 1",
        "network": "namespaces on a bridge, tc tbf on what each rank sends",
        "timed": f"median over the updates after the first {SKIP}",
    }
    result.write_text(json.dumps({"settings": settings, "rows": rows}))


def one(
    client: Any,
    x: np.ndarray,
    y: np.ndarray,
    ranks: int,
    bandwidth: float,
    latency: float,
    measured: Any,
    *,
    quick: bool,
) -> dict[str, Any]:
    """Train on this many ranks, and predict the same."""
    crowded = max(1.0, ranks / len(os.sched_getaffinity(0)))
    predicted = plan(
        BATCH,
        n_examples=BATCH,
        max_epochs=1,
        parameters=measured.parameters,
        seconds_per_example=measured.seconds_per_example * crowded,
        overhead=measured.overhead * crowded,
        examples_per_worker=BATCH // ranks,
        max_workers=ranks,
        network=Network(bandwidth, latency),
    )
    load = OtherLoad()
    net = estimator(
        client=client,
        examples_per_worker=BATCH // ranks,
        min_workers=ranks,
        max_workers=ranks,
        max_epochs=2 if quick else 6,
    )
    record = net.fit(x, y).updates_frame()
    assert set(record["ranks"]) == {ranks}, record["ranks"].tolist()
    seconds = np.diff(record["seconds"].to_numpy()[SKIP - 1 :])
    took = float(np.median(seconds))
    return {
        "bandwidth": bandwidth,
        "latency": latency,
        "ranks": ranks,
        "updates": len(seconds),
        "predicted": predicted.seconds,
        "predicted_communication": float(predicted.frame()["communication_share"].iloc[0])
        * predicted.seconds,
        "measured": took,
        "measured_quartiles": np.percentile(seconds, [25, 75]).tolist(),
        "measured_wait": float(record["wait_seconds"][SKIP:].median()),
        "error": predicted.seconds / took - 1,
        "processors_taken_by_others": load.taken(),
    }


def data() -> tuple[np.ndarray, np.ndarray]:
    """Return random rows: only the time of an update matters."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, FEATURES)).astype("float32")
    return x, rng.integers(0, CLASSES, ROWS)


def estimator(**settings: Any) -> NeuralNetClassifier:
    """Return the network to train."""
    return NeuralNetClassifier(
        mlp(*WIDTHS),
        criterion=nn.CrossEntropyLoss,
        batch_size=BATCH,
        lr=0.01,
        train_split=None,
        callbacks=None,
        random_state=0,
        verbose=0,
        rank_timeout=60.0,
        **settings,
    )


def connect_seconds(addresses: list[str]) -> float:
    """Return the time of a message one way: half of what opening a connection takes."""
    host, port = addresses[-1].rsplit("/", 1)[1].rsplit(":", 1)
    taken = []
    for _ in range(21):
        began = time.perf_counter()
        socket.create_connection((host, int(port)), timeout=10).close()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken) / 2


if __name__ == "__main__":
    main()
