"""The driver's side of training on a cluster: one segment after the other until the epoch ends."""

from __future__ import annotations

import contextlib
import dataclasses
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import cloudpickle
from sklearn.base import clone

from accelerando._topic import stop_listening
from accelerando.exceptions import ClusterError
from accelerando.train.cluster.board import Board
from accelerando.train.cluster.callbacks import check_callbacks, on_ranks
from accelerando.train.cluster.crew import Crew, Host
from accelerando.train.cluster.holders import Holders
from accelerando.train.cluster.own import Own
from accelerando.train.cluster.place import place, plan_feed, plan_valid
from accelerando.train.cluster.post import posted
from accelerando.train.cluster.rank import Order
from accelerando.train.cluster.roster import Bound, Knee, first_batch, planned, ranks_for, tightest
from accelerando.train.cluster.scaling import Scaling
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
        net.drive_ = drive
        stack.callback(delattr, net, "drive_")
        client.subscribe_topic(topic, drive.hear)
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
        order = cloudpickle.dumps(self._order(net, training, topic))
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
        self.knee = Knee()
        self.members: list[Host] = []
        self.batch_size = first_batch(training.policy, training.run, training.max_batch_size)
        wish = training.run.control.get("wish", {})
        self.allowed: int | None = wish.get("workers")  # what policies have decided
        self.heard: dict[str, Any] | None = None
        self.newest: dict[str, Any] = {}
        self._heard_update = 0
        self.update_seconds = 0.0
        self.ahead = 0
        self.blobs: dict[str, bool] = {}
        self._pausing = False
        self._ready_since: float | None = None

    def _order(self, net: Any, training: Training, topic: str) -> Order:
        """Gather what every rank has to know."""
        callbacks, net.callbacks = net.callbacks, None  # they stay here, and some cannot be cloned
        try:
            replica = clone(net)
        finally:
            net.callbacks = callbacks
        replica.set_params(
            callbacks="disable", train_split=None, verbose=0, client=None, checkpoint=None
        )
        options = {
            k: v for k, v in net.get_params_for("iterator_train").items() if k != "batch_size"
        }
        return Order(
            net=replica,
            policy=training.policy,
            feed=plan_feed(training.feed, options, net.iterator_train),
            valid=self.valid_plan,
            weights=training.weights,
            fit_params=dict(training.fit_params),
            whole=training.micro.whole,
            seconds=net.rank_timeout,
            checkpoint_every=net.checkpoint_every if net.checkpoint is not None else None,
            topic=topic,
            callbacks=on_ranks(net),
        )

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
            if self._fetch():
                if raised:
                    self.raise_from(raised)
                if pending:
                    training.interrupt.check()
                return
            # Nobody who had the newest state is left: go on from what this process has.

    def _best_at(self, how: str) -> bool:
        best = self._best()
        return best is not None and best.how == how

    def _best(self) -> Host | None:
        """Return the most advanced rank that can be asked."""
        known = [h for h in self.crew.with_status("ready", "raised") if h.update is not None]
        return max(known, key=lambda host: host.update or 0, default=None)

    def _ranks_for(self, batch_size: int) -> int:
        net = self.net
        most = net.max_workers if isinstance(net.max_workers, int) else 10**6
        return ranks_for(batch_size, net.examples_per_worker, net.min_workers, most)

    def _wanted(self) -> int:
        """Return how many ranks should train."""
        return self._bound().ranks

    def _bound(self) -> Bound:
        """Return the tightest of what the batch is worth, what pays, and what policies allow."""
        net, worth = self.net, self._ranks_for(self.batch_size)
        rows = net.examples_per_worker
        bounds = [Bound(worth, f"batch {self.batch_size}, {rows} rows per rank")]
        if net.max_workers == "auto":
            pay = self.knee.advise(len(self.members), worth)
            bounds.append(Bound(pay, f"more than {pay} are not known to pay"))
        if self.allowed is not None:
            bounds.append(Bound(self.allowed, f"a policy allows {self.allowed}"))
        fewest, chunks = int(net.min_workers), self.holders.most
        if chunks is not None:
            bounds.append(Bound(chunks, f"X has {chunks} chunk{'s' * (chunks != 1)} with rows"))
            fewest = min(fewest, chunks)
        return tightest(bounds, fewest)

    def _look_ahead(self) -> None:
        """Warm up now the ranks that a schedule wants in the next epoch."""
        training = self.training
        run = training.run
        ahead = 0
        if run.epoch + 1 < run.until:
            ahead = planned(training.policy, run, training.max_batch_size, run.epoch + 1)
        if self.net.max_workers != "auto":
            self.ahead = self._ranks_for(max(self.batch_size, ahead))
            if self.allowed is not None:
                self.ahead = min(self.ahead, max(self.allowed, int(self.net.min_workers)))
        if run.update and planned(training.policy, run, training.max_batch_size, run.epoch):
            self.batch_size = planned(training.policy, run, training.max_batch_size, run.epoch)
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
        ready.sort(key=lambda host: -1 if host.update is None else host.update, reverse=True)
        chosen = ready[:wanted]
        spare = ready[max(wanted, self.ahead) :]
        if spare:
            crew.release(spare)
            crew.scaling.shrink(max(wanted, self.ahead))
        return chosen

    def _begin_segment(self, members: list[Host]) -> None:
        run = self.training.run
        positions = {host.update for host in members}
        best = self._best()
        changed = self.own.changed()
        source: int | None = None
        blob: str | None = None
        if best is None or changed:
            source, blob = 0, f"start/{uuid.uuid4().hex}"
            self.board.put(blob, self.own.pack())
        elif positions != {best.update} or None in positions:
            source = members.index(best)
        same = members == self.members and all(host.how == "epoch" for host in members)
        if not same:
            self.generation += 1
            count = len(members)
            if self.members:
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
            self._show()
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

        They notice within milliseconds, too, unless they are deep in a long computation. One that
        is given up too early comes back as a newcomer.
        """
        return max(_ANSWER_SECONDS, 3.0 * self.update_seconds)

    def _pause(self) -> None:
        if not self._pausing:
            self._pausing = True
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
            self.batch_size = note["rows"]
            self.crew.recruit(max(self._wanted(), self.ahead))
        elif kind == "workers":
            self._allow(note["most"], note["update"])
        elif kind == "speed":
            self._learn_speed(note["ranks"], note["rows"], note["seconds"])
        elif kind == "outcome" and note.get("unused") is not None:
            self.unused = note["unused"]
        elif kind == "checkpoint":
            self.own.take_up(self.board.take(note["name"]))
            self.net._write_checkpoint()
        elif kind in ("state", "validated"):
            self.blobs[note["name"]] = note.get("fit", True)

    def _allow(self, most: int | None, update: int) -> None:
        """Take in how many ranks policies allow."""
        if most == self.allowed:
            return
        self.allowed = most
        bound = self._bound()
        self.crew.tell(
            "workers",
            f"Update {update}: a policy allows {most} rank{'s' * (most != 1)}; {bound.ranks} "
            f"should train ({bound.why}).",
        )
        self.crew.recruit(max(bound.ranks, self.ahead))

    def _learn_speed(self, ranks: int, batch_size: int, seconds: float) -> None:
        """For ``max_workers="auto"``: compare with fewer ranks, and say what came out."""
        if self.net.max_workers != "auto":
            return
        before = self.knee.most
        self.knee.observe(ranks, batch_size, seconds)
        self.knee.advise(ranks, self._ranks_for(batch_size))
        if self.knee.most is not None and self.knee.most != before:
            self.crew.tell(
                "knee",
                f"Batch {batch_size}: an update takes {seconds * 1e3:.1f} ms on {ranks} ranks, "
                f"{self.knee.seconds(self.knee.most) * 1e3:.1f} ms on {self.knee.most}; training "
                f"goes on with {self.knee.most}.",
            )
        self.crew.recruit(self._wanted())

    def hear(self, event: tuple[float, dict[str, Any]]) -> None:
        """Keep the newest progress event; called from Dask's own thread."""
        self.heard = self.newest = event[1]
        self._heard_update = event[1]["update"]

    @property
    def newest_update(self) -> int:
        """The newest update this process has heard of."""
        return max(self._heard_update, self.training.run.update)

    def _show(self) -> None:
        heard, self.heard = self.heard, None
        if heard is None:
            return
        run = self.training.run
        self.update_seconds = heard["batch_size"] / max(heard["examples_per_second"], 1e-9)
        now = dataclasses.replace(
            run,
            epoch=heard["epoch"],
            cursor=heard["cursor"],
            update=heard["update"],
            batch_size=heard["batch_size"],
        )
        self.training.progress.update(now, heard["loss"], heard["lr"], cluster=heard)

    # -- states -----------------------------------------------------------------------------------

    def _fetch(self) -> bool:
        """Take up the newest state there is; False if nobody who has it is left."""
        while (best := self._best()) is not None:
            name = f"state/{uuid.uuid4().hex}"
            self.crew.command(best, "state", name=name)
            asked = time.monotonic()
            while name not in self.blobs and best.place in self.crew.hosts:
                self.crew.attend()
                if time.monotonic() - asked > self.net.rank_timeout + 60.0:
                    best.status = "silent"
                    break
            if self.blobs.pop(name, None):
                self.own.take_up(self.board.take(name))
                return True
            if best.status == "silent" or best.place not in self.crew.hosts:
                continue
        return False

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
