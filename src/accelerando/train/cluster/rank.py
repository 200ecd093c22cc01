"""A rank: it trains when told to, and answers questions in between."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Any

import torch
from skorch.history import History
from torch.distributed import PrefixStore  # type: ignore[attr-defined]

from accelerando._processors import processors
from accelerando.sync import Averaging
from accelerando.train.averaging import Together, start
from accelerando.train.checks import divisible
from accelerando.train.cluster.apart import Apart
from accelerando.train.cluster.board import Board
from accelerando.train.cluster.chunks import ShardFeed, withdraw
from accelerando.train.cluster.contact import is_loss_of_contact
from accelerando.train.cluster.forming import form
from accelerando.train.cluster.group import Group
from accelerando.train.cluster.hook import Memory
from accelerando.train.cluster.order import Order
from accelerando.train.cluster.packet import pack, pack_ranks, pack_state, run_of, take_up
from accelerando.train.cluster.reins import Cancelled, Paused, Reins
from accelerando.train.cluster.roster import Threads
from accelerando.train.data import MemoryFeed
from accelerando.train.feed import Feed
from accelerando.train.layout import settle_layout
from accelerando.train.loop import Training, train_epoch
from accelerando.train.loss import every_row_counts
from accelerando.train.meeting import settle
from accelerando.train.records import Records
from accelerando.train.tree import only_tensors

_FORMING_SECONDS = 60.0
_NAP = (0.001, 0.01)  # between two looks at the board: at first, and at most


class BoardGone(Exception):  # noqa: N818  no error: the driver may just be done
    """Nobody is there to work for."""


@dataclass
class Rank:
    """One rank's state between commands."""

    order: Order
    data: Any
    board: Board
    place: str
    host: str
    worker: Any = None
    group: Group | Apart | None = None
    generation: int = -1
    error: BaseException | None = None
    feed: Feed | None = None
    valid: Any = None
    pace: list[float] = field(default_factory=list)  # seconds of a group's first updates
    pace_of: int = -1
    memory: Memory = field(default_factory=dict)  # what error feedback has not sent yet
    together: Together | None = None  # what averages parameters in the present segment

    # -- preparation ----------------------------------------------------------------------------

    def warm_up(self) -> None:
        """Do what takes long the first time: imports, building the net, a group of one."""
        order = self.order
        self.net = order.net.initialize()
        self.net.callbacks_ = order.callbacks
        self.device = torch.device(self.net.device or "cpu")
        self.net.micro_.whole = order.whole
        self.net.policy_, self.net.strategy_ = order.policy, order.strategy
        self.net.run_.sync = start(order.strategy)
        self.net.records_ = Records(self.net._columns())
        self.feed = order.feed.build(self.data)
        self.valid = None if order.valid is None else order.valid.build(self.data)
        settle_layout(self.net, self.feed, order.fit_params)
        targets = self.feed.data[1] if isinstance(self.feed, MemoryFeed) else None
        self.every_row_counts = every_row_counts(self.net.criterion_, targets)
        store = PrefixStore(f"warm/{self.place}", self.board.connect())
        alone = form(store, 0, 1, seconds=60.0, address=self.host, device=self.device)
        self._contact(alone, unused=False).close()

    @property
    def averages(self) -> bool:
        """Whether ranks have parameters of their own."""
        return isinstance(self.order.strategy, Averaging)

    def _contact(self, processes: Any, *, unused: bool) -> Group | Apart:
        if self.averages:
            return Apart(self.net, processes)
        return Group(self.net, processes, unused=unused, memory=self.memory)

    # -- commands -------------------------------------------------------------------------------

    def obey(self) -> None:
        """Carry out one command after the other until the end."""
        number = 0
        while True:
            command = self._next(number)
            number += 1
            kind = command.pop("kind")
            if kind == "end":
                return
            try:
                getattr(self, f"do_{kind}")(**command)
            except BoardGone:
                raise
            except Exception as error:
                # The task ends with it when the driver has taken from this rank what it needs.
                self.leave()
                self.error = self.error or error
                self.say("raised", **self._position())

    def _next(self, number: int) -> dict[str, Any]:
        began = time.monotonic()
        while True:
            try:
                command = self.board.commanded(self.place, number)
            except RuntimeError as error:
                raise BoardGone from error
            if command is not None:
                return command
            time.sleep(min(_NAP[1], max(_NAP[0], 0.05 * (time.monotonic() - began))))

    def say(self, kind: str, **facts: Any) -> None:
        """Drop a note for the driver."""
        try:
            self.board.drop({"kind": kind, "place": self.place, **facts})
        except RuntimeError as error:
            raise BoardGone from error

    def _position(self) -> dict[str, int]:
        """Return where this rank stands: the update, how often ranks have met, and since when."""
        run = self.net.run_
        met, since = run.sync.get("count", 0), run.sync.get("since", 0)
        return {"update": run.update, "met": met, "since": since}

    def do_state(self, name: str, *, shown: bool, own: bool) -> None:
        """Hand the state over: what all ranks have, or what only this one has, or both."""
        try:
            content = pack_state(self.net, own=own) if shown else pack_ranks(self.net)
            self.board.put(name, content)
        except RuntimeError as error:
            raise BoardGone from error
        self.say("state", name=name, **self._position())

    def do_validate(self, numbers: list[int], name: str) -> None:
        """Evaluate some of the validation batches."""
        results: dict[str, Any] = {}
        for number in numbers:
            step = self.net.validation_step(self.valid.batch(number), **self.order.fit_params)
            results[str(number)] = [step["loss"].detach(), step["y_pred"]]
        fit = only_tensors([y_pred for _, y_pred in results.values()])
        if fit:
            self.board.put(name, pack(results))
        self.say("validated", name=name, fit=fit)

    def do_meet(self) -> None:
        """Meet before the period is over, since some of the ranks are to go."""
        assert self.together is not None
        how = "met"
        try:
            self.together.meet(self.net.run_)
        except RuntimeError as error:
            if not is_loss_of_contact(error):
                raise
            how = "lost"
            self.leave()
        self.say("outcome", generation=self.generation, how=how, **self._position())

    def do_segment(
        self,
        number: int,
        generation: int,
        members: list[str],
        source: int | None,
        blob: str | None,
        epoch: int,
        until: int,
        groups: list[Any],
        known: int,
        unused: bool | None,
        seconds: float,
        threads: list[int] | None,
        chunks: list[int],
        deposit: str | None,
    ) -> None:
        """Train with the given members until the epoch ends, a pause, or a loss of contact."""
        began = time.perf_counter()
        reins = None
        try:
            if threads is not None:
                torch.set_num_threads(Threads(*threads).each(processors()))
            self._hold(chunks, deposit, generation)
            if generation != self.generation:
                self._join(generation, members, unused)
            reins = Reins(self, number, watching=members[0] == self.place, unused=unused)
            assert self.group is not None
            if source is not None:
                self._share(source, blob)
            self._forget_records(known)
            self.net.run_.seconds = seconds + time.perf_counter() - began
            how = self._train(reins, epoch, until, groups)
        except Cancelled:
            how = "lost"
            self.leave()
        except Exception as error:
            if not is_loss_of_contact(error):
                raise
            error.__traceback__ = None  # its frames hold the group that has to go
            how = "lost"
            self.leave()
        self.say(
            "outcome",
            generation=generation,
            how=how,
            unused=reins.unused if reins else unused,
            **self._position(),
        )

    # -- parts of a segment -----------------------------------------------------------------------

    def _join(self, generation: int, members: list[str], unused: bool | None) -> None:
        """Form a group with the other members; give up when the driver knows better."""
        self.leave()
        formed: list[Any] = []

        def forming() -> None:
            store = PrefixStore(f"group/{generation}", self.board.connect())
            rank = members.index(self.place)
            try:
                formed.append(
                    form(
                        store,
                        rank,
                        len(members),
                        seconds=_FORMING_SECONDS,
                        address=self.host,
                        device=self.device,
                    )
                )
            except Exception as error:
                formed.append(error)

        # In a thread of its own: while members meet, nothing can interrupt the one who waits.
        thread = threading.Thread(target=forming, daemon=True)
        thread.start()
        while thread.is_alive():
            thread.join(0.002)
            if not formed and self._flag(f"cancel/{generation}"):
                raise Cancelled
        if isinstance(formed[0], Exception):
            raise Cancelled from formed[0]
        self.group = self._contact(formed[0], unused=unused is not False)
        self.generation = generation

    def _hold(self, chunks: list[int], deposit: str | None, generation: int) -> None:
        """Hold the chunks that this segment gives to this rank; wait for those on their way."""
        if not isinstance(self.feed, ShardFeed) or set(chunks) == set(self.feed.chunks):
            return
        new: dict[int, list[Any]] | None = None if deposit is not None else {}
        while new is None:
            assert deposit is not None
            new = withdraw(deposit)
            if new is None:
                if self._flag(f"cancel/{generation}"):
                    raise Cancelled
                time.sleep(0.005)
        held = {n: chunk for n, chunk in self.feed.chunks.items() if n in chunks}
        self.feed.hold({**held, **new})

    def _flag(self, name: str) -> bool:
        try:
            return self.board.flag(name)
        except RuntimeError as error:
            raise BoardGone from error

    def _share(self, source: int, blob: str | None) -> None:
        """Take up the state of the rank `source`, which may first get it from the driver."""
        assert self.group is not None
        content = None
        if self.group.part.rank == source:
            content = pack_state(self.net) if blob is None else self.board.take(blob)
        content = self.group.broadcast(content, source)
        if isinstance(self.group, Apart) and blob is None:
            self._stand(content)
        else:
            self.net.records_.updates.load(take_up(self.net, content))

    def _stand(self, content: bytes) -> None:
        """Go on with ranks of which some have steps of their own that shall not be lost."""
        assert isinstance(self.group, Apart)
        run, theirs = self.net.run_, run_of(content)
        met = (run.update, run.sync["count"]) == (theirs.update, theirs.sync["count"])
        standing = met and self.net.fleet_ is not None
        if standing:
            self.net.run_ = theirs  # what is known of single ranks only is forgotten
        else:
            self.net.records_.updates.load(take_up(self.net, content))
        settle(self.net, self.group, standing=standing)

    def _forget_records(self, known: int) -> None:
        records = self.net.records_.updates
        table = records.tensor()
        records.load(table[table[:, 0] > known])

    def _train(self, reins: Reins, epoch: int, until: int, groups: list[Any]) -> str:
        net, order = self.net, self.order
        assert self.group is not None
        assert self.feed is not None
        run = net.run_
        while run.epoch < epoch:
            run.end_epoch()
        run.until = until
        _set_groups(net, groups)
        net.history_ = History()
        net.history_.new_epoch()
        self.group.begin_segment()
        self.together = self._together()
        training = Training(
            net=net,
            feed=self.feed,
            run=run,
            policy=order.policy,
            max_batch_size=net.max_batch_size,
            micro=net.micro_,
            records=net.records_,
            progress=reins,  # type: ignore[arg-type]
            interrupt=reins,  # type: ignore[arg-type]
            world=self.group,
            averaging=self.together,
            batches=self.group.part.size if self.averages else 1,
            control=net.control_,
            divisible=divisible(net),
            weights=order.weights,
            fit_params=order.fit_params,
            every_row_counts=self.every_row_counts,
        )
        try:
            train_epoch(training)
        except Paused:
            if self.together is not None:
                self.together.tell(net.records_.updates)
            return "paused"
        return "epoch"

    def _together(self) -> Together | None:
        net, order = self.net, self.order
        if not isinstance(self.group, Apart) or not isinstance(order.strategy, Averaging):
            return None
        talks = not order.policy.scheduled or net.control_.active or order.strategy.needs_loss
        watch = net.control_.watches_spread
        return Together(net, order.strategy, 1, self.group, watch_every=watch, talks=talks)

    def leave(self) -> None:
        """Drop the group."""
        if self.group is not None:
            self.group.close()
        self.group, self.generation = None, -1


def _set_groups(net: Any, groups: list[Any]) -> None:
    """Take over what callbacks on the driver may have set: learning rates, momentum, ..."""
    for name, settings in zip(net._optimizers, groups, strict=True):
        for group, values in zip(getattr(net, name + "_").param_groups, settings, strict=True):
            group.update(values)
