"""The part of averaging_speed.py that runs in a network namespace: bandwidths, and training."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from skorch.callbacks import Callback, LRScheduler
from torch import nn

from _cifar import Cifar, Scale, cifar, read_cifar
from _cluster_common import OtherLoad
from _common import Cache, console, count_parameters
from _namespace_cluster import cluster
from _namespaces import Machine, machines
from _peer_ddp import Job, native
from _training_common import steady_seconds
from accelerando import NeuralNetClassifier
from accelerando.compress import QSGD, PowerSGD
from accelerando.sync import AdaptiveAveraging, PeriodicAveraging

ROWS = 128  # of each rank's batch, as in the paper
LR, MOMENTUM = 0.05, 0.9
SHARES = (0.25, 0.56)  # of full synchronization's time: 100 and 10 Gb/s in the paper
NEAR = 0.03  # how near a share has to be for a fair comparison
CLOSE = 0.01  # how near it is looked for
FULL = "FULLSGD"
OURS: dict[str, dict[str, Any]] = {
    FULL: {},
    "CPSGD p = 8": {"sync": PeriodicAveraging(8)},
    "ADPSGD": {"sync": AdaptiveAveraging()},
    "QSGD 8 bits": {"compression": QSGD(8)},
    "PowerSGD(2)": {"compression": PowerSGD(2)},
}
NATIVE = {"DDP": None, "DDP + PowerSGD(2)": 2}  # torch's own


class Size(NamedTuple):
    """How long it all is."""

    width: int
    updates: int  # of an epoch
    epochs: int
    trial: int  # epochs of a run that finds a bandwidth


LONG = Size(16, 24, 96, 12)  # an epoch has as many updates as with the paper's 16 ranks
SHORT = Size(4, 8, 6, 2)


def model(width: int) -> nn.Module:
    """Return three convolutions and a dense layer; images come as bytes.

    There is no BatchNorm: all-reduce makes its statistics those of the whole batch, which is work
    that averaging does not do, and would be counted as its gain. Weights are drawn so that signals
    keep their size without it, or the first epochs would teach nothing, and ADPSGD would sample the
    spread of ranks that have not begun.
    """
    layers: list[nn.Module] = [Scale()]
    inputs = 3
    for number in range(3):
        outputs = width << number
        convolution = nn.Conv2d(inputs, outputs, 3, 2, 1)
        nn.init.kaiming_normal_(convolution.weight)
        nn.init.zeros_(convolution.bias)
        layers += [convolution, nn.ReLU()]
        inputs = outputs
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(16 * inputs, 10))


# -- bandwidths ------------------------------------------------------------------------------------


def wanted(share: float, compute: float) -> float:
    """Return the seconds of communication that are this share of an update's time."""
    return compute * share / (1.0 - share)


def share_of(compute: float, taken: float) -> float:
    """Return the share of an update's time that is not there without a limit."""
    return 1.0 - compute / taken


def calibrated(
    share: float, bits: float, update_seconds: Callable[[float | None], float]
) -> tuple[float, list[list[float]]]:
    """Find the bandwidth with which communication takes a share of an update's time.

    The first guess is that a rank sends all its bits while nothing else runs. In truth a part of
    that is hidden behind the backward pass, and there is latency: what was measured corrects the
    guess, up to five times. Each time an update without a limit (None) is measured just before,
    since the machine is not always as fast. Returns the nearest, and all [bandwidth, share] that
    were tried.
    """
    sending = 0.0
    tried: list[list[float]] = []
    for _ in range(6):
        compute = update_seconds(None)
        sending = sending or wanted(share, compute)
        taken = update_seconds(bits / sending)
        tried.append([bits / sending, share_of(compute, taken)])
        if abs(tried[-1][1] - share) <= CLOSE:
            break
        # Other work on the machine can make any single time wrong by much.
        error = wanted(share, compute) - (taken - compute)
        sending = float(np.clip(sending + error, 0.3 * sending, 3.0 * sending))
    return min(tried, key=lambda one: abs(one[1] - share))[0], tried


# -- on the cluster --------------------------------------------------------------------------------


class Since(Callback):
    """Notes what the ranks have sent by the end of the first epoch.

    Before that, one rank may have had its data from another over the limited network. That is not
    what is compared, and happens to whoever Dask's scheduler thinks of.
    """

    def __init__(self, sent: Callable[[], int]) -> None:
        self.sent, self.first = sent, 0

    def on_epoch_end(self, net: Any, **_: Any) -> None:
        if len(net.history) == 1:
            self.first = self.sent()


@dataclass
class Bench:
    """The ranks, the data, and what has been found so far."""

    client: Any
    ranks: list[Machine]
    data: Cifar
    size: Size
    cache: Cache

    @property
    def about(self) -> str:
        """Return what finished rows depend on."""
        return f"{len(self.ranks)} ranks, {len(self.data.x_train)} rows, {self.size}"

    def milestones(self) -> list[int]:
        """Return after which epochs the rate falls to a tenth."""
        return [self.size.epochs // 2, 3 * self.size.epochs // 4]

    def limit(self, bandwidth: float | None) -> None:
        for machine in self.ranks:
            machine.free() if bandwidth is None else machine.limit(bandwidth)

    def sent(self) -> int:
        return sum(machine.sent_bytes() for machine in self.ranks)

    def fit(self, way: str, epochs: int, seed: int, *more: Callback) -> NeuralNetClassifier:
        """Train with the estimator; the batch of an update is the same with all ways."""
        count, settings = len(self.ranks), OURS[way]
        torch.manual_seed(seed)
        steps = LRScheduler(
            torch.optim.lr_scheduler.MultiStepLR, milestones=self.milestones(), gamma=0.1
        )
        return NeuralNetClassifier(
            model(self.size.width),
            criterion=nn.CrossEntropyLoss,
            lr=LR,
            optimizer__momentum=MOMENTUM,
            batch_size=ROWS if "sync" in settings else ROWS * count,
            max_epochs=epochs,
            train_split=None,
            callbacks=[steps, *more],
            client=self.client,
            examples_per_worker=ROWS,
            min_workers=count,
            max_workers=count,
            rank_timeout=120.0,
            random_state=seed,
            verbose=0,
            **settings,
        ).fit(self.data.x_train, self.data.y_train)

    def update_seconds(self, bandwidth: float | None) -> float:
        """Return the median time of an update of full synchronization."""
        self.limit(bandwidth)
        frame = self.fit(FULL, self.size.trial, 0).updates_frame()
        seconds = steady_seconds(frame["seconds"].to_numpy(), frame["epoch"].to_numpy())
        return float(np.median(seconds))

    def bandwidths(self) -> dict[str, Any]:
        """Find the bandwidth for each share."""
        key = f"bandwidths {self.about}"
        if key not in self.cache:
            self.update_seconds(None)  # what is done for the first time takes longer
            count = len(self.ranks)
            each = 8 * 4 * count_parameters(model(self.size.width)) * 2 * (count - 1) / count
            found: dict[str, Any] = {"bits": each, "settings": []}
            for share in SHARES:
                bandwidth, tried = calibrated(share, each, self.update_seconds)
                console.print(f"{share:.0%}: {bandwidth / 1e6:.1f} Mb/s, tried {tried}")
                found["settings"].append({"share": share, "bandwidth": bandwidth, "tried": tried})
            self.cache[key] = found
        return dict(self.cache[key])

    def train(self, way: str, bandwidth: float, seed: int) -> dict[str, Any]:
        """Train on the limited network; return what is compared."""
        key = f"{way} {bandwidth} {seed} {self.about}"
        if key in self.cache:
            return dict(self.cache[key])
        load = OtherLoad()
        computing = [self.update_seconds(None)] if way == FULL else []
        self.limit(bandwidth)
        row = self.natively(way, seed) if way in NATIVE else self.estimator(way, seed)
        if way == FULL:
            computing.append(self.update_seconds(None))
            row["compute"] = float(np.mean(computing))
        row = {
            "way": way,
            "bandwidth": bandwidth,
            "seed": seed,
            **row,
            "processors_taken_by_others": load.taken(),
        }
        self.cache[key] = row
        return row

    def estimator(self, way: str, seed: int) -> dict[str, Any]:
        since = Since(self.sent)
        net = self.fit(way, self.size.epochs, seed, since)
        wire = self.sent() - since.first
        frame = net.updates_frame()
        assert set(frame["ranks"]) == {len(self.ranks)}, frame["ranks"].tolist()
        row = timed(frame["seconds"].to_numpy(), frame["epoch"].to_numpy())
        last = frame[frame["epoch"] == frame["epoch"].max()]
        row |= {
            "synchronisations": len(frame),
            "counted_bytes": float(frame["bytes"].sum()),
            "wire_bytes": wire,
            "loss": float(np.average(last["loss"], weights=last["batch_size"])),
            "accuracy": float(net.score(self.data.x_test, self.data.y_test)),
        }
        if "averagings" in frame.columns:
            row["synchronisations"] = int(frame["averagings"].iloc[-1])
            row["periods"] = frame["period"].iloc[:: max(1, len(frame) // 100)].tolist()
        return row

    def natively(self, way: str, seed: int) -> dict[str, Any]:
        torch.manual_seed(seed)
        tensors = [torch.from_numpy(part) for part in self.data]
        job = Job(
            model(self.size.width), *tensors, ROWS, self.size.epochs, LR, MOMENTUM,
            milestones=self.milestones(), seed=seed, powersgd_rank=NATIVE[way],
            test_every_epoch=False,
        )  # fmt: skip
        before, epochs = self.sent(), self.size.epochs
        found = native(
            job,
            len(self.ranks),
            self.ranks[0].address,
            "eth0",
            lambda rank, command: self.ranks[rank].words(*command),
        )
        return {
            **timed(np.array(found["seconds"]), np.array(found["epochs"])),
            "synchronisations": len(found["seconds"]),
            "counted_bytes": None,
            # All epochs are alike, and the first is left out for the others, too.
            "wire_bytes": (self.sent() - before) * (epochs - 1) / epochs,
            "loss": found["loss"][-1],
            "accuracy": found["accuracies"][-1],
        }


def timed(seconds: np.ndarray, epochs: np.ndarray) -> dict[str, Any]:
    """Return how many updates there were, the time of all, and of the one in the middle.

    The whole time includes what happens between epochs, and not what was before the first update.
    """
    taken = steady_seconds(seconds, epochs, np.mean)
    return {
        "updates": len(taken),
        "seconds": float(taken.sum()),
        "whole_seconds": float(seconds[-1] - seconds[0] + taken[0]),
        "update_seconds": float(np.median(taken)),
    }


def inside(
    tag: str,
    *,
    count: int,
    rounds: int,
    quick: bool,
    data: Path | None,
    file: Path | None,
    epochs: int | None,
    cache: Path | None,
) -> dict[str, Any]:
    """Find the bandwidths, and train with all ways at each."""
    torch.set_num_threads(1)
    size = SHORT if quick else LONG
    size = size._replace(epochs=epochs or size.epochs)
    images = read_cifar(file) if file else cifar(data)
    n, n_test = size.updates * count * ROWS, 500 if quick else 10_000
    images = Cifar(
        images.x_train[:n], images.y_train[:n], images.x_test[:n_test], images.y_test[:n_test]
    )
    hub, ranks = machines(count, tag)
    rows = []
    with cluster(hub, ranks) as client:
        bench = Bench(client, ranks, images, size, Cache(cache))
        network = bench.bandwidths()
        for seed in range(rounds):
            order = [*OURS, *NATIVE]
            random.Random(seed).shuffle(order)
            for setting in network["settings"]:
                for way in order:
                    row = bench.train(way, setting["bandwidth"], seed)
                    console.print(
                        f"{setting['bandwidth'] / 1e6:.1f} Mb/s, {way}: {row['seconds']:.1f} s, "
                        f"{1e3 * row['update_seconds']:.1f} ms an update, loss {row['loss']:.3f}"
                    )
                    rows.append({"share": setting["share"], **row})
    settings = {
        "quick": quick,
        "model": f"three convolutions and a dense layer, width {size.width}, no BatchNorm, "
        f"{count_parameters(model(size.width))} parameters",
        "data": f"CIFAR-10, {len(images.x_train)} rows to train, {len(images.x_test)} to test",
        "ranks": count,
        "rows_per_rank": ROWS,
        "epochs": size.epochs,
        "test_rows": len(images.x_test),
        "optimizer": f"SGD, lr {LR}, momentum {MOMENTUM}, a tenth after epochs "
        f"{', '.join(map(str, bench.milestones()))}",
        "network": "namespaces on a bridge, tc tbf on what each rank sends",
        "bandwidths": network,
        "seconds": "of the updates; the first of an epoch counts as the mean of the others",
        "whole_seconds": "from the first update to the last, with what happens between epochs",
        "wire_bytes": "of all ranks after the first epoch, headers and states for the driver "
        "included; counted_bytes: of training, in all epochs",
        "rounds": rounds,
    }
    return {"settings": settings, "rows": rows}
