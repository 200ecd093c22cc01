"""Small models, and ranks as threads of this process, for the tests of communicators."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from accelerando._decisions import Plan, Settings
from accelerando._engine.comm.communicator import SingleProcess
from accelerando._engine.comm.local_sgd import LocalSGD, VirtualGroup
from accelerando._engine.comm.process_group import ProcessGroup, form
from accelerando._engine.data.feed import ArrayFeed, epoch_order
from accelerando._engine.loop import Fit, FitSpec, train_epoch
from accelerando._engine.micro_batch import MicroBatch, couples_rows
from accelerando._engine.position import AVERAGING_COLUMNS
from accelerando._engine.state import Records, TrainState
from accelerando.policies._controller import Controller
from accelerando.sync import Averaging
from tests._engine.plain import PlainModel

CPU = torch.device("cpu")
RANKS = 4  # virtual ones


def on_ranks(size, work):
    """Return ``work(group)`` of every rank of a new group."""
    store = dist.HashStore()

    def one(rank):
        options = {"seconds": 60.0, "address": "127.0.0.1", "device": CPU}
        group = ProcessGroup(form(store, rank, size, **options), CPU)
        try:
            return work(group)
        finally:
            group.close()

    with ThreadPoolExecutor(size) as pool:
        return [one.result(timeout=100) for one in [pool.submit(one, r) for r in range(size)]]


class MLP(nn.Module):
    def __init__(self, hidden=8, norm=False, dropout=0.0):
        super().__init__()
        self.first = nn.Linear(4, hidden)
        self.norm = nn.BatchNorm1d(hidden) if norm else nn.Identity()
        self.dropout = nn.Dropout(dropout)
        self.last = nn.Linear(hidden, 3)

    def forward(self, x):
        return self.last(self.dropout(torch.relu(self.norm(self.first(x)))))


def model_of(module=MLP, *, criterion=None, lr=0.1, momentum=0.0, seed=0, **kwargs):
    """Return a model in double precision whose parameters depend on the seed only."""
    net, generator = module(**kwargs).double(), torch.Generator().manual_seed(seed)
    with torch.no_grad():  # not from the generator that ranks as threads share
        for parameter in net.parameters():
            bound = 1.0 / max(1, parameter[0].numel()) ** 0.5
            parameter.uniform_(-bound, bound, generator=generator)
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=momentum)
    return PlainModel(net, criterion or nn.CrossEntropyLoss(), optimizer)


def data_of(rows=50):
    generator = torch.Generator().manual_seed(1)
    X = torch.randn(rows, 4, generator=generator, dtype=torch.float64)
    return X, (X.sum(1) > 0).long() + (X[:, 0] > 1).long()


def state_of(model, *, seeded=True, strategy=None, epochs=1, n_examples=None, control=None):
    state = TrainState(seed=5, seeded=seeded)
    state.components = model.components
    state.micro_batch = MicroBatch(whole=True)
    state.position.until, state.position.n_examples = epochs, n_examples
    control = control or Controller.of()
    state.memories = control.start()
    averages = isinstance(strategy, Averaging)
    if averages:
        state.memories.strategy = dict(strategy.start())
    state.records = Records((*(AVERAGING_COLUMNS if averages else ()), *control.columns))
    return state


def fit_of(
    model,
    make_comm=None,
    *,
    data=None,
    rows=12,
    epochs=2,
    strategy=None,
    order=epoch_order,
    **settings,
):
    """Return a fit of a model; `rows` is the batch size of the policy."""
    X, y = data or data_of()
    control = Controller.of(batch_size=rows, monitors=settings.pop("monitors", ()))
    state = state_of(model, strategy=strategy, epochs=epochs, n_examples=len(X), control=control)
    sums = getattr(model.criterion, "reduction", "mean") == "sum"
    min_rows = 2 if couples_rows(model.module) else 1
    spec = FitSpec(control, min_rows=min_rows, sums=sums, **settings)
    comm = make_comm(spec) if make_comm else SingleProcess()
    feed = ArrayFeed([X, y], None, order=order)
    return Fit(spec, state, model, feed, comm)


def in_given_order(seed, epoch, n):
    return np.arange(n)


def train(fit, epochs=2):
    """Train some epochs; return the fit."""
    for _ in range(epochs):
        train_epoch(fit)
        fit.state.end_epoch()
    return fit


def plan_of(rows, lr_scale=1.0, **settings):
    return Plan(rows, rows, lr_scale, Settings(**settings), [])


def flat(module):
    return torch.cat([p.detach().flatten() for p in module.parameters()])


def ranks_of(strategy, group=None, *, model=None, rows=3, watch=0, exchanges=True, **settings):
    """Return a fit of virtual ranks, each with `rows` rows of a batch."""

    def make(spec):
        return LocalSGD(
            strategy,
            group or VirtualGroup(RANKS),
            min_rows=spec.min_rows,
            drop_last=False,
            sums=spec.sums,
            watch_every=watch,
            exchanges_every_update=exchanges,
        )

    model = model or model_of(norm=True, momentum=0.9)
    return fit_of(model, make, rows=rows, strategy=strategy, **settings)


def column(fit, name):
    table = fit.state.records.updates
    return table.tensor()[:, table.columns.index(name)].tolist()
