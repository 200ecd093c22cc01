"""The driver's copy of the training state: sent to ranks, and loaded from them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from accelerando._decisions import Memories
from accelerando._engine._torch import mark_optimizer_called, pack, unpack
from accelerando._engine.comm.average import show
from accelerando._engine.comm.members import VirtualGroup
from accelerando._engine.comm.replicas import ReplicaSet
from accelerando._engine.loop import Fit
from accelerando._engine.position import Part
from accelerando.sync import Averaging

_NO_RECORDS = 2**62


class DriverCopy:
    """Keep the driver's state up to date, and notice when callbacks change its model.

    Parameters
    ----------
    fit : Fit
        The driver's.
    add_records : callable
        Receives the records of new updates.
    """

    def __init__(
        self, fit: Fit, add_records: Callable[[Sequence[Mapping[str, float]]], None]
    ) -> None:
        self.fit, self.state, self.add_records = fit, fit.state, add_records
        self._versions: list[int] = []

    # -- changes ----------------------------------------------------------------------------------

    def is_changed(self) -> bool:
        """Return True if somebody changed parameters or buffers since they were last exchanged."""
        return self._versions != self._present_versions()

    def _mark(self) -> None:
        self._versions = self._present_versions()

    def _present_versions(self) -> list[int]:
        components = self.fit.model.components
        tensors = [tensor for _, tensor in components.named_parameters()]
        return [tensor._version for tensor in (*tensors, *components.buffers())]

    def group_settings(self) -> list[list[dict[str, Any]]]:
        """Return the settings of the optimizers' parameter groups that are plain values."""
        plain = (int, float, bool, str, type(None), list, tuple)
        return [
            [
                {
                    key: value
                    for key, value in group.items()
                    if key != "params" and isinstance(value, plain)
                }
                for group in optimizer.param_groups
            ]
            for optimizer in self.fit.model.optimizers
        ]

    # -- batch sizes known ahead ------------------------------------------------------------------

    def first_batch_size(self) -> int:
        """Return the size of the next update as far as it is known beforehand."""
        state, control = self.state, self.fit.control
        base = control.policies[0]
        if state.batch_size:
            return state.batch_size
        if base.measures(state.position.update) is not None:
            return int(getattr(base, "initial", 1))
        alone = dataclasses.replace(control, monitors=(), policies=(base,))
        memories = Memories(policies=state.memories.policies[:1])
        return alone.plan(state.values(), memories, state.settings, math.nan).batch_size

    def planned_batch_size(self, epoch: int) -> int | None:
        """Return the size that a schedule has for an epoch; None if it is not known ahead."""
        state = self.state
        if epoch >= state.position.until:
            return None
        control = self.fit.control
        found = control.planned(state.values(), state.memories, state.settings, epoch)
        return found or None

    # -- to ranks ---------------------------------------------------------------------------------

    def pack(self) -> bytes:
        """Return the state for ranks that continue from it."""
        self._mark()
        state = self.state
        state.components = self.fit.model.components
        replicas = state.replicas
        bound = replicas is not None and replicas.bound
        if replicas is not None and bound and not replicas.fits(state.components, len(replicas)):
            state.replicas = None  # somebody changed the model: all start from it
        if state.replicas is None:
            state.averaging.since = 0
        parts = Part.MODEL | Part.POSITION | Part.REPLICAS | Part.RECORDS
        return pack(state.state_dict(parts, records_after=_NO_RECORDS))

    def newest_record(self) -> int:
        """Return the newest update whose record is here."""
        return int(self.state.records.updates.newest().get("update", 0))

    # -- from ranks -------------------------------------------------------------------------------

    def load(self, content: bytes) -> None:
        """Make a rank's state the driver's; the run's seed, end and generators stay."""
        state, found = self.state, unpack(content)
        until, seeded = state.position.until, state.seeded
        state.load_state_dict(found, parts=Part.MODEL | Part.POSITION)
        state.position.until, state.seeded = until, seeded
        state.position.epoch_open = True
        state.seconds = self.fit.clock()
        state.replicas = None
        for optimizer in self.fit.model.optimizers:
            mark_optimizer_called(optimizer)  # schedulers warn if there was no step before theirs
        self._add_records(found["tensors"]["updates"])
        self._mark()

    def _add_records(self, rows: Any) -> None:
        updates = self.state.records.updates
        newest = self.newest_record()
        new = [row for row in rows.tolist() if row[0] > newest]
        for row in new:
            updates.add(*row)
        self.add_records([dict(zip(updates.columns, row, strict=True)) for row in new])

    def load_replicas(self, contents: Sequence[bytes | None]) -> None:
        """Hold all replicas in this process, to be saved and to be averaged.

        `contents` are in the order of the members; None for those that are gone. If replicas are
        missing, the average of the others is kept, from which all continue.
        """
        state = self.state
        found = [None if c is None else unpack(c)["tensors"]["replicas"] for c in contents]
        known = [one for one in found if one]
        state.replicas = None
        if known:
            separate = ("parameters", "optimizer_state")
            merged = {**known[0], **{name: [one[name][0] for one in known] for name in separate}}
            state.components = self.fit.model.components
            state.replicas = ReplicaSet(state.components, len(known))
            state.replicas.restore(ReplicaSet.saved(merged))
            strategy = self.fit.spec.strategy
            assert isinstance(strategy, Averaging)
            show(state, strategy, VirtualGroup(len(known)))
        if len(known) < len(found):
            state.replicas, state.averaging.since = None, 0
        self._mark()
