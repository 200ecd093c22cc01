"""The driver's knowledge of a run: its copy of the state, the data it sent, progress of ranks."""

from __future__ import annotations

import base64
import dataclasses
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import torch

from accelerando._cluster.messages import ProgressSeen
from accelerando._decisions import Memories
from accelerando._engine._torch import as_tensor, from_tensor, mark_optimizer_called, pack, unpack
from accelerando._engine.comm.average import show
from accelerando._engine.comm.members import VirtualGroup
from accelerando._engine.comm.replicas import ReplicaSet
from accelerando._engine.loop import Fit
from accelerando._engine.micro_batch import facts_of
from accelerando._engine.model import Components, Registry
from accelerando._engine.position import Part, Position
from accelerando._engine.runtime.progress import Progress
from accelerando._engine.state import TrainState
from accelerando._engine.structure import (
    Description,
    checksum,
    describe,
    differences,
    pack_attributes,
    pack_structure,
    refusal,
    set_attributes,
)
from accelerando.sync import Averaging

_NO_RECORDS = 2**62
_LARGE = 2**20  # bytes of attributes that travel with the state and not in a message


class DriverCopy:
    """Keep the driver's state up to date, and notice when callbacks change its model.

    Parameters
    ----------
    fit : Fit
        The driver's.
    add_records : callable
        Receives the records of new updates.
    check : callable
        Raises if ranks cannot train what callbacks have made of the model or of the data.
    """

    def __init__(
        self,
        fit: Fit,
        add_records: Callable[[Sequence[Mapping[str, float]]], None],
        check: Callable[[bool], None] = lambda changed: None,
    ) -> None:
        self.fit, self.state, self.add_records = fit, fit.state, add_records
        self.check = check
        self._known: Description | None = None  # what ranks have
        self._held: dict[str, Any] | None = None  # where the model is, if the run is further

    @property
    def is_behind(self) -> bool:
        """Whether the model is older than the rest of the state."""
        return self._held is not None

    # -- changes ----------------------------------------------------------------------------------

    def changes(self) -> tuple[bool, dict[str, Any]]:
        """Look for what somebody changed since the model was last exchanged with the ranks.

        Returns
        -------
        changed : bool
            Whether ranks have to load the state: numbers or the structure are others.
        patch : dict
            See :class:`~accelerando._cluster.messages.TrainSegment`.
        """
        model = self.fit.model
        model.refresh()
        self.state.components = components = model.components
        before = self._known
        # Nobody reads the model, or changes it, while it is behind.
        now = before if before and self.is_behind else self._describe(components)
        patch: dict[str, Any] = {
            "update": self.state.position.update,
            "groups": components.group_settings(),
            "frozen": now.frozen,
            "evaluated": _in_evaluation_mode(model.module.training, components),
        }
        if before is None:
            self.check(False)
            return True, patch
        if unsendable := now.unsendable(before):
            raise refusal(unsendable)
        patch["rewired"] = before.frozen != now.frozen or before.structure != now.structure
        attributes = differences(before.attributes, now.attributes)
        acts = before.structure != now.structure or any(map(_acts_on_rows, attributes))
        numbers = differences(before.numbers, now.numbers)
        if numbers and not acts:  # class weights, say
            saved = Registry(components).saved
            acts = any(
                not isinstance(saved.get(n), torch.nn.Parameter) for n in numbers if n in saved
            )
        self.fit.spec = dataclasses.replace(self.fit.spec, **facts_of(model))
        self.check(acts)
        if before.structure != now.structure or numbers:
            return True, patch
        if attributes:
            content = pack_attributes(components, attributes)
            if len(content) > _LARGE:
                return True, patch
            patch["attributes"] = base64.b64encode(content).decode()
        self._known = now
        return False, patch

    def _mark(self) -> None:
        self._known = self._describe(self.fit.model.components)

    def _describe(self, components: Components) -> Description:
        found, average = describe(components), self.state.ema
        if average is not None:
            found.numbers.update(
                {f"average of {name}": checksum(one) for name, one in average.tensors.items()}
            )
        return found

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
        """Return the state for ranks that continue from it, and what else the model is."""
        self.go_back()
        state = self.state
        state.components = components = self.fit.model.components
        self._known = known = self._describe(components)
        structure = pack_structure(components, known)
        replicas = state.replicas
        bound = replicas is not None and replicas.bound
        if replicas is not None and bound and not replicas.fits(state.components, len(replicas)):
            state.replicas = None  # somebody changed the model: all start from it
        if state.replicas is None:
            state.averaging.since = 0
        parts = Part.MODEL | Part.POSITION | Part.REPLICAS | Part.RECORDS
        content = state.state_dict(parts, records_after=_NO_RECORDS)
        return pack({**content, "structure": as_tensor(structure)})

    def newest_record(self) -> int:
        """Return the newest update whose record is here."""
        return int(self.state.records.updates.newest().get("update", 0))

    # -- from ranks -------------------------------------------------------------------------------

    def load(self, content: bytes) -> None:
        """Make a rank's state the driver's; the run's seed, end and generators stay."""
        self._held = None
        self._load(unpack(content))
        self._mark()

    def note(self, content: bytes) -> None:
        """Note where the run is, and leave the model as it is."""
        found, components = unpack(content), self.fit.model.components
        if self._held is None:
            self._held = self.state.state_dict(Part.POSITION)
            self._held["groups"] = components.group_settings()
        self._load(found)
        components.set_groups(json.loads(found["groups"]))

    def go_back(self) -> None:
        """Return to where the model is: what ranks have done since then is not here."""
        held, self._held = self._held, None
        if held is not None:
            self.state.load_state_dict(held)
            self.fit.model.components.set_groups(held["groups"])

    def catch_up(self, before: Position) -> None:
        """End the epochs that had ended before a model of the same update was loaded."""
        state, position = self.state, self.state.position
        if position.update == before.update:
            while position.epoch < before.epoch:
                state.end_epoch()
            position.until, position.epoch_open = before.until, before.epoch_open

    def drop_lost(self) -> int | None:
        """Drop the records of updates after the model's, whose ranks are lost.

        Returns
        -------
        known : int or None
            The records of the current epoch that are left; None if no record had to be dropped.
        """
        records, position = self.state.records, self.state.position
        if self.newest_record() <= position.update:
            return None
        rows = records.updates.tensor()[: records.updates.count_until(position.update)]
        records.updates.load(rows)
        records.epochs.load(records.epochs.tensor()[: records.epochs.count_until(position.epoch)])
        return int((rows[:, 1] == position.epoch + 1).sum())

    def _load(self, found: dict[str, Any]) -> None:
        state = self.state
        until, seeded = state.position.until, state.seeded
        state.load_state_dict(found, parts=Part.MODEL | Part.POSITION)
        state.position.until, state.seeded = until, seeded
        state.position.epoch_open = True
        state.seconds = self.fit.clock()
        state.replicas = None
        model = self.fit.model
        if "attributes" in found:
            set_attributes(model.components, from_tensor(found["attributes"]))
        if not model.module.training:
            model.train(True)  # as an update in this process does
        for optimizer in model.optimizers:
            mark_optimizer_called(optimizer)  # schedulers warn if there was no step before theirs
        self._add_records(found["tensors"]["updates"])

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
            separate = ("parameters", "optimizer_state", "memories")
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


def _acts_on_rows(name: str) -> bool:
    """Return True if an attribute may change what a row contributes to the loss."""
    return (
        not name.startswith("callback ")
        and not name.startswith("net#history_")
        and "hooks" not in name
    )


def _in_evaluation_mode(training: bool, components: Components) -> list[str] | None:
    """Return the layers that are in evaluation mode while the module is in training mode.

    None if the module itself is in evaluation mode: the next update sets all layers to training.
    """
    if not training:
        return None
    parts = {**components.modules, **components.criteria}
    return [
        path
        for root, part in parts.items()
        if isinstance(part, torch.nn.Module)
        for path, layer in part.named_modules(prefix=root)
        if not layer.training
    ]


_LOOKED_AT = 1 << 24  # bytes of an array; of larger ones, some rows
_PARTS = 1000  # of a data set; the others are not looked at


def describe_data(dataset: Any) -> dict[str, str]:
    """Return the numbers, texts and arrays of a data set by name, as texts to be compared."""
    found: dict[str, str] = {}
    waiting: list[tuple[str, Any]] = [("dataset", dataset)]
    for name, value in waiting:  # which grows
        if isinstance(value, bool | int | float | str):
            found[name] = repr(value)
        elif isinstance(value, torch.Tensor | np.ndarray):
            text = _describe_array(value)
            found.update({} if text is None else {name: text})
        elif len(waiting) < _PARTS and (value is dataset or not _is_foreign(value)):
            waiting += _parts_of(name, value)
    return found


def _is_foreign(value: Any) -> bool:
    """Return True for what changes by itself, and holds no data: locks, clients, loggers, files."""
    if isinstance(value, list | tuple | dict):
        return False
    package = type(value).__module__.partition(".")[0]
    plumbing = package in sys.stdlib_module_names or package in ("dask", "distributed", "tornado")
    return plumbing or isinstance(value, type | ModuleType | FunctionType)


def _parts_of(name: str, value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, list | tuple):
        return [(f"{name}[{place}]", one) for place, one in enumerate(value[:100])]
    if isinstance(value, dict):
        return [(f"{name}[{key!r}]", one) for key, one in list(value.items())[:100]]
    return [(f"{name}.{key}", one) for key, one in getattr(value, "__dict__", {}).items()]


def _describe_array(value: Any) -> str | None:
    if isinstance(value, np.ndarray) and value.dtype.kind not in "biufc":
        return None
    step = 1 + int(value.nbytes) // _LOOKED_AT
    some = value[::step] if step > 1 else value
    return checksum(some if isinstance(some, torch.Tensor) else torch.from_numpy(np.array(some)))


class LiveProgress:
    """The newest progress event of the first member.

    Parameters
    ----------
    state : TrainState
        The driver's.
    display : Progress or None
        The progress line.
    """

    def __init__(self, state: TrainState, display: Progress | None) -> None:
        self.state, self.display = state, display
        self.newest: dict[str, Any] = {}
        self._unseen: dict[str, Any] | None = None

    def receive(self, event: tuple[float, dict[str, Any]]) -> None:
        """Keep the newest event; called from a thread of Dask."""
        self._unseen = self.newest = event[1]

    @property
    def update(self) -> int:
        """The newest update that was reported."""
        return int(self.newest.get("update", 0))

    def signals(self) -> dict[str, float]:
        """Return the newest numbers by the names of ``updates_frame()``."""
        newest = dict(self.newest)
        monitored = newest.pop("signals", {})
        numbers = {k: v for k, v in newest.items() if isinstance(v, int | float)}
        if "epoch" in numbers:
            numbers["epoch"] += 1
        return {**numbers, **monitored}

    def show(self) -> ProgressSeen | None:
        """Show what arrived since the last call, and return it for the machine."""
        seen, self._unseen = self._unseen, None
        if seen is None:
            return None
        if self.display is not None:
            names = ("epoch", "cursor", "update")
            position = dataclasses.replace(
                self.state.position, **{name: seen[name] for name in names}
            )
            self.display.update(position, seen["batch_size"], seen["loss"], seen["lr"], seen)
        seconds = seen["batch_size"] / max(seen["examples_per_second"], 1e-9)
        return ProgressSeen(seen["update"], seconds, int(seen["period"]))
