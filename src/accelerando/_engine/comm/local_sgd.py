"""Local SGD: every rank steps with its own replica, and ranks average parameters now and then.

A strategy of :mod:`accelerando.sync` decides from numbers when ranks average and by what rule.
:class:`LocalSGD` carries it out, for virtual ranks in one process (:class:`VirtualGroup`) and for
ranks of a cluster (:class:`~accelerando._engine.comm.process_group.ProcessGroup`) with the same
code: the former have several replicas in one process, the latter one replica in each of several.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import torch

from accelerando._decisions import Signals, fingerprint
from accelerando._engine._torch import foreach_copy_
from accelerando._engine.comm import average
from accelerando._engine.comm.average import (
    AverageRequest,
    TensorExchange,
    apply_rule,
    mean_moments,
    rule_for,
)
from accelerando._engine.comm.communicator import (
    LocalBatch,
    SingleProcess,
    Traffic,
    UpdateResult,
    all_reduce_bytes,
)
from accelerando._engine.comm.members import (
    Members,
    PlainExchange,
    SilentExchange,
    VirtualGroup,
    divide,
    in_order,
)
from accelerando._engine.comm.replicas import ReplicaSet
from accelerando._engine.data.feed import Batch, Shard, count_batches
from accelerando.compress._codec import Compressor
from accelerando.sync import Average, Averaging, Pull

if TYPE_CHECKING:
    from accelerando._decisions import Plan
    from accelerando._engine.position import Position
    from accelerando._engine.state import Table, TrainState

__all__ = ["LocalSGD", "VirtualGroup", "amend", "total_updates"]

SPREAD_BYTES = 8  # of S_k


class LocalSGD(SingleProcess):
    """Train the replicas of one process, and average them with those of the others.

    Parameters
    ----------
    strategy : Averaging
        Decides when and by what rule.
    members : Members
        The processes.
    min_rows : int
        Fewest rows of a rank's batch.
    drop_last : bool
        Whether the feed leaves out a short last batch.
    sums : bool
        Whether the loss is a sum over rows.
    watch_every : int
        Number of updates between two measurements of the spread, also if ranks do not average;
        0 for never.
    exchanges_every_update : bool
        Whether processes exchange loss and gradient norm in every update. If not, they do so when
        they average, and until then the table of updates has the numbers of this process.
    compressor : Codec, ErrorFeedback or Adaptive, optional
        How differences of parameters are encoded; positions travel as they are by default.
    """

    def __init__(
        self,
        strategy: Averaging,
        members: Members,
        *,
        min_rows: int,
        drop_last: bool,
        sums: bool,
        watch_every: int = 0,
        exchanges_every_update: bool = True,
        compressor: Compressor | None = None,
    ) -> None:
        super().__init__()
        self.strategy = strategy
        self.members = members
        self.shard: Shard = members.shard
        self.ranks = self.batches_per_update = average.n_ranks(members)
        self.rule = rule_for(strategy, self.ranks)
        self.compressed = compressor is not None
        self.exchange: TensorExchange = PlainExchange(members)
        if compressor is not None:
            from accelerando._engine.comm.compressed_average import CompressedExchange

            self.exchange = CompressedExchange(compressor, members)
        self.exchanges_every_update = exchanges_every_update
        self.averaged = False  # in the newest update
        self.current_period = 1
        self._drop_last = drop_last
        self.follow(sums=sums, min_rows=min_rows)
        self._needs_loss = "loss" in strategy.needs
        self._watch_every = watch_every
        self._signals = Signals.known()
        self._unsent: list[float] = []  # losses and squared norms that others do not know yet
        self._request: AverageRequest | None = None  # on its way while a step is taken
        self._scale = 1.0  # of the loss of the active replica
        self._weights: list[float] = []  # of the replicas that took a step, by their rows
        self._places: list[torch.Tensor] = []  # of their rows in the batch
        self._agreed = [0.0, 0.0]  # loss and squared gradient norm of the newest update
        self._sent = 0  # bytes of the averagings in the newest update

    def follow(self, *, sums: bool, min_rows: int) -> None:
        self._sums, self._min_rows = sums, min_rows * self.ranks

    # -- replicas ---------------------------------------------------------------------------------

    def begin_epoch(self, state: TrainState) -> None:
        """Create the replicas, or restore them from a saved state.

        If somebody has changed the parameters (a callback that loads the best ones), all replicas
        start from the new ones.
        """
        self._unsent = []
        here, replicas = self.members.here, state.replicas
        if replicas is not None and not replicas.bound and len(replicas) == self.ranks:
            state.replicas = ReplicaSet(state.components, here)
            state.replicas.restore(replicas, self.shard.rank * here)
        elif replicas is None or not replicas.fits(state.components, here):
            intact = None if replicas is None or replicas.changed(state.components) else replicas
            state.replicas, state.averaging.since = ReplicaSet(state.components, here), 0
            if intact is not None:  # of another number of ranks
                state.replicas.inherit(intact, self.shard.rank * here, self.ranks)
        assert state.replicas is not None
        if not isinstance(self.rule, Average) and not state.replicas.center:
            state.replicas.start_center(moves=isinstance(self.rule, Pull))
        elif self.compressed and not state.replicas.agreed:
            average.agree(state, self.members)

    def show(self, state: TrainState) -> None:
        average.show(state, self.strategy, self.members)

    def rejoin(self, state: TrainState, *, has_replica: bool) -> None:
        """Let the ranks of a new group continue. See :func:`average.rejoin`. Collective."""
        average.rejoin(state, self.strategy, self.members, has_replica=has_replica)

    def abandon_update(self, state: TrainState) -> None:
        """Drop the exchange on its way, whose messages keep the group alive, and the replicas."""
        self._request = None
        state.drop_replicas()
        state.averaging.since = 0

    def flush(self, state: TrainState) -> None:
        """Exchange numbers that were not sent yet: an epoch ends, or a state is taken."""
        if self._unsent:
            unsent, self._unsent = self._unsent, []
            amend(state.records.updates, self.members.start_exchange(unsent)())

    def end_epoch(self, state: TrainState) -> None:
        self.flush(state)
        self.show(state)
        if state.replicas is not None and state.replicas.bound:
            state.replicas.mark_content()

    # -- one update -------------------------------------------------------------------------------

    def period(self, state: TrainState, rows: int) -> float:
        signals = self._known(state, rows, state.lr())
        return float(self.strategy.next_period(signals, state.memories.strategy))

    def _known(self, state: TrainState, rows: int, lr: float) -> Signals:
        """Return what the strategy may know before an update of `rows` rows."""
        position = state.position
        total = total_updates(position, rows, self._min_rows, drop_last=self._drop_last)
        return Signals.known(
            update=position.update,
            epoch=position.epoch,
            examples=position.examples,
            n_examples=math.nan if position.n_examples is None else position.n_examples,
            total_updates=total,
            lr=lr,
        )

    def begin_update(self, state: TrainState, plan: Plan, batch: Batch) -> None:
        """Choose the period; if a center pulls and it is time, start the exchange.

        The exchange overlaps with the step: it sends where replicas are before the step.
        """
        self.members.fingerprint = fingerprint(plan)
        self._signals = self._known(state, plan.rows, state.lr(plan.lr_scale))
        wanted = self.strategy.next_period(self._signals, state.memories.strategy)
        decided = plan.settings.period
        self.current_period = wanted if decided is None else decided
        self.spread, self.averaged = None, False
        self._weights, self._places = [], []
        if isinstance(self.rule, Pull) and state.averaging.since >= self.current_period:
            unsent, self._unsent = self._unsent, []
            self._request = self._start(state, unsent)

    def local_batches(self, state: TrainState, batch: Batch) -> Iterator[LocalBatch]:
        """Yield the rows of each replica that has any."""
        here = self.members.here
        cursor = state.position.cursor
        for number, (part, places) in enumerate(divide(batch, here, cursor)):
            if part.held == 0:  # fewer rows than ranks, after a resume with more ranks
                continue
            # A rank with one row more than the others takes a step that is longer by as much, so
            # that averaging in every update equals all-reduce.
            weight = part.held * self.ranks / batch.size
            self._weights.append(weight)
            self._places.append(places)
            yield LocalBatch(part, partial(self._active, state, number, weight))

    @contextmanager
    def _active(self, state: TrainState, number: int, weight: float) -> Iterator[None]:
        assert state.replicas is not None
        replica = self.shard.rank * self.members.here + number
        with state.replicas.active(number):
            self._scale = 1.0 if self._sums else weight
            self.members.seed_dropout(
                state.seed, state.position.update, replica, seeded=state.seeded
            )
            yield

    def backward(self, loss: torch.Tensor, mass: float, *, last: bool) -> None:
        scaled = loss if self._scale == 1.0 else loss * self._scale
        scaled.backward()  # type: ignore[no-untyped-call]

    def after_step(
        self, state: TrainState, plan: Plan, results: Sequence[UpdateResult]
    ) -> UpdateResult:
        """Average the replicas if it is time, and agree on loss and gradient norm.

        If contact is lost meanwhile, the step counts nevertheless, and so does the work of this
        rank since the last averaging.
        """
        state.averaging.since += 1
        own = self._totals(results)
        # Until the numbers of the other processes are known, they count as equal to these.
        self._agreed = [number * self.shard.size for number in own]
        self._sent = 0
        try:
            self._exchange(state, own)
        except RuntimeError as error:
            if not self.members.is_lost(error):
                self.abandon_update(state)
                raise
        assert state.replicas is not None
        state.replicas.mark()
        loss, square = self._agreed
        spent = self.members.take_traffic()
        rest = Traffic(all_reduce_bytes(self._sent, self.ranks))
        self.traffic = spent.plus(self.exchange.take_traffic()).plus(rest)
        outputs = {
            "loss": torch.tensor(loss, dtype=torch.float64),
            "y_pred": in_order(results, self._places),
        }
        first = results[0] if results else UpdateResult(0.0, 0.0, state.lr(plan.lr_scale), {})
        return first._replace(loss=loss, grad_norm=math.sqrt(square), outputs=outputs)

    def _totals(self, results: Sequence[UpdateResult]) -> list[float]:
        """Return this process's summands of the loss and of the squared gradient norm."""
        loss = square = 0.0
        for weight, one in zip(self._weights, results, strict=True):
            loss += one.loss * (1.0 if self._sums else weight / self.ranks)
            square += one.grad_norm**2 / self.ranks
        return [loss, square]

    def _exchange(self, state: TrainState, own: list[float]) -> None:
        updates, averaging = state.records.updates, state.averaging
        memory = state.memories.strategy
        due = not isinstance(self.rule, Pull) and averaging.since >= self.current_period
        restart = self.strategy.begins_anew(self._signals, memory)
        if self._request is not None:  # it does not contain the step just taken
            amend(updates, self._finish(state, self._request, since=1, restart=restart))
        unsent, self._unsent = [*self._unsent, *own], []
        if due:
            sums = self._finish(state, self._start(state, unsent))
        elif self.exchanges_every_update:
            sums = self.members.start_exchange(unsent)()
        else:
            sums, self._unsent = [], unsent
        if sums:
            amend(updates, sums[:-2])
            self._agreed = sums[-2:]
        if self.members.switching and not due:
            self._finish(state, self._start(state, []), restart=restart)
        self._watch(state)
        unknown = math.nan
        observed = self._signals.but(
            loss=self._agreed[0] if self._needs_loss else unknown,
            spread=self.spread if self.averaged and self.spread is not None else unknown,
        )
        state.memories.strategy = dict(self.strategy.observe(observed, memory))

    # -- averaging --------------------------------------------------------------------------------

    def average_now(self, state: TrainState) -> None:
        """Average the replicas, whether it is time or not: some ranks are about to leave."""
        self._finish(state, self._start(state, []))
        assert state.replicas is not None
        state.replicas.mark()

    def _start(self, state: TrainState, numbers: Sequence[float]) -> AverageRequest:
        assert state.replicas is not None
        self.exchange.begin(state)
        pulled = isinstance(self.rule, Pull)
        return AverageRequest(state.replicas, self.members, self.exchange, numbers, pulled=pulled)

    def _finish(
        self, state: TrainState, request: AverageRequest, *, since: int = 0, restart: bool = False
    ) -> list[float]:
        """Apply the rule; return the sums of the numbers.

        Nothing changes before everything has arrived: if a rank is lost meanwhile, nobody has
        averaged. `since` is the number of steps since the request.
        """
        replicas, self._request = request.replicas, None
        numbers, found = request.wait()
        averages_moments = self.rule == Average("average")
        moments = mean_moments(replicas, self.members) if averages_moments else []
        with torch.no_grad():
            apply_rule(replicas, self.rule, found, self.ranks, restart=restart)
            for of_replicas, mean in moments:
                foreach_copy_(of_replicas, [mean] * len(of_replicas))
        state.averaging.since = since
        state.averaging.count += 1
        self.spread, self.averaged = found.spread, True
        self._sent += sum(mean.nbytes for _, mean in moments)
        # Under Pull, processes send S_k among their numbers, whose bytes they count themselves.
        if not (request.pulled and self.shard.size > 1):
            self._sent += SPREAD_BYTES
        return numbers

    def _watch(self, state: TrainState) -> None:
        """Measure the spread if it is time and no averaging has measured it."""
        due = self._watch_every and (state.position.update + 1) % self._watch_every == 0
        if self.spread is None and due:
            assert state.replicas is not None
            silent = SilentExchange(self.members)
            request = AverageRequest(state.replicas, self.members, silent)
            self.spread = request.wait()[1].spread

    def row(self, state: TrainState) -> tuple[float, ...]:
        spread = math.nan if self.spread is None or not self.averaged else self.spread
        return float(self.current_period), spread, float(state.averaging.count)

    # -- numbers ----------------------------------------------------------------------------------

    def sum(self, *numbers: float) -> list[float]:
        return self.members.sum(*numbers)

    def sum_gradients(self, parameters: Sequence[torch.Tensor]) -> None:
        self.members.sum_gradients(parameters)

    def mean_seconds(self, seconds: float) -> tuple[float, float]:
        return self.members.mean_seconds(seconds, self.traffic.wait_seconds)

    def close(self) -> None:
        self._request = None
        self.members.close()


def total_updates(position: Position, rows: int, min_rows: int, *, drop_last: bool) -> float:
    """Return the number of updates of the fit if batches keep their size; nan for a stream.

    Parameters
    ----------
    position : Position
        Where the run is.
    rows, min_rows : int
        Of a global batch, over all ranks.
    drop_last : bool
        Whether a short last batch is left out.
    """
    if position.n_examples is None:
        return math.nan
    left = count_batches(position.n_examples - position.cursor, rows, min_rows, drop_last)
    epochs = position.until - position.epoch - 1
    later = epochs * count_batches(position.n_examples, rows, min_rows, drop_last)
    return float(position.update + left + later)


def amend(updates: Table, sums: Sequence[float]) -> None:
    """Write losses and squared norms over all ranks into the newest rows of the updates table."""
    count = len(sums) // 2
    for back in range(min(count, len(updates))):
        loss, square = sums[2 * (count - 1 - back) : 2 * (count - back)]
        updates.amend(back, loss=loss, grad_norm=math.sqrt(square))
