"""Reference runs in this process: optimizers, losses, data, and runs that were resumed."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import torch
from skorch.callbacks import EarlyStopping, GradientNormClipping, LRScheduler
from skorch.dataset import ValidSplit
from torch import nn

from accelerando import batch_size as sizes
from accelerando import monitor, policies
from tests.reference.averaging_runs import SOFT, STRATEGIES, virtual
from tests.reference.pieces import (
    ADAM,
    CNN,
    MOMENTUM,
    Gated,
    Probabilities,
    Rows,
    ScaledLoss,
    StopAfter,
    Stream,
    TwoInputs,
    add,
    classifier,
    collate,
    images,
    line,
    plain_net,
    problem,
    regressor,
)
from tests.reference.policy_runs import NOISY, SIZES, lr_once

RUNS = {}


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
    add(RUNS, "local", name, fit)


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
        RUNS,
        "resumed",
        f"after update {stop}",
        lambda client, stop=stop: resumed(adaptive_run, problem(), stop),
    )
for name, strategy in STRATEGIES.items():
    add(
        RUNS,
        "resumed inside a period",
        name,
        lambda client, s=strategy: resumed(lambda **p: virtual(s, **SOFT, **p), problem(), 8),
    )
add(
    RUNS,
    "resumed",
    "stream",
    lambda client: resumed(classifier, (Stream(*problem()), None), 11),
)
add(
    RUNS,
    "resumed",
    "NoiseScale",
    lambda client: resumed(
        lambda **p: classifier(batch_size=SIZES["NoiseScale"], **NOISY, **p), problem(), 29
    ),
)
