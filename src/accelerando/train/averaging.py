"""Ranks with parameters of their own: each takes its step, and now and then they meet.

When they meet and what happens then is decided by a strategy of :mod:`accelerando.sync`, from
numbers; here it is done to tensors. What has to survive is in ``run.sync`` (numbers) and in the
:class:`~accelerando.train.fleet.Fleet` (tensors).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from accelerando.exceptions import UnsupportedError
from accelerando.sync import Average, Averaging, Outer, Pull, Signals, Strategy, ring_bytes
from accelerando.train.feed import Batch
from accelerando.train.fleet import Fleet
from accelerando.train.run import Run
from accelerando.train.tree import concatenate, map_leaves, only_tensors
from accelerando.train.world import Alone, Traffic

if TYPE_CHECKING:
    from accelerando.train.loop import Step, Training

COLUMNS = ("period", "spread", "synchronisations")
SCALAR = 8  # bytes of S_k


class Share(NamedTuple):
    """One rank's rows of a batch, and where in the batch they stand."""

    batch: Batch
    places: torch.Tensor


def start(strategy: Strategy) -> dict[str, Any]:
    """Return ``run.sync`` before the first update."""
    if not isinstance(strategy, Averaging):
        return {}
    return {"since": 0, "count": 0, "state": dict(strategy.start())}


def shares(batch: Batch, ranks: int, cursor: int) -> Iterator[Share]:
    """Divide a batch as ranks of a cluster would: each takes every `ranks`-th row of the epoch.

    Parameters
    ----------
    batch : Batch
        Of all ranks.
    ranks : int
        How many there are.
    cursor : int
        The number of its first row in the epoch.
    """
    if not only_tensors(batch.data):
        raise UnsupportedError(
            "virtual_ranks divides every batch into those of its ranks, and this one holds "
            "something else than tensors with rows. Let the data set yield tensors or arrays."
        )
    for rank in range(ranks):
        places = torch.arange((rank - cursor) % ranks, batch.size, ranks)
        data = map_leaves(_taking(places), batch.data)
        rows = None if batch.rows is None else batch.rows[places.numpy()]
        yield Share(Batch(data, len(places), rows, len(places)), places)


def _taking(places: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda leaf: leaf.index_select(0, places.to(leaf.device))


def updates_left(run: Run, rows: int, fewest: int, *, drop_last: bool) -> float:
    """Return how many updates the fit will have in all if batches stay as they are.

    Examples
    --------
    >>> updates_left(Run(until=3, n_examples=100), 30, 1, drop_last=False)
    12.0
    """
    if run.n_examples is None:
        return math.nan

    def updates(examples: int) -> int:
        whole, rest = divmod(examples, rows)
        joins = drop_last or rest < fewest  # a short rest goes with the batch before it
        return whole + (rest > 0 and (not joins or (whole == 0 and not drop_last)))

    later = (run.until - run.epoch - 1) * updates(run.n_examples)
    return float(run.update + updates(run.n_examples - run.cursor) + later)


class VirtualRank(Alone):
    """The world of a rank that is alone with its rows until ranks meet.

    Every row counts the same: a rank with one row more than the others, at the end of an epoch,
    takes a step that is longer by as much. With a period of 1 the average is then the gradient
    of the whole batch.
    """

    def __init__(self) -> None:
        self.rank = 0
        self.scale = 1.0
        self.traffic = Traffic()
        self.seeded = False

    def begin_update(self, seed: int, update: int, held: int) -> None:
        """Make dropout depend on the seed, the update and the rank, as ranks of a cluster do."""
        if self.seeded:
            mixed = (seed * 1_000_003 + update) * 1_009 + self.rank
            torch.manual_seed(mixed % 2**63)

    def backward(self, loss: torch.Tensor, share: float, *, last: bool) -> None:
        """Go back with the weight of this rank's rows."""
        super().backward(loss if self.scale == 1.0 else loss * self.scale, share, last=last)


def show(net: Any) -> None:
    """Let a net's module be what the estimator would return now; its ranks stay as they are."""
    fleet: Fleet | None = net.fleet_
    if fleet is None or net.run_.sync["since"] == 0:  # it is shown since they met
        return
    means = fleet.mean()
    if isinstance(net.strategy_.rule(fleet.size), Pull):
        means[: fleet.n_parameters] = fleet.centre
    fleet.show(means)


class Together:
    """Train the ranks of one process and bring them together.

    Parameters
    ----------
    net : estimator
        Whose ``run_`` is the run; the ranks live in its ``fleet_`` between two calls of ``fit``.
    strategy : Averaging
        Decides.
    size : int
        How many ranks there are.
    watch_every : int
        In every how many updates the spread is measured even if ranks do not meet; 0 for never.
    """

    def __init__(self, net: Any, strategy: Averaging, size: int, watch_every: int = 0) -> None:
        self.net = net
        self.strategy = strategy
        self.size = size
        self.world = VirtualRank()
        self.rule = strategy.rule(size)
        self.watch_every = watch_every
        self.spread: float | None = None  # measured in the newest update
        self.met = False
        self.period = 0
        self.wanted: int | None = None  # the period that policies have decided

    # -- ranks ------------------------------------------------------------------------------------

    @property
    def fleet(self) -> Fleet:
        """The ranks."""
        found: Fleet = self.net.fleet_
        return found

    def begin(self) -> None:
        """Have ranks that stand where the run stands; called when an epoch begins or goes on.

        If somebody has changed the parameters meanwhile (a callback that loads the best ones), all
        ranks start from those.
        """
        net = self.net
        fleet, saved, net.saved_ranks_ = net.fleet_, net.saved_ranks_, None
        if saved is not None and len(saved["ranks"]) == self.size:
            fleet = net.fleet_ = Fleet(net, self.size)
            fleet.take_up(saved)
        elif fleet is None or not fleet.fits(net, self.size):
            net.fleet_ = Fleet(net, self.size)
            net.run_.sync["since"] = 0
        fleet = self.fleet
        if not isinstance(self.rule, Average) and not fleet.centre:
            fleet.centre = [tensor.clone() for tensor in fleet.shown[: fleet.n_parameters]]
            fleet.pace = (
                [tensor.clone() for tensor in fleet.centre]
                if isinstance(self.rule, Pull)
                else [torch.zeros_like(tensor) for tensor in fleet.centre]
            )

    def show(self) -> None:
        """Let the module be what the estimator would return now; the ranks stay as they are."""
        show(self.net)

    def give_up(self) -> None:
        """Forget ranks of which some have taken a step and others have not."""
        self.net.fleet_ = None
        self.net.run_.sync["since"] = 0

    # -- one update -------------------------------------------------------------------------------

    def signals(self, training: Training, rows: int) -> Signals:
        """Return what the strategy may know of an update with so many rows before it is done."""
        run = training.run
        drop_last = bool(getattr(training.feed, "drop_last", False))
        fewest = training.fewest_rows * self.size
        total = updates_left(run, rows, fewest, drop_last=drop_last)
        return Signals(run.update, run.epoch, total, training.lr())

    def own_period(self, training: Training, rows: int) -> int:
        """Return what the strategy wants, whatever policies may decide."""
        signals = self.signals(training, rows)
        return self.strategy.next_period(signals, training.run.sync["state"])

    def update(
        self, training: Training, batch: Batch, step: Callable[[Training, Batch], Step]
    ) -> Step:
        """Let every rank take a step with its own rows, and let them meet if it is time."""
        run, world = training.run, self.world
        signals = self.signals(training, run.batch_size)
        own = self.strategy.next_period(signals, run.sync["state"])
        self.period = own if self.wanted is None else self.wanted
        world.seeded = run.seeded
        steps, places, loss, square = [], [], 0.0, 0.0
        try:
            for world.rank, share in enumerate(shares(batch, self.size, run.cursor)):
                if share.batch.held == 0:  # fewer rows left than ranks, after a resume with more
                    continue
                weight = share.batch.size * self.size / batch.size
                world.scale = 1.0 if training.sums else weight
                with self.fleet.as_rank(world.rank):
                    one = step(training, share.batch)
                steps.append(one)
                places.append(share.places)
                loss += one.loss * (1.0 if training.sums else weight / self.size)
                square += one.grad_norm**2 / self.size
        except BaseException:
            self.give_up()
            raise
        self._meet(run, due=run.sync["since"] + 1 >= self.period)
        signals = signals._replace(loss=loss, spread=self.spread if self.met else None)
        run.sync["state"] = dict(self.strategy.observe(signals, run.sync["state"]))
        self.fleet.mark()
        told = {"loss": torch.tensor(loss), "y_pred": _in_order(steps, places)}
        return steps[0]._replace(loss=loss, grad_norm=math.sqrt(square), for_callbacks=told)

    def _meet(self, run: Run, *, due: bool) -> None:
        fleet, self.spread, self.met = self.fleet, None, due
        run.sync["since"] += 1
        looks = self.watch_every and (run.update + 1) % self.watch_every == 0
        self.world.traffic = Traffic()
        if not due and not looks:
            return
        means = fleet.mean()
        self.spread = fleet.spread(means)
        if not due:
            return
        sent = fleet.bytes() + SCALAR
        with torch.no_grad():
            sent += merge(fleet, self.rule, means)
        run.sync["since"] = 0
        run.sync["count"] += 1
        self.world.traffic = Traffic(ring_bytes(sent, self.size))

    def row(self) -> tuple[float, ...]:
        """Return the values of :data:`COLUMNS` for the update just done."""
        spread = math.nan if self.spread is None or not self.met else self.spread
        return (float(self.period), spread, float(self.net.run_.sync["count"]))


def merge(fleet: Fleet, rule: Average | Pull | Outer, means: list[torch.Tensor]) -> int:
    """Do to the ranks what a rule says, and show the result; return further bytes to be sent.

    `means` are those of the ranks. Statistics of BatchNorm are averaged under every rule.
    """
    n, sent = fleet.n_parameters, 0
    centre, pace = fleet.centre, fleet.pace
    if isinstance(rule, Pull):
        for rank in fleet.ranks:
            for tensor, middle in zip(rank[:n], centre, strict=True):
                tensor.lerp_(middle, rule.alpha)
        for middle, before, mean in zip(centre, pace, means[:n], strict=True):
            step = (mean - middle) * (rule.alpha * fleet.size) + (middle - before) * rule.momentum
            before.copy_(middle)
            middle += step
        means[:n] = centre
    elif isinstance(rule, Outer):
        for middle, speed, mean in zip(centre, pace, means[:n], strict=True):
            change = middle - mean
            speed.mul_(rule.momentum).add_(change)
            middle -= rule.lr * (change + rule.momentum * speed)
        means[:n] = centre
    elif rule.optimizer_state == "reset":
        fleet.reset_memories()
    elif rule.optimizer_state == "average":
        sent = fleet.average_memories()
    for rank in fleet.ranks:
        for number in fleet.floats:
            if not (isinstance(rule, Pull) and number < n):
                rank[number].copy_(means[number])
    fleet.show(means)
    return sent


def _in_order(steps: list[Step], places: list[torch.Tensor]) -> Any:
    """Return the predictions of all ranks in the order of the batch's rows."""
    predicted = [step.for_callbacks["y_pred"] for step in steps]
    if not only_tensors(predicted):
        return predicted
    back = torch.argsort(torch.cat(places))
    return map_leaves(_taking(back), concatenate(predicted))


class AllReduceHere(Alone):
    """Virtual ranks that average gradients: one process computes what they would agree on."""

    def __init__(self, net: Any, ranks: int) -> None:
        size = sum(p.nbytes for _, p in net.get_all_learnable_params() if p.requires_grad)
        self.traffic = Traffic(ring_bytes(size, ranks))
