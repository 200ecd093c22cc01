"""Hooks of a rank between updates: groups, pauses, progress, timeouts, checkpoints."""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import math
import queue
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from accelerando._cluster.job import RankModel
from accelerando._cluster.mailbox import Inbox, Mailbox
from accelerando._cluster.messages import (
    BatchSizeChanged,
    CheckpointSent,
    RankId,
    RanksAllowed,
    UpdateTimed,
)
from accelerando._engine._torch import as_tensor, pack
from accelerando._engine.comm.communicator import UpdateResult
from accelerando._engine.comm.process_group import ProcessGroup
from accelerando._engine.data.feed import Batch
from accelerando._engine.loop import Fit
from accelerando._engine.position import Part
from accelerando._engine.state import TrainState
from accelerando._engine.structure import (
    Description,
    describe,
    differences,
    pack_attributes,
    pack_structure,
    set_attributes,
    set_evaluated,
    set_frozen,
    unpack_structure,
)

log = logging.getLogger("accelerando")

FORMING_SECONDS = 60.0  # the timeout of a group until it is known how long updates take
_PROGRESS_SECONDS = 0.25
_LATE_SECONDS = 5.0  # a group is formed in milliseconds
_FORM_LOOK_SECONDS = 0.005
_USUAL = 20  # a rank may take this many times the usual update before it counts as silent
_FIRST = 2  # the first updates of a group are slower than the others
_FEWEST = 3  # of which the median is better than the mean of all

FIRST_MEMBER_PARTS = Part.ALL & ~Part.HOST & ~Part.RNG
OTHER_MEMBER_PARTS = Part.REPLICAS


def usual_seconds(durations: Sequence[float], period: int) -> float:
    """Return the usual duration of an update, from the first ones of a group.

    If ranks average every `period` updates, the averaging is part of it: the median is that of
    groups of `period` updates. The first updates are left out.

    Examples
    --------
    >>> usual_seconds([9.0, 5.0] + [1.0] * 18, period=1)
    1.0
    >>> usual_seconds([9.0, 5.0] + [1.0, 1.0, 2.0] * 6, period=3) == 4 / 3
    True
    """
    later = durations[_FIRST:]
    groups = len(later) // period
    if groups < _FEWEST:
        return statistics.mean(later)
    sums = [sum(later[n * period : (n + 1) * period]) for n in range(groups)]
    return statistics.median(sums) / period


class Paused(Exception):  # noqa: N818  not an error: the way out of the loop
    """All ranks have agreed to stop after the update just done."""


@dataclass
class Timing:
    """Durations of the first updates of a process group; it survives segments of one group."""

    generation: int = -1
    seconds: list[float] = field(default_factory=list)


class RankCopy:
    """A rank's model, as far as it is more than the state: received, patched and sent.

    Parameters
    ----------
    trained : RankModel
        Of this rank.
    """

    def __init__(self, trained: RankModel) -> None:
        self.trained = trained
        self._sent = Description()  # what the driver had sent
        self._changed: dict[str, None] = {}  # attributes that were others at some time since then

    def adopt(self, structure: bytes) -> bool:
        """Use the model of another process; return False if this rank has one like it."""
        components = unpack_structure(self.trained.model.components, structure)
        if components is not None:
            self.trained.adopt(components)
        self._sent, self._changed = describe(self.trained.model.components, numbers=False), {}
        return components is not None

    def patch(self, patch: dict[str, Any], update: int) -> None:
        """Apply what callbacks on the driver changed other than the state.

        What updates change, too, such as a learning rate with a scheduler, is left alone if this
        rank is further than the driver was.
        """
        model = self.trained.model
        is_new = patch.get("update", update) == update
        if is_new:
            model.components.set_groups(patch.get("groups", ()))
        if "attributes" in patch and is_new:
            set_attributes(model.components, base64.b64decode(patch["attributes"]))
            self.trained.adopt(model.components)
            self._sent = describe(model.components, numbers=False)
        if "frozen" in patch:
            set_frozen(model.components, patch["frozen"])
            set_evaluated(model, patch["evaluated"])

    def evaluate(
        self, state: TrainState, read: Callable[[int], Any], numbers: Sequence[int]
    ) -> dict[str, Any]:
        """Return loss and predictions of validation batches, by the average of the weights."""
        components, average = self.trained.model.components, state.ema
        results: dict[str, Any] = {}
        with nullcontext() if average is None else average.shown(components):
            for number in numbers:
                loss, y_pred = self.trained.evaluate(read(number))
                results[str(number)] = [loss.detach(), y_pred]
        return results

    def pack(self, state: TrainState, parts: Part, records_after: int = 0) -> bytes:
        """Return parts of the state; with the model, what its forward passes have changed of it."""
        content = state.state_dict(parts, records_after=records_after)
        components = self.trained.model.components
        if parts & (Part.MODEL | Part.POSITION) == Part.POSITION:
            content["groups"] = json.dumps(components.group_settings())
        if Part.MODEL in parts:
            now = describe(components, numbers=False)
            # All that ever changed: the driver may drop a checkpoint, or have an older one.
            self._changed.update(dict.fromkeys(differences(self._sent.attributes, now.attributes)))
            names = [name for name in self._changed if name not in now.fixed]
            if names:
                content["attributes"] = as_tensor(pack_attributes(components, names))
        return pack(content)

    def compared(self) -> tuple[dict[str, str], tuple[float, ...]]:
        """Return what should be the same on all ranks; see SegmentEnded."""
        components = self.trained.model.components
        now = describe(components, numbers=False).attributes
        own = {name: now.get(name, "") for name in differences(self._sent.attributes, now)}
        with torch.no_grad():
            sums = [float(p.detach().sum()) for p in components.learnable()]
            sizes = [float(p.detach().norm()) for p in components.learnable()]
        return own, (math.fsum(s * (n + 1) for n, s in enumerate(sums)), math.hypot(*sizes))

    def pack_whole(self, state: TrainState, parts: Part) -> bytes:
        """Return parts of the state and the model, for ranks that may have another one."""
        components = self.trained.model.components
        structure = pack_structure(components, describe(components, numbers=False))
        return pack({**state.state_dict(parts), "structure": as_tensor(structure)})


class RankHooks:
    """Hooks of the engine on a rank.

    The first member passes the driver's Pause on to the others with the next update, so that all
    stop after the same one, and reports for all.

    Parameters
    ----------
    mailbox, inbox : Mailbox, Inbox
        Of this rank.
    rank : str
        Its name.
    group : ProcessGroup
        The members.
    segment : int
        The number of the segment.
    timing : Timing
        Durations so far.
    trained : RankModel
        Calls the callbacks that act on gradients and after updates.
    pack_state : callable
        Returns parts of the state as bytes.
    log_event : callable
        Publishes progress.
    averages : bool
        Whether every member has a part of a checkpoint.
    careful : bool
        Whether to report before each update, which may end this process.
    """

    fit: Fit  # set by the rank, which builds the fit with these hooks

    def __init__(
        self,
        mailbox: Mailbox,
        inbox: Inbox,
        rank: RankId,
        group: ProcessGroup,
        segment: int,
        timing: Timing,
        trained: RankModel,
        pack_state: Callable[[TrainState, Part, int], bytes],
        log_event: Callable[[dict[str, Any]], None],
        *,
        averages: bool,
        careful: bool = False,
    ) -> None:
        self.mailbox, self.inbox, self.rank = mailbox, inbox, rank
        self.group, self.segment, self.timing = group, segment, timing
        self.trained, self.updated = trained, trained.updated
        self.pack_state = pack_state
        self.log_event = log_event
        self.averages, self.careful = averages, careful
        self.is_first = group.shard.rank == 0
        self._batch_size = 0
        self._workers: int | None = None
        self._usual, self._period = 0.0, 0  # for which the timeout of the group is set
        self._last = time.perf_counter()
        self._next_progress = self._last
        self._examples: int | None = None
        self._bytes, self._waited = 0, 0.0
        self._sent = 0  # the newest update whose record is in a checkpoint of this segment

    def before_update(self, batch: Batch) -> None:
        self.trained.begin_update(self.fit.state)
        if self._examples is None:
            self._examples = self.fit.state.position.examples
        if self.careful and self.is_first:
            state = self.fit.state
            now = RanksAllowed(self.rank, state.settings.workers, state.position.update)
            self.mailbox.report(now)

    def gradients_ready(self, batch: Batch) -> None:
        self.trained.gradients_ready(batch, self.fit.state, alone=self.group.shard.size == 1)

    def after_update(self, batch: Batch, result: UpdateResult) -> None:
        self.updated(batch, result)
        now = time.perf_counter()
        self._report_decisions()
        self._time(now - self._last)
        self._last = now
        self._checkpoint()
        if self.is_first:
            self._look_for_pause()
            self._report_progress(result, now)
        if self.group.failure is not None:
            raise self.group.failure
        if self.group.paused:
            raise Paused

    @property
    def period(self) -> int:
        """Updates between two averagings; 1 under all-reduce."""
        return int(getattr(self.fit.comm, "current_period", 1))

    def _report_decisions(self) -> None:
        """Let the driver know when the batch size or the allowed ranks change."""
        state = self.fit.state
        if state.batch_size != self._batch_size:
            if self._batch_size:
                self.timing.seconds = []
            self._batch_size = state.batch_size
            if self.is_first:
                self.mailbox.report(BatchSizeChanged(self.rank, state.batch_size))
        workers = state.settings.workers
        if workers != self._workers:
            self._workers = workers
            if self.is_first:
                update = state.position.update
                self.mailbox.report(RanksAllowed(self.rank, workers, update))

    def _time(self, seconds: float) -> None:
        """Learn the duration of an update; wait for silent ranks in proportion to it."""
        known = self.timing.seconds
        if len(known) < _USUAL:
            known.append(seconds)
            if len(known) == _USUAL:
                usual = usual_seconds(known, self.period)
                self._set_timeout(usual)
                if self.is_first:
                    ranks, rows = self.group.shard.size, self._batch_size
                    self.mailbox.report(UpdateTimed(self.rank, ranks, rows, usual))
            elif not self._usual:
                # A rank that hangs in these updates is not awaited for a minute.
                silent = self.fit.spec.rank_timeout + _USUAL * max(known) * self.period
                self.group.set_timeout(min(FORMING_SECONDS, silent))
        elif self.period > max(self._period, 1):
            self._set_timeout(self._usual or statistics.mean(known))

    def _set_timeout(self, usual: float) -> None:
        """Wait for the others as long as they may take until they send the next message."""
        self._usual, self._period = usual, self.period
        silent = _USUAL * usual * self._period
        self.group.set_timeout(self.fit.spec.rank_timeout + silent)

    def _checkpoint(self) -> None:
        """Send the state to the driver now and then; with replicas, every member sends its own."""
        state, every = self.fit.state, self.fit.spec.checkpoint_every
        update = state.position.update
        if every is None or update % every or not (self.is_first or self.averages):
            return
        self.fit.comm.flush(state)
        parts = FIRST_MEMBER_PARTS if self.is_first else OTHER_MEMBER_PARTS
        blob = f"checkpoint/{update}/{self.rank}"
        # The driver has the records of the checkpoint before; later it collects all of them.
        self.mailbox.put(blob, self.pack_state(state, parts, self._sent))
        self._sent = update
        count = state.averaging.count
        self.mailbox.report(CheckpointSent(self.rank, blob, self.segment, update, count))

    def _look_for_pause(self) -> None:
        pause = self.inbox.pause(self.segment)
        if pause is not None:
            self.group.pause = True
            self.group.switch = pause.membership_changes

    def _report_progress(self, result: UpdateResult, now: float) -> None:
        traffic = self.fit.comm.traffic
        self._bytes += traffic.bytes
        self._waited += traffic.wait_seconds
        if now < self._next_progress:
            return
        seconds = max(now - self._next_progress + _PROGRESS_SECONDS, 1e-9)
        self._next_progress = now + _PROGRESS_SECONDS
        state = self.fit.state
        position = state.position
        before = self._examples or 0
        self.log_event(
            {
                "update": position.update,
                "epoch": position.epoch,
                "cursor": position.cursor,
                "batch_size": state.batch_size,
                "ranks": self.group.shard.size,
                "period": self._period or 1,
                "loss": result.loss,
                "lr": result.lr,
                "examples_per_second": (position.examples - before) / seconds,
                "bytes_per_second": self._bytes / seconds,
                "waiting": min(1.0, self._waited / seconds),
                "signals": dict(state.memories.signals),
            }
        )
        self._examples, self._bytes, self._waited = position.examples, 0, 0.0


def form_or_knock(
    form: Callable[[], Any], late: Callable[[], None], look: Callable[[], None]
) -> Any:
    """Return what `form` returns, or the exception of `form` or `late`.

    `form` runs in a thread, because nothing can interrupt a wait for the others inside C++. If it
    takes long, `late` is called once meanwhile; its ConnectionError means that there will be no
    group. `look` is called again and again, and may raise to give up.
    """
    found: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def forming() -> None:
        try:
            found.put(form())
        except Exception as error:
            found.put(error)

    def knocking() -> None:
        try:
            late()
        except ConnectionError as error:
            found.put(error)
        except Exception:
            log.info("Members of a group could not be tried.", exc_info=True)  # nothing is known

    threading.Thread(target=forming, daemon=True).start()
    knock_at = time.monotonic() + _LATE_SECONDS
    while True:
        with contextlib.suppress(queue.Empty):
            return found.get(timeout=_FORM_LOOK_SECONDS)
        look()
        if time.monotonic() > knock_at:
            knock_at = math.inf
            threading.Thread(target=knocking, daemon=True).start()
