"""Reference runs in this process: batch-size policies, standing policies and monitors."""

from __future__ import annotations

from accelerando import batch_size as sizes
from accelerando import monitor, policies
from accelerando.policies import Decision
from tests.reference.pieces import ADAM, MOMENTUM, add, classifier, problem

RUNS = {}


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
        RUNS,
        "batch size",
        name,
        lambda client, name=name, size=size: classifier(batch_size=size, **settings_for(name)).fit(
            *problem()
        ),
    )
for name in ("GeoDamp", "GeoDampLR", "PadaDamp", "AdaDamp", "RadaDamp", "NoiseScale", "NormTest"):
    add(
        RUNS,
        "max_batch_size",
        name,
        lambda client, name=name: classifier(
            batch_size=SIZES[name], max_batch_size=10, **settings_for(name)
        ).fit(*problem()),
    )
add(
    RUNS,
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
        RUNS,
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
        RUNS,
        "policies",
        name,
        lambda client, given=given: classifier(policies=given, **NOISY).fit(*problem()),
    )
    add(
        RUNS,
        "policies, max_batch_size",
        name,
        lambda client, given=given: classifier(policies=given, max_batch_size=10, **NOISY).fit(
            *problem()
        ),
    )
add(
    RUNS,
    "policies",
    "momentum of Adam",
    lambda client: classifier(policies=[momentum_by_epoch], **ADAM).fit(*problem()),
)
add(
    RUNS,
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
    add(
        RUNS,
        "monitors",
        name,
        lambda client, given=given: classifier(monitors=given).fit(*problem()),
    )
