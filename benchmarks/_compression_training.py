"""Part (b) of compression.py: training on ranks whose network is slow.

Runs in the hub of :mod:`_namespaces`, with the estimator that users have, on a Dask cluster.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from skorch.callbacks import LRScheduler
from torch import nn
from torch.utils.data import Subset

from _cifar import Scale, cifar, resnet
from _cluster_common import OtherLoad
from _common import Cache, console, count_parameters
from _namespace_cluster import cluster
from _namespaces import Machine, machines
from _training_common import steady_seconds, walk
from accelerando import NeuralNetClassifier
from accelerando.compress import (
    QSGD,
    Atomo,
    Compressor,
    ErrorFeedback,
    PowerSGD,
    TernGrad,
    TopK,
)

RANKS = 2
BATCH = 32  # rows of each rank
EXPONENTS = (-9, 1)  # step sizes are powers of two, as in D.4

# As the papers configured them: one norm for a whole layer, no buckets; then as they are today.
METHODS: dict[str, Compressor | None] = {
    "SGD": None,
    "Atomo(share=0.06)": Atomo(share=0.06),
    "Atomo(share=0.12)": Atomo(share=0.12),
    **{f"Atomo({s}), paper": Atomo(s) for s in (1, 3)},
    **{f"QSGD({b}), paper": QSGD(b, bucket=None, norm=2.0) for b in (4, 2)},
    "TernGrad, paper": TernGrad(bucket=None),
    **{f"QSGD({b})": QSGD(b) for b in (8, 4, 2)},
    "TernGrad, buckets": TernGrad(bucket=512),
    "TopK(2 %), error feedback": ErrorFeedback(TopK(0.02)),
    "PowerSGD(2)": PowerSGD(2),
}
FEW = ("SGD", "Atomo(share=0.06)", "QSGD(4), paper", "QSGD(4)", "TernGrad, paper", "PowerSGD(2)")


class Size(NamedTuple):
    """How long it all is."""

    methods: tuple[str, ...]
    width: int
    rows: int
    epochs: int
    start: int  # the exponent of the first step size that is tried
    exponents: tuple[int, int]
    target: float


FULL = Size(tuple(METHODS), 16, 10_000, 6, -3, EXPONENTS, 0.42)
QUICK = Size(FEW, 16, 512, 2, -3, (-4, -3), 0.12)


def model(width: int) -> nn.Module:
    """Return the network; images come as bytes."""
    return nn.Sequential(Scale(), resnet(width, stride=2))


# -- on the cluster ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Split:
    """A split into given rows, for ``train_split``."""

    train: range
    valid: range | None

    def __call__(self, dataset: Any, y: Any = None, **_: Any) -> tuple[Any, Any]:
        valid = None if self.valid is None else Subset(dataset, self.valid)
        return Subset(dataset, self.train), valid


@dataclass
class Bench:
    """The ranks, the data, and what has been found so far."""

    client: Any
    ranks: list[Machine]
    x: np.ndarray
    y: np.ndarray
    n_test: int
    size: Size
    bandwidth: float
    cache: Cache

    def net(self, method: str, exponent: int, epochs: int, split: Split) -> NeuralNetClassifier:
        """Return what is to be trained."""
        torch.manual_seed(0)
        ranks = len(self.ranks)
        # The rate falls to a tenth after two thirds of the epochs; a run that tunes has one.
        drop = LRScheduler(
            torch.optim.lr_scheduler.MultiStepLR, milestones=[max(1, 2 * epochs // 3)], gamma=0.1
        )
        return NeuralNetClassifier(
            model(self.size.width),
            criterion=nn.CrossEntropyLoss,
            lr=2.0**exponent,  # no momentum and no weight decay, as in 3.3.5
            batch_size=BATCH * ranks,
            max_epochs=epochs,
            callbacks=[drop],
            train_split=split,
            compression=METHODS[method],
            client=self.client,
            examples_per_worker=BATCH,
            min_workers=ranks,
            max_workers=ranks,
            rank_timeout=120.0,
            random_state=0,
            verbose=0,
        )

    def loss_of(self, method: str, exponent: int) -> float:
        """Return the loss on new rows at the end of a first epoch; large where training fails.

        In a first epoch every row is new, so that the mean over the last third of its updates tells
        what a validation loss does, with less noise than the state after one of them.
        """
        key = f"tuning {method} {exponent} {len(self.ranks)} {self.size}"
        if key not in self.cache:
            net = self.net(method, exponent, 1, Split(range(self.size.rows), None))
            try:
                losses = net.fit(self.x, self.y).updates_frame()["loss"]
                loss = float(losses.iloc[-(len(losses) // 3) :].mean())
            except ArithmeticError:  # parameters that are not finite any more
                loss = math.inf
            loss = loss if math.isfinite(loss) else 1e9  # JSON has no infinity
            console.print(f"  {method}, step size {2.0**exponent:g}: loss {loss:.3f}")
            self.cache[key] = loss
        return float(self.cache[key])

    def train(self, method: str, exponent: int) -> dict[str, Any]:
        """Train on the slow network to the end; return what came out."""
        key = f"training {method} {exponent} {self.bandwidth} {len(self.ranks)} {self.size}"
        if key in self.cache:
            return dict(self.cache[key])
        n = len(self.x)
        split = Split(range(self.size.rows), range(n - self.n_test, n))
        load, sent = OtherLoad(), sum(machine.sent_bytes() for machine in self.ranks)
        net = self.net(method, exponent, self.size.epochs, split)
        try:
            net.fit(self.x, self.y)
        except ArithmeticError as error:  # the table says so
            console.print(f"  {method}: {str(error).splitlines()[0]}")
        wire = sum(machine.sent_bytes() for machine in self.ranks) - sent
        frame = net.updates_frame()
        assert set(frame["ranks"]) == {len(self.ranks)}, frame["ranks"].tolist()
        seconds = steady_seconds(frame["seconds"].to_numpy(), frame["epoch"].to_numpy())
        per_epoch = frame.assign(taken=seconds).groupby("epoch")[["taken", "bytes"]].sum()
        row = {
            "method": method,
            "step_size": 2.0**exponent,
            "accuracies": [float(a) for a in net.history[:, "valid_acc"]],
            "losses": frame.groupby("epoch")["loss"].mean().tolist(),
            "epoch_seconds": per_epoch["taken"].tolist(),
            "epoch_bytes": per_epoch["bytes"].tolist(),
            "update_seconds": float(np.median(seconds)),
            "wait_seconds": float(frame["wait_seconds"].median()),
            "encode_seconds": float(frame["encode_seconds"].median()),
            "decode_seconds": float(frame["decode_seconds"].median()),
            "bytes_per_update": float(frame["bytes"].median()),
            "wire_bytes": wire,
            "processors_taken_by_others": load.taken(),
        }
        self.cache[key] = row
        return row


def inside(
    tag: str, *, count: int, data: Path | None, quick: bool, bandwidth: float, cache: Path | None
) -> dict[str, Any]:
    """Tune all methods on a fast network, train with the best step sizes on a slow one."""
    torch.set_num_threads(1)
    size = QUICK if quick else FULL
    images = cifar(data)
    n_test = 500 if quick else len(images.x_test)
    x = np.concatenate([images.x_train[: size.rows], images.x_test[:n_test]])
    y = np.concatenate([images.y_train[: size.rows], images.y_test[:n_test]])
    hub, ranks = machines(count, tag)
    rows = []
    with cluster(hub, ranks) as client:
        bench = Bench(client, ranks, x, y, n_test, size, bandwidth, Cache(cache))
        tuned, exponent = {}, size.start
        for method in size.methods:
            # What is alike has nearly the same best step size: begin where the last one ended.
            exponent, tried = walk(
                lambda e, m=method: bench.loss_of(m, e), exponent, *size.exponents
            )
            tuned[method] = (exponent, tried)
        for machine in ranks:
            machine.limit(bandwidth)
        for method, (exponent, tried) in tuned.items():
            row = bench.train(method, exponent)
            row["tuning"] = {f"{2.0**e:g}": loss for e, loss in sorted(tried.items())}
            console.print(
                f"{method}: {1e3 * row['update_seconds']:.0f} ms an update, accuracy "
                f"{' '.join(f'{a:.2f}' for a in row['accuracies'])}"
            )
            rows.append(row)
    settings = {
        "quick": quick,
        "model": f"ResNet-style, width {size.width}, first stride 2, "
        f"{count_parameters(model(size.width))} parameters",
        "data": f"CIFAR-10, {size.rows} rows to train, {n_test} to test",
        "ranks": count,
        "batch_size": BATCH * count,
        "step_sizes": "a tenth after two thirds of the epochs",
        "epochs": size.epochs,
        "target": size.target,
        "test_rows": n_test,
        "bandwidth": bandwidth,
        "network": "namespaces on a bridge, tc tbf on what each rank sends",
        "tuning": "powers of two, the least mean loss in the last third of a first epoch (all rows "
        "are new then) on the same ranks without a limit",
        "seconds": "of the updates; validation is not counted",
        "seeds": 1,
    }
    return {"settings": settings, "rows": rows}
