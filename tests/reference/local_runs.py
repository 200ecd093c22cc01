"""Reference runs in this process: policies, monitors, codecs, virtual ranks, data, optimizers."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import torch
from skorch.callbacks import EarlyStopping, GradientNormClipping, LRScheduler
from skorch.dataset import ValidSplit
from torch import nn

from accelerando import batch_size as sizes
from accelerando import compress, monitor, policies, sync
from accelerando.policies import Decision
from tests.reference.pieces import (
    CNN,
    Gated,
    Probabilities,
    Rows,
    ScaledLoss,
    StopAfter,
    Stream,
    TwoInputs,
    Wide,
    classifier,
    collate,
    images,
    line,
    plain_net,
    problem,
    regressor,
)

MOMENTUM = {"optimizer": torch.optim.SGD, "optimizer__momentum": 0.9, "lr": 0.05}
ADAM = {"optimizer": torch.optim.Adam, "lr": 0.02}
RUNS = {}


def add(group, name, fit, table=RUNS):
    """Enter a run under "group: name"."""
    key = f"{group}: {name}"
    assert key not in table, key
    table[key] = fit


# -- batch-size policies ----------------------------------------------------------------------


def by_epoch(signals):
    return 6 + 3 * signals.epoch


def by_loss(signals):
    return 8 if signals.update == 0 or signals.loss > 0.8 else 12


SIZES = {
    "int": 8,
    "whole data set": -1,
    "Constant": sizes.Constant(8),
    "FullBatch": sizes.FullBatch(),
    "Schedule": sizes.Schedule({0: 8, 1: 12, 2: 40}),
    "GeoDamp": sizes.GeoDamp(initial=8, delay=1, factor=2),
    "GeoDampLR": sizes.GeoDampLR(initial=8, delay=1, factor=2),
    "PadaDamp": sizes.PadaDamp(initial=6, rate=0.7),
    "AdaDamp": sizes.AdaDamp(initial=8, dwell=3),
    "AdaDamp, best loss and fraction": sizes.AdaDamp(8, best_loss=0.2, dwell=2, fraction=0.5),
    "RadaDamp": sizes.RadaDamp(initial=8, memory=0.8, dwell=2),
    "RadaDampLR": sizes.RadaDampLR(initial=8, memory=0.8, dwell=2),
    "GradDamp": sizes.GradDamp(initial=8, dwell=3),
    "GradDamp, fraction": sizes.GradDamp(initial=8, dwell=2, fraction=0.4),
    "NoiseScale": sizes.NoiseScale(initial=8, dwell=3, surest=1.0),
    "NormTest": sizes.NormTest(initial=8, dwell=3, theta=0.5),
    "function of the epoch": by_epoch,
    "function of the loss": by_loss,
}
# Estimates of the gradient's noise need some observations before anything is decided by them.
LOOK = [monitor.GradientNoiseScale(every=1), monitor.GradientVariance(memory=10.0)]
NOISY = {"monitors": LOOK, "lr": 0.05, "max_epochs": 8}


def settings_for(name):
    return NOISY if name in ("NoiseScale", "NormTest") else {**MOMENTUM, "max_epochs": 4}


for name, size in SIZES.items():
    add(
        "batch size",
        name,
        lambda client, name=name, size=size: classifier(batch_size=size, **settings_for(name)).fit(
            *problem()
        ),
    )
for name in ("GeoDamp", "GeoDampLR", "PadaDamp", "AdaDamp", "RadaDamp", "NoiseScale", "NormTest"):
    add(
        "max_batch_size",
        name,
        lambda client, name=name: classifier(
            batch_size=SIZES[name], max_batch_size=10, **settings_for(name)
        ).fit(*problem()),
    )
add(
    "batch size",
    "class with settings",
    lambda client: classifier(
        batch_size=sizes.GeoDamp, batch_size__initial=7, batch_size__delay=2, **ADAM
    ).fit(*problem()),
)


# -- standing policies --------------------------------------------------------------------------


def momentum_by_epoch(signals):
    return Decision(momentum=0.5 + 0.1 * signals.epoch)


def lr_once(signals):
    return Decision(lr=0.03) if signals.update == 5 else None


def everything_once(signals):
    return Decision(batch_size=20, lr=0.03, momentum=0.7) if signals.update == 9 else None


POLICIES = {
    "LinearScaling": [everything_once, policies.LinearScaling()],
    "GradualWarmup": [policies.GradualWarmup(epochs=2)],
    "GradualWarmup, updates": [policies.GradualWarmup(updates=10, start_share=0.2)],
    "PlateauPolicy": [policies.PlateauPolicy(patience=2, progress=0.2)],
    "PlateauPolicy, decay": [
        policies.PlateauPolicy(signal="loss", patience=2, progress=0.2, grow=1.0, decay=0.5)
    ],
    "WorkersForThroughput": [policies.WorkersForThroughput(most=2, dwell=3)],
    "momentum": [momentum_by_epoch],
    "lr": [lr_once],
    "several settings at once": [everything_once],
    "Every, updates": [policies.Every(momentum_by_epoch, updates=5)],
    "Every, epochs": [policies.Every(policies.PlateauPolicy(patience=1, progress=0.5), epochs=1)],
    "three together": [
        policies.GradualWarmup(epochs=1),
        policies.Every(policies.PlateauPolicy(patience=2, progress=0.2), epochs=1),
        policies.LinearScaling(),
    ],
}
for name, given in POLICIES.items():
    add(
        "policies",
        name,
        lambda client, given=given: classifier(policies=given, **MOMENTUM).fit(*problem()),
    )
SCALED = {
    "LinearScaling of NoiseScale": [
        policies.NoiseScale(initial=8, dwell=3, surest=1.0),
        policies.LinearScaling(reference=4),
    ],
    "SqrtScaling of NormTest": [
        policies.NormTest(initial=8, dwell=3, theta=0.5),
        policies.SqrtScaling(4),
    ],
    "AdaScale": [policies.AdaScale(reference=4, dwell=3)],
}
for name, given in SCALED.items():
    add(
        "policies",
        name,
        lambda client, given=given: classifier(policies=given, **NOISY).fit(*problem()),
    )
    add(
        "policies, max_batch_size",
        name,
        lambda client, given=given: classifier(policies=given, max_batch_size=10, **NOISY).fit(
            *problem()
        ),
    )
add(
    "policies",
    "momentum of Adam",
    lambda client: classifier(policies=[momentum_by_epoch], **ADAM).fit(*problem()),
)
add(
    "policies",
    "with GeoDamp and max_batch_size",
    lambda client: classifier(
        batch_size=sizes.GeoDamp(initial=8, delay=1, factor=2),
        max_batch_size=12,
        policies=[policies.GradualWarmup(epochs=1), momentum_by_epoch],
        **MOMENTUM,
    ).fit(*problem()),
)


# -- monitors -------------------------------------------------------------------------------------

MONITORS = {
    "GradientNoiseScale": [monitor.GradientNoiseScale(every=1)],
    "GradientNoiseScale, now and then": [monitor.GradientNoiseScale(every=4)],
    "GradientVariance": [monitor.GradientVariance(memory=10.0)],
    "GradientDiversity": [monitor.GradientDiversity(memory=10.0)],
    "LossTrend": [monitor.LossTrend(memory=10.0)],
    "several": [
        monitor.Throughput(),
        monitor.LossTrend(),
        monitor.GradientNoiseScale(every=2),
        monitor.GradientDiversity(),
    ],
}
for name, given in MONITORS.items():
    add("monitors", name, lambda client, given=given: classifier(monitors=given).fit(*problem()))


# -- averaging with virtual ranks -----------------------------------------------------------------

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
    add("virtual ranks", name, lambda client, s=strategy: virtual(s).fit(*problem()))
    add(
        "virtual ranks, BatchNorm, dropout",
        name,
        lambda client, s=strategy: virtual(s, **SOFT).fit(*problem()),
    )
for name in ("periodic", "periodic, momentum averaged", "adaptive", "outer"):
    add(
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
        "virtual ranks",
        name,
        lambda client, p=params: virtual(
            **{"strategy": p.get("sync", sync.PeriodicAveraging(3))},
            **{k: v for k, v in p.items() if k != "sync"},
        ).fit(*problem()),
    )
add(
    "virtual ranks",
    "sample weights",
    lambda client: virtual(sync.PeriodicAveraging(3)).fit(
        *problem(), sample_weight=np.linspace(0.1, 2.0, 61)
    ),
)


# -- codecs ---------------------------------------------------------------------------------------


def more_bits(signals):
    return {"bits": 2 + signals.epoch}


def transform(tensor):
    return torch.fft.rfft(tensor.flatten(), norm="ortho")


# As functions: some may be gone in a later version, and the test then skips their runs.
CODECS = {
    "QSGD": lambda: compress.QSGD(bits=4),
    "QSGD, one bucket, other norm": lambda: compress.QSGD(bits=2, bucket=None, norm=float("inf")),
    "QSGD, elias": lambda: compress.QSGD(bits=2, bucket=None, coding="elias"),
    "TernGrad": lambda: compress.TernGrad(),
    "TernGrad, buckets": lambda: compress.TernGrad(bucket=256),
    "LqQuantize": lambda: compress.LqQuantize(q=2.0),
    "LqQuantize, q=1, buckets": lambda: compress.LqQuantize(q=1.0, bucket=128),
    "Atomo": lambda: compress.Atomo(budget=3),
    "Atomo, exact": lambda: compress.Atomo(budget=2, method="exact"),
    "Atomo, randomized": lambda: compress.Atomo(budget=2, method="randomized"),
    "Atomo, entries": lambda: compress.Atomo(budget=100, atoms="entries"),
    "Atomo, fourier": lambda: compress.Atomo(budget=100, atoms="fourier"),
    "TopK": lambda: compress.TopK(0.1),
    "TopK, error feedback": lambda: compress.ErrorFeedback(compress.TopK(0.1)),
    "SignSGD, error feedback": lambda: compress.ErrorFeedback(compress.SignSGD()),
    "RandomK": lambda: compress.RandomK(0.3),
    "RandomK, error feedback": lambda: compress.ErrorFeedback(compress.RandomK(0.3, rescale=False)),
    "Adaptive": lambda: compress.Adaptive(compress.QSGD(bits=1), more_bits),
}
# The redesign may delete these (and nothing else).
MAY_GO = (
    "QSGD, elias",
    "SignSGD, error feedback",
    "RandomK",
    "RandomK, error feedback",
    "Adaptive",
)


def compressed(codec, **params):
    return classifier(Wide, compression=codec, **{"lr": 0.2, "max_epochs": 2, **params})


WIDE = {"n": 61, "inputs": 32}
for name, make in CODECS.items():
    add("codec", name, lambda client, make=make: compressed(make()).fit(*problem(**WIDE)))
add(
    "codec",
    "QSGD, float32, BatchNorm, micro-batches",
    lambda client: compressed(
        compress.QSGD(bits=4), module__double=False, module__norm=True, micro_batch_size="auto"
    ).fit(*problem(**WIDE, dtype="float32")),
)


# -- optimizers, losses, data -----------------------------------------------------------------------


def ignored():
    X, y = problem()
    y = y.copy()
    y[::3] = -100
    return X, y


def two_inputs():
    X, y = problem()
    return {"left": X[:, :2].copy(), "right": X[:, 2:].copy()}, y


def unseeded(client):
    torch.manual_seed(3)  # the run follows the global generator
    net = classifier(random_state=None, micro_batch_size=None, module__dropout=0.2)
    return net.fit(*problem())


def fit_twice(client):
    net = classifier(**MOMENTUM, batch_size=sizes.PadaDamp(initial=6, rate=0.7))
    return net.fit(*problem()).partial_fit(*problem())


WEIGHTS = torch.linspace(0.5, 2, 3, dtype=torch.float64)
GENERAL = {
    "SGD": lambda c: classifier().fit(*problem()),
    "momentum": lambda c: classifier(**MOMENTUM).fit(*problem()),
    "Nesterov, weight decay": lambda c: classifier(
        **MOMENTUM, optimizer__nesterov=True, optimizer__weight_decay=0.01
    ).fit(*problem()),
    "Adam": lambda c: classifier(**ADAM).fit(*problem()),
    "AdamW, two groups": lambda c: classifier(
        optimizer=torch.optim.AdamW,
        lr=0.02,
        optimizer__param_groups=[("first*", {"lr": 0.005})],
        policies=[lr_once],
    ).fit(*problem()),
    "LBFGS": lambda c: classifier(
        optimizer=torch.optim.LBFGS, optimizer__max_iter=3, batch_size=31, lr=0.02
    ).fit(*problem()),
    "float32": lambda c: classifier(module__double=False).fit(*problem(dtype="float32")),
    "BatchNorm": lambda c: classifier(**MOMENTUM, module__norm=True, batch_size=12).fit(*problem()),
    "dropout": lambda c: classifier(module__dropout=0.3).fit(*problem()),
    "unseeded": unseeded,
    "fit, then partial_fit": fit_twice,
    "validation": lambda c: classifier(train_split=ValidSplit(5, stratified=True)).fit(*problem()),
    "NLLLoss": lambda c: classifier(Probabilities, criterion=nn.NLLLoss).fit(*problem()),
    "NeuralNet": lambda c: plain_net(**ADAM).fit(*problem()),
    "regressor": lambda c: regressor().fit(*line()),
    "regressor, sample weights": lambda c: regressor().fit(
        *line(), sample_weight=np.linspace(0.1, 2.0, 61)
    ),
    "sample weights": lambda c: classifier().fit(
        *problem(), sample_weight=np.linspace(0.1, 2.0, 61)
    ),
    "class_weight": lambda c: classifier().fit(*problem(), class_weight="balanced"),
    "class weights, ignored targets": lambda c: classifier(criterion__weight=WEIGHTS).fit(
        *ignored()
    ),
    "class weights, micro-batches": lambda c: classifier(
        criterion__weight=WEIGHTS, micro_batch_size=3
    ).fit(*ignored()),
    "sum of losses": lambda c: classifier(criterion__reduction="sum", lr=0.01).fit(*problem()),
    "criterion with a parameter": lambda c: classifier(criterion=ScaledLoss).fit(*problem()),
    "unused parameters": lambda c: classifier(Gated, **MOMENTUM).fit(*problem()),
    "dictionary": lambda c: classifier(TwoInputs).fit(*two_inputs()),
    "micro-batches": lambda c: classifier(micro_batch_size=3, **MOMENTUM).fit(*problem()),
    "micro-batches, monitors": lambda c: classifier(
        micro_batch_size=3, monitors=[monitor.GradientNoiseScale(every=4)]
    ).fit(*problem()),
    "auto micro-batches": lambda c: classifier(batch_size=61, max_epochs=6).fit(*problem()),
    "whole batches": lambda c: classifier(micro_batch_size=None).fit(*problem()),
    "drop_last": lambda c: classifier(iterator_train__drop_last=True).fit(*problem()),
    "given order": lambda c: classifier(iterator_train__shuffle=False).fit(*problem()),
    "data set": lambda c: classifier(module__dropout=0.3).fit(Rows(*problem()), None),
    "collate_fn": lambda c: classifier(iterator_train__collate_fn=collate).fit(
        Rows(*problem()), None
    ),
    "DataLoader with a worker": lambda c: classifier(
        iterator_train__num_workers=1, module__dropout=0.3, max_epochs=1
    ).fit(Rows(*problem()), None),
    "stream": lambda c: classifier(batch_size=sizes.PadaDamp(initial=6, rate=0.7)).fit(
        Stream(*problem()), None
    ),
    "stream, BatchNorm": lambda c: classifier(module__norm=True, batch_size=12).fit(
        Stream(*problem()), None
    ),
    "channels last": lambda c: classifier(CNN, channels_last=True).fit(*images()),
    "channels first": lambda c: classifier(CNN, channels_last=False).fit(*images()),
    "automatic layout": lambda c: classifier(CNN, **MOMENTUM).fit(*images()),
    "scheduler": lambda c: classifier(
        callbacks=[LRScheduler("StepLR", step_size=1, gamma=0.5)], **MOMENTUM
    ).fit(*problem()),
    "scheduler per update": lambda c: classifier(
        callbacks=[LRScheduler("StepLR", step_size=3, gamma=0.8, step_every="batch")],
        batch_size=sizes.GeoDamp(initial=8, delay=1, factor=2),
        max_batch_size=12,
    ).fit(*problem()),
    "clipping": lambda c: classifier(callbacks=[GradientNormClipping(0.1)]).fit(*problem()),
    "early stopping": lambda c: classifier(
        callbacks=[EarlyStopping(patience=1, threshold=0.3, monitor="train_loss")], max_epochs=8
    ).fit(*problem()),
}
for name, fit in GENERAL.items():
    add("local", name, fit)


# -- resumed --------------------------------------------------------------------------------------


def resumed(make, data, stop, then=None):
    """Stop after some updates, save, load into a new estimator, and train to the end."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state"
        make(callbacks=[StopAfter(stop)]).fit(*data).save_state(path)
        torch.manual_seed(123)  # another process starts with another generator
        return (then or make)().load_state(path).partial_fit(*data)


def adaptive_run(**params):
    return classifier(
        batch_size=sizes.RadaDamp(initial=8, memory=0.8, dwell=2),
        max_batch_size=12,
        monitors=[monitor.GradientNoiseScale(every=1), monitor.LossTrend(memory=10.0)],
        policies=[policies.GradualWarmup(epochs=1), policies.PlateauPolicy(patience=2)],
        module__dropout=0.2,
        **ADAM,
        **params,
    )


for stop in (1, 11, 16):
    add(
        "resumed",
        f"after update {stop}",
        lambda client, stop=stop: resumed(adaptive_run, problem(), stop),
    )
for name, strategy in STRATEGIES.items():
    add(
        "resumed inside a period",
        name,
        lambda client, s=strategy: resumed(lambda **p: virtual(s, **SOFT, **p), problem(), 8),
    )
add(
    "resumed",
    "stream",
    lambda client: resumed(lambda **p: classifier(**p), (Stream(*problem()), None), 11),
)
add(
    "resumed",
    "NoiseScale",
    lambda client: resumed(
        lambda **p: classifier(batch_size=SIZES["NoiseScale"], **NOISY, **p), problem(), 29
    ),
)
