"""The driver: carries out on Dask what the state machine decides.

:class:`ClusterTrainer` receives events (from ranks, from the scheduler, from its own clock), lets
:func:`~accelerando._cluster.driver.machine.step` decide, and executes the actions. It decides
nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch

from accelerando._cluster import messages
from accelerando._cluster.driver import state as actions
from accelerando._cluster.driver.collect import DriverCopy, LiveProgress
from accelerando._cluster.driver.failures import fit_without_scheduler
from accelerando._cluster.driver.machine import step
from accelerando._cluster.driver.placement import ChunkAssignment
from accelerando._cluster.driver.scaling import ClusterScaling, remark
from accelerando._cluster.driver.sizing import Sizing, plural
from accelerando._cluster.driver.state import DriverState, Phase, RankInfo
from accelerando._cluster.job import ClusterJob
from accelerando._cluster.mailbox import Mailbox, MailboxGone
from accelerando._cluster.plugins import open_mailbox, shielded
from accelerando._cluster.rank_task import Candidates, RankTasks
from accelerando._cluster.remarks import remarks
from accelerando._cluster.threads import threads_for
from accelerando._dask import (
    Heartbeats,
    adaptive_of,
    can_scale,
    closing_among,
    has_given_up,
    host_towards,
    replace_lost_workers,
    stop_listening,
    workers_of,
)
from accelerando._engine._torch import unpack
from accelerando.exceptions import ClusterError

_WAIT_SECONDS = 0.1  # for an event; then the driver looks at Ctrl-C, progress and deadlines
_SURVEY_SECONDS = 1.0


@contextmanager
def cluster_trainer(job: ClusterJob) -> Iterator[ClusterTrainer]:
    """Set up everything that a fit needs on the cluster, and remove it afterwards."""
    run = uuid.uuid4().hex[:12]
    topic = f"accelerando-{run}"
    with contextlib.ExitStack() as stack:
        stack.enter_context(shielded(job.client))
        mailbox = stack.enter_context(open_mailbox(job.client, run))
        if job.fit.model.components.is_large:
            from accelerando._cluster.direct import receive_large

            host = host_towards(job.client.scheduler.address)
            stack.enter_context(receive_large(mailbox, host))
        trainer = ClusterTrainer(job, mailbox, run, topic)
        # Objects that refer to each other in a circle would keep the user's arrays alive.
        stack.callback(vars(trainer).clear)
        stack.callback(vars(trainer.progress).clear)  # Dask's client keeps it for a while
        job.client.subscribe_topic(topic, trainer.progress.receive)
        stack.callback(stop_listening, job.client, topic)
        stack.callback(trainer.close)
        yield trainer


def scaling_of(job: ClusterJob, present: int, log: Any) -> ClusterScaling | None:
    """Return what asks the cluster for workers; None if nobody can, or may."""
    cluster, most = job.client.cluster, job.limits.max_workers
    named = most if isinstance(most, int) else None
    if not can_scale(cluster) or (named is None and adaptive_of(cluster) is None):
        return None
    scaling = ClusterScaling(cluster, named, log)
    scaling.check(present)
    return scaling


class ClusterTrainer:
    """Train epochs on the ranks of a cluster.

    Parameters
    ----------
    job : ClusterJob
        What to train, and on which cluster.
    mailbox : Mailbox
        The channel to the ranks.
    run, topic : str
        The name of the run, and of the topic of its progress events.
    """

    def __init__(self, job: ClusterJob, mailbox: Mailbox, run: str, topic: str) -> None:
        self.job, self.mailbox = job, mailbox
        self.address = job.client.scheduler.address  # a client that gives up forgets it
        spec = job.fit.spec
        self.copy = DriverCopy(job.fit, job.add_records, job.check)
        self.tasks = RankTasks(job, mailbox.address, run, topic)
        self.candidates = Candidates(job.client, self.tasks.log)
        self.heartbeats = Heartbeats()
        workers = workers_of(job.client)
        self.scaling = scaling_of(job, len(workers), self.tasks.log)
        self.chunks = ChunkAssignment(job.client, run, job.chunks)
        self.progress = LiveProgress(job.fit.state, job.progress)
        state = job.fit.state
        self.state = DriverState(
            Sizing(job.limits, self.copy.first_batch_size(), state.settings.workers),
            worker_timeout=job.worker_timeout,
            rank_timeout=spec.rank_timeout,
            averages=job.limits.averages,
            workers=self.candidates.among(workers),
        )
        self._result: actions.Finish | actions.Fail | actions.RaiseFrom | None = None
        self._later: list[messages.DriverEvent] = []
        self._survey_at, self._interrupted = 0.0, False
        self._announced: set[str] = set()
        self._memories: dict[int, Any] = {}  # of callbacks, by epoch, since the driver's model
        self.events = mailbox.events()  # last: a policy may have raised, and nobody would close it

    # -- what users and tests may read ------------------------------------------------------------

    @property
    def membership(self) -> list[RankInfo]:
        """The members of the current segment that are not lost."""
        ranks = self.state.ranks
        return [ranks[rank] for rank in self.state.members if rank in ranks]

    @property
    def newest_update(self) -> int:
        """The newest update that this process knows of."""
        return max(self.progress.update, self.job.fit.state.position.update)

    @property
    def live_signals(self) -> dict[str, float]:
        """The newest numbers that the ranks reported."""
        return self.progress.signals()

    # -- calls of the estimator -------------------------------------------------------------------

    def train_epoch(self) -> None:
        """Train to the end of the current epoch, whichever workers join or leave."""
        state, copy = self.job.fit.state, self.copy
        position = state.position
        changed, patch = copy.changes()
        fetch = position.epoch + 1 >= position.until or self.job.needs_model()
        if not copy.is_behind:
            self._memories.clear()
        if copy.is_behind or not fetch:
            self._memories[position.epoch] = self.job.capture()
        result = self._call(
            messages.TrainEpoch(
                epoch=position.epoch,
                until=position.until,
                update=position.update,
                averagings=state.averaging.count,
                changed=changed,
                fetch=fetch,
                patch=patch,
                batch_size=copy.planned_batch_size(position.epoch),
                next_batch_size=copy.planned_batch_size(position.epoch + 1),
                n_examples=position.n_examples,
            )
        )
        if self.job.limits.replicas == "auto":
            throughput = self.state.sizing.throughput()
            found = {"replicas": len(self.state.members), "replicas_throughput": throughput}
            self.job.add_to_history(found)
        if result.outcome == "interrupted":
            self.job.interrupt.check()

    def evaluate(self) -> list[tuple[torch.Tensor, Any]] | None:
        """Return loss and predictions of each validation batch; None if the driver must do it."""
        plan = self.job.validation
        if plan is None:
            return None
        update = self.job.fit.state.position.update
        result = self._call(messages.EvaluateBatches(plan.n_batches, update))
        if result.outcome != "evaluated":
            self.fetch()
            return None
        found: dict[int, Any] = {}
        for blob in result.blobs:
            try:
                content = unpack(self.mailbox.take(blob))
            except MailboxGone as error:
                raise self._without_scheduler(str(error.__cause__ or error)) from error
            found.update({int(number): values for number, values in content.items()})
        return [(loss, y_pred) for _, (loss, y_pred) in sorted(found.items())]

    def fetch(self) -> None:
        """Fetch the newest model, if only ranks have it; train again what they have lost."""
        if self.copy.is_behind:
            self._call(messages.Fetch())

    def settle(self, error: BaseException | None = None) -> None:
        """Before the fit ends, by `error` or not: fetch the model, or go back to the one here."""
        try:
            if not isinstance(error, ClusterError):  # which says that there is nobody to ask
                self.fetch()
        except ClusterError:
            if error is None:
                raise
        finally:
            self.copy.go_back()
            known = self.copy.drop_lost()
            if known is not None:
                at = self.job.fit.state.position
                text = f"What ranks did after update {at.update} is lost with them."
                self.tasks.log("lost", text)
                self.job.forget(known, self._memories.get(at.epoch))

    def collect_replicas(self) -> None:
        """Fetch the replicas of the ranks, if they are not here and nobody trains."""
        state = self.job.fit.state
        idle = self.state.phase is Phase.IDLE
        if self.state.averages and state.replicas is None and idle and self.state.ranks:
            self._call(messages.Collect(state.position.update))

    def close(self) -> None:
        """End all ranks; those that do not answer are cancelled."""
        self.state, decided = step(self.state, messages.Close(), time.monotonic())
        for action in decided:
            with contextlib.suppress(ClusterError):  # without a mailbox, tasks can be cancelled
                self._execute(action)
        self.events.close()
        self.tasks.close()

    # -- events -----------------------------------------------------------------------------------

    def _call(self, event: messages.DriverEvent) -> actions.Finish:
        """Give a call to the machine, and events after it until the call ends."""
        self._result = None
        before = dataclasses.replace(self.job.fit.state.position)
        try:
            self._feed(event)
            while (result := self._ended()) is None:
                self._pump()
        except MailboxGone as error:
            raise self._without_scheduler(str(error.__cause__ or error)) from error
        self.copy.catch_up(before)
        if isinstance(result, actions.RaiseFrom):
            self.tasks.raise_from(result.rank)
        if isinstance(result, actions.Fail):
            cause = None if result.rank is None else self.tasks.exception_of(result.rank)
            reason = result.reason + remarks(self.candidates, self.state)
            reason += remark(self.scaling, self.job.client.cluster, len(self.state.workers))
            raise ClusterError(reason) from cause
        return result

    def _without_scheduler(self, cause: str) -> ClusterError:
        """Return the error that ends a fit whose scheduler is gone."""
        self.copy.go_back()
        store = self.mailbox.address.where
        return fit_without_scheduler(self.job, self.address, f"mailbox at {store}: {cause}")

    def _ended(self) -> actions.Finish | actions.Fail | actions.RaiseFrom | None:
        return self._result

    def _pump(self) -> None:
        """Wait a moment for events and give them to the machine; look at the clock."""
        event: messages.Event | None = self.events.next(_WAIT_SECONDS)
        while event is not None:
            self._feed(event)
            if self._result is not None:
                return  # what else arrived belongs to the next call
            event = self.events.next(0)
        for noticed in self._new_events():
            self._feed(noticed)
            if self._result is not None:
                return

    def _new_events(self) -> Iterator[messages.DriverEvent]:
        """Yield what the driver notices itself."""
        while self._later:
            yield self._later.pop(0)
        if self.job.interrupt.pending and not self._interrupted:
            self._interrupted = True
            yield messages.Interrupt()
        seen = self.progress.show()
        if seen is not None:
            yield seen
        now = time.monotonic()
        if now > self._survey_at:
            self._survey_at = now + _SURVEY_SECONDS
            known = workers_of(self.job.client)
            if not known:
                replace_lost_workers(self.job.client, 0)
            occupied = {info.worker for info in self.state.ranks.values()}
            workers, closing = self.candidates.among(known, occupied), closing_among(known)
            ended, hanging = self.tasks.ended(), self.heartbeats.missing(known)
            # Asked last: a client that gives up meanwhile sees no workers, and cancelled tasks.
            if has_given_up(self.job.client):  # the mailbox may be in this process
                raise self._without_scheduler("Dask's client has given up")
            yield messages.Surveyed(workers, ended, closing, hanging)
        else:
            yield messages.Tick()

    def _feed(self, event: messages.Event) -> None:
        if isinstance(event, messages.WorkerJoined):
            # The scheduler does not say what it is like.
            known = workers_of(self.job.client)
            if not self.candidates.among({w: known[w] for w in known if w == event.worker}):
                return
        self.state, decided = step(self.state, event, time.monotonic())
        for action in decided:
            self._execute(action)

    # -- actions ----------------------------------------------------------------------------------

    def _execute(self, action: actions.Action) -> None:
        match action:
            case actions.StartRank(rank, worker):
                self._announce("starting", len(self.state.workers))
                if not self.tasks.start(rank, worker):
                    self.candidates.doubt(worker)
                    self._later.append(messages.RankNotStarted(rank))
            case actions.Send(rank, command):
                self.mailbox.send(rank, command)
            case actions.StartSegment():
                self._start_segment(action)
            case actions.CancelTask(rank):
                self.tasks.cancel(rank)
            case actions.AwaitTasks(ranks, seconds):
                self.tasks.wait(ranks, seconds)
            case actions.ScaleCluster() | actions.ShrinkCluster() | actions.RestoreCluster():
                if self.scaling is not None:
                    self.scaling.execute(action)
            case actions.ResendData():
                self.tasks.resend_data()
            case actions.Log(event, text):
                self.tasks.log(event, text)
            case actions.Finish() | actions.Fail() | actions.RaiseFrom():
                self._result = action
            case _:
                self._move_state(action)

    def _move_state(self, action: actions.Action) -> None:
        take = self.mailbox.take
        match action:
            case actions.PutState(blob):
                self.mailbox.put(blob, self.copy.pack())
            case actions.LoadState(blob):
                self.copy.load(take(blob))
            case actions.NoteState(blob):
                self.copy.note(take(blob))
            case actions.LoadReplicas(blobs):
                self.copy.load_replicas([None if blob is None else take(blob) for blob in blobs])
            case actions.SaveCheckpoint(blobs):
                contents = [take(blob) for blob in blobs]
                self.copy.load(contents[0])
                if self.state.averages:
                    self.copy.load_replicas(contents)
                self.job.save_checkpoint()
            case actions.DropBlob(blob):
                self.mailbox.drop(blob)

    def _announce(
        self, stage: Literal["starting", "training"], workers: int, ranks: int = 0
    ) -> None:
        """Print once that ranks are starting, and once how many train."""
        if stage in self._announced:
            return
        self._announced.add(stage)
        where = plural(workers, "worker")
        text = f"Training with {plural(ranks, 'rank')} on {where}."
        starting = f"Ranks are starting; the cluster has {where}."
        self.tasks.announce(starting if stage == "starting" else text)

    def _start_segment(self, action: actions.StartSegment) -> None:
        """Send TrainSegment to each member, with what the machine does not know."""
        workers = {rank: self.state.ranks[rank].worker for rank in action.members}
        self._announce("training", len(set(workers.values())), len(workers))
        intact = dict(zip(action.members, action.intact, strict=True))
        chunks = self.chunks.assign(workers, intact, action.segment)
        threads = {}
        if self.job.limits.replicas == "auto":
            threads = threads_for(workers, workers_of(self.job.client))
        shared = ("segment", "generation", "source", "blob", "epoch", "until", "patch", "careful")
        for number, rank in enumerate(action.members):
            command = messages.TrainSegment(
                **{name: getattr(action, name) for name in shared},
                group_rank=number,
                group_size=len(action.members),
                records_after=self.copy.newest_record(),
                seconds=self.job.fit.clock(),
                threads=threads.get(rank),
                chunks=chunks[rank][0],
                deposit=chunks[rank][1],
            )
            self.mailbox.send(rank, command)
