"""Ranks with parameters of their own: each takes its step, and now and then they meet.

When they meet and what happens then is decided by a strategy of :mod:`accelerando.sync`, from
numbers; here it is done to tensors. What has to survive is in ``run.sync`` (numbers) and in the
:class:`~accelerando.train.fleet.Fleet` (tensors).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from accelerando.sync import Average, Averaging, Pull, Signals, Strategy, ring_bytes
from accelerando.train.company import Company, Share, VirtualRank, shares, taking
from accelerando.train.feed import Batch
from accelerando.train.fleet import Fleet
from accelerando.train.gradient import Step
from accelerando.train.meeting import Call, merge, rule_of, show
from accelerando.train.records import Table
from accelerando.train.run import Run
from accelerando.train.tree import concatenate, map_leaves, only_tensors

if TYPE_CHECKING:
    from accelerando.train.loop import Training

COLUMNS = ("period", "spread", "synchronisations")
SCALAR = 8  # bytes of S_k


def start(strategy: Strategy) -> dict[str, Any]:
    """Return ``run.sync`` before the first update."""
    if not isinstance(strategy, Averaging):
        return {}
    return {"since": 0, "count": 0, "state": dict(strategy.start())}


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


class Taken(NamedTuple):
    """What the steps of this process's ranks yield; its part of the sums over all ranks."""

    loss: float
    square: float
    steps: list[Step]
    places: list[torch.Tensor]


class Together:
    """Train the ranks of one process, and bring all ranks together.

    Parameters
    ----------
    net : estimator
        Whose ``run_`` is the run; the ranks live in its ``fleet_`` between two calls of ``fit``.
    strategy : Averaging
        Decides.
    here : int
        How many ranks this process is.
    world : Company
        The processes.
    watch_every : int
        In every how many updates the spread is measured even if ranks do not meet; 0 for never.
    talks : bool
        Whether processes tell each other in every update what it yielded. If not, they do when
        ranks meet, and know their own numbers only until then.
    """

    def __init__(
        self,
        net: Any,
        strategy: Averaging,
        here: int,
        world: Company | None = None,
        *,
        watch_every: int = 0,
        talks: bool = True,
    ) -> None:
        self.net = net
        self.strategy = strategy
        self.here = here
        self.world: Company = world or VirtualRank()
        self.size = here * self.world.part.size
        self.rule = rule_of(strategy, self.size)
        self.watch_every = watch_every
        self.talks = talks
        self.spread: float | None = None  # measured in the newest update
        self.met = False
        self.period = 1
        self.wanted: int | None = None  # the period that policies have decided
        self._untold: list[float] = []  # losses and squares that the others have not heard of
        self._call: Call | None = None  # to a meeting, while a step is taken

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
        net, self._untold = self.net, []
        fleet, saved, net.saved_ranks_ = net.fleet_, net.saved_ranks_, None
        if saved is not None and len(saved["ranks"]) == self.size:
            fleet = net.fleet_ = Fleet(net, self.here, self.world)
            fleet.take_up(saved, self.world.part.rank * self.here)
        elif fleet is None or not fleet.fits(net, self.here):
            net.fleet_ = Fleet(net, self.here, self.world)
            net.run_.sync["since"] = 0
        fleet = self.fleet
        fleet.world = self.world
        if not isinstance(self.rule, Average) and not fleet.centre:
            fleet.centre = fleet.joint.joined(fleet.shown[: fleet.n_parameters])
            fleet.pace = (
                [tensor.clone() for tensor in fleet.centre]
                if isinstance(self.rule, Pull)
                else [torch.zeros_like(tensor) for tensor in fleet.centre]
            )

    def show(self) -> None:
        """Let the module be what the estimator would return now; the ranks stay as they are."""
        show(self.net)

    def tell(self, updates: Table) -> None:
        """Tell what was not told, when an epoch ends, training pauses or a state is saved."""
        if self._untold:
            untold, self._untold = self._untold, []
            amend(updates, self.world.ask(untold)())

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
        """Let every rank take a step with its own rows, and let them meet if it is time.

        Those that a central model pulls tell each other meanwhile where they are before the step.
        """
        run, others, ahead = training.run, self.world.part.size, isinstance(self.rule, Pull)
        signals = self.signals(training, run.batch_size)
        own = self.strategy.next_period(signals, run.sync["state"])
        self.period = own if self.wanted is None else self.wanted
        self.spread, self.met = None, False
        if ahead and run.sync["since"] >= self.period:
            self._call, self._untold = self._calling(self._untold), []
        taken = self._steps(training, batch, step)
        run.sync["since"] += 1
        # Until others are heard, they are taken to be like this one.
        loss, square, sent = taken.loss * others, taken.square * others, 0
        updates = training.records.updates
        try:
            due = not ahead and run.sync["since"] >= self.period
            anew = self.strategy.begins_anew(signals, run.sync["state"])
            if self._call is not None:  # nobody has told of the step just taken
                heard, sent = self._answer(run, self._call, since=1, anew=anew)
                amend(updates, heard)
            untold, self._untold = [*self._untold, taken.loss, taken.square], []
            if due:
                heard, sent = self._answer(run, self._calling(untold))
            elif self.talks:
                heard = self.world.ask(untold)()
            else:
                heard, self._untold = [], untold
            if heard:
                amend(updates, heard[:-2])
                loss, square = heard[-2:]
            if self.world.switching and not due:
                sent += self.meet(run, anew=anew)
            self._look(run)
            signals = signals._replace(
                loss=loss if self.strategy.needs_loss else None,
                spread=self.spread if self.met else None,
            )
            run.sync["state"] = dict(self.strategy.observe(signals, run.sync["state"]))
        except RuntimeError as error:
            # The step counts all the same: what this rank has done since they met is not lost.
            if not self.world.lost(error):
                self.give_up()
                raise
        self.fleet.mark()
        spent = self.world.spent()
        self.world.traffic = spent._replace(bytes=spent.bytes + ring_bytes(sent, self.size))
        told = {"loss": torch.tensor(loss), "y_pred": _in_order(taken.steps, taken.places)}
        first = taken.steps[0] if taken.steps else Step(0.0, 0.0, training.lr(), {})
        return first._replace(loss=loss, grad_norm=math.sqrt(square), for_callbacks=told)

    def _steps(
        self, training: Training, batch: Batch, step: Callable[[Training, Batch], Step]
    ) -> Taken:
        run, world = training.run, self.world
        world.seeded = run.seeded
        taken = Taken(0.0, 0.0, [], [])
        try:
            for number, share in enumerate(self._shares(batch, run.cursor)):
                if share.batch.held == 0:  # fewer rows left than ranks, after a resume with more
                    continue
                weight = share.batch.held * self.size / batch.size
                world.rank = world.part.rank * self.here + number
                world.scale = 1.0 if training.sums else weight
                with self.fleet.as_rank(number):
                    one = step(training, share.batch)
                loss = one.loss * (1.0 if training.sums else weight / self.size)
                square = one.grad_norm**2 / self.size
                taken = Taken(
                    taken.loss + loss,
                    taken.square + square,
                    [*taken.steps, one],
                    [*taken.places, share.places],
                )
        except BaseException:
            self._call = None  # its messages would keep the group alive
            self.give_up()
            raise
        return taken

    def _shares(self, batch: Batch, cursor: int) -> Iterable[Share]:
        """Divide what this process holds of a batch among its ranks."""
        if self.here > 1:
            return shares(batch, self.here, cursor)
        return [Share(batch._replace(size=batch.held), torch.arange(batch.held))]

    # -- meeting ----------------------------------------------------------------------------------

    def meet(self, run: Run, *, anew: bool = False) -> int:
        """Bring ranks together, whether it is time or not; return the bytes sent."""
        return self._answer(run, self._calling([]), anew=anew)[1]

    def _calling(self, numbers: Sequence[float]) -> Call:
        pulled = isinstance(self.rule, Pull)
        return Call(self.fleet, self.world.ask, numbers, pulled=pulled)

    def _answer(
        self, run: Run, call: Call, *, since: int = 0, anew: bool = False
    ) -> tuple[list[float], int]:
        """Do what the rule says; return the sums of what was told, and the bytes sent.

        Nothing is changed before all has been heard: if a rank is lost meanwhile, nobody has met.
        `since` is the number of steps since the call.
        """
        fleet, self._call = self.fleet, None
        heard, met = call.answer()
        moments = fleet.mean_moments() if self.rule == Average("average") else []
        with torch.no_grad():
            merge(fleet, self.rule, met, anew=anew)
            for of_ranks, mean in moments:
                torch._foreach_copy_(of_ranks, [mean] * len(of_ranks))
        run.sync["since"] = since
        run.sync["count"] += 1
        self.spread, self.met = met.spread, True
        # Processes whose ranks are pulled tell their part of S_k with all else they tell.
        rides = call.pulled and self.world.part.size > 1
        sent = fleet.bytes() + sum(mean.nbytes for _, mean in moments)
        return heard, sent + (0 if rides else SCALAR)

    def _look(self, run: Run) -> None:
        """Measure how far ranks are apart, if it is watched, and was not measured by meeting."""
        if self.spread is None and self.watch_every and (run.update + 1) % self.watch_every == 0:
            add_up = self.world.add_up
            call = Call(self.fleet, lambda numbers, tensors: partial(add_up, tensors, numbers))
            self.spread = call.answer()[1].spread

    def row(self) -> tuple[float, ...]:
        """Return the values of :data:`COLUMNS` for the update just done."""
        spread = math.nan if self.spread is None or not self.met else self.spread
        return (float(self.period), spread, float(self.net.run_.sync["count"]))


def amend(updates: Table, sums: Sequence[float]) -> None:
    """Put losses and squared norms over all ranks into the newest rows of the table of updates."""
    count = len(sums) // 2
    for back in range(min(count, len(updates))):
        loss, square = sums[2 * (count - 1 - back) : 2 * (count - back)]
        updates.amend(back, loss=loss, grad_norm=math.sqrt(square))


def _in_order(steps: list[Step], places: list[torch.Tensor]) -> Any:
    """Return the predictions of all ranks in the order of the batch's rows."""
    predicted = [step.for_callbacks["y_pred"] for step in steps]
    if not predicted or not only_tensors(predicted):
        return predicted
    back = torch.argsort(torch.cat(places))
    return map_leaves(taking(back), concatenate(predicted))
