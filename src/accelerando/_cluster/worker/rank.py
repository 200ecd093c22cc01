"""A rank: it executes the driver's commands, one after the other."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed import PrefixStore  # type: ignore[attr-defined]

from accelerando._cluster import messages
from accelerando._cluster.driver.placement import Placed, withdraw
from accelerando._cluster.job import RankSpec
from accelerando._cluster.mailbox import Inbox, Mailbox, MailboxGone
from accelerando._cluster.threads import threads_each
from accelerando._cluster.worker.hooks import (
    FORMING_SECONDS,
    Paused,
    RankCopy,
    RankHooks,
    Timing,
    form_or_knock,
)
from accelerando._cluster.worker.knock import knock
from accelerando._engine._torch import from_tensor, pack, unpack
from accelerando._engine.comm.ddp import DDPAllReduce
from accelerando._engine.comm.local_sgd import LocalSGD
from accelerando._engine.comm.process_group import LostContact, ProcessGroup, form
from accelerando._engine.data.chunks import ChunkFeed
from accelerando._engine.data.feed import ArrayFeed, only_tensors
from accelerando._engine.loop import Fit, FitSpec, train_epoch
from accelerando._engine.micro_batch import every_row_counts, facts_of
from accelerando._engine.position import Part
from accelerando._engine.state import TrainState
from accelerando._processors import processors
from accelerando.sync import Averaging

_LOOK_SECONDS = 0.005  # between two looks for a deposit
BROADCAST_PARTS = Part.MODEL | Part.POSITION | Part.REPLICAS | Part.RECORDS


class Abandoned(Exception):  # noqa: N818  not an error: the driver has given this group up
    """The process group will not be formed."""


class Rank:
    """One rank's objects between commands.

    Parameters
    ----------
    spec : RankSpec
        What does not change during the fit.
    data : Placed
        The training data on this worker.
    mailbox : Mailbox
        The channel to the driver.
    rank : str
        The name of this rank.
    host : str
        The address on which the Dask worker listens.
    log_event : callable
        Publishes progress.
    """

    def __init__(
        self,
        spec: RankSpec,
        data: Placed,
        mailbox: Mailbox,
        rank: messages.RankId,
        host: str,
        log_event: Callable[[dict[str, Any]], None] = lambda facts: None,
    ) -> None:
        self.spec, self.data, self.mailbox = spec, data, mailbox
        self.rank, self.host, self.log_event = rank, host, log_event
        self.state = TrainState(micro_batch=spec.micro_batch)
        self.group: ProcessGroup | None = None
        self.comm: DDPAllReduce | LocalSGD | None = None
        self.generation = -1
        self.error: BaseException | None = None
        self.timing = Timing()
        self.error_feedback: dict[str, torch.Tensor | None] = {}  # gradients not sent yet
        self._begun = False
        self._wired: list[int] | None = None  # the parameters that DDP knows
        self._inbox: Inbox | None = None
        self.averages = isinstance(spec.fit.strategy, Averaging)  # each with its own parameters

    # -- preparation ------------------------------------------------------------------------------

    def warm_up(self) -> None:
        """Do what takes long the first time: imports, building the model, a group of one."""
        spec, state = self.spec, self.state
        self.trained = spec.builder.build()
        self.copy = RankCopy(self.trained)
        state.adopt(spec.fit.control, spec.fit.strategy, None)
        state.components = self.trained.model.components
        self.feed = spec.feed.build(self.data)
        self.validation = None if spec.validation is None else spec.validation.build(self.data)
        self.trained.prepare(self.feed)
        self.fit_spec = self._follow_model()
        store = PrefixStore(f"warm/{self.rank}", self.mailbox.store)
        self.group = ProcessGroup(self._form(store, 0, 1), self.trained.device)
        self.comm = self._communicator(self.group)
        self.leave_group()

    def _follow_model(self) -> FitSpec:
        model = self.trained.model
        targets = self.feed.data[1] if isinstance(self.feed, ArrayFeed) else None
        facts = {**facts_of(model), "every_row_counts": every_row_counts(model.criterion, targets)}
        return dataclasses.replace(self.spec.fit, **facts)

    def _form(self, store: Any, rank: int, size: int) -> Any:
        ports = self.mailbox.address.ports
        options: Any = {"address": self.host, "device": self.trained.device, "ports": ports}
        return form(store, rank, size, seconds=FORMING_SECONDS, **options)

    def _communicator(self, group: ProcessGroup) -> DDPAllReduce | LocalSGD:
        spec = self.fit_spec
        control, strategy = spec.control, spec.strategy
        if isinstance(strategy, Averaging):
            talks = not control.policies[0].scheduled or control.active or "loss" in strategy.needs
            return LocalSGD(
                strategy,
                group,
                min_rows=spec.min_rows,
                drop_last=self.feed.drop_last,
                sums=spec.sums,
                watch_every=control.watches_spread,
                exchanges_every_update=talks,
                compressor=spec.compressor,
            )
        return DDPAllReduce(
            self.trained.model,
            group,
            control_active=control.active,
            looks_at_parts=bool(control.looks_at_parts),
            sums=spec.sums,
            compressor=spec.compressor,
            memory=self.error_feedback,
        )

    # -- commands ---------------------------------------------------------------------------------

    def run(self) -> None:
        """Report that this rank is ready, then execute commands until Stop."""
        self._inbox = self.mailbox.inbox(self.rank)
        try:
            self.mailbox.report(messages.RankReady(self.rank))
            while True:
                command = self._inbox.next()
                if command is None or isinstance(command, messages.Stop):
                    return
                try:
                    self._execute(command)
                except MailboxGone:
                    raise
                except Exception as error:
                    # The task ends with it when the driver has taken what it needs from here.
                    self.leave_group()
                    self.error = self.error or error
                    place = (*self._progress(), self._begun)
                    self.mailbox.report(messages.RankRaised(self.rank, *place))
        finally:
            self._inbox.close()

    def _execute(self, command: messages.Command) -> None:
        match command:
            case messages.TrainSegment():
                self.train_segment(command)
            case messages.SendState():
                self.send_state(command)
            case messages.Evaluate():
                self.evaluate(command)
            case messages.AverageNow():
                self.average_now()

    def _progress(self) -> tuple[int, int, int]:
        averaging = self.state.averaging
        return self.state.position.update, averaging.count, averaging.since

    def send_state(self, command: messages.SendState) -> None:
        """Put the state, or parts of it, into the mailbox."""
        parts = Part(0)
        for name in command.parts:
            parts |= Part[name]
        self.mailbox.put(command.blob, self.copy.pack(self.state, parts))
        self.mailbox.report(messages.StateSent(self.rank, command.blob, *self._progress()))

    def evaluate(self, command: messages.Evaluate) -> None:
        """Evaluate some of the validation batches."""
        assert self.validation is not None
        results = self.copy.evaluate(self.state, self.validation, command.batches)
        sendable = only_tensors([y_pred for _, y_pred in results.values()])
        if sendable:
            self.mailbox.put(command.blob, pack(results))
        self.mailbox.report(messages.BatchesEvaluated(self.rank, command.blob, sendable))

    def average_now(self) -> None:
        """Average before the period is over, because some of the ranks are about to leave."""
        assert isinstance(self.comm, LocalSGD)
        outcome: messages.Outcome = "averaged"
        generation = self.generation
        try:
            self.comm.average_now(self.state)
        except LostContact:
            outcome = "lost"
            self.leave_group()
        self._report_end(generation, outcome, self._begun)

    def _report_end(self, generation: int, outcome: messages.Outcome, *rest: Any) -> None:
        where = (*self._progress(), *rest)
        self.mailbox.report(messages.SegmentEnded(self.rank, generation, outcome, *where))

    # -- a segment --------------------------------------------------------------------------------

    def train_segment(self, command: messages.TrainSegment) -> None:
        """Train with the other members until the epoch ends, a pause, or a loss of contact."""
        started = time.perf_counter()
        self._begun = False
        outcome: messages.Outcome = "lost"
        reason = ""
        try:
            if command.threads is not None:
                torch.set_num_threads(threads_each(*command.threads, processors()))
            self._hold_chunks(command)
            if command.generation != self.generation:
                self._join_group(command)
            assert self.group is not None
            if self.averages:
                self.comm = self._communicator(self.group)
            if command.source is not None:
                self._share_state(command.source, command.blob)
            self._begun = True
            self._drop_records(command.records_after)
            self.state.seconds = command.seconds + time.perf_counter() - started
            outcome = self._train(command)
        except Abandoned as error:
            self.leave_group()
            reason = str(error.__cause__ or "")
        except Exception as error:
            if self.group is None or self.group.lost is None:
                raise
            error.__traceback__ = None  # its frames hold the group, which must be released
            self.leave_group()
        compares = outcome == "epoch" and command.group_size > 1 and not self.averages
        compared = self.copy.compared() if compares else ()
        self._report_end(command.generation, outcome, self._begun, reason, *compared)

    def _hold_chunks(self, command: messages.TrainSegment) -> None:
        """Hold the chunks that this segment gives to this rank; wait for those on their way."""
        feed = self.feed
        if not isinstance(feed, ChunkFeed) or set(command.chunks) == set(feed.chunks):
            return
        new: dict[int, list[Any]] | None = {} if command.deposit is None else None
        while new is None:
            assert command.deposit is not None
            new = withdraw(command.deposit)
            if new is None:
                self._check_abandoned(command.generation)
                time.sleep(_LOOK_SECONDS)
        held = {n: chunk for n, chunk in feed.chunks.items() if n in command.chunks}
        feed.hold({**held, **new})

    def _check_abandoned(self, generation: int) -> None:
        assert self._inbox is not None
        if self._inbox.abandoned(generation):
            raise Abandoned

    def _join_group(self, command: messages.TrainSegment) -> None:
        """Form a process group with the other members; give up if the driver does."""
        self.leave_group()
        place = (command.group_rank, command.group_size, self.host, self.mailbox.address.ports)

        def store(name: str) -> Any:
            return PrefixStore(f"{name}/{command.generation}", self.mailbox.connect())

        def forming() -> Any:
            group = store("group")
            if command.careful:
                knock(group, *place)
            return self._form(group, command.group_rank, command.group_size)

        formed = form_or_knock(
            forming,
            lambda: knock(store("late"), *place, patient=False),
            lambda: self._check_abandoned(command.generation),
        )
        if isinstance(formed, Exception):
            raise Abandoned from formed
        self.group = ProcessGroup(formed, self.trained.device)
        if not self.averages:
            self.comm = self._communicator(self.group)
            self._wired = [id(p) for p in self.trained.model.components.learnable()]
        self.generation = command.generation
        self.timing = Timing(command.generation)

    def _share_state(self, source: int, blob: str | None) -> None:
        """Load the state of the member `source`, which may first get it from the driver."""
        group, state = self.group, self.state
        assert group is not None
        content = None
        if group.shard.rank == source:
            if blob is None:
                content = self.copy.pack_whole(state, BROADCAST_PARTS)
            else:
                content = self.mailbox.take(blob)
        found = unpack(group.broadcast(content, source))
        if "structure" in found:
            self._adopt(from_tensor(found["structure"]))
        if not isinstance(self.comm, LocalSGD) or blob is not None:
            state.load_state_dict(found)
            return
        # Some members have taken steps since the last averaging, which shall not be lost.
        other = TrainState()
        other.load_state_dict(found, parts=Part.POSITION)
        same = (other.position.update, other.averaging.count) == self._progress()[:2]
        has_replica = same and state.replicas is not None and state.replicas.bound
        state.load_state_dict(found, parts=Part.POSITION if has_replica else Part.ALL)
        self.comm.rejoin(state, has_replica=has_replica)

    def _drop_records(self, known: int) -> None:
        """Drop the records that the driver has."""
        updates = self.state.records.updates
        table = updates.tensor()
        updates.load(table[table[:, 0] > known])

    def _train(self, command: messages.TrainSegment) -> messages.Outcome:
        state, group, comm = self.state, self.group, self.comm
        assert group is not None
        assert comm is not None
        assert self._inbox is not None
        while state.position.epoch < command.epoch:
            state.end_epoch()
        state.position.until = command.until
        self.copy.patch(command.patch, state.position.update)
        old, self.fit_spec = self.fit_spec, self._follow_model()
        facts = self.fit_spec.sums, self.fit_spec.every_row_counts
        comm = self._rewire(command, comm, anew=facts != (old.sums, old.every_row_counts))
        group.begin_segment()
        hooks = RankHooks(
            self.mailbox,
            self._inbox,
            self.rank,
            group,
            command.segment,
            self.timing,
            self.trained,
            self.copy.pack,
            self.log_event,
            averages=self.averages,
            careful=command.careful,
        )
        hooks.fit = fit = Fit(self.fit_spec, state, self.trained.model, self.feed, comm, hooks)
        try:
            train_epoch(fit)
        except Paused:
            comm.flush(state)
            return "paused"
        finally:
            del hooks.fit  # a cycle would keep the process group alive for a while
        return "epoch"

    def _adopt(self, structure: bytes) -> None:
        """Use the model of another process if it is not like the one that this rank has."""
        if self.copy.adopt(structure):
            if isinstance(self.comm, DDPAllReduce):
                self.comm.release_model()
                self._wired = None
            self.state.components = self.trained.model.components

    def _rewire(
        self, command: messages.TrainSegment, comm: DDPAllReduce | LocalSGD, *, anew: bool
    ) -> DDPAllReduce | LocalSGD:
        """Let DDP look at the model again if others than before are trained, or in another way."""
        wired = [id(p) for p in self.trained.model.components.learnable()]
        same = wired == self._wired and not anew and not command.patch.get("rewired")
        if same or isinstance(comm, LocalSGD):
            return comm
        if self._wired is not None:
            comm.release_model()
        assert self.group is not None
        self.comm = self._communicator(self.group)
        self._wired = wired
        return self.comm

    def close(self) -> None:
        """Release the process group, and end the worker processes that read the data."""
        self.leave_group()
        if hasattr(getattr(self, "feed", None), "close"):
            self.feed.close()  # type: ignore[attr-defined]

    def leave_group(self) -> None:
        """Release the process group, so that ranks that wait for this one notice."""
        if self.comm is not None:
            self.comm.close()
        elif self.group is not None:
            self.group.close()
        self.group, self.comm, self.generation = None, None, -1
