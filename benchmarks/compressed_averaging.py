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

from functools import partial
from statistics import mean
from typing import Any

import torch

from _common import Images, output_path, print_table, write
from accelerando.compress import QSGD, Atomo, ErrorFeedback, HalfPrecision, TopK
from accelerando.sync import AdaptiveAveraging, OuterOptimizer, PeriodicAveraging
from averaging_quality import cells, load, means, options, run_each, train

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
    return {
        **means(name, runs),
        "averagings": mean(run["synchronisations"] for run in runs),
        "megabytes": mean(run["megabytes"] for run in runs),
    }


def main() -> None:
    args = options(__doc__ or "", epochs=8, ranks=8).parse_args()
    torch.set_num_threads(1)
    quick, images = args.quick, load(args)
    size = 1280 if quick else 20_000
    images = Images(*(part[: size if k < 2 else size // 2] for k, part in enumerate(images)))
    epochs, rows = args.epochs or (2 if quick else 8), 16 if quick else 64
    about = f"{epochs}/{quick}/{bool(args.cifar)}/{args.lr}/{args.ranks}"
    once = partial(train, images=images, epochs=epochs, lr=args.lr, width=8)
    every = dict(run_each(ways(args.ranks, rows), about, args, once))
    table = [summary(name, runs) for name, runs in every.items()]
    whole = table[0]["megabytes"]
    shown = []
    for row in table:
        row["fewer"] = whole / row["megabytes"]
        sent = f"{row['averagings']:.0f}", f"{row['megabytes']:,.1f}", f"{row['fewer']:.1f}"
        shown.append([*cells(row), *sent])
    columns = ["", "best test accuracy", "training loss", "updates", "exchanges", "MB", "fewer"]
    print_table("Compressed averaging", columns, shown)
    settings = {
        "epochs": epochs, "seeds": len(every[FULL]), "lr": args.lr, "ranks": args.ranks,
        "rows_per_rank": rows, "examples": len(images.x_train),
        "data": "CIFAR-10" if args.cifar else "Fashion-MNIST",
    }  # fmt: skip
    write(output_path(args, __file__), __file__, settings, rows=table)


if __name__ == "__main__":
    main()
