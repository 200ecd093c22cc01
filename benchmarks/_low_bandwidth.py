"""What low_bandwidth.py compares and measures: learning per update, and time per update."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from skorch.callbacks import LRScheduler
from skorch.dataset import Dataset
from skorch.helper import predefined_split
from torch import nn

from _averaging_speed import model as convolutions
from _cifar import Cifar, Scale, resnet
from _cluster_common import OtherLoad, local_cluster
from _common import Cache, console
from _namespace_cluster import cluster
from _namespaces import Machine, machines
from _peer_ddp import Job, native
from _training_common import steady_seconds
from accelerando import NeuralNetClassifier
from accelerando.compress import QSGD, ErrorFeedback, PowerSGD, TopK
from accelerando.sync import AdaptiveAveraging, OuterOptimizer, PeriodicAveraging

LR, MOMENTUM = 0.05, 0.9
INNER = 16  # updates between two outer steps

CODECS: dict[str, Any] = {
    "none": None,
    "int8": QSGD(bits=8),
    "QSGD 4 bits": QSGD(bits=4),
    "TopK 2 %, 2 bits": ErrorFeedback(TopK(0.02, bits=2)),
    "PowerSGD(2)": PowerSGD(2),
}
STRATEGIES: dict[str, Any] = {
    "DDP": None,
    "ADPSGD": AdaptiveAveraging(),
    "DiLoCo": OuterOptimizer(inner_steps=INNER, lr=0.7, momentum=0.9),
}
# PowerSGD is a way to add gradients up: it cannot encode differences of parameters.
WAYS = [(s, c) for s in STRATEGIES for c in CODECS if s == "DDP" or c != "PowerSGD(2)"]


class Size(NamedTuple):
    """How long it all is."""

    rows: int
    test_rows: int
    epochs: int
    per_rank: int  # rows of a rank's batch
    updates: int  # of a measurement of time
    width: int


FULL = Size(10_000, 2_000, 12, 32, 12, 16)
QUICK = Size(512, 200, 2, 16, 4, 4)


def networks(size: Size) -> dict[str, nn.Module]:
    """Return the models: one with BatchNorm and one without."""
    torch.manual_seed(0)
    return {
        "ResNet": nn.Sequential(Scale(), resnet(size.width, stride=2)),
        "convolutions": convolutions(2 * size.width),
    }


def settings_of(way: tuple[str, str], ranks: int, rows: int) -> dict[str, Any]:
    """Return the estimator's parameters; an update has equally many rows with all ways."""
    strategy, codec = way
    found: dict[str, Any] = {"compression": CODECS[codec], "batch_size": rows * ranks}
    if STRATEGIES[strategy] is not None:
        found |= {"sync": STRATEGIES[strategy], "batch_size": rows}
    return found


def cluster_settings(client: Any, ranks: int, rows: int) -> dict[str, Any]:
    """Return the parameters of training on this number of ranks."""
    return {
        "client": client, "min_workers": ranks, "max_workers": ranks, "examples_per_worker": rows,
        "rank_timeout": 120.0,
    }  # fmt: skip


# -- learning per update ---------------------------------------------------------------------------


def learned(
    module: nn.Module, way: tuple[str, str], ranks: int, seed: int, images: Cifar, size: Size
) -> dict[str, Any]:
    """Train to the end, as fast as this machine can; time is measured elsewhere.

    Ranks are virtual. Only encoded gradients need processes: a virtual rank has no gradient of its
    own.
    """
    settings = settings_of(way, ranks, size.per_rank)
    encoded = way[0] == "DDP" and settings["compression"] is not None
    if way[0] == "DDP" and not encoded:
        settings["batch_size"] //= ranks
    if not encoded:
        settings["virtual_ranks"] = ranks
        return _trained(module, settings, seed, images, size)
    with local_cluster(ranks) as client:
        settings |= cluster_settings(client, ranks, size.per_rank)
        return _trained(module, settings, seed, images, size)


def _trained(
    module: nn.Module, settings: dict[str, Any], seed: int, images: Cifar, size: Size
) -> dict[str, Any]:
    drops = [max(1, size.epochs // 2), max(2, 3 * size.epochs // 4)]
    net = NeuralNetClassifier(
        module,
        criterion=nn.CrossEntropyLoss,
        lr=LR,
        optimizer__momentum=MOMENTUM,
        max_epochs=size.epochs,
        train_split=predefined_split(Dataset(images.x_test, images.y_test)),
        callbacks=[LRScheduler(torch.optim.lr_scheduler.MultiStepLR, milestones=drops, gamma=0.1)],
        random_state=seed,
        verbose=0,
        **settings,
    )
    net.fit(images.x_train, images.y_train)
    frame = net.updates_frame()
    met = frame["averagings"].diff().fillna(frame["averagings"]) if "averagings" in frame else 0.0
    per_epoch = (
        frame.assign(met=met)
        .groupby("epoch")
        .agg(updates=("update", "size"), met=("met", "sum"), bytes=("bytes", "sum"))
    )
    last = frame[frame["epoch"] == frame["epoch"].max()]
    return {
        "accuracies": [float(a) for a in net.history[:, "valid_acc"]],
        "loss": float(np.average(last["loss"], weights=last["batch_size"])),
        **{name: per_epoch[name].tolist() for name in per_epoch.columns},
    }


# -- time per update -------------------------------------------------------------------------------


@dataclass
class Clock:
    """Ranks in namespaces, and the time that their updates take."""

    client: Any
    ranks: list[Machine]
    images: Cifar
    size: Size

    def timed(self, module: nn.Module, way: tuple[str, str]) -> dict[str, Any]:
        """Return the seconds of an update, and of one in which replicas are averaged."""
        count, rows = len(self.ranks), self.size.per_rank
        settings = settings_of(way, count, rows)
        if "sync" in settings:  # every second update, whatever the strategy would decide
            settings["sync"] = PeriodicAveraging(2)
        # The first updates agree on the lengths of messages; PowerSGD begins with whole ones.
        first = 6
        updates = self.size.updates + first
        net = NeuralNetClassifier(
            module,
            criterion=nn.CrossEntropyLoss,
            lr=LR,
            optimizer__momentum=MOMENTUM,
            max_epochs=1,
            train_split=None,
            random_state=0,
            verbose=0,
            **settings,
            **cluster_settings(self.client, count, rows),
        )
        if way == ("DDP", "PowerSGD(2)"):
            net.set_params(compression__start=2)
        n = updates * rows * count
        some = np.arange(n) % len(self.images.x_train)
        for _ in range(3):  # on a busy machine ranks may start too late for the first updates
            load, sent = OtherLoad(), self.sent()
            net.fit(self.images.x_train[some], self.images.y_train[some])
            wire, frame = self.sent() - sent, net.updates_frame()
            if set(frame["ranks"]) == {count}:
                break
        assert set(frame["ranks"]) == {count}, frame["ranks"].tolist()
        frame["taken"] = steady_seconds(frame["seconds"].to_numpy(), frame["epoch"].to_numpy())
        frame = frame.iloc[first:]
        row: dict[str, Any] = {
            "wire_bytes": wire,
            "bytes": float(frame["bytes"].max()),
            "processors_taken_by_others": load.taken(),
        }
        if "sync" not in settings:
            return {**row, "update": float(frame["taken"].median()), "exchange": None}
        met = frame["averagings"].diff().fillna(0.0) > 0
        # A rank that is late makes the others wait in the next exchange: means, not medians.
        local = float(frame["taken"][~met].median())
        return {**row, "update": local, "exchange": float(frame["taken"][met].median()) - local}

    def native(self, module: nn.Module, rank: int | None) -> dict[str, Any]:
        """Return the same of PyTorch's own DDP, with its PowerSGD hook if there is a rank."""
        count, rows = len(self.ranks), self.size.per_rank
        some = np.arange(self.size.updates * rows * count) % len(self.images.x_train)
        tensors = [torch.from_numpy(part) for part in self.images]
        job = Job(
            module, tensors[0][some], tensors[1][some], *tensors[2:], rows, 1, LR, MOMENTUM,
            powersgd_rank=rank, test_every_epoch=False,
        )  # fmt: skip
        words = partial(_words, self.ranks)
        found = native(job, count, self.ranks[0].address, "eth0", words)
        taken = np.diff(found["seconds"])
        return {"update": float(np.median(taken[2:])), "exchange": None}

    def sent(self) -> int:
        return sum(machine.sent_bytes() for machine in self.ranks)


def _words(ranks: list[Machine], rank: int, command: list[str]) -> list[str]:
    return ranks[rank].words(*command)


NATIVE = {"DDP (PyTorch)": None, "DDP + PowerSGD (PyTorch)": 2}


def inside(
    tag: str,
    *,
    count: int,
    models: list[str],
    bandwidths: list[float],
    images: Cifar,
    size: Size,
    cache: Path | None,
) -> dict[str, Any]:
    """Measure the time of all ways on this number of ranks; this runs in a namespace."""
    torch.set_num_threads(1)
    hub, ranks = machines(count, tag)
    kept = Cache(cache)
    with cluster(hub, ranks) as client:
        clock = Clock(client, ranks, images, size)
        for bandwidth in bandwidths:
            for machine in ranks:
                machine.limit(1e6 * bandwidth)
            for name, module in ((one, networks(size)[one]) for one in models):
                ways = {" × ".join(way): partial(clock.timed, module, way) for way in WAYS}
                ways |= {one: partial(clock.native, module, k) for one, k in NATIVE.items()}
                for way, measure in ways.items():
                    key = f"{name}/{count}/{bandwidth:g}/{way}/{size}"
                    if key not in kept:
                        kept[key] = measure()
                        row = kept[key]
                        console.print(
                            f"{name}, {count} ranks, {bandwidth:g} Mb/s, {way}: "
                            f"{1e3 * row['update']:.0f} ms"
                            + (f" + {1e3 * row['exchange']:.0f} ms" if row["exchange"] else "")
                        )
    return kept.rows
