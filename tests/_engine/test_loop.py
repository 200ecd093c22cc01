"""The loop: what happens in which order, and what each update leaves behind."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from accelerando._decisions import Measure
from accelerando._engine.comm.communicator import PartNorms, SingleProcess, UpdateResult
from accelerando._engine.comm.compressed import CompressedSingle
from accelerando._engine.comm.local_sgd import LocalSGD
from accelerando._engine.loop import (
    LocalTrainer,
    NoHooks,
    VirtualAllReduce,
    local_communicator,
    next_plan,
    observation,
    train_epoch,
)
from accelerando._engine.position import UPDATE_COLUMNS
from accelerando.batch_size import GeoDamp, Schedule
from accelerando.compress import TernGrad
from accelerando.exceptions import UnsupportedError
from accelerando.monitor import Monitor
from accelerando.policies import Decision, Policy
from accelerando.sync import PeriodicAveraging
from tests._engine.fits import data, plain_fit, plain_model, train, weights_of


def rows_of(fit):
    """Return the table of updates by column."""
    table = fit.state.records.updates
    return dict(zip(table.columns, table.tensor().T.tolist(), strict=True))


# -- the plan of an update ------------------------------------------------------------------------


def test_a_constant_batch_size_is_planned_once():
    fit = plain_fit(arrays=data(22), batch_size=8)
    train_epoch(fit)
    plan = next_plan(fit)
    assert next_plan(fit) is plan
    assert plan.rows == 8


def test_a_constant_batch_size_is_planned_again_when_the_data_or_the_memories_change():
    fit = plain_fit(arrays=data(22), batch_size=8)
    train_epoch(fit)
    fit.state.position.n_examples = 5
    assert next_plan(fit).rows == 5
    fit.state.settings = fit.state.settings._replace(lr_scale=0.5)  # a saved state was loaded
    assert next_plan(fit).lr_scale == 0.5


def test_a_schedule_is_asked_before_every_update():
    fit = plain_fit(arrays=data(24), batch_size=Schedule({0: 4, 1: 8}))
    train(fit)
    assert next_plan(fit) is not next_plan(fit)


# -- an epoch -------------------------------------------------------------------------------------


def test_an_epoch_is_one_row_per_update():
    fit = plain_fit(arrays=data(22), batch_size=8)
    train_epoch(fit)
    rows = rows_of(fit)
    assert rows["update"] == [1, 2, 3]
    assert rows["epoch"] == [1, 1, 1]
    assert rows["examples"] == [8, 16, 22]
    assert rows["batch_size"] == [8, 8, 6]
    assert rows["lr"] == pytest.approx([0.05] * 3)
    assert rows["seconds"] == sorted(rows["seconds"])
    assert rows["ranks"] == [1, 1, 1]
    assert rows["bytes"] == [0, 0, 0]
    assert vars(fit.state.position) == {
        "epoch": 0, "cursor": 22, "update": 3, "examples": 22, "until": 1, "n_examples": 22,
        "epoch_open": False,
    }  # fmt: skip


def test_batches_follow_the_policy_and_the_rate_falls_past_the_largest():
    fit = train(plain_fit(batch_size=GeoDamp(8, 1, 2), max_batch_size=12, until=3))
    rows = rows_of(fit)
    assert rows["batch_size"] == [8] * 3 + [12] * 4
    assert rows["lr"] == pytest.approx([0.05] * 3 + [0.05 * 12 / 16] * 2 + [0.05 * 12 / 32] * 2)


def test_an_epoch_continues_at_its_cursor():
    whole = train(plain_fit(batch_size=Schedule({0: 5})))
    half = plain_fit(batch_size=Schedule({0: 5}))

    class Stop(NoHooks):
        def after_update(self, batch, result):
            if half.state.position.update == 2:
                raise KeyboardInterrupt

    half.hooks = Stop()
    with pytest.raises(KeyboardInterrupt):
        train_epoch(half)
    assert half.state.position.cursor == 10
    half.hooks = NoHooks()
    train(half)
    assert torch.equal(weights_of(half), weights_of(whole))
    assert rows_of(half)["loss"] == rows_of(whole)["loss"]


def test_what_happens_around_an_update_and_when():
    seen = []

    class Look:
        def before_update(self, batch):
            seen.append(("before", fit.state.position.update, batch.size))

        def gradients_ready(self, batch):
            ready = all(p.grad is not None for p in fit.model.parameters)
            seen.append(("gradients", fit.state.position.update, ready))

        def after_update(self, batch, result):
            newest = fit.state.records.updates.newest()
            seen.append(("after", fit.state.position.update, newest["loss"] == result.loss))

    fit = plain_fit(batch_size=12, hooks=Look())
    train_epoch(fit)
    assert seen == [
        ("before", 0, 12), ("gradients", 0, True), ("after", 1, True),
        ("before", 1, 12), ("gradients", 1, True), ("after", 2, True),
    ]  # fmt: skip


def test_an_update_that_fails_is_not_counted_and_nothing_is_remembered():
    class Remembers(Policy):
        def start(self):
            return {"asked": 0}

        def decide(self, signals, state):
            return Decision(batch_size=8), {"asked": state["asked"] + 1}

    X, y = data()
    fit = plain_fit(arrays=(X, y), batch_size=Remembers())
    fit.feed.data[0][fit.feed.order(0, 0, 24)[10]] = float("nan")
    with pytest.raises(ArithmeticError):
        train_epoch(fit)
    assert fit.state.position.update == 1
    assert fit.state.memories.policies == [{"asked": 1}]
    assert len(fit.state.records.updates) == 1


def test_the_plan_at_the_end_of_an_epoch_is_forgotten():
    """The epoch ends when a batch is asked for: that plan is made again in the next epoch."""

    class Counts(Policy):
        def start(self):
            return {"asked": 0}

        def decide(self, signals, state):
            return Decision(batch_size=8), {"asked": state["asked"] + 1}

    fit = train(plain_fit(batch_size=Counts(), until=2))
    assert fit.state.memories.policies == [{"asked": 6}]


def test_parameters_that_a_callback_replaced_between_epochs_are_trained():
    fit = plain_fit()
    fit.model.module.bias = nn.Parameter(torch.zeros(1))
    fit.model.optimizers[0].add_param_group({"params": [fit.model.module.bias]})
    train_epoch(fit)
    assert fit.model.module.bias.item() != 0.0
    assert fit.state.components is fit.model.components


def test_a_remainder_that_batchnorm_cannot_train_on_joins_the_batch_before():
    module = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.Linear(2, 1))
    fit = train(plain_fit(plain_model(module), data(17), batch_size=8, min_rows=2))
    assert rows_of(fit)["batch_size"] == [8, 9]


def test_the_clock_continues_where_the_run_was_interrupted():
    fit = plain_fit()
    fit.state.seconds = 1000.0
    again = type(fit)(fit.spec, fit.state, fit.model, fit.feed, fit.comm)
    train_epoch(again)
    assert fit.state.seconds > 1000.0
    assert rows_of(fit)["seconds"][0] > 1000.0


def test_a_local_trainer_trains_the_epoch_and_leaves_validation_to_the_estimator():
    fit = plain_fit()
    trainer = LocalTrainer(fit)
    trainer.train_epoch()
    assert fit.state.position.update == 3
    assert trainer.evaluate() is None
    assert trainer.collect_replicas() is None


# -- policies and monitors ------------------------------------------------------------------------


class Notes(Policy):
    """A policy that keeps what it has seen."""

    def __init__(self, decision=None, measure=None):
        self.decision, self.measure, self.seen = decision, measure, []

    def __eq__(self, other):
        return self is other

    __hash__ = None

    def measures(self, update):
        return self.measure

    def decide(self, signals, state):
        self.seen.append(dict(signals))
        return self.decision, state


def test_policies_see_what_the_last_update_yielded():
    policy = Notes()
    fit = train(plain_fit(plain_model(momentum=0.9), policies=[policy]))
    rows, seen = rows_of(fit), policy.seen
    assert math.isnan(seen[0]["loss"])
    assert [s["loss"] for s in seen[1:]] == rows["loss"]
    assert [s["grad_norm"] for s in seen[1:]] == rows["grad_norm"]
    assert [s["update"] for s in seen] == [0, 1, 2, 3]
    assert [s["examples"] for s in seen] == [0, 8, 16, 24]
    assert seen[1]["rows"] == seen[1]["batch_size"] == 8
    assert (seen[0]["lr"], seen[0]["momentum"], seen[0]["ranks"]) == (0.05, 0.9, 1)
    assert math.isnan(seen[0]["beta2"])
    assert math.isnan(seen[0]["period"])
    assert seen[0]["n_examples"] == 24


def test_policies_see_the_betas_of_adam():
    policy = Notes()
    train(plain_fit(plain_model(optimizer=torch.optim.Adam), policies=[policy]))
    assert (policy.seen[0]["momentum"], policy.seen[0]["beta2"]) == (0.9, 0.999)


def test_a_measurement_is_made_once_per_update():
    class Look(nn.Linear):
        rows = 0

        def forward(self, x):
            if not self.training:
                Look.rows += len(x)
            return super().forward(x)

    policy = Notes(Decision(batch_size=8), Measure("loss"))
    fit = plain_fit(plain_model(Look(3, 1)), batch_size=policy)
    next_plan(fit)
    next_plan(fit)
    assert Look.rows == 24
    assert policy.seen[0]["full_loss"] == policy.seen[1]["full_loss"]
    fit.state.position.update = 1
    next_plan(fit)
    assert Look.rows == 48


def test_the_measured_model_is_the_one_that_the_estimator_would_return():
    class Shows(SingleProcess):
        shown = 0

        def show(self, state):
            self.shown += 1

    fit = plain_fit(batch_size=Notes(Decision(batch_size=8), Measure("loss")), comm=Shows())
    next_plan(fit)
    assert fit.comm.shown == 1


@pytest.mark.parametrize(
    ("decision", "optimizer", "message"),
    [
        (Decision(period=3), torch.optim.SGD, r"period=3, .* Pass sync=PeriodicAveraging"),
        (Decision(momentum=0.5), torch.optim.Adagrad, r"momentum=0.5, and Adagrad has none"),
        (Decision(betas=(0.5, 0.9)), torch.optim.SGD, r"betas=\(0.5, 0.9\), and SGD has none"),
    ],
)
def test_what_cannot_be_decided_is_refused(decision, optimizer, message):
    fit = plain_fit(plain_model(optimizer=optimizer), policies=[Notes(decision)])
    with pytest.raises(UnsupportedError, match=message):
        train_epoch(fit)
    assert fit.state.position.update == 0


class Sees(Monitor):
    signals = ("last_loss",)

    def __init__(self):
        self.seen = []

    def observe(self, seen, state):
        self.seen.append(seen)
        return (seen.loss,), {"count": state.get("count", 0) + 1}


def test_monitors_see_every_update_and_their_signals_are_columns():
    monitor = Sees()
    fit = train(plain_fit(arrays=data(22), monitors=[monitor]))
    rows = rows_of(fit)
    assert rows["last_loss"] == rows["loss"]
    assert list(rows) == [*UPDATE_COLUMNS, "last_loss"]
    assert [s.update for s in monitor.seen] == [1, 2, 3]
    assert [s.batch_size for s in monitor.seen] == [8, 8, 6]
    assert [s.grad_square for s in monitor.seen] == pytest.approx(
        [norm**2 for norm in rows["grad_norm"]]
    )
    assert all(s.seconds > 0 and s.wait_seconds == 0 and s.ranks == 1 for s in monitor.seen)
    assert fit.state.memories.monitors == [{"count": 3}]


@pytest.mark.parametrize("sums", [False, True])
def test_monitors_see_the_gradient_of_a_mean(sums):
    fit = plain_fit(sums=sums)
    batch = fit.feed.epoch(0, 0, 0).take(8)
    result = UpdateResult(1.0, 6.0, 0.1, {}, PartNorms(2, 40.0))
    seen = observation(fit, batch, result, 0.5)
    assert seen.grad_square == pytest.approx((6.0 / 8) ** 2 if sums else 36.0)
    assert (seen.parts, seen.parts_square) == (2, 5.0 if sums else 40.0)
    assert (seen.seconds, seen.n_examples, seen.spread) == (0.5, 24, None)


# -- the communicator of a process ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "kind"),
    [
        ({}, SingleProcess),
        ({"virtual_ranks": 3}, VirtualAllReduce),
        ({"compressor": TernGrad()}, CompressedSingle),
        ({"virtual_ranks": 3, "strategy": PeriodicAveraging(period=2)}, LocalSGD),
    ],
)
def test_the_settings_decide_the_communicator(spec, kind):
    fit = plain_fit(**spec)
    comm = local_communicator(fit.spec, fit.state, fit.feed)
    assert type(comm) is kind
    assert comm.ranks == spec.get("virtual_ranks", 1)


def test_virtual_ranks_count_what_real_ones_would_send():
    fit = plain_fit(virtual_ranks=3)
    assert fit.comm.traffic.bytes == 2 * (3 - 1) * (3 + 1) * 4
    fit.model.module.bias.requires_grad_(False)
    frozen = local_communicator(fit.spec, fit.state, fit.feed)
    assert frozen.traffic.bytes == 2 * (3 - 1) * 3 * 4


def test_virtual_ranks_have_a_batch_each():
    fit = train(plain_fit(virtual_ranks=3, batch_size=4))
    assert rows_of(fit)["batch_size"] == [12, 12]
    assert fit.state.last.rows == 4


def test_the_columns_of_averaging_come_before_those_of_monitors():
    fit = plain_fit(virtual_ranks=2, batch_size=4, strategy=PeriodicAveraging(period=2),
                    monitors=[Sees()])  # fmt: skip
    train(fit)
    rows = rows_of(fit)
    assert list(rows) == [*UPDATE_COLUMNS, "period", "spread", "averagings", "last_loss"]
    assert rows["averagings"] == [0, 1, 1]
    assert rows["last_loss"] == rows["loss"]
