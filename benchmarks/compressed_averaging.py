"""What compressed averaging saves, and what it costs in accuracy.

Eight virtual ranks train a small convolutional network on Fashion-MNIST (or CIFAR-10 with --cifar)
from the same rows in the same order. Virtual ranks compute what ranks of a cluster would, bit for
bit, so that loss and accuracy per update need no cluster. Bytes are those that eight ranks would
send: a ring for what is not encoded, all to all for what is.

FULLSGD            gradients averaged in every update
ADPSGD             adaptive periods (Jiang and Agrawal), parameters as they are, and with codecs
p = 8              a period of 8, with codecs
outer              DiLoCo's outer optimizer every 8 updates, with codecs

Reported are the best test accuracy, the training loss of the last epoch, the bytes of all ranks,
and how many times as many FULLSGD sends; means over the seeds. --quick has too few rows and epochs
to say which is better; it shows that it runs.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch

from _cifar import as_images, read_cifar
from _common import (
    Cache,
    Images,
    NoDataError,
    console,
    fashion_mnist,
    output_path,
    parser,
    print_table,
    write,
)
from accelerando.compress import QSGD, Atomo, ErrorFeedback, HalfPrecision, TopK
from accelerando.sync import AdaptiveAveraging, OuterOptimizer, PeriodicAveraging
from averaging_quality import train

FULL = "FULLSGD"


def ways(ranks: int, rows: int) -> dict[str, dict[str, Any]]:
    """Return the settings of every way to train."""
    many = {"virtual_ranks": ranks, "batch_size": rows}
    strategies = {
        "ADPSGD": AdaptiveAveraging(),
        "p = 8": PeriodicAveraging(8),
        "outer": OuterOptimizer(inner_steps=8, lr=0.7, momentum=0.9),
    }
    codecs = {
        "ADPSGD": {
            "bfloat16": HalfPrecision(),
            "QSGD 4 bits": QSGD(bits=4),
            "Atomo 6 %": Atomo(share=0.06),
        },
        "p = 8": {"QSGD 4 bits": QSGD(bits=4), "TopK 5 %": ErrorFeedback(TopK(0.05))},
        "outer": {"QSGD 4 bits": QSGD(bits=4)},
    }
    found: dict[str, dict[str, Any]] = {FULL: many}
    for name, strategy in strategies.items():
        found[name] = {**many, "sync": strategy}
        for codec, compression in codecs[name].items():
            found[f"{name}, {codec}"] = {**found[name], "compression": compression}
    return found


def summary(name: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return means over the seeds."""
    best = [max(run["accuracy"]) for run in runs]
    return {
        "way": name,
        "best_accuracy": mean(best),
        "deviation": float(np.std(best, ddof=1)) if len(best) > 1 else None,
        "train_loss": mean(run["train_loss"] for run in runs),
        "updates": runs[0]["updates"],
        "averagings": mean(run["synchronisations"] for run in runs),
        "megabytes": mean(run["megabytes"] for run in runs),
    }


def arguments() -> argparse.Namespace:
    """Read the command line."""
    made = parser(__doc__ or "")
    made.add_argument("--cifar", type=Path, metavar="FILE", help="CIFAR-10 as an npz file")
    made.add_argument("--seeds", type=int, help="runs of each way (default: 3)")
    made.add_argument("--epochs", type=int, help="of each run (default: 8)")
    made.add_argument("--lr", type=float, default=0.1)
    made.add_argument("--ranks", type=int, default=8)
    return made.parse_args()


def main() -> None:
    args = arguments()
    torch.set_num_threads(1)
    quick = args.quick
    try:
        images = as_images(read_cifar(args.cifar)) if args.cifar else fashion_mnist(args.data)
    except NoDataError as error:
        raise SystemExit(str(error)) from error
    size = 1280 if quick else 20_000
    images = Images(*(part[: size if k < 2 else size // 2] for k, part in enumerate(images)))
    epochs, rows, width = args.epochs or (2 if quick else 8), 16 if quick else 64, 8
    seeds = range(args.seeds or (1 if quick else 3))
    cache = Cache(args.cache)
    table = []
    for name, way in ways(args.ranks, rows).items():
        runs = []
        for seed in seeds:
            key = f"{name}/{seed}/{epochs}/{quick}/{bool(args.cifar)}/{args.lr}/{args.ranks}"
            if key not in cache:
                cache[key] = train(way, images, epochs, args.lr, width, seed)
            runs.append(cache[key])
            console.print(f"{name}, seed {seed}: {max(cache[key]['accuracy']):.4f}")
        table.append(summary(name, runs))
    whole = table[0]["megabytes"]
    shown = []
    for row in table:
        row["fewer"] = whole / row["megabytes"]
        apart = row["deviation"]
        shown.append(
            [
                row["way"],
                f"{row['best_accuracy']:.2%}" + (f" ± {apart:.2%}" if apart is not None else ""),
                f"{row['train_loss']:.4f}",
                row["updates"],
                f"{row['averagings']:.0f}",
                f"{row['megabytes']:,.1f}",
                f"{row['fewer']:.1f}",
            ]
        )
    columns = ["", "best test accuracy", "training loss", "updates", "exchanges", "MB", "fewer"]
    print_table("Compressed averaging", columns, shown)
    settings = {
        "epochs": epochs, "seeds": len(seeds), "lr": args.lr, "ranks": args.ranks,
        "rows_per_rank": rows, "examples": len(images.x_train),
        "data": "CIFAR-10" if args.cifar else "Fashion-MNIST",
    }  # fmt: skip
    write(output_path(args, __file__), __file__, settings, rows=table)


if __name__ == "__main__":
    main()
