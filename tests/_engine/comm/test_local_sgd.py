"""Local SGD with virtual ranks: rules, periods, resuming, failures."""

import math

import pytest
import torch
from torch import nn

from accelerando._engine.comm.local_sgd import LocalSGD, VirtualGroup, total_updates
from accelerando._engine.comm.replicas import ReplicaSet
from accelerando._engine.data.feed import Batch
from accelerando._engine.loop import train_epoch
from accelerando._engine.position import Position
from accelerando._engine.step import update
from accelerando.sync import (
    AdaptiveAveraging,
    DecreasingAveraging,
    ElasticAveraging,
    ModelAveraging,
    OuterOptimizer,
    PeriodicAveraging,
    Pull,
)
from tests._engine.comm.ranks import (
    MLP,
    RANKS,
    column,
    data_of,
    fit_of,
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
    "momentum reset": PeriodicAveraging(4, optimizer_state="reset"),
    "adaptive": AdaptiveAveraging(2, sample=0.4),
    "decreasing": DecreasingAveraging(6, every_epochs=1),
    "model": ModelAveraging(RANKS, momentum=0.3),
    "elastic": ElasticAveraging(period=3, beta=0.8),
    "outer": OuterOptimizer(inner_steps=3, lr=0.8, momentum=0.5),
}
EVERY = pytest.mark.parametrize("name", STRATEGIES)


class One(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1, 1))

    def forward(self, x):
        return x @ self.w


class MeanOutput(nn.Module):
    def forward(self, y_pred, y):
        return y_pred.mean()


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        # Update 1: replicas at -1, -3. Update 2 corrects by where they were before it, by -½ and
        # -1½, to -1½, -4½, and the center moves to -2. Update 3: by ¼ and -1¼ to -2¾, -6¼; the
        # center to -3, and with momentum by half of its last step in addition.
        (ModelAveraging(2, momentum=0.5), (-4.0, [-2.75, -6.25])),
        # The same with β = 1 and no momentum.
        (ElasticAveraging(1, beta=1.0), (-3.0, [-2.75, -6.25])),
        # In update 3 for the first time, with replicas at -2, -6.
        (ElasticAveraging(2, beta=0.5), (-2.0, [-2.5, -7.5])),
        # Update 1: Δ = 2, v = 2, z = -0.5 (2 + 0.5 · 2) = -1.5. Update 2: mean -3.5, Δ = 2, v = 3,
        # z = -1.5 - 0.5 (2 + 1.5) = -3.25. Update 3: Δ = 2, v = 3.5, z = -3.25 - 0.5 (2 + 1.75).
        (OuterOptimizer(1, lr=0.5, momentum=0.5), (-5.125, [-5.125, -5.125])),
        (PeriodicAveraging(2), (-6.0, [-5.0, -7.0])),
    ],
    ids=["model", "elastic", "elastic, every 2", "outer", "periodic"],
)
def test_the_rules_by_hand(strategy, expected):
    """One parameter, two ranks, gradients of 1 and 3, whatever the parameter is."""
    X = torch.tensor([[1.0], [3.0]] * 3, dtype=torch.float64)
    model = model_of(One, criterion=MeanOutput(), lr=1.0)
    model.module.w.data.zero_()
    fit = ranks_of(
        strategy, VirtualGroup(2), model=model, rows=1, data=(X, X), order=in_given_order
    )
    train(fit, epochs=1)
    replicas = [float(tensors[0]) for tensors in fit.state.replicas.tensors]
    assert (model.module.w.item(), replicas) == expected


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("examples", [48, 47])
def test_averaging_in_every_update_is_all_reduce(reduction, examples):
    """Also for a short last batch, of which not all ranks have as many rows."""
    lr = 0.1 if reduction == "mean" else 0.01
    criterion = nn.CrossEntropyLoss(reduction=reduction)
    data = data_of(examples)

    def make(lr):
        return model_of(criterion=criterion, lr=lr, momentum=0.9)

    # The mean over ranks of the gradients of sums is a fourth of the gradient of the sum.
    factor = RANKS if reduction == "sum" else 1
    averaged = train(ranks_of(PeriodicAveraging(1), model=make(lr * factor), data=data))
    reduced = train(fit_of(make(lr), rows=3 * RANKS, data=data))
    torch.testing.assert_close(flat(averaged.model.module), flat(reduced.model.module))
    assert column(averaged, "loss") == pytest.approx(column(reduced, "loss"))


@EVERY
def test_replicas_are_equal_after_an_averaging_and_differ_before(name):
    strategy = STRATEGIES[name]
    fit = ranks_of(strategy)
    pulled = isinstance(fit.comm.rule, Pull)
    seen = {True: 0, False: 0}

    class Look:
        before_update = gradients_ready = staticmethod(lambda *args: None)

        def after_update(self, batch, result):
            n = len(fit.model.parameters)
            first, *others = [torch.cat([t.flatten() for t in r[:n]]) for r in replicas.tensors]
            same = all(torch.equal(first, other) for other in others)
            averaged = fit.state.averaging.since == 0
            assert same == averaged
            seen[averaged] += 1

    train_epoch(fit)
    fit.state.end_epoch()
    replicas = fit.state.replicas
    if not pulled:
        fit.hooks = Look()
    train_epoch(fit)
    assert fit.state.replicas is replicas
    counts = column(fit, "averagings")
    assert counts[-1] == fit.state.averaging.count > 1
    assert pulled or (seen[True] > 0 and seen[False] > 0)


@EVERY
def test_the_module_holds_the_mean_of_the_replicas(name):
    fit = train(ranks_of(STRATEGIES[name]), epochs=2)
    replicas, module = fit.state.replicas, fit.model.module
    floats = [p for p in (*module.parameters(), *module.buffers()) if p.is_floating_point()]
    positions = [torch.cat(replicas.flatten()[k]) for k in range(RANKS)]
    mean = torch.stack(positions).mean(0)
    if isinstance(fit.comm.rule, Pull):
        n = len(replicas.center[0])
        mean[:n] = replicas.center[0]
    shown = torch.cat([tensor.detach().flatten() for tensor in floats])
    torch.testing.assert_close(shown, mean)


def test_the_spread_is_the_mean_squared_distance_from_the_mean():
    fit = ranks_of(PeriodicAveraging(2), watch=1, model=model_of(), epochs=1)
    spreads = []

    class Look:
        before_update = gradients_ready = staticmethod(lambda *args: None)

        def after_update(self, batch, result):
            spreads.append((fit.state.averaging.since, fit.comm.spread))
            if fit.state.averaging.since:
                flats = torch.stack([torch.cat(one) for one in fit.state.replicas.flatten()])
                expected = float(((flats - flats.mean(0)) ** 2).sum(1).mean())
                assert fit.comm.spread == pytest.approx(expected)

    fit.hooks = Look()
    train(fit, epochs=1)
    assert [since for since, _ in spreads] == [1, 0, 1, 0]
    # The column has a spread only where replicas were averaged.
    recorded = column(fit, "spread")
    assert [math.isnan(one) for one in recorded] == [True, False] * 2
    assert recorded[1] == spreads[1][1] > 0


@EVERY
@pytest.mark.parametrize("updates", [2, 5])
def test_a_resumed_run_equals_one_that_never_stopped(name, updates):
    strategy = STRATEGIES[name]
    whole = train(ranks_of(strategy))

    class Stop:
        before_update = gradients_ready = staticmethod(lambda *args: None)

        def after_update(self, batch, result):
            if stopped.state.position.update == updates:
                raise KeyboardInterrupt

    stopped = ranks_of(strategy)
    stopped.hooks = Stop()
    with pytest.raises(KeyboardInterrupt):
        train(stopped)
    stopped.comm.flush(stopped.state)
    stopped.comm.show(stopped.state)
    old, later = stopped.state, ranks_of(strategy)
    new = later.state
    later.model.module.load_state_dict(stopped.model.module.state_dict())
    new.replicas = ReplicaSet.saved(old.replicas.state_dict())
    new.position, new.averaging, new.memories = old.position, old.averaging, old.memories
    new.batch_size, new.lr_scale, new.settings = old.batch_size, old.lr_scale, old.settings
    while new.position.epoch < new.position.until:
        train(later, epochs=1)
    assert torch.equal(flat(later.model.module), flat(whole.model.module))
    assert new.averaging == whole.state.averaging
    assert new.memories == whole.state.memories
    for mine, theirs in zip(new.replicas.tensors, whole.state.replicas.tensors, strict=True):
        assert all(map(torch.equal, mine, theirs))


def test_saved_replicas_of_another_number_of_ranks_are_dropped():
    fit = train(ranks_of(PeriodicAveraging(50)), epochs=1)
    assert fit.state.averaging.since > 0
    shown = flat(fit.model.module)
    fit.state.replicas = ReplicaSet.saved(fit.state.replicas.state_dict())
    fewer = LocalSGD(
        PeriodicAveraging(50), VirtualGroup(2), min_rows=2, drop_last=False, sums=False
    )
    fewer.begin_epoch(fit.state)
    assert len(fit.state.replicas) == 2
    assert fit.state.averaging.since == 0
    assert torch.equal(fit.state.replicas.flatten()[1][0][: len(shown)], shown)


def test_replicas_start_from_parameters_that_a_callback_has_changed():
    fit = train(ranks_of(PeriodicAveraging(50)), epochs=1)
    with torch.no_grad():
        for parameter in fit.model.module.parameters():
            parameter.zero_()
    fit.comm.begin_epoch(fit.state)
    n = len(fit.model.parameters)
    assert all(float(t.abs().max()) == 0.0 for r in fit.state.replicas.tensors for t in r[:n])
    assert fit.state.averaging.since == 0


def test_dropout_differs_between_ranks_and_is_the_same_when_repeated():
    def losses(rows_of_ranks):
        model = model_of(dropout=0.5)
        X, y = data_of(1)
        data = X.repeat(8, 1), y.repeat(8)  # all rows are equal, so only dropout differs
        fit = ranks_of(PeriodicAveraging(5), model=model, data=data, rows=rows_of_ranks, epochs=1)
        fit.comm.begin_epoch(fit.state)
        plan, batch = plan_of(8), Batch(data, 8, None, 8)
        fit.comm.begin_update(fit.state, plan, batch)
        found = []
        for local in fit.comm.local_batches(fit.state, batch):
            with local.parameters():
                found.append(fit.step(fit, plan, local.batch).loss)
        return found

    first = losses(2)
    assert len(set(first)) == RANKS
    torch.rand(3)
    assert losses(2) == first


def test_a_rank_without_rows_takes_no_step():
    fit = ranks_of(PeriodicAveraging(5), model=model_of(), epochs=1)
    fit.comm.begin_epoch(fit.state)
    before = flat(fit.model.module)
    data = data_of(2)
    result = update(fit, plan_of(2), Batch(data, 2, None, 2))
    moved = [not torch.equal(one[0], before) for one in fit.state.replicas.flatten()]
    assert moved == [True, True, False, False]
    model = model_of()
    expected = model.loss(model.module(data[0]), data[1], None).item()
    assert result.loss == pytest.approx(expected)
    assert result.outputs["y_pred"].shape == (2, 3)


def momentum_after(how):
    strategy = PeriodicAveraging(4, optimizer_state=how)
    fit = train(ranks_of(strategy, model=model_of(momentum=0.9), epochs=1), epochs=1)
    return [
        [one.get("momentum_buffer") for one in s[0]] for s in fit.state.replicas.optimizer_state
    ]


def test_momentum_at_an_averaging():
    kept, averaged, reset = (momentum_after(how) for how in ("keep", "average", "reset"))
    assert not torch.equal(kept[0][0], kept[1][0])
    assert torch.equal(averaged[0][0], averaged[1][0])
    torch.testing.assert_close(averaged[0][0], sum(rank[0] for rank in kept) / RANKS)
    assert reset == [[None] * 4] * RANKS


@pytest.mark.parametrize(
    ("position", "rows", "min_rows", "expected"),
    [
        (Position(until=2, n_examples=100), 25, 1, 8),
        (Position(until=2, n_examples=101), 25, 1, 10),
        (Position(until=2, n_examples=101), 25, 2, 8),  # one row joins the batch before
        (Position(until=3, epoch=1, update=4, cursor=50, n_examples=100), 25, 1, 10),
        (Position(until=3), 25, 1, math.nan),
    ],
)
def test_the_number_of_updates_is_known_in_advance(position, rows, min_rows, expected):
    found = total_updates(position, rows, min_rows, drop_last=False)
    assert found == pytest.approx(expected, nan_ok=True)


def test_a_group_of_one_is_not_pulled():
    fit = train(ranks_of(ElasticAveraging(1), VirtualGroup(1), model=model_of(MLP), rows=12))
    one = train(fit_of(model_of(MLP)))
    torch.testing.assert_close(flat(fit.model.module), flat(one.model.module))
