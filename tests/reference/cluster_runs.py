"""Reference runs on a Dask cluster of three processes, with one rank and with three."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import dask.array as da
import numpy as np
import torch
from distributed import Client, LocalCluster
from skorch.callbacks import LRScheduler
from skorch.dataset import ValidSplit

from accelerando import batch_size as sizes
from accelerando import compress, monitor, policies, sync
from tests.reference.averaging_runs import SOFT, STRATEGIES, period_by_epoch, virtual
from tests.reference.codec_runs import CODECS, WIDE, compressed
from tests.reference.local_runs import WEIGHTS, ignored
from tests.reference.pieces import (
    ADAM,
    CNN,
    MOMENTUM,
    Gated,
    KillAfter,
    Large,
    Mortal,
    Rows,
    SaveAfter,
    ScaledLoss,
    add,
    classifier,
    images,
    problem,
)
from tests.reference.policy_runs import by_loss, momentum_by_epoch

RUNS = {}
RANKS = 3


@contextlib.contextmanager
def cluster() -> Iterator[Client]:
    """Start three workers, and end them."""
    with (
        LocalCluster(n_workers=RANKS, threads_per_worker=1, dashboard_address=":0") as workers,
        Client(workers) as client,
    ):
        yield client


def on(client, ranks=RANKS):
    """Return the parameters that put a run on so many ranks, once their workers are there."""
    client.wait_for_workers(RANKS, timeout=60)
    return {"client": client, "min_workers": ranks, "max_workers": ranks}


# -- all-reduce -------------------------------------------------------------------------------

GEODAMP = sizes.GeoDamp(initial=8, delay=1, factor=2)
BOTH = {
    "SGD": {},
    "momentum": MOMENTUM,
    "Adam": ADAM,
    "BatchNorm": {**MOMENTUM, "module__norm": True, "batch_size": 12},
    "dropout": {"module__dropout": 0.3},
    "GeoDamp": {**MOMENTUM, "batch_size": GEODAMP, "max_batch_size": 12},
    "RadaDamp": {"batch_size": sizes.RadaDamp(initial=8, memory=0.8, dwell=2)},
    "GradientNoiseScale": {"monitors": [monitor.GradientNoiseScale(every=1)]},
}
for ranks in (1, RANKS):
    for name, params in BOTH.items():
        add(
            RUNS,
            f"{ranks} ranks",
            name,
            lambda client, r=ranks, p=params: classifier(**p, **on(client, r)).fit(*problem()),
        )

LBFGS = {"optimizer": torch.optim.LBFGS, "optimizer__max_iter": 3, "lr": 0.02, "batch_size": 31}
THREE = {
    "LBFGS": LBFGS,
    "AdaDamp": {"batch_size": sizes.AdaDamp(initial=8, dwell=3, fraction=0.5)},
    "GradDamp": {"batch_size": sizes.GradDamp(initial=8, dwell=3)},
    "NoiseScale": {
        "batch_size": sizes.NoiseScale(initial=8, share=4.0, dwell=3, surest=1.0),
        "lr": 0.05,
        "max_epochs": 6,
    },
    "function of the loss": {"batch_size": by_loss},
    "policies": {
        **MOMENTUM,
        "policies": [
            policies.GradualWarmup(epochs=1),
            policies.Every(policies.PlateauPolicy(patience=2, progress=0.2), epochs=1),
            policies.LinearScaling(),
            momentum_by_epoch,
        ],
    },
    "micro-batches": {"micro_batch_size": 2},
    "batches smaller than the ranks": {"batch_size": 2, "max_epochs": 1},
    "drop_last": {"iterator_train__drop_last": True},
    "criterion with a parameter": {"criterion": ScaledLoss},
    "sum of losses": {"criterion__reduction": "sum", "lr": 0.01},
    "unused parameters": {**MOMENTUM, "module": Gated},
    "validation": {"train_split": ValidSplit(5, stratified=True)},
    "scheduler": {**MOMENTUM, "callbacks": [LRScheduler("StepLR", step_size=1, gamma=0.5)]},
    "several buckets": {
        "module": Large,
        "monitors": [monitor.GradientVariance(memory=10.0)],
        "lr": 0.001,
    },
}
for name, params in THREE.items():
    add(
        RUNS,
        "3 ranks",
        name,
        lambda client, p=params: classifier(**p, **on(client)).fit(*problem()),
    )


def float32(client):
    net = classifier(module__double=False, module__norm=True, batch_size=12, **on(client))
    return net.fit(*problem(dtype="float32"))


def weighted(client):
    net = classifier(**on(client))
    return net.fit(*problem(), sample_weight=np.linspace(0.1, 2.0, 61))


def chunked(client, ranks=RANKS, **params):
    X, y = problem()
    net = classifier(data="shard", **on(client, ranks), **params)
    return net.fit(da.from_array(X, chunks=(13, -1)), da.from_array(y, chunks=13))


DATA = {
    "float32, BatchNorm": float32,
    "sample weights": weighted,
    "class weights, ignored targets": lambda client: classifier(
        criterion__weight=WEIGHTS, **on(client)
    ).fit(*ignored()),
    "channels last": lambda client: classifier(CNN, channels_last=True, **on(client)).fit(
        *images()
    ),
    "data set": lambda client: classifier(**on(client)).fit(Rows(*problem()), None),
    "Dask arrays": chunked,
    "Dask arrays, BatchNorm": lambda client: chunked(client, module__norm=True, batch_size=12),
    "Dask arrays, AdaDamp": lambda client: chunked(
        client, batch_size=sizes.AdaDamp(initial=8, dwell=3)
    ),
}
for name, fit in DATA.items():
    add(RUNS, "3 ranks", name, fit)
add(RUNS, "1 ranks", "Dask arrays", lambda client: chunked(client, ranks=1))


# -- averaging --------------------------------------------------------------------------------


def averaging(strategy, client, **params):
    return virtual(strategy, virtual_ranks=1, **on(client), **params)


for name, strategy in STRATEGIES.items():
    add(
        RUNS,
        "3 ranks average",
        name,
        lambda client, s=strategy: averaging(s, client, **SOFT).fit(*problem()),
    )
AVERAGING = {
    "Adam": {**ADAM, "sync": sync.PeriodicAveraging(3, optimizer_state="average")},
    "RadaDamp": {"batch_size": sizes.RadaDamp(initial=4, memory=0.8, dwell=2)},
    "monitors": {"monitors": [monitor.ParameterSpread(every=2), monitor.LossTrend()]},
    "policy that sets the period": {"policies": [period_by_epoch]},
}
for name, params in AVERAGING.items():
    add(
        RUNS,
        "3 ranks average",
        name,
        lambda client, p=params: averaging(
            p.get("sync", sync.PeriodicAveraging(3)),
            client,
            **{key: value for key, value in p.items() if key != "sync"},
        ).fit(*problem()),
    )


# -- codecs -----------------------------------------------------------------------------------

SENT = (
    "QSGD", "QSGD, elias", "TernGrad", "LqQuantize", "Atomo", "Atomo, entries", "Atomo, fourier",
    "TopK, error feedback", "SignSGD, error feedback", "RandomK", "Adaptive",
)  # fmt: skip
for name in SENT:
    add(
        RUNS,
        "3 ranks compress",
        name,
        lambda client, make=CODECS[name]: compressed(make(), **on(client)).fit(*problem(**WIDE)),
    )
add(
    RUNS,
    "3 ranks compress",
    "PowerSGD",
    lambda client: compressed(compress.PowerSGD(rank=2, start=2), **on(client)).fit(
        *problem(**WIDE)
    ),
)
add(
    RUNS,
    "3 ranks compress",
    "QSGD and GeoDamp",
    lambda client: compressed(
        compress.QSGD(bits=4, norm=2.0), batch_size=GEODAMP, **on(client)
    ).fit(*problem(**WIDE)),
)
add(
    RUNS,
    "1 ranks compress",
    "TopK, error feedback",
    lambda client: compressed(CODECS["TopK, error feedback"](), **on(client, 1)).fit(
        *problem(**WIDE)
    ),
)


# -- resumed and killed -----------------------------------------------------------------------


def resumed(client, make, then=None):
    """Save at the end of the first epoch; continue in a new estimator."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state"
        make(callbacks=[SaveAfter(path)]).fit(*problem())
        return (then or make)().load_state(path).partial_fit(*problem())


def soft(client, **params):
    return classifier(
        **ADAM,
        batch_size=sizes.RadaDamp(initial=8, memory=0.8, dwell=2),
        monitors=[monitor.GradientNoiseScale(every=1)],
        **{"module__dropout": 0.2, **on(client), **params},
    )


add(
    RUNS,
    "3 ranks resumed",
    "RadaDamp",
    lambda client: resumed(client, lambda **p: soft(client, **p)),
)
for name in ("periodic, momentum averaged", "adaptive", "model", "elastic", "outer"):
    add(
        RUNS,
        "3 ranks resumed inside a period",
        name,
        lambda client, s=STRATEGIES[name]: resumed(
            client, lambda **p: averaging(s, client, **SOFT, **p)
        ),
    )
add(
    RUNS,
    "3 ranks resumed in this process",
    "periodic",
    lambda client: resumed(
        client,
        lambda **p: averaging(STRATEGIES["periodic"], client, **p),
        lambda: virtual(STRATEGIES["periodic"]),
    ),
)


def killed_inside_an_update(client):
    with tempfile.TemporaryDirectory() as folder:
        mark = os.path.join(folder, "killed")
        net = classifier(Mortal, module__mark=mark, module__calls=11, **MOMENTUM, **on(client))
        net.fit(*problem())
        assert os.path.exists(mark)
        return net


# The last ones, because new workers take a moment to start. Which ranks take part is not fixed, so
# that sums may be taken in another order.
add(
    RUNS,
    "killed",
    "between two epochs",
    lambda client: classifier(callbacks=[KillAfter()], **MOMENTUM, **on(client)).fit(*problem()),
)
add(RUNS, "killed", "inside an update", killed_inside_an_update)
