"""The tables of docs/performance.md: what each says, its script, and how results become rows."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
from _sampler_settings import OLDER, is_current

Rows = list[list[str]]


def nothing(_: Any) -> str:
    """Return no remark."""
    return ""


class Table(NamedTuple):
    """One measurement: what it says, the script, and how the results become rows."""

    title: str
    text: str
    script: str
    heads: tuple[str, ...]
    rows: Callable[[Any], Rows]
    result: str = ""  # the file, if it is not named like the script
    remark: Callable[[Any], str] = nothing  # a clause about these results


def number(value: float | None, digits: int = 2) -> str:
    """Return a number for a cell; a dash if there is none."""
    return "–" if value is None else f"{value:,.{digits}f}"


def percent(share: float | None, digits: int = 1) -> str:
    """Return a share as a percentage."""
    return "–" if share is None else f"{100 * share:.{digits}f} %"


NETS = {"mlp": "MLP", "cnn": "CNN"}


def _net(case: str) -> str:
    data, _, net = case.partition("-")
    if not net:
        return "CNN, images from files"
    name = {"digits": "digits", "fashion": "Fashion-MNIST", "images": "Fashion-MNIST"}
    return f"{NETS.get(net, net)}, {name.get(data, data)}"


def _overhead(results: Any) -> Rows:
    return [
        [
            _net(row["case"]),
            f"{row['batch_size']:,}",
            *(number(row[f"ratio_{way}"]) for way in ("accelerando", "skorch", "accelerate")),
        ]
        for row in results["rows"]
    ]


def _cluster(results: Any) -> Rows:
    return [
        [
            _net(row["case"]),
            f"{row['batch_size']:,}",
            number(row["median_ratio"]["accelerando"]),
            number(row["median_ratio"].get("server")),
        ]
        for row in results["rows"]
    ]


def _growth(results: Any) -> Rows:
    return [
        [
            row["method"],
            percent(row["within"], 0),
            number(row["updates"], 0),
            number(row["epochs"], 1),
        ]
        for row in results["synthetic"]["rows"]
    ]


def _elastic(results: Any) -> Rows:
    return [
        [row["question"], *(number(v, 3) for v in (row["seconds"], *row["range"]))]
        for row in results["rows"]
    ]


def _schedules(results: Any) -> Rows:
    return [
        [row["schedule"], f"{row['updates']:,}", number(row["accuracy"]), str(row["most_ranks"])]
        for row in results["rows"]
    ]


def _serial(results: Any) -> Rows:
    return [
        [
            name,
            number(found["calls"], 0),
            number(found["calls_to_random_final"], 0),
            percent(mean(found["final"])),
        ]
        for name, found in results["results"].items()
    ]


def _priority(results: Any) -> Rows:
    return [
        [str(row["workers"]), row["goal"], *(number(row[k], 1) for k in ("fifo", "score"))]
        for row in results["summary"]
    ]


def _codecs(results: Any) -> Rows:
    return [
        [name, percent(row["share"]), f"{row['variance']:.3g}"]
        for name, row in results["codecs"].items()
    ]


def _packing(results: Any) -> Rows:
    return [
        [name, number(row["encode"], 0), number(row["decode"], 0)]
        for name, row in results["throughput"].items()
    ]


def _codec_training(results: Any) -> Rows:
    return [
        [
            row["method"],
            number(row["to_target"]["seconds"], 0),
            percent(row["best_accuracy"]),
            number(row["bytes_per_update"] / 1e6),
        ]
        for row in results["rows"]
    ]


def _averaging(results: Any) -> Rows:
    return [
        [row["way"], percent(row["best_accuracy"]), number(row["synchronisations"], 0)]
        for row in results["rows"]
    ]


def _averaging_speed(results: Any) -> Rows:
    return [
        [
            row["way"],
            percent(row["share_measured"], 0),
            number(row["times_faster"]),
            number(row["times_faster_whole"]),
        ]
        for row in results["summary"]
    ]


def _replicas(results: Any) -> Rows:
    return [
        [row["way"], number(row["throughput_ratio"]), number(row["time_ratio"])]
        for row in results["summary"]
    ]


def _monitors(results: Any) -> Rows:
    return [
        [case, number(median(found["ratios"]))]
        for case, cases in results["results"].items()
        for name, found in cases.items()
        if name == "all"
    ]


def _noise(results: Any) -> Rows:
    def rows(goal: float, reached: Any) -> Iterable[list[str]]:
        for policy, seeds in reached.items():
            for seed, found in enumerate(seeds):
                updates, seconds = number(found["updates"], 0), number(found["seconds"], 0)
                yield [percent(goal, 2), policy, str(seed), updates, seconds]

    shared = rows(results["shared_target"], results["reached_shared"])
    return [*shared, *rows(results["target"], results["reached"])]


def _cost(results: Any) -> Rows:
    return [
        [
            number(row["bandwidth"] / 1e6, 0),
            str(row["ranks"]),
            number(1e3 * row["predicted"], 0),
            number(1e3 * row["measured"], 0),
            f"{100 * row['error']:+.0f} %",
        ]
        for row in results["rows"]
    ]


def _load(results: Any) -> Rows:
    return [
        [
            row["database"],
            str(row["participants"]),
            number(row["answers/s"], 1),
            *(number(row[f"ms {q} %"], 0) for q in (50, 95, 99)),
        ]
        for row in results["rows"]
    ]


def _before_after(results: Any) -> Rows:
    return [
        [
            row["database"],
            row["clone"],
            number(row["answers/s"], 1),
            *(number(row[f"ms {q} %"], 0) for q in (50, 95)),
            number(row["web ms per answer"]),
        ]
        for row in results.get("before_after", [])
    ]


def _chaos(results: Any) -> Rows:
    return [
        [
            row["database"],
            row["fault"],
            f"{row['answers']:,}",
            str(row["lost"]),
            str(row["doubled"]),
        ]
        for row in results["rows"]
    ]


def older_sampler(results: Any) -> str:
    """Return a remark if ARR has other settings now than in one of the runs."""
    runs = [run for run in results["runs"] if run["sampler"] == "ARR"]
    return "" if is_current(runs) else f" ({OLDER})"


def _active(results: Any) -> Rows:
    return [
        [
            row["goal"],
            row["fit"],
            row["counted"],
            number(row["ARR"], 0),
            row["ARR reached"].replace("/", " of "),
            number(row["Random"], 0),
            row["Random reached"].replace("/", " of "),
            number(row["ARR / Random"]),
        ]
        for row in results["rows"]
    ]


TABLES = {
    "Train": [
        Table(
            "Overhead in one process",
            "Seconds per epoch, divided by those of a hand-written PyTorch loop. Below 1 is "
            "faster.",
            "train_overhead.py",
            ("model, data", "batch", "accelerando", "skorch", "Accelerate"),
            _overhead,
        ),
        Table(
            "Growing batches on a linear problem",
            "Updates and epochs until the test loss is within the margin of the best one; means of "
            "ten seeds.",
            "batch_growth.py",
            ("method", "margin", "updates", "epochs"),
            _growth,
        ),
        Table(
            "A batch that follows the noise scale",
            "A residual network on Fashion-MNIST with two ranks. A dash: the accuracy was not "
            "reached.",
            "noise_scale_policy.py",
            ("accuracy", "batch", "seed", "updates", "seconds"),
            _noise,
        ),
        Table(
            "Averaged replicas in one process",
            "Rows per second and speed to the target accuracy, divided by those of one replica. "
            "Above 1 is faster.",
            "replicas.py",
            ("replicas", "rows per second", "speed to the target"),
            _replicas,
        ),
        Table(
            "Cost of monitors",
            "Seconds per update with all monitors, divided by those with none; medians. Single "
            "rounds differ by a quarter.",
            "monitor_cost.py",
            ("case", "ratio"),
            _monitors,
        ),
    ],
    "Train on a cluster": [
        Table(
            "Overhead on two Dask workers",
            "Seconds per update, divided by those of PyTorch's DDP started by hand. Below 1 is "
            "faster.",
            "cluster_overhead.py",
            ("model, data", "batch", "accelerando", "parameter server"),
            _cluster,
        ),
        Table(
            "Ranks that come, go and hang",
            "Seconds on one machine, for a run with up to four ranks.",
            "elastic.py",
            ("event", "median", "smallest", "largest"),
            _elastic,
        ),
        Table(
            "Workers that follow the batch size",
            "The AdaDamp paper's schedules at a tenth of its epochs, one seed. Accuracies in "
            "percent.",
            "workers_follow_batch.py",
            ("schedule", "updates", "accuracy", "most ranks"),
            _schedules,
        ),
        Table(
            "Size and variance of compressed gradients",
            "Bytes of a gradient of a residual network, relative to float32, and the variance that "
            "the codec adds, relative to the squared norm.",
            "compression.py",
            ("codec", "bytes", "variance"),
            _codecs,
        ),
        Table(
            "Speed of codecs",
            "Megabytes of float32 per second and core.",
            "compression.py",
            ("codec", "encode", "decode"),
            _packing,
        ),
        Table(
            "Training with compressed gradients",
            "Seconds to 42 % accuracy on CIFAR-10 with two ranks at 20 Mb/s, one seed. A dash: not "
            "in four epochs.",
            "compression.py",
            ("codec", "seconds", "best accuracy", "MB per update"),
            _codec_training,
            "compression_training.json",
        ),
        Table(
            "Accuracy of averaging",
            "Sixteen virtual ranks on 10,000 rows of CIFAR-10, 60 epochs, three seeds.",
            "averaging_quality.py",
            ("method", "best accuracy", "exchanges"),
            _averaging,
        ),
        Table(
            "Speed of averaging on slow networks",
            "How many times as fast as all-reduce on two ranks, for two shares of time that the "
            "network takes. Above 1 is faster.",
            "averaging_speed.py",
            ("method", "network's share", "in updates", "in all"),
            _averaging_speed,
        ),
        Table(
            "Predictions of the cost model",
            "Milliseconds per update.",
            "cost_model.py",
            ("Mb/s", "ranks", "predicted", "measured", "error"),
            _cost,
        ),
    ],
    "Search": [
        Table(
            "Calls that a search needs",
            "Calls of `partial_fit` until the mean best accuracy is the one at which random search "
            "ends; ten seeds.",
            "hyperband_serial.py",
            ("search", "calls in all", "calls to random's end", "best accuracy"),
            _serial,
        ),
        Table(
            "High scorers first, on real workers",
            "Seconds to an accuracy; means of three seeds. Both ways find the same model.",
            "hyperband_priority.py",
            ("workers", "accuracy", "order of the plan", "high scorers first"),
            _priority,
        ),
    ],
    "Ask people": [
        Table(
            "Answers per second of the service",
            "Clients, web, worker and database share two cores. Times of an answer and the next "
            "query in milliseconds.",
            "serve_load.py",
            ("database", "participants", "answers/s", "50 %", "95 %", "99 %"),
            _load,
        ),
        Table(
            "The service before and after",
            "A hundred participants, in turns with commit 8d2f226, medians of four runs. The "
            "worker does more now, at low priority. `--against FOLDER` measures other clones.",
            "serve_load.py",
            ("database", "version", "answers/s", "50 %", "95 %", "web CPU-ms per answer"),
            _before_after,
        ),
        Table(
            "Faults while people answer",
            "Kills of processes, restarts of the database, a full disk, a damaged file, clocks "
            "that jump, and a soak of 25 minutes.",
            "serve_chaos.py",
            ("database", "fault", "answers", "lost", "doubled"),
            _chaos,
        ),
        Table(
            "Answers that active queries need",
            "Ninety alien eggs over HTTP, three runs. A run that did not reach the goal counts as "
            "its length.",
            "serve_active.py",
            ("goal", "fit", "goal counted", "ARR", "reached", "Random", "reached", "ratio"),
            _active,
            remark=older_sampler,
        ),
    ],
}
