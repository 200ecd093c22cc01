"""Reference runs in this process: averaging strategies with virtual ranks."""

from __future__ import annotations

import numpy as np
from skorch.callbacks import LRScheduler

from accelerando import batch_size as sizes
from accelerando import monitor, policies, sync
from accelerando.policies import Decision
from tests.reference.pieces import ADAM, MOMENTUM, add, classifier, problem
from tests.reference.policy_runs import momentum_by_epoch

RUNS = {}

STRATEGIES = {
    "periodic": sync.PeriodicAveraging(3),
    "periodic, momentum averaged": sync.PeriodicAveraging(3, optimizer_state="average"),
    "periodic, momentum reset": sync.PeriodicAveraging(4, optimizer_state="reset"),
    "adaptive": sync.AdaptiveAveraging(2, sample=0.4),
    "decreasing": sync.DecreasingAveraging(6, every_epochs=1),
    "model": sync.ModelAveraging(3, momentum=0.3),
    "model, now and then": sync.ModelAveraging(3, momentum=0.0, correction=0.5, period=3),
    "elastic": sync.ElasticAveraging(period=3, beta=0.8),
    "outer": sync.OuterOptimizer(inner_steps=5, lr=0.8, momentum=0.5),
}
SOFT = {"module__norm": True, "module__dropout": 0.2}


def virtual(strategy, **params):
    step = {} if "optimizer" in params else MOMENTUM
    settings = {"batch_size": 4, "max_epochs": 4, "virtual_ranks": 3, **step, **params}
    return classifier(sync=strategy, **settings)


def period_by_epoch(signals):
    return Decision(period=2 + signals.epoch)


for name, strategy in STRATEGIES.items():
    add(RUNS, "virtual ranks", name, lambda client, s=strategy: virtual(s).fit(*problem()))
    add(
        RUNS,
        "virtual ranks, BatchNorm, dropout",
        name,
        lambda client, s=strategy: virtual(s, **SOFT).fit(*problem()),
    )
for name in ("periodic", "periodic, momentum averaged", "adaptive", "outer"):
    add(
        RUNS,
        "virtual ranks, Adam",
        name,
        lambda client, s=STRATEGIES[name]: virtual(s, **ADAM).fit(*problem()),
    )
VIRTUAL = {
    "AllReduce": {"sync": sync.AllReduce()},
    "AllReduce, BatchNorm, dropout": {"sync": None, **SOFT},
    "RadaDamp": {"batch_size": sizes.RadaDamp(initial=4, memory=0.8, dwell=2)},
    "AdaDamp": {"batch_size": sizes.AdaDamp(initial=4, dwell=3, fraction=0.3)},
    "GeoDamp, max_batch_size": {
        "batch_size": sizes.GeoDamp(initial=4, delay=1, factor=2),
        "max_batch_size": 6,
    },
    "monitors": {"monitors": [monitor.ParameterSpread(every=2), monitor.LossTrend()]},
    "policy that sets the period": {"policies": [period_by_epoch]},
    "policies": {"policies": [policies.GradualWarmup(epochs=1), momentum_by_epoch]},
    "scheduler": {"callbacks": [LRScheduler("StepLR", step_size=1, gamma=0.5)]},
    "sum of losses": {"criterion__reduction": "sum", "lr": 0.005},
    "micro-batches": {"micro_batch_size": 3},
    "drop_last": {"iterator_train__drop_last": True, "batch_size": 7},
}
for name, params in VIRTUAL.items():
    add(
        RUNS,
        "virtual ranks",
        name,
        lambda client, p=params: virtual(
            **{"strategy": p.get("sync", sync.PeriodicAveraging(3))},
            **{k: v for k, v in p.items() if k != "sync"},
        ).fit(*problem()),
    )
add(
    RUNS,
    "virtual ranks",
    "sample weights",
    lambda client: virtual(sync.PeriodicAveraging(3)).fit(
        *problem(), sample_weight=np.linspace(0.1, 2.0, 61)
    ),
)
