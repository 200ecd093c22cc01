"""Fits without an estimator, which several tests of the engine share."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from accelerando._engine.data.feed import ArrayFeed
from accelerando._engine.loop import Fit, FitSpec, NoHooks, local_communicator, train_epoch
from accelerando._engine.state import TrainState
from accelerando.policies._controller import Controller
from accelerando.sync import AllReduce
from tests._engine.plain import PlainModel


def data(n=24, seed=0):
    """Return a linear regression problem: X of shape (n, 3), y of shape (n, 1)."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3)).astype("float32")
    y = X @ np.array([[1.0], [-2.0], [0.5]], dtype="float32")
    return torch.from_numpy(X), torch.from_numpy(y)


def plain_model(module=None, criterion=None, optimizer=torch.optim.SGD, seed=0, **settings):
    """Return a model; the module is a linear layer unless one is given."""
    torch.manual_seed(seed)
    module = nn.Linear(3, 1) if module is None else module
    options = {"lr": 0.05, **settings}
    return PlainModel(module, criterion or nn.MSELoss(), optimizer(module.parameters(), **options))


def plain_fit(
    model=None,
    arrays=None,
    *,
    batch_size=8,
    monitors=(),
    policies=(),
    max_batch_size=None,
    strategy=None,
    hooks=None,
    comm=None,
    until=1,
    seed=0,
    **spec,
):
    """Return a fit that is ready to train."""
    model = model or plain_model(seed=seed)
    feed = ArrayFeed(list(data() if arrays is None else arrays), None)
    control = Controller.of(monitors, policies, batch_size, max_batch_size=max_batch_size)
    strategy = strategy or AllReduce()
    state = TrainState(seed=seed, seeded=True, components=model.components)
    state.adopt(control, strategy, None)
    state.micro_batch.whole = True
    state.position.until, state.position.n_examples = until, feed.n_examples
    fixed = FitSpec(control, strategy, **spec)
    comm = comm or local_communicator(fixed, state, feed)
    return Fit(fixed, state, model, feed, comm, hooks or NoHooks())


def train(fit):
    """Train until the last epoch ends."""
    while fit.state.interrupted:
        train_epoch(fit)
        fit.state.end_epoch()
    return fit


def weights_of(fit):
    """Return copies of the parameters in one vector."""
    return torch.cat([p.detach().flatten() for p in fit.model.module.parameters()])
