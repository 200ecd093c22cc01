"""The driver's side of training on a cluster: one segment after the other until the epoch ends."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import cloudpickle

from accelerando._topic import stop_listening
from accelerando._workers import workers_of
from accelerando.exceptions import ClusterError
from accelerando.train.cluster.board import Board
from accelerando.train.cluster.callbacks import check_callbacks
from accelerando.train.cluster.checkpoints import Checkpoints
from accelerando.train.cluster.crew import Crew, Host
from accelerando.train.cluster.demand import Demand
from accelerando.train.cluster.hearing import Hearing
from accelerando.train.cluster.holders import Holders
from accelerando.train.cluster.order import order_for
from accelerando.train.cluster.own import Own
from accelerando.train.cluster.place import place, plan_valid
from accelerando.train.cluster.post import posted
from accelerando.train.cluster.roster import Bound, threads_for
from accelerando.train.cluster.scaling import Scaling
from accelerando.train.cluster.states import checkpoint, fetch, gather
from accelerando.train.cluster.validate import validation_step
from accelerando.train.loop import Training

_START_SECONDS = 60.0  # how long the first segment waits for ranks that are still starting
_ANSWER_SECONDS = 2.0  # how long the others' outcomes are awaited once somebody has lost contact
_SWITCH_SECONDS = 2.0  # how long a switch waits for further newcomers once one is ready


@contextmanager
def driving(net: Any, training: Training, datasets: Any) -> Iterator[Drive]:
    """Set up everything a fit needs on the cluster, and take it down afterwards."""
    client, run = net.client, uuid.uuid4().hex[:12]
    check_callbacks(net)
    topic = f"accelerando-{run}"
    with contextlib.ExitStack() as stack:
        board = stack.enter_context(posted(client, run))
        drive = Drive(net, training, datasets, board, run, topic)
        # What refers to each other in a circle would keep the user's arrays alive for a while.
        stack.callback(vars(drive).clear)
        stack.callback(vars(drive.hearing).clear)  # Dask's client does not forget it at once
        net.drive_ = drive
        stack.callback(delattr, net, "drive_")
        client.subscribe_topic(topic, drive.hearing.hear)
        stack.callback(stop_listening, client, topic)
        stack.callback(drive.crew.disband)
        yield drive


class Drive:
    """Train epochs on the ranks of a cluster."""

    def __init__(
        self, net: Any, training: Training, datasets: Any, board: Board, run: str, topic: str
    ) -> None:
        self.net, self.training, self.board = net, training, board
        self.own = Own(net, training)
        client = net.client
        self.holders = Holders(client, run, datasets[0])
        self.valid_plan = plan_valid(net, datasets[1], training.feed)
        order = cloudpickle.dumps(order_for(net, training, self.valid_plan, topic))
        self._wait_for_workers(client)

        def supply(*, again: bool) -> list[Any]:
            """Put on the cluster what ranks work with; the data are there since the last fit."""
            data = place(client, training.feed, datasets, again=again)
            return [client.scatter(order, hash=False), data]

        most = net.max_workers if isinstance(net.max_workers, int) else None
        self.crew = Crew(
            client=client,
            board=board,
            supply=supply,
            run=run,
            scaling=Scaling(client.cluster, most),
            on_note=self._note,
            verbose=net.verbose,
        )
        net.world_log_ = self.crew.events
        self.generation = self.segment = 0
        self.unused: bool | None = None
        self.demand = Demand(net, training, self.holders.most, self.crew.seen)
        self.averages = self.demand.averages
        self.members: list[Host] = []
        self.checkpoints = Checkpoints()
        self.hearing = Hearing(training)
        self.ahead = 0
        self.blobs: dict[str, bool] = {}
        self._pausing = False
        self._ready_since: float | None = None

    def _wait_for_workers(self, client: Any) -> None:
        try:
            client.wait_for_workers(1, timeout=self.net.worker_timeout)
        except TimeoutError as error:
            raise ClusterError(
                f"The cluster has had no worker for {self.net.worker_timeout:g} s "
                "(worker_timeout). Start one, or pass client=None to train in this process."
            ) from error

    # -- one epoch --------------------------------------------------------------------------------

    def train_epoch(self, training: Training) -> None:
        """Train to the end of the current epoch, whoever comes or goes."""
        self._look_ahead()
        while True:
            members = self._muster()
            self._begin_segment(members)
            self._watch()
            self._pausing = False
            raised = self.crew.with_status("raised")
            pending = training.interrupt.pending
            if not raised and not pending and not self._best_at("epoch"):
                continue
            if fetch(self):
                self._note_replicas()
                if raised:
                    self.raise_from(raised)
                if pending:
                    training.interrupt.check()
                return
            # Nobody who had the newest state is left: go on from what this process has.

    def _note_replicas(self) -> None:
        """Write into the history how many replicas were found to pay, and what was measured."""
        if self.demand.replicas == "auto":
            row = self.net.history_[-1]
            row["replicas"] = len(self.members)
            row["replicas_throughput"] = self.demand.throughput()

    def _tell_lost(self, members: list[Host]) -> None:
        """Say how much of a lost rank's work is lost where ranks have parameters of their own."""
        gone = len([host for host in self.members if host.place not in self.crew.hosts])
        since = max((host.since for host in members), default=0)
        if self.averages and gone and since:
            self.crew.tell(
                "unaveraged",
                f"Ranks had last met {since} update{'s' * (since != 1)} before: what {gone} lost "
                f"rank{'s' * (gone != 1)} did since then is lost, what the others did is kept.",
            )

    def _best_at(self, how: str) -> bool:
        best = self.best()
        return best is not None and best.how == how

    def best(self) -> Host | None:
        """Return the most advanced rank that can be asked."""
        known = [h for h in self.crew.with_status("ready", "raised") if h.update is not None]
        return max(known, key=lambda host: host.position, default=None)

    def _wanted(self) -> int:
        """Return how many ranks should train."""
        return self._bound().ranks

    def _bound(self) -> Bound:
        return self.demand.bound(len(self.members))

    def _look_ahead(self) -> None:
        """Warm up now the ranks that a schedule wants in the next epoch."""
        self.ahead = self.demand.ahead()
        self.demand.begin_epoch()
        self.crew.recruit(max(self.ahead, self._wanted()))

    def _muster(self) -> list[Host]:
        """Return the ranks of the next segment; wait if there is nobody."""
        crew, wanted = self.crew, self._wanted()
        began = nobody_since = time.monotonic()
        patience = _START_SECONDS if not self.members else 0.0
        while True:
            ready = crew.with_status("ready")
            starting = crew.with_status("starting")
            now = time.monotonic()
            enough = len(ready) >= wanted or not starting or now - began > patience
            if ready and enough:
                break
            if ready or starting:
                nobody_since = now
            if now - nobody_since > self.net.worker_timeout:
                raise ClusterError(
                    f"The cluster has had no worker for this fit for {self.net.worker_timeout:g} s "
                    "(worker_timeout). The estimator holds the newest state it had; partial_fit "
                    "goes on from there when there are workers again."
                )
            if self.training.interrupt.pending:
                self.training.interrupt.check()
            crew.recruit(wanted)
            crew.attend()
        # The most advanced come first: one of them gives its state to the others.
        ready.sort(key=lambda host: host.position, reverse=True)
        chosen = ready[:wanted]
        if self.averages and any(host not in chosen for host in self.members):
            self._meet()
        spare = ready[max(wanted, self.ahead) :]
        if spare:
            crew.release(spare)
            crew.scaling.shrink(max(wanted, self.ahead))
        return chosen

    def _meet(self) -> None:
        """Let ranks that have stepped apart meet, between two epochs, before some of them go."""
        members, crew = self.members, self.crew
        whole = all(host.place in crew.hosts and host.how == "epoch" for host in members)
        if not whole or not any(host.since for host in members):
            return  # they have met, or a lost one would keep the others waiting
        for host in members:
            host.how = None
            crew.command(host, "meet")
        asked = time.monotonic()
        while any(host.how is None and host.place in crew.hosts for host in members):
            crew.attend()
            if time.monotonic() - asked > self.net.rank_timeout + 60.0:
                return

    def _begin_segment(self, members: list[Host]) -> None:
        run = self.training.run
        positions = {host.update for host in members}
        best = self.best()
        changed = self.own.changed()
        source: int | None = None
        blob: str | None = None
        if best is None or changed:
            source, blob = 0, f"start/{uuid.uuid4().hex}"
            self.board.put(blob, self.own.pack())
        elif positions != {best.update} or None in positions:
            source = members.index(best)
        same = members == self.members and all(host.how == "epoch" for host in members)
        if self.averages and not same and source is None:
            assert best is not None
            source = members.index(best)  # those who have stepped apart settle first
        if not same:
            self.generation += 1
            count = len(members)
            if self.members:
                self._tell_lost(members)
                crew_before = len(self.members)
                self.crew.tell(
                    "segment",
                    f"Update {max((h.update or 0) for h in members)}: training goes on with "
                    f"{count} rank{'s' * (count != 1)} (before: {crew_before}; "
                    f"{self._why(count)}).",
                )
        self.members = members
        self.segment += 1
        names = [host.place for host in members]
        self._ready_since = None
        chunks = self.holders.orders(members, self.segment)
        workers = workers_of(self.net.client) if self.demand.replicas == "auto" else {}
        threads = threads_for({h.place: h.worker for h in members}, workers)
        for host in members:
            host.status, host.how = "training", None
            self.crew.command(
                host,
                "segment",
                number=self.segment,
                generation=self.generation,
                members=names,
                source=source,
                blob=blob,
                epoch=run.epoch,
                until=run.until,
                groups=self.own.groups(),
                known=self.own.newest_record(),
                unused=self.unused,
                seconds=self.training.clock(),
                threads=threads.get(host.place),
                **chunks[host.place],
            )

    def _why(self, count: int) -> str:
        """Say why there are so many ranks."""
        bound = self._bound()
        if count < bound.ranks:
            return f"{bound.ranks} are wanted: {bound.why}"
        return bound.why

    def _watch(self) -> None:
        """Wait until every member's segment has ended, one way or the other."""
        lost_at: float | None = None
        cancelled = False
        while True:
            self.crew.attend()
            self.hearing.show()
            present = [host for host in self.members if host.place in self.crew.hosts]
            busy = [host for host in present if host.status == "training"]
            if not busy:
                return
            if len(present) < len(self.members) or any(
                host.how == "lost" or host.status == "raised" for host in present
            ):
                lost_at = lost_at or time.monotonic()
                if not cancelled:  # whoever is still on the way into this group need not wait
                    self.board.raise_flag(f"cancel/{self.generation}")
                    cancelled = True
            if lost_at is not None and time.monotonic() - lost_at > self._patience():
                for host in busy:
                    host.status = "silent"
                    self.crew.tell("silent", f"The rank on {host.worker} does not answer.")
                return
            if self.training.interrupt.pending or self._should_switch(present):
                self._pause()

    def _patience(self) -> float:
        """Return how long to wait for the others after a loss was noticed.

        They notice within milliseconds, too, unless they are deep in a long computation, or speak
        to each other only when they meet. One that is given up too early comes back as a newcomer.
        """
        until_they_meet = self.hearing.update_seconds * float(self.hearing.newest.get("period", 1))
        return max(_ANSWER_SECONDS, 3.0 * until_they_meet)

    def _pause(self) -> None:
        if self._pausing:
            return
        self._pausing = True
        if not self.training.interrupt.pending:  # others shall go on: these settle first
            self.board.raise_flag(f"switch/{self.segment}")
        self.board.raise_flag(f"pause/{self.segment}")

    def _should_switch(self, present: list[Host]) -> bool:
        """Tell whether it is time to go on with more or with fewer ranks."""
        wanted, now = self._wanted(), len(self.members)
        if wanted < now:
            return True
        ready = [host for host in self.crew.with_status("ready") if host not in self.members]
        if wanted == now or not ready:
            return False
        if now + len(ready) >= wanted or not self.crew.with_status("starting"):
            return True
        self._ready_since = self._ready_since or time.monotonic()
        return time.monotonic() - self._ready_since > _SWITCH_SECONDS

    # -- notes ------------------------------------------------------------------------------------

    def _note(self, note: dict[str, Any]) -> None:
        kind = note["kind"]
        if kind in ("came", "surveyed"):
            self.crew.recruit(max(self._wanted(), self.ahead))
        elif kind == "batch":
            self.demand.batch_size = note["rows"]
            self.crew.recruit(max(self._wanted(), self.ahead))
        elif kind == "workers":
            self._allow(note["most"], note["update"])
        elif kind == "speed":
            self._learn_speed(note["ranks"], note["rows"], note["seconds"])
        elif kind == "outcome" and note.get("unused") is not None:
            self.unused = note["unused"]
        elif kind == "checkpoint":
            checkpoint(self, note)
        elif kind in ("state", "validated"):
            self.blobs[note["name"]] = note.get("fit", True)

    def _allow(self, most: int | None, update: int) -> None:
        """Take in how many ranks policies allow."""
        if most == self.demand.allowed:
            return
        self.demand.allowed = most
        bound = self._bound()
        self.crew.tell(
            "workers",
            f"Update {update}: a policy allows {most} rank{'s' * (most != 1)}; {bound.ranks} "
            f"should train ({bound.why}).",
        )
        self.crew.recruit(max(bound.ranks, self.ahead))

    def _learn_speed(self, ranks: int, rows: int, seconds: float) -> None:
        """Compare with fewer ranks where their number is found by trying; say what came out."""
        found = self.demand.learn_speed(ranks, rows, seconds)
        if found is not None:
            self.crew.tell("knee", found)
        if self.demand.tries:
            self.crew.recruit(self._wanted())

    # -- states -----------------------------------------------------------------------------------

    def gather(self) -> None:
        """Take up what only single ranks have, where that is so, and not here yet."""
        gather(self)

    def raise_from(self, hosts: list[Host]) -> None:
        """Raise what the user's code raised on a rank, with the traceback it had there."""
        host = hosts[0]
        self.crew.command(host, "end")
        error = host.future.exception(timeout=30)
        raise error.with_traceback(host.future.traceback())

    # -- validation -------------------------------------------------------------------------------

    def validation(self, net: Any) -> Any:
        """Return the step that skorch's loop over the validation batches calls."""
        return validation_step(self, net)
