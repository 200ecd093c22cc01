"""Which policy reaches a target with the fewest updates, examples and seconds? A race of all.

Three tasks: Fashion-MNIST with a convolutional net (SGD), CIFAR-10 with a small residual net (SGD),
and text with a transformer of about a million parameters (AdamW). For each, constant batches of
four sizes and every policy train for the same number of epochs. The target is the best validation
score that every runner reaches in the median over its seeds. Updates, examples and modeled
seconds on P workers (accelerando.cost.replan, a 10 Gb/s network) to the target are compared; a
run that does not reach it in some seed says so.

Constant batches have the learning rate that fits the smallest one, scaled: linearly for SGD, by the
root for AdamW. So have the policies that grow by noise, through LinearScaling or SqrtScaling.
Damping policies (GeoDamp, RadaDamp, Seesaw, LateSwitch) keep the rate, as they are meant to.

CIFAR-10 and text come from --data (cifar10_small.npz, text.txt); without the text a language with
a grammar is generated, and without CIFAR-10 that task is left out. Nets have GroupNorm or
LayerNorm, because the noise scale of one process needs rows that are independent. --cache keeps
finished runs; each of them takes at most about a minute.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from itertools import product
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
from skorch.dataset import Dataset
from skorch.helper import predefined_split
from torch import nn

from _cifar import as_images, cifar
from _common import (
    Cache,
    NoDataError,
    cnn,
    console,
    count_parameters,
    fashion_mnist,
    output_path,
    parser,
    print_table,
    write,
)
from accelerando import NeuralNet, NeuralNetClassifier
from accelerando.batch_size import (
    CriticalBatchSize,
    GeoDamp,
    LateSwitch,
    NoiseScale,
    NormTest,
    RadaDamp,
    Seesaw,
)
from accelerando.cost import Network, replan
from accelerando.policies import ConstantHalfLife, Goodput, LinearScaling, SqrtScaling

CHARACTERS, LENGTH = 64, 64


class Task(NamedTuple):
    """Data, a net, and the smallest batch with its learning rate."""

    data: tuple[Any, Any, Any, Any]
    module: Callable[[], nn.Module]
    adam: bool
    small: int
    lr: float
    epochs: int
    score: str


# -- tasks ----------------------------------------------------------------------------------------


class Residual(nn.Module):
    """Two convolutions with GroupNorm around a shortcut."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(inputs, outputs, 3, 2, 1), nn.GroupNorm(4, outputs), nn.ReLU()),
            *(nn.Conv2d(outputs, outputs, 3, 1, 1), nn.GroupNorm(4, outputs)),
        )
        self.shortcut = nn.Conv2d(inputs, outputs, 1, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


def resnet() -> nn.Module:
    """Return a small residual net for 32 by 32 images."""
    return nn.Sequential(
        *(nn.Conv2d(3, 16, 3, 1, 1), nn.ReLU(), Residual(16, 32), Residual(32, 64)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)),
    )


class Attention(nn.Module):
    """A layer of a transformer that looks back only; all weights are in linear layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.project, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, width = x.shape
        q, k, v = self.project(self.first(x)).reshape(rows, length, 3, 4, width // 4).unbind(2)
        seen = nn.functional.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True
        )
        x = x + self.out(seen.transpose(1, 2).reshape(rows, length, width))
        return x + self.feed(self.second(x))


class Language(nn.Module):
    """A language model of characters; about a million parameters by default."""

    def __init__(self, width: int = 144, layers: int = 4) -> None:
        super().__init__()
        self.characters, self.places = nn.Embedding(CHARACTERS, width), nn.Embedding(LENGTH, width)
        self.layers = nn.Sequential(*(Attention(width) for _ in range(layers)))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, CHARACTERS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # Places of every row, so that gradients of single rows can be distinguished.
        places = torch.arange(x.shape[1]).expand(x.shape)
        return self.head(self.layers(self.characters(x) + self.places(places))).transpose(1, 2)


def text(args: argparse.Namespace, count: int) -> np.ndarray:
    """Return characters as numbers: of a file, or of sentences of a generated language."""
    file = None if args.data is None else args.data / "text.txt"
    if file is not None and file.exists():
        found = np.frombuffer(file.read_bytes()[:count], dtype=np.uint8).astype(np.int64)
        return found % CHARACTERS
    rng = np.random.default_rng(0)
    words = [rng.integers(1, CHARACTERS, size=rng.integers(2, 7)) for _ in range(300)]
    follows = rng.dirichlet(np.full(300, 0.02), size=300)
    out, word, total = [], 0, 0
    while total < count:
        word = int(rng.choice(300, p=follows[word]))
        out += [words[word], np.zeros(1, dtype=int)]
        total += len(words[word]) + 1
    return np.concatenate(out)[:count].astype(np.int64)


def tasks(args: argparse.Namespace) -> dict[str, Callable[[], Task]]:
    rows, epochs = (800, 2) if args.quick else (10_000, 12)

    def images(found: Any) -> tuple[Any, Any, Any, Any]:
        tested = min(2000, rows)
        parts = (
            found.x_train[:rows],
            found.y_train[:rows],
            found.x_test[:tested],
            found.y_test[:tested],
        )
        return tuple(part.numpy() for part in parts)  # type: ignore[return-value]

    def fashion() -> Task:
        return Task(images(fashion_mnist(args.data)), cnn, False, 32, 0.02, epochs, "valid_acc")

    def small_resnet() -> Task:
        data = images(as_images(cifar(args.data)))
        return Task(data, resnet, False, 32, 0.02, epochs, "valid_acc")

    def language() -> Task:
        count = 4 * rows // 10
        found = text(args, (count + count // 5) * LENGTH + 1)
        parts = [found[k * LENGTH : k * LENGTH + LENGTH + 1] for k in range(count + count // 5)]
        X, y = np.array([part[:-1] for part in parts]), np.array([part[1:] for part in parts])
        data = X[:count], y[:count], X[count:], y[count:]
        module = (lambda: Language(32, 1)) if args.quick else Language
        return Task(data, module, True, 8, 5e-4, max(2, epochs // 2), "valid_loss")

    return {"Fashion-MNIST, SGD": fashion, "CIFAR-10, SGD": small_resnet, "text, AdamW": language}


# -- runners --------------------------------------------------------------------------------------


def runners(task: Task) -> dict[str, dict[str, Any]]:
    """Return the settings of every runner."""
    small, epochs, rows = task.small, task.epochs, len(task.data[0])
    scaling: list[Any] = (
        [SqrtScaling(small), ConstantHalfLife(small)] if task.adam else [LinearScaling(small)]
    )
    largest = min(64 * small, rows // 4)
    found: dict[str, dict[str, Any]] = {
        f"constant {size}": {"batch_size": size, "policies": scaling}
        for size in (small, 2 * small, 4 * small, 8 * small)
    }
    quarter = max(1, epochs // 4)
    every = max(5, rows // small // 4)
    return found | {
        "GeoDamp": {"batch_size": GeoDamp(small, delay=quarter, factor=3)},
        "RadaDamp": {"batch_size": RadaDamp(small, memory=0.99)},
        "NoiseScale": {
            "batch_size": NoiseScale(small, share=0.2, largest=largest),
            "policies": scaling,
        },
        "NormTest": {
            "batch_size": NormTest(small, theta=2.0, largest=largest),
            "policies": scaling,
        },
        "Seesaw": {"batch_size": Seesaw(small, epochs=epochs, cut=1.5, largest=largest)},
        "CriticalBatchSize": {
            "batch_size": CriticalBatchSize(
                small, every=every, power=0.5 if task.adam else 1.0, fraction=0.05, largest=largest
            )
        },
        "LateSwitch": {"batch_size": LateSwitch(small, 8 * small, epochs=epochs, share=0.6)},
        "Goodput": {
            "batch_size": Goodput(
                small, largest, most=1, scaling="sqrt" if task.adam else "adascale"
            )
        },
    }


def train(task: Task, settings: dict[str, Any], seed: int, workers: int) -> dict[str, list[float]]:
    """Return validation score, updates, examples and modeled seconds after each epoch."""
    torch.manual_seed(seed)
    X, y, X_valid, y_valid = task.data
    kind = NeuralNet if task.adam else NeuralNetClassifier
    optimizer: dict[str, Any] = {"optimizer": torch.optim.AdamW} if task.adam else {
        "optimizer": torch.optim.SGD,
        "optimizer__momentum": 0.9,
    }  # fmt: skip
    net = kind(
        task.module(),
        criterion=nn.CrossEntropyLoss,
        lr=task.lr,
        max_epochs=task.epochs,
        max_batch_size=len(X) // 4,
        train_split=predefined_split(Dataset(X_valid, y_valid)),
        random_state=seed,
        verbose=0,
        **optimizer,
        **settings,
    ).fit(X, y)
    frame, updates = net.history_frame(), net.updates_frame()
    modeled = replan(
        updates,
        workers=workers,
        parameters=count_parameters(net.module_),
        seconds_per_example=0.001,
        overhead=0.002,
        examples_per_worker=task.small,
        network=Network(10e9, 50e-6),
    ).frame()
    score = frame[task.score].to_numpy()
    return {
        "score": (-score if task.score == "valid_loss" else score).tolist(),
        "updates": frame["updates"].tolist(),
        "examples": frame["examples"].tolist(),
        "seconds": modeled["seconds"].tolist(),
    }


def reached(run: dict[str, list[float]], target: float) -> dict[str, float] | None:
    for k, score in enumerate(run["score"]):
        if score >= target:
            return {name: run[name][k] for name in ("updates", "examples", "seconds")}
    return None


def judged(runs: dict[str, list[dict[str, list[float]]]]) -> tuple[float, dict[str, Any]]:
    """Return the target, and what each runner needed for it."""
    target = min(median(max(run["score"]) for run in found) for found in runs.values())
    rows = {}
    for name, found in runs.items():
        there = [one for one in (reached(run, target) for run in found) if one]
        rows[name] = {
            "reached": len(there),
            "seeds": len(found),
            **{
                k: median(one[k] for one in there)
                for k in ("updates", "examples", "seconds")
                if there
            },
            "best": median(max(run["score"]) for run in found),
        }
    return target, rows


def main() -> None:
    arguments = parser(__doc__ or "")
    arguments.add_argument("--seeds", type=int, default=None)
    arguments.add_argument("--workers", type=int, default=8, help="workers of the modeled time")
    arguments.add_argument("--only", default="", help="tasks whose name contains this")
    args = arguments.parse_args()
    torch.set_num_threads(1)
    seeds = range(args.seeds or (1 if args.quick else 3))
    cache, results = Cache(args.cache), {}
    for title, make in tasks(args).items():
        if args.only not in title:
            continue
        try:
            task = make()
        except NoDataError as error:
            console.print(f"{title} is left out. {error}")
            continue
        runs: dict[str, list[dict[str, list[float]]]] = {}
        for (name, settings), seed in product(runners(task).items(), seeds):
            key = f"{title}/{name}/{seed}/{args.quick}/{args.workers}"
            if key not in cache:
                cache[key] = train(task, settings, seed, args.workers)
                console.print(f"{title}, {name}, seed {seed}: {max(cache[key]['score']):.4f}")
            runs.setdefault(name, []).append(cache[key])
        target, rows = judged(runs)
        constant = min(
            row["updates"] for name, row in rows.items() if "constant" in name and "updates" in row
        )
        print_table(
            f"{title}: to a score of {target:.4f} (target: a policy with at most half the updates)",
            [
                "runner",
                "reached",
                "updates",
                "of best constant",
                "examples",
                "modeled s",
                "best score",
            ],
            [
                [
                    name,
                    f"{row['reached']}/{row['seeds']}",
                    *(
                        row.get("updates"),
                        f"{row['updates'] / constant:.2f}" if "updates" in row else None,
                    ),
                    *(row.get("examples"), f"{row['seconds']:.1f}" if "seconds" in row else None),
                    f"{row['best']:.4f}",
                ]
                for name, row in rows.items()
            ],
        )
        results[title] = {
            "target": target,
            "rows": rows,
            "parameters": count_parameters(task.module()),
        }
    settings = {"seeds": len(seeds), "workers": args.workers, "quick": args.quick}
    write(output_path(args, __file__), __file__, settings, results=results)


if __name__ == "__main__":
    main()
