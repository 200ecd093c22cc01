"""Does a batch that follows the gradient noise scale train faster than a fixed one?

Figure 5 of Mai et al., *Taming hyper-parameters in deep learning systems* (2019), on two real
ranks: a small residual network, a fixed learning rate, and three ways to choose the batch - small,
large, and adaptive from an even smaller one by the noise scale. Each trains for the same number of
epochs. Epochs, updates and seconds are compared to two accuracies: the highest that all three reach
in all their seeds, as in the paper, and the highest that the small batch does. The paper
(ResNet-32, CIFAR-10, four GPUs) reports 32 % less time than the static small batch.

The data are Fashion-MNIST, or CIFAR-10 from a file with x_train, y_train, x_test, y_test
(--cifar FILE). --quick has too few examples and epochs to say who is faster; it shows that it runs.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

from skorch.dataset import Dataset
from skorch.helper import predefined_split
from torch import nn

from _cifar import ResNet, as_images, read_cifar
from _cluster_common import OtherLoad, local_cluster
from _common import (
    Cache,
    Images,
    NoDataError,
    console,
    count_parameters,
    fashion_mnist,
    output_path,
    parser,
    print_table,
    write,
)
from accelerando import NeuralNetClassifier
from accelerando.monitor import GradientNoiseScale
from accelerando.policies import NoiseScale

SMALL, LARGE, FIRST = 256, 4096, 128
# A batch as large as the noise scale needs twice the rows, McCandlish et al. say, and a tenth of it
# a tenth more. Larger shares were tried first: with the whole noise scale the batch is at its bound
# after one epoch, and with a quarter after seven; neither got to the small batch's accuracy.
SHARE = 0.1
PAPER = {"small": (256, None), "large": (4096, None), "adaptive": (128, 4096)}


def sizes(quick: bool) -> dict[str, dict[str, Any]]:
    """Return the three ways; a quick run has fewer rows and smaller batches."""
    part = 8 if quick else 1
    grow = NoiseScale(
        initial=FIRST // part,
        share=SHARE,
        largest=LARGE // part,
        dwell=10 if quick else 100,
    )
    return {
        "static small": {"batch_size": SMALL // part},
        "static large": {"batch_size": LARGE // part},
        "adaptive": {"batch_size": grow, "monitors": [GradientNoiseScale()]},
    }


def train(settings: dict, images: Images, epochs: int, lr: float, seed: int, client: Any) -> dict:
    valid = Dataset(images.x_test, images.y_test)
    net = NeuralNetClassifier(
        ResNet,
        module__channels=images.x_train.shape[1],
        criterion=nn.CrossEntropyLoss,
        lr=lr,
        max_epochs=epochs,
        train_split=predefined_split(valid),
        client=client,
        min_workers=2,
        max_workers=2,
        random_state=seed,
        verbose=0,
        **settings,
    ).fit(images.x_train, images.y_train)
    frame, updates = net.history_frame(), net.updates_frame()
    # Validation is the same for all; what is compared is the time in updates.
    spent = updates["seconds"].diff().fillna(updates["seconds"].iloc[0])
    first = updates["epoch"].diff().fillna(1) > 0
    seconds = spent.where(~first, spent.median()).groupby(updates["epoch"]).sum().cumsum()
    return {
        "accuracy": frame["valid_acc"].tolist(),
        "updates": frame["updates"].tolist(),
        "batch_size": frame["batch_size"].tolist(),
        "seconds": seconds.tolist(),
        "whole_seconds": frame["seconds"].tolist(),
    }


def reached(run: dict, target: float) -> dict[str, float | None]:
    """Return epochs, updates and seconds to the target; None if it was not reached."""
    hits = [k for k, accuracy in enumerate(run["accuracy"]) if accuracy >= target]
    if not hits:
        return {"epochs": None, "updates": None, "seconds": None}
    k = hits[0]
    return {"epochs": k + 1, "updates": run["updates"][k], "seconds": run["seconds"][k]}


def show(target: float, facts: dict[str, list[dict]], runs: dict[str, list[dict]]) -> None:
    """Print what it took to reach an accuracy."""
    rows = []
    for name, found in facts.items():
        there = [one for one in found if one["epochs"] is not None]
        best = max(max(run["accuracy"]) for run in runs[name])
        middle = [median(one[k] for one in there) if there else None for k in there and there[0]]
        shown = [None if v is None else f"{v:.5g}" for v in middle] or [None] * 3
        rows.append([name, f"{len(there)}/{len(found)}", *shown, f"{best:.4f}"])
    print_table(
        f"To {target:.2%} test accuracy on two ranks (medians)",
        ["batch", "reached", "epochs", "updates", "seconds", "best accuracy"],
        rows,
    )


def main() -> None:
    arguments = parser(__doc__ or "")
    arguments.add_argument("--cifar", type=Path, metavar="FILE", help="CIFAR-10 as an npz file")
    arguments.add_argument("--seeds", type=int, default=None)
    arguments.add_argument("--epochs", type=int, default=None)
    arguments.add_argument("--lr", type=float, default=0.1)
    args = arguments.parse_args()
    quick = args.quick
    try:
        images = as_images(read_cifar(args.cifar)) if args.cifar else fashion_mnist(args.data)
    except NoDataError as error:
        raise SystemExit(str(error)) from error
    if quick:
        images = Images(*(part[: 2560 if k < 2 else 1000] for k, part in enumerate(images)))
    seeds = range(args.seeds or (1 if quick else 3))
    epochs = args.epochs or (4 if quick else 15)
    cache, load = Cache(args.cache), OtherLoad()
    runs: dict[str, list[dict]] = {name: [] for name in sizes(quick)}
    with local_cluster(2) as client:
        for seed in seeds:
            for name, settings in sizes(quick).items():
                key = f"{name}/{seed}/{epochs}/{quick}/{bool(args.cifar)}/{args.lr}"
                if key not in cache:
                    cache[key] = train(settings, images, epochs, args.lr, seed, client)
                runs[name].append(cache[key])
                console.print(f"{name}, seed {seed}: {cache[key]['accuracy'][-1]:.4f}")
    best = {name: min(max(run["accuracy"]) for run in found) for name, found in runs.items()}
    shared, target = min(best.values()), best["static small"]
    facts = {
        accuracy: {name: [reached(run, accuracy) for run in found] for name, found in runs.items()}
        for accuracy in (shared, target)
    }
    for accuracy, found in facts.items():
        show(accuracy, found, runs)
    write(
        output_path(args, __file__),
        __file__,
        {
            "epochs": epochs,
            "seeds": len(seeds),
            "lr": args.lr,
            "parameters": count_parameters(ResNet(images.x_train.shape[1])),
            "examples": len(images.x_train),
            "paper": PAPER,
        },
        target=target,
        reached=facts[target],
        shared_target=shared,
        reached_shared=facts[shared],
        runs=runs,
        other_load=load.taken(),
    )


if __name__ == "__main__":
    main()
