"""What happens on a rank between two updates: pauses, progress, wishes, checkpoints."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from accelerando.exceptions import UnsupportedError
from accelerando.train.cluster.apart import Apart
from accelerando.train.cluster.packet import pack_ranks, pack_state
from accelerando.train.run import Run

if TYPE_CHECKING:
    from accelerando.train.cluster.rank import Rank

_LOOK_SECONDS = 0.1  # between two looks for a wish to pause; training goes on meanwhile
_PROGRESS_SECONDS = 0.25
_USUAL = 20  # a rank may take this many times the usual update before it counts as silent
_FIRST = 2  # updates of a group that say nothing about the others
_FEWEST = 3  # of which a median is better than the mean of all


def usual_seconds(pace: Sequence[float], period: int) -> float:
    """Return what an update takes, from the first ones of a group.

    Where ranks meet now and then only, meetings are part of it: the median is that of as many
    updates as lie between two of them. The first updates, in which all is done for the first time,
    are left out.

    Examples
    --------
    >>> usual_seconds([9.0, 5.0] + [1.0] * 18, period=1)
    1.0
    >>> usual_seconds([9.0, 5.0] + [1.0, 1.0, 2.0] * 6, period=3) == 4 / 3
    True
    """
    later = pace[_FIRST:]
    whole = len(later) // period
    if whole < _FEWEST:
        return statistics.mean(later)
    turns = [sum(later[n * period : (n + 1) * period]) for n in range(whole)]
    return statistics.median(turns) / period


class Paused(Exception):  # noqa: N818  no error: the way out of the loop
    """All ranks have agreed to stop after the update just done."""


class Cancelled(Exception):  # noqa: N818
    """The driver has given this segment up."""


class Reins:
    """Called by the loop as its progress display and as its interrupt.

    The first rank looks at the board for the driver's wish to pause, and says it to the others in
    the next update's tail, so that all stop after the same one.
    """

    def __init__(self, rank: Rank, segment: int, *, watching: bool, unused: bool | None) -> None:
        self.rank = rank
        self.segment = segment
        self.watching = watching
        self.unused = unused
        self.batch_size = 0
        self.workers: int | None = None
        self.usual, self.period = 0.0, 0  # for which the patience with others is set
        if rank.pace_of != rank.generation:
            rank.pace_of, rank.pace = rank.generation, []
        self._last = time.perf_counter()
        self._next_look = self._next_progress = self._last
        self._examples = rank.net.run_.examples
        self._bytes, self._waited = 0, 0.0

    def update(self, run: Run, loss: float, lr: float) -> None:
        """Note one update."""
        group = self.rank.group
        assert group is not None
        if self.unused is None:
            self._settle_unused()
        now = time.perf_counter()
        if run.batch_size != self.batch_size:
            if self.batch_size:
                self.rank.pace = []
            self.batch_size = run.batch_size
            if self.watching:
                self.rank.say("batch", rows=run.batch_size)
        workers = run.control["wish"]["workers"] if run.control else None
        if workers != self.workers:
            self.workers = workers
            if self.watching:
                self.rank.say("workers", most=workers, update=run.update)
        if len(self.rank.pace) < _USUAL:
            self.rank.pace.append(now - self._last)
            if len(self.rank.pace) == _USUAL:
                self._learn_speed()
        elif self.rank.together is not None and self.rank.together.period > self.period:
            self._bear(self.usual or statistics.mean(self.rank.pace))
        self._last = now
        self._checkpoint(run)
        if not self.watching:
            return
        self._bytes += group.traffic.bytes
        self._waited += group.traffic.seconds
        if now >= self._next_look:
            self._next_look = now + _LOOK_SECONDS
            group.pause = group.pause or self.rank._flag(f"pause/{self.segment}")
            if group.pause and isinstance(group, Apart):
                group.switch = self.rank._flag(f"switch/{self.segment}")
            if now >= self._next_progress:
                self._report(run, loss, lr, now)

    def check(self) -> None:
        """Raise if all ranks have agreed to pause."""
        group = self.rank.group
        if group is not None and group.failure is not None:
            raise group.failure
        if group is not None and group.paused:
            raise Paused

    def _checkpoint(self, run: Run) -> None:
        """Hand the state over now and then; where ranks have their own parameters, all do."""
        rank, every = self.rank, self.rank.order.checkpoint_every
        if every is None or run.update % every or not (self.watching or rank.averages):
            return
        if rank.together is not None:
            rank.together.tell(rank.net.records_.updates)
        name = f"checkpoint/{run.update}/{rank.place}"
        rank.board.put(name, pack_state(rank.net) if self.watching else pack_ranks(rank.net))
        rank.say("checkpoint", name=name, segment=self.segment, update=run.update)

    def _settle_unused(self) -> None:
        """After the first update: gradients meet in DDP if every parameter has got one."""
        net, group = self.rank.net, self.rank.group
        assert group is not None
        learnable = [p for _, p in net.get_all_learnable_params() if p.requires_grad]
        self.unused = any(p.grad is None for p in learnable)
        if not self.unused:
            group.wrap()
        elif group.hook is not None and not group.hook.meets:
            raise UnsupportedError(
                "PowerSGD works in PyTorch's DDP, which wants a gradient for every parameter in "
                "every update, and some parameters got none. Use Atomo(budget=...), or freeze "
                "the parameters that are not used."
            )

    def _learn_speed(self) -> None:
        """Give up on a silent rank after a while that fits the speed of this model."""
        group = self.rank.group
        assert group is not None
        together = self.rank.together
        usual = usual_seconds(self.rank.pace, together.period if together is not None else 1)
        self._bear(usual)
        if self.watching:
            self.rank.say("speed", ranks=group.part.size, rows=self.batch_size, seconds=usual)

    def _bear(self, usual: float) -> None:
        """Wait for others as long as they may take until they speak again."""
        group, together = self.rank.group, self.rank.together
        assert group is not None
        self.usual, self.period = usual, together.period if together is not None else 1
        silent = _USUAL * usual * self.period
        group.processes.set_timeout(timedelta(seconds=self.rank.order.seconds + silent))

    def _report(self, run: Run, loss: float, lr: float, now: float) -> None:
        seconds = max(now - self._next_progress + _PROGRESS_SECONDS, 1e-9)
        self._next_progress = now + _PROGRESS_SECONDS
        group = self.rank.group
        assert group is not None
        facts: dict[str, Any] = {
            "update": run.update,
            "epoch": run.epoch,
            "cursor": run.cursor,
            "batch_size": run.batch_size,
            "ranks": group.part.size,
            "period": self.period or 1,
            "loss": loss,
            "lr": lr,
            "examples_per_second": (run.examples - self._examples) / seconds,
            "bytes_per_second": self._bytes / seconds,
            "waiting": min(1.0, self._waited / seconds),
            "signals": run.control.get("signals", {}),
        }
        self._examples, self._bytes, self._waited = run.examples, 0, 0.0
        if self.rank.worker is not None:
            self.rank.worker.log_event(self.rank.order.topic, facts)
