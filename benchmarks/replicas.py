"""Do several replicas with small batches, averaged, train faster than one with all threads?

Figure 3 of Mai et al., *Taming hyper-parameters in deep learning systems* (2019), on processors in
place of a GPU: a small residual network with BatchNorm, and batches of 64 rows, by

one replica  one process with as many threads as there are processors
its average  the same, tested with the moving average of its parameters over ten updates
all-reduce   gradients averaged in every update on two ranks: 64 rows each, 128 in all
DDP          the same by PyTorch's own, started by hand (BatchNorm sees the rows of one rank)
2, 4, auto   ModelAveraging with this many replicas, each a Dask worker of one thread, with 64 rows;
             "auto" begins with one and adds more while all together get faster
every 4th    two replicas that are corrected in every fourth update, not in each

Each way has the step size, a power of two, with the least loss on rows that nobody trains on after
three epochs. (After one, what settles soonest looked best, and not what gets furthest.)
ModelAveraging is tuned with momentum in its replicas, with momentum in its central
model, and with momentum in its replicas and a weak pull: α = 0.1 / n in place of CROSSBOW's 1 / n,
so that the central model is an average over some ten updates, too. "auto" takes what was found for
two. "its average" tells how much of the gain any moving average would give.

The target is half a point below the best accuracy of one replica, the median over the seeds.
Reported are rows per second in the second half of the epochs, and epochs and seconds to the target
(straight lines between epochs; medians over the seeds). Seconds are those of the updates: testing
is not counted, waiting for new ranks is.

The data are Fashion-MNIST, or CIFAR-10 from a file with x_train, y_train, x_test, y_test
(--cifar FILE). --cache FILE keeps finished runs. It takes about 20 minutes on two quiet cores;
--quick has too few rows and epochs to say who is faster, it shows that it runs.
"""

from __future__ import annotations

import argparse
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from skorch.dataset import Dataset
from skorch.helper import predefined_split
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

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
    write,
)
from _peer_ddp import Job, native
from _replicas_verdict import ONE, REPLICAS, evidence, show, speed, summary, target_of
from _training_common import walk
from accelerando import NeuralNetClassifier
from accelerando._processors import processors
from accelerando.sync import ModelAveraging

BATCH = 64  # of each replica, and of each rank
RANKS = 2
WORKERS = 4
MOVING, REDUCE, PEER = "its average", "all-reduce", "DDP"
WAYS = (ONE, MOVING, REDUCE, PEER, *REPLICAS)
TUNED_LIKE = {PEER: REDUCE, "auto": "2 replicas"}
START, EXPONENTS = -4, (-8, 0)  # of the step size
PAPER = {"replicas": 4, "throughput": 1.4, "epochs": (30, 14), "time": 3.2}


class Style(NamedTuple):
    """Where momentum is, in the optimizer of each rank or in the central model; how it pulls."""

    own: float
    central: float
    pull: float = 1.0  # α times the number of replicas

    def __str__(self) -> str:
        return f"momentum {self.own} of each, {self.central} of the center, pull {self.pull}"


OWN, CENTRAL, WEAK = Style(0.9, 0.0), Style(0.0, 0.9), Style(0.9, 0.0, pull=0.1)
STYLES = (OWN, CENTRAL, WEAK)


class MovingAverage(NeuralNetClassifier):
    """One replica that is tested with the moving average of its parameters and statistics."""

    def on_batch_end(self, net: Any, batch: Any = None, training: bool = False, **kwargs: Any):
        super().on_batch_end(net, batch, training, **kwargs)
        if training:
            # Not an attribute of a net, which would train whatever module it has.
            average = vars(self).setdefault("averages", [moving_average(self.module_)])[0]
            average.update_parameters(self.module_)

    def validation_step(self, batch: Any, **fit_params: Any) -> Any:
        average = vars(self)["averages"][0].module
        swap(self.module_, average)
        try:
            return super().validation_step(batch, **fit_params)
        finally:
            swap(self.module_, average)


def moving_average(module: nn.Module) -> AveragedModel:
    """Return PyTorch's own, over as many updates as a weak pull is."""
    function = get_ema_multi_avg_fn(1.0 - WEAK.pull)
    return AveragedModel(module, multi_avg_fn=function, use_buffers=True)


def swap(one: nn.Module, other: nn.Module) -> None:
    """Let two modules have each other's parameters and statistics."""
    for tensors_of in (nn.Module.parameters, nn.Module.buffers):
        for a, b in zip(tensors_of(one), tensors_of(other), strict=True):
            a.data, b.data = b.data, a.data


class Size(NamedTuple):
    """How long it all is."""

    rows: int
    held: int  # rows for choosing step sizes
    test: int
    epochs: int
    seeds: int
    tuning: int  # epochs
    exponents: tuple[int, int]


LONG = Size(12_000, 2000, 5000, 8, 3, 3, EXPONENTS)
SHORT = Size(768, 256, 256, 2, 1, 1, (-5, -4))


@dataclass
class Bench:
    """A cluster, the data, and what has been found so far."""

    client: Any
    images: Images
    held: Images  # the same rows to train on, those for choosing step sizes to test on
    size: Size
    cache: Cache
    about: str  # what finished rows depend on

    def module(self, seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return ResNet(self.images.x_train.shape[1])

    def fit(
        self, way: str, exponent: int, style: Style, data: Images, epochs: int, seed: int
    ) -> NeuralNetClassifier:
        """Train with the estimator."""
        # One replica is in this process; otherwise this one only waits.
        torch.set_num_threads(processors() if way in (ONE, MOVING) else 1)
        kind = MovingAverage if way == MOVING else NeuralNetClassifier
        return kind(
            self.module(seed),
            criterion=nn.CrossEntropyLoss,
            lr=2.0**exponent,
            optimizer__momentum=style.own,
            max_epochs=epochs,
            train_split=predefined_split(Dataset(data.x_test, data.y_test)),
            random_state=seed,
            verbose=0,
            **self.settings(way, style),
        ).fit(data.x_train, data.y_train)

    def settings(self, way: str, style: Style) -> dict[str, Any]:
        """Return what differs between the ways."""
        if way in (ONE, MOVING):
            return {"batch_size": BATCH}
        if way == REDUCE:
            ranks = {"min_workers": RANKS, "max_workers": RANKS}
            return {"batch_size": RANKS * BATCH, "client": self.client, **ranks}
        count, period = REPLICAS[way]
        least, most = (1, WORKERS) if count == "auto" else (count, count)
        number = 2 if count == "auto" else count
        # Over some ten updates, however rarely replicas are corrected.
        pull = min(1.0, style.pull * period) / number
        return {
            "batch_size": BATCH,
            "client": self.client,
            "min_workers": least,
            "max_workers": most,
            "sync": ModelAveraging(count, style.central, correction=pull, period=period),
        }

    def loss_of(self, way: str, exponent: int, style: Style) -> float:
        """Return the loss on rows held out after a few epochs; large where training fails."""
        key = f"tuning {way} {exponent} {style} {self.about}"
        if key not in self.cache:
            try:
                net = self.fit(way, exponent, style, self.held, self.size.tuning, 0)
                loss = float(net.history[-1]["valid_loss"])
            except ArithmeticError:  # parameters that are not finite any more
                loss = math.inf
            loss = loss if math.isfinite(loss) else 1e9  # JSON has no infinity
            console.print(f"  {way}, {style}, step size {2.0**exponent:g}: loss {loss:.3f}")
            self.cache[key] = loss
        return float(self.cache[key])

    def tuned(self, way: str) -> tuple[int, Style, dict[str, float]]:
        """Return the best exponent, the best style, and all losses."""
        found: dict[tuple[int, Style], float] = {}
        for style in STYLES if way in REPLICAS else (OWN,):
            _, tried = walk(lambda e, s=style: self.loss_of(way, e, s), START, *self.size.exponents)
            found |= {(exponent, style): loss for exponent, loss in tried.items()}
        exponent, style = min(found, key=lambda key: found[key])
        facts = {f"{2.0**e:g}, {m}": loss for (e, m), loss in sorted(found.items())}
        return exponent, style, facts

    def train(self, way: str, exponent: int, style: Style, seed: int) -> dict[str, Any]:
        """Train to the end; return what is compared."""
        key = f"training {way} {exponent} {style} {seed} {self.about}"
        if key not in self.cache:
            load = OtherLoad()
            if way == PEER:
                row = self.natively(exponent, style, seed)
            else:
                row = self.estimator(way, exponent, style, seed)
            row["processors_taken_by_others"] = load.taken()
            self.cache[key] = row
        return {
            "way": way, "seed": seed, "step_size": 2.0**exponent, "style": style._asdict(),
            **self.cache[key],
        }  # fmt: skip

    def estimator(self, way: str, exponent: int, style: Style, seed: int) -> dict[str, Any]:
        began = time.perf_counter()
        net = self.fit(way, exponent, style, self.images, self.size.epochs, seed)
        whole = time.perf_counter() - began
        frame = net.updates_frame()
        row = {
            "accuracies": [float(a) for a in net.history[:, "valid_acc"]],
            **speed(*(frame[name].to_numpy() for name in ("seconds", "epoch", "batch_size"))),
            "whole_seconds": whole,
            "replicas": int(frame["ranks"].iloc[-1]),
        }
        if way == "auto":
            row["replicas"] = int(net.history[-1]["replicas"])
            row["replicas_throughput"] = net.history[-1]["replicas_throughput"]
        return row

    def natively(self, exponent: int, style: Style, seed: int) -> dict[str, Any]:
        job = Job(
            self.module(seed), *self.images, BATCH, self.size.epochs, 2.0**exponent, style.own,
            seed=seed,
        )  # fmt: skip
        found = native(job, RANKS, "127.0.0.1", "lo")
        seconds, epochs = np.array(found["seconds"]), np.array(found["epochs"])
        # The last batch of an epoch may be smaller.
        rows = np.full(len(epochs), RANKS * BATCH)
        rest = len(self.images.x_train) % (RANKS * BATCH)
        if rest:
            rows[np.diff(epochs, append=-1) != 0] = rest
        return {
            "accuracies": found["accuracies"],
            **speed(seconds, epochs, rows),
            "whole_seconds": found["whole"],
            "replicas": RANKS,
        }


# -- arguments and data ----------------------------------------------------------------------------


def arguments() -> argparse.Namespace:
    """Read the command line."""
    made = parser(__doc__ or "")
    made.add_argument("--cifar", type=Path, metavar="FILE", help="CIFAR-10 as an npz file")
    made.add_argument("--seeds", type=int, help="runs of each way (default: 3)")
    made.add_argument("--epochs", type=int, help="of each run (default: 8)")
    made.add_argument("--rows", type=int, help="to train on (default: 12,000)")
    return made.parse_args()


def split(images: Images, size: Size) -> tuple[Images, Images]:
    """Return rows to train on with those to test on, and with those that choose step sizes."""
    x, y, x_test, y_test = images
    rows = min(size.rows, len(x) - size.held)
    held = slice(rows, rows + size.held)
    train = (x[:rows].clone(), y[:rows].clone())
    return (
        Images(*train, x_test[: size.test].clone(), y_test[: size.test].clone()),
        Images(*train, x[held].clone(), y[held].clone()),
    )


def main() -> None:
    args = arguments()
    try:
        whole = as_images(read_cifar(args.cifar)) if args.cifar else fashion_mnist(args.data)
    except NoDataError as error:
        raise SystemExit(str(error)) from error
    given = {name: getattr(args, name) for name in ("seeds", "epochs", "rows")}
    size = (SHORT if args.quick else LONG)._replace(**{k: v for k, v in given.items() if v})
    images, held = split(whole, size)
    data = "CIFAR-10" if args.cifar else "Fashion-MNIST"
    runs: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
    with local_cluster(WORKERS) as client:
        about = f"{data} {size._replace(seeds=0)}"
        bench = Bench(client, images, held, size, Cache(args.cache), about)
        tuned = {way: bench.tuned(way) for way in WAYS if way not in TUNED_LIKE}
        for seed in range(size.seeds):
            for way in WAYS:
                exponent, style, _ = tuned[TUNED_LIKE.get(way, way)]
                run = bench.train(way, exponent, style, seed)
                runs[way].append(run)
                console.print(
                    f"{way}, seed {seed}: {run['rows_per_second']:,.0f} rows/s, accuracy "
                    f"{' '.join(f'{a:.3f}' for a in run['accuracies'])}"
                )
    target = target_of(runs[ONE])
    settings = {
        "quick": args.quick,
        "data": data,
        "rows": len(images.x_train),
        "test_rows": len(images.x_test),
        "parameters": count_parameters(bench.module(0)),
        "batch_size": f"{BATCH} of each replica or rank",
        "epochs": size.epochs,
        "seeds": size.seeds,
        "processors": processors(),
        "workers": f"{WORKERS} of one thread",
        "tuning": {way: facts for way, (_, _, facts) in tuned.items()},
        "paper": PAPER,
    }
    rows = summary(runs, target)
    show(rows, target, settings)
    found = {} if args.quick else {"evidence": evidence(rows, target, settings)}
    path = output_path(args, __file__)
    write(path, __file__, settings, target=target, summary=rows, runs=runs, **found)


if __name__ == "__main__":
    main()
