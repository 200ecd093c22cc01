"""States of version 4, as the engine before its redesign saved them.

Each entry of :data:`STATES` builds an estimator for a file of ``tests/data/states_v4``. Record them
with the version that writes them::

    PYTHONPATH=<old>/src:. python -m tests.reference.saved_states
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from skorch.callbacks import EarlyStopping, LRScheduler
from torch import nn

from accelerando import NeuralNetClassifier, monitor, policies
from accelerando import batch_size as sizes
from tests.reference.averaging_runs import SOFT, STRATEGIES, virtual
from tests.reference.cluster_runs import averaging, cluster, soft
from tests.reference.pieces import (
    ADAM,
    MOMENTUM,
    SaveAfter,
    StopAfter,
    Stream,
    classifier,
    line,
    problem,
    regressor,
)
from tests.reference.policy_runs import NOISY, SIZES, by_epoch, momentum_by_epoch
from tests.reference.summary import summarize

DATA = Path(__file__).parent.parent / "data"
FOLDER = DATA / "states_v4"
PICKLE = DATA / "estimator_v4.pkl"


class State(NamedTuple):
    """How to build the estimator of a file, its data, and where it was stopped.

    Attributes
    ----------
    build : callable
        Takes parameters such as callbacks.
    stop : int
        Updates after which the run was interrupted; 0 saves a run that has ended.
    data : callable
        Returns X and y.
    remote : callable, optional
        Builds the estimator that wrote the file, from a client and parameters; it saved at the end
        of its first epoch, in the middle of a period.
    """

    build: Callable[..., Any]
    stop: int
    data: Callable[[], Any] = problem
    remote: Callable[..., Any] | None = None


def rows(**params: Any) -> Callable[..., Any]:
    return lambda **more: classifier(**{**MOMENTUM, **params, **more})


def scheduled(callbacks: Any = (), **params: Any) -> Any:
    lr = LRScheduler("StepLR", step_size=3, gamma=0.8, step_every="batch")
    return classifier(callbacks=[lr, *callbacks], **params)


def patient(callbacks: Any = (), **params: Any) -> Any:
    stop = EarlyStopping(patience=2, threshold=0.01, monitor="train_loss")
    return classifier(callbacks=[stop, *callbacks], max_epochs=6, **params)


def without_client(**params: Any) -> Any:
    """Build in this process what :func:`soft` built on a cluster, without dropout."""
    return classifier(
        **ADAM,
        batch_size=sizes.RadaDamp(initial=8, memory=0.8, dwell=2),
        monitors=[monitor.GradientNoiseScale(every=1)],
        module__dropout=0.0,
        **params,
    )


ADAPTIVE = {
    "batch_size": sizes.RadaDamp(initial=8, memory=0.8, dwell=2),
    "max_batch_size": 12,
    "monitors": [monitor.GradientNoiseScale(every=1), monitor.LossTrend(memory=10.0)],
    "policies": [policies.GradualWarmup(epochs=1), policies.PlateauPolicy(patience=2)],
    "module__dropout": 0.2,
}
NAMED = {name: SIZES[name] for name in ("GeoDamp", "PadaDamp", "AdaDamp", "RadaDamp", "GradDamp")}
STATES = {
    "int": State(rows(), 11),
    **{name: State(rows(batch_size=size), 7) for name, size in NAMED.items()},
    "RadaDampLR": State(rows(batch_size=SIZES["RadaDampLR"], max_batch_size=10), 7),
    "function": State(rows(batch_size=by_epoch), 11),
    "NoiseScale": State(lambda **p: classifier(batch_size=SIZES["NoiseScale"], **NOISY, **p), 29),
    "NormTest": State(lambda **p: classifier(batch_size=SIZES["NormTest"], **NOISY, **p), 21),
    "policies": State(lambda **p: classifier(**ADAM, **ADAPTIVE, **p), 11),
    "function policy": State(rows(policies=[momentum_by_epoch]), 11),
    "Every": State(
        rows(policies=[policies.Every(policies.PlateauPolicy(patience=2), epochs=1)]), 9
    ),
    "BatchNorm, dropout": State(rows(**SOFT, batch_size=12), 7),
    "LBFGS": State(
        lambda **p: classifier(
            optimizer=torch.optim.LBFGS, optimizer__max_iter=3, batch_size=31, lr=0.02, **p
        ),
        3,
    ),
    "float32, micro-batches": State(
        lambda **p: classifier(module__double=False, micro_batch_size=3, **p),
        11,
        lambda: problem(dtype="float32"),
    ),
    "stream": State(classifier, 11, lambda: (Stream(*problem()), None)),
    "regressor": State(regressor, 11, line),
    "scheduler": State(scheduled, 11),
    "early stopping": State(patient, 11),
    "ended": State(rows(), 0),
    "virtual all-reduce": State(lambda **p: virtual(None, **SOFT, **p), 8),
    **{
        f"averaging, {name}": State(lambda s=strategy, **p: virtual(s, **SOFT, **p), 8)
        for name, strategy in STRATEGIES.items()
    },
    "averaging, Adam": State(
        lambda **p: virtual(STRATEGIES["periodic, momentum averaged"], **ADAM, **p), 8
    ),
    "averaging, ended": State(lambda **p: virtual(STRATEGIES["adaptive"], **p), 0),
    "cluster, all-reduce": State(
        without_client, 0, remote=lambda client, **p: soft(client, module__dropout=0.0, **p)
    ),
    **{
        f"cluster, {name}": State(
            lambda s=STRATEGIES[name], **p: virtual(s, **SOFT, **p),
            0,
            remote=lambda client, s=STRATEGIES[name], **p: averaging(s, client, **SOFT, **p),
        )
        for name in ("periodic, momentum averaged", "model", "outer")
    },
}


def path_of(name: str) -> Path:
    return FOLDER / f"{name.replace(', ', '-').replace(' ', '_')}.pt"


def save(name: str, client: Any) -> None:
    """Write the file of one state."""
    state, path = STATES[name], path_of(name)
    if state.remote is not None:
        state.remote(client, callbacks=[SaveAfter(path)]).fit(*state.data())
        return
    callbacks = [StopAfter(state.stop)] if state.stop else []
    state.build(callbacks=callbacks).fit(*state.data()).save_state(path)


def finish(name: str) -> Any:
    """Load one state into a new estimator and train to the end, in this process."""
    state = STATES[name]
    torch.set_num_threads(1)
    torch.manual_seed(123)  # another process starts with another generator
    net = state.build()
    net.load_state(path_of(name))
    return net.partial_fit(*state.data())


def main() -> None:
    torch.set_num_threads(1)
    FOLDER.mkdir(parents=True, exist_ok=True)
    with cluster() as client:
        for name in STATES:
            save(name, client)
    expected = {name: summarize(finish(name)) for name in STATES}
    lines = [
        f"{json.dumps(k)}: {json.dumps(v, separators=(',', ':'))}" for k, v in expected.items()
    ]
    body = ",\n".join(lines)
    (FOLDER / "expected.json").write_text(f"{{\n{body}\n}}\n")
    X, y = problem(dtype="float32")
    net = NeuralNetClassifier(
        nn.Linear, module__in_features=4, module__out_features=3, criterion=nn.CrossEntropyLoss,
        max_epochs=2, batch_size=16, train_split=None, random_state=0, verbose=0,
    )  # fmt: skip
    PICKLE.write_bytes(pickle.dumps(net.fit(X, y)))


if __name__ == "__main__":
    main()
