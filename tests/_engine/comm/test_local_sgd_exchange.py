"""Local SGD: what is exchanged, what a strategy sees, and what happens when an update fails."""

import math

import pytest
import torch

from accelerando._engine.comm.local_sgd import VirtualGroup, amend
from accelerando._engine.data.feed import Batch
from accelerando._engine.state import Table
from accelerando._engine.step import update
from accelerando.exceptions import NotFiniteError
from accelerando.sync import (
    Averaging,
    ElasticAveraging,
    ModelAveraging,
    OuterOptimizer,
    PeriodicAveraging,
)
from tests._engine.comm.ranks import (
    RANKS,
    column,
    data_of,
    flat,
    in_given_order,
    model_of,
    plan_of,
    ranks_of,
    train,
)

STRATEGIES = {
    "periodic": PeriodicAveraging(3),
    "momentum averaged": PeriodicAveraging(3, optimizer_state="average"),
    "model": ModelAveraging(RANKS, momentum=0.3),
    "outer": OuterOptimizer(inner_steps=3, lr=0.8, momentum=0.5),
}
EVERY = pytest.mark.parametrize("name", STRATEGIES)


def test_an_error_in_a_step_drops_replicas_and_the_request():
    X, y = data_of(48)
    X[40:] = math.nan
    fit = ranks_of(ModelAveraging(RANKS), model=model_of(), data=(X, y), order=in_given_order)
    with pytest.raises(NotFiniteError, match="holds the average of update"):
        train(fit)
    assert fit.state.position.update == 3
    assert fit.state.replicas is None
    assert fit.state.averaging.since == 0
    assert fit.comm._request is None
    assert flat(fit.model.module).isfinite().all()


class Failing(VirtualGroup):
    """Contact is lost in one of the exchanges."""

    def __init__(self, lost):
        super().__init__(RANKS)
        self.lost, self.exchanges = lost, 0

    def start_exchange(self, numbers, tensors=()):
        self.exchanges += 1
        if self.exchanges == 2:
            raise RuntimeError("gone")
        return super().start_exchange(numbers, tensors)

    def is_lost(self, error):
        return self.lost


def test_a_step_counts_even_if_contact_is_lost_after_it():
    fit = ranks_of(PeriodicAveraging(2), Failing(lost=True), model=model_of(), epochs=1)
    train(fit, epochs=1)
    assert fit.state.position.update == 4
    # The second update did not average, so the third one does.
    assert column(fit, "averagings") == [0.0, 0.0, 1.0, 1.0]


def test_any_other_error_after_the_step_drops_the_replicas():
    fit = ranks_of(PeriodicAveraging(2), Failing(lost=False), model=model_of(), epochs=1)
    with pytest.raises(RuntimeError, match="gone"):
        train(fit, epochs=1)
    assert fit.state.replicas is None
    assert fit.state.position.update == 1


class Doubled(VirtualGroup):
    """Another process, unheard of until it speaks, has the same numbers."""

    def __init__(self):
        super().__init__(RANKS)
        self.sent = []

    def start_exchange(self, numbers, tensors=()):
        self.sent.append(len(numbers))
        return lambda: [10.0 * number for number in numbers]


def test_numbers_that_were_not_exchanged_are_exchanged_with_the_next_averaging():
    group = Doubled()
    quiet = train(
        ranks_of(PeriodicAveraging(3), group, model=model_of(), exchanges=False, epochs=1), epochs=1
    )
    alone = train(ranks_of(PeriodicAveraging(3), model=model_of(), epochs=1), epochs=1)
    # Three updates at the averaging, the last one when the epoch ends.
    assert group.sent == [6, 2]
    assert column(quiet, "loss") == pytest.approx([10 * one for one in column(alone, "loss")])
    norms = [math.sqrt(10) * one for one in column(alone, "grad_norm")]
    assert column(quiet, "grad_norm") == pytest.approx(norms)


def test_pulled_replicas_do_not_know_the_newest_step_of_the_others():
    group = Doubled()
    settings = {"exchanges": False, "epochs": 1, "model": model_of()}
    fit = ranks_of(ElasticAveraging(1, beta=0.5), group, **settings)
    train(fit, epochs=1)
    # The first request has the numbers of update 1 and the squared distance.
    assert group.sent == [3, 3, 3, 2]
    assert fit.state.averaging.since == 1


def test_ranks_average_before_others_take_their_place():
    group = VirtualGroup(RANKS)
    fit = ranks_of(PeriodicAveraging(50), group, model=model_of(), epochs=1)

    class Switch:
        before_update = gradients_ready = staticmethod(lambda *args: None)

        def after_update(self, batch, result):
            group.switching = fit.state.position.update == 2

    fit.hooks = Switch()
    train(fit, epochs=1)
    assert column(fit, "averagings") == [0.0, 0.0, 1.0, 1.0]


def test_averaging_between_epochs():
    fit = train(ranks_of(PeriodicAveraging(50, optimizer_state="reset"), epochs=2), epochs=1)
    assert fit.state.averaging.since == 4
    fit.comm.average_now(fit.state)
    assert (fit.state.averaging.since, fit.state.averaging.count) == (0, 1)
    flats = [torch.cat(one) for one in fit.state.replicas.flatten()]
    assert all(torch.equal(flats[0], other) for other in flats)
    replicas = fit.state.replicas
    fit.comm.begin_epoch(fit.state)
    assert fit.state.replicas is replicas  # nobody else has changed the model


@EVERY
def test_bytes_are_those_of_a_ring(name):
    fit = train(ranks_of(STRATEGIES[name]))
    n_parameters = len(flat(fit.model.module))
    numbers = 8 * (n_parameters + 2 * 8) + 8  # with BatchNorm's statistics, and the spread
    if name == "momentum averaged":
        numbers += 8 * n_parameters
    expected = [
        0.0 if math.isnan(s) else 2.0 * (RANKS - 1) * numbers for s in column(fit, "spread")
    ]
    assert column(fit, "bytes") == expected
    assert any(expected)


class Recording(Averaging):
    """Remembers what it was asked."""

    needs = ("loss",)

    def __init__(self):
        self.seen = []

    def next_period(self, signals, state):
        return 2

    def observe(self, signals, state):
        self.seen.append(signals)
        return {"times": state.get("times", 0) + 1}


def test_a_strategy_sees_the_update_and_remembers_numbers():
    strategy = Recording()
    fit = train(ranks_of(strategy, model=model_of()))
    assert fit.state.memories.strategy == {"times": 8}
    assert [one.update for one in strategy.seen] == list(range(8))
    assert {one.total_updates for one in strategy.seen} == {8.0}
    assert {one.lr for one in strategy.seen} == {0.1}
    assert [one.loss for one in strategy.seen] == column(fit, "loss")
    assert [math.isnan(one.spread) for one in strategy.seen] == [True, False] * 4
    assert column(fit, "period") == [2.0] * 8


def test_a_strategy_that_does_not_need_the_loss_does_not_see_it():
    class Blind(Recording):
        needs = ()

    strategy = Blind()
    train(ranks_of(strategy, model=model_of()))
    assert all(math.isnan(one.loss) for one in strategy.seen)


def test_the_period_of_a_policy_wins():
    fit = ranks_of(PeriodicAveraging(50), model=model_of(), epochs=1)
    fit.comm.begin_epoch(fit.state)
    batch = Batch(data_of(12), 12, None, 12)
    for _ in range(2):
        update(fit, plan_of(12, period=2), batch)
    assert fit.state.averaging.count == 1
    assert fit.comm.period(fit.state, 12) == 50.0
    assert fit.comm.row(fit.state)[0] == 2.0


def test_the_newest_rows_of_the_table_are_amended():
    table = Table(("update", "loss", "grad_norm"))
    for number in range(3):
        table.add(number, 0.0, 0.0)
    amend(table, [1.0, 4.0, 2.0, 9.0])
    assert table.tensor().tolist() == [[0, 0, 0], [1, 1, 2], [2, 2, 3]]
    amend(Table(("loss", "grad_norm")), [1.0, 1.0])  # sent by others before this rank joined
