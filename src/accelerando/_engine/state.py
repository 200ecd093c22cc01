"""The state of a training run: everything that changes between two updates and must survive.

:class:`TrainState` is the only object that is saved, sent between processes and pickled. Each field
has one writer, named in its documentation. Settings that a user passes are not state; they are in
:class:`~accelerando._engine.loop.FitSpec`.
"""

from __future__ import annotations

import dataclasses
import json
import math
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from accelerando._decisions import Memories, Plan, Settings
from accelerando._engine.micro_batch import MicroBatch
from accelerando._engine.model import Components
from accelerando._engine.position import (
    AVERAGING_COLUMNS,
    EPOCH_COLUMNS,
    UPDATE_COLUMNS,
    AveragingState,
    HostState,
    LastUpdate,
    Part,
    Position,
    plain_number,
)
from accelerando._engine.runtime.process import RNG_LOCK, get_rng, seed_torch, set_rng
from accelerando.sync import Averaging
from accelerando.sync._strategy import Strategy

if TYPE_CHECKING:
    from accelerando._engine.comm.replicas import ReplicaSet
    from accelerando._engine.ema import WeightAverage
    from accelerando.policies._controller import Controller


class Table:
    """Named columns of numbers. Adding a row takes less than a microsecond.

    ``changed_from`` is the first row that may have changed since whoever saves rows last set it.
    """

    def __init__(self, columns: Sequence[str]) -> None:
        self.columns = tuple(columns)
        self.values = array("d")
        self.changed_from = 0

    def add(self, *row: float) -> None:
        """Append one value per column."""
        self.values.extend(row)

    def amend(self, back: int, **values: float) -> None:
        """Set values of the row that `back` others follow."""
        row = len(self.values) - (back + 1) * len(self.columns)
        self.changed_from = min(self.changed_from, len(self) - back - 1)
        for name, value in values.items():
            self.values[row + self.columns.index(name)] = value

    def newest(self) -> dict[str, float]:
        """Return the last row by column; empty if there is none."""
        row = self.values[-len(self.columns) :]
        return dict(zip(self.columns, row, strict=False))

    def __len__(self) -> int:
        return len(self.values) // len(self.columns)

    def tensor(self, start: int = 0) -> torch.Tensor:
        """Return the rows as a matrix, from the row number `start` on."""
        values = self.values[start * len(self.columns) :]
        return torch.tensor(values, dtype=torch.float64).reshape(-1, len(self.columns))

    def count_until(self, update: int) -> int:
        """Return the number of rows whose first value is at most `update`; they are in order."""
        return bisect_right(self.values[:: len(self.columns)], update)

    def load(self, rows: torch.Tensor, columns: Sequence[str] | None = None) -> None:
        """Replace the rows; columns that `rows` does not have become nan."""
        if columns is not None and tuple(columns) != self.columns:
            known = torch.full((len(rows), len(self.columns)), math.nan, dtype=rows.dtype)
            for number, name in enumerate(self.columns):
                if name in columns:
                    known[:, number] = rows[:, list(columns).index(name)]
            rows = known
        self.values = array("d", rows.flatten().tolist())
        self.changed_from = 0


class Records:
    """The tables of a run: one row per update, one row per epoch."""

    def __init__(self, extra_columns: Sequence[str] = ()) -> None:
        self.updates = Table((*UPDATE_COLUMNS, *extra_columns))
        self.epochs = Table(EPOCH_COLUMNS)

    def set_columns(self, extra_columns: Sequence[str]) -> None:
        """Record other signals from now on; earlier rows keep what is known of them."""
        columns = (*UPDATE_COLUMNS, *extra_columns)
        if columns != self.updates.columns:
            table = Table(columns)
            table.load(self.updates.tensor(), self.updates.columns)
            self.updates = table


@dataclass
class TrainState:
    """The state of a training run.

    Attributes
    ----------
    seed, seeded : int, bool
        Decides every shuffle; whether the user gave a ``random_state``. Never change.
    position : Position
        Written by :meth:`advance` and :meth:`end_epoch`; the estimator sets ``until`` and
        ``epoch_open``.
    last : LastUpdate
        Written by :meth:`advance`.
    batch_size, lr_scale : int, float
        Rows of the global batch and factor on the learning rate that the newest update was
        planned with. Written by :meth:`advance`.
    settings, memories : Settings, Memories
        What policies have decided, and what policies, monitors and the averaging strategy remember.
        Written by :meth:`advance`, the loop (monitors) and the communicator (strategy).
    averaging : AveragingState
        Written by the communicator.
    stream : dict
        What was read of the current epoch, if the training set is a stream. Written by the loop.
    components : Components
        References to the live modules and optimizers. Bound by the model.
    replicas : ReplicaSet or None
        Parameters and optimizer state of each replica. Written by the communicator.
    ema : WeightAverage or None
        The average of the weights. Begun by the estimator, written by the loop.
    micro_batch : MicroBatch
        The choice of rows per micro-batch.
    records : Records
        Rows are appended by the loop.
    seconds : float
        Time spent in training so far.
    rng : list of Tensor or None
        Generator states of a seeded run between two fits, and while updates use others. Written by
        :meth:`randomness` and :func:`~accelerando._engine.runtime.process.update_generators`.
    made_with : dict
        Texts that describe the policies, monitors and strategy whose memories these are.
    host : HostState
        Written by the estimator.
    """

    seed: int = 0
    seeded: bool = False
    position: Position = field(default_factory=Position)
    last: LastUpdate = field(default_factory=LastUpdate)
    batch_size: int = 0
    lr_scale: float = 1.0
    settings: Settings = field(default_factory=Settings)
    memories: Memories = field(default_factory=Memories)
    averaging: AveragingState = field(default_factory=AveragingState)
    stream: dict[str, Any] = field(default_factory=dict)
    components: Components = field(default_factory=Components)
    replicas: ReplicaSet | None = None
    ema: WeightAverage | None = None
    micro_batch: MicroBatch = field(default_factory=MicroBatch)
    records: Records = field(default_factory=Records)
    seconds: float = 0.0
    rng: list[torch.Tensor] | None = None
    made_with: dict[str, Any] = field(default_factory=dict)
    host: HostState = field(default_factory=HostState)

    # -- progress ---------------------------------------------------------------------------------

    @property
    def interrupted(self) -> bool:
        """Whether the last call of ``fit`` ended before its last epoch did."""
        return self.position.epoch < self.position.until

    def adopt(
        self, control: Controller, strategy: Strategy, before: tuple[Controller, Strategy] | None
    ) -> None:
        """Start the memories of policies, monitors and strategy that were not there `before`."""
        fresh = control.start()
        if before is None or control.policies[0] != before[0].policies[0]:
            self.memories.policies[:1] = fresh.policies[:1]
        standing = (control.monitors, control.policies[1:])
        if before is None or standing != (before[0].monitors, before[0].policies[1:]):
            self.adopt_standing(fresh)
        if before is None or strategy != before[1]:
            self.adopt_strategy(strategy)
        averages = isinstance(strategy, Averaging)
        self.records.set_columns((*(AVERAGING_COLUMNS if averages else ()), *control.columns))
        self.made_with = describe(control, strategy)

    def adopt_standing(self, fresh: Memories) -> None:
        """Replace the memories of monitors and standing policies; nothing is decided yet."""
        self.memories.policies[1:] = fresh.policies[1:]
        self.memories.monitors, self.memories.signals = fresh.monitors, fresh.signals
        self.settings = Settings()

    def adopt_strategy(self, strategy: Strategy) -> None:
        """Replace the memory of the strategy; all replicas start from the model that is there."""
        self.memories.strategy = dict(strategy.start()) if isinstance(strategy, Averaging) else {}
        self.averaging = AveragingState()
        self.replicas = None

    def advance(
        self, plan: Plan, rows: int, loss: float, grad_norm: float, batches_per_update: int
    ) -> None:
        """Count one update and remember what was decided for it.

        Nothing is remembered before the update is done: an update that is repeated after a lost
        rank asks the policies again and gets the same answer.
        """
        self.memories.policies = plan.policy_memories
        self.settings = plan.settings
        self.batch_size, self.lr_scale = plan.rows, plan.lr_scale
        position = self.position
        position.cursor += rows
        position.examples += rows
        position.update += 1
        # Policies see the rows of one batch, rounded up, where every rank has its own.
        self.last = LastUpdate(-(-rows // batches_per_update), loss, grad_norm)

    def end_epoch(self) -> None:
        """Count one epoch."""
        position = self.position
        if position.n_examples is None:
            position.n_examples = position.cursor  # a stream shows its length by ending
        position.epoch, position.cursor, position.epoch_open = position.epoch + 1, 0, False

    def values(self) -> dict[str, float]:
        """Return the numbers that are known before the next update, the same on all ranks."""
        position = self.position
        return {
            "update": position.update,
            "epoch": position.epoch,
            "examples": position.examples,
            "n_examples": math.nan if position.n_examples is None else position.n_examples,
            "rows": self.last.rows,
            "loss": self.last.loss,
            "grad_norm": self.last.grad_norm,
        }

    def lr(self, scale: float | None = None) -> float:
        """Return the learning rate of the first parameter group, times `scale`."""
        return float(self.first_group()["lr"]) * (self.lr_scale if scale is None else scale)

    def first_group(self) -> dict[str, Any]:
        """Return the first parameter group, with an unknown lr if the optimizer shows none."""
        optimizer = next(iter(self.components.optimizers.values()), None)
        groups = getattr(optimizer, "param_groups", None)
        return groups[0] if isinstance(groups, list) else {"lr": math.nan}

    def drop_replicas(self) -> None:
        """Forget the replicas; a communicator that needs some starts them from the model."""
        self.replicas = None

    @contextmanager
    def randomness(self) -> Iterator[None]:
        """Draw from the run's generators inside, and restore the user's afterwards."""
        with RNG_LOCK:
            users, (mine, self.rng) = get_rng(), (self.rng, None)
            if mine is not None:
                set_rng(mine)
            elif self.seeded:
                seed_torch(self.seed)
        try:
            yield
        finally:
            with RNG_LOCK:
                if self.seeded:  # another run follows torch.manual_seed
                    self.rng = get_rng()
                    set_rng(users)

    # -- saving -----------------------------------------------------------------------------------

    def state_dict(self, parts: Part = Part.ALL, *, records_after: int = 0) -> dict[str, Any]:
        """Return parts of the state as JSON text and tensors.

        Parameters
        ----------
        parts : Part
            What to include.
        records_after : int
            Include only records of updates with a larger number.
        """
        plain: dict[str, Any] = {"parts": parts.value}
        tensors: dict[str, Any] = {}
        if Part.POSITION in parts:
            plain.update(self._plain_position())
            if self.ema is not None:
                plain["ema"], tensors["ema"] = self.ema.state_dict()
        if Part.MODEL in parts:
            plain["frozen"] = self.components.frozen()
            tensors.update(self.components.state_dict())
        if Part.REPLICAS in parts:
            tensors["replicas"] = {} if self.replicas is None else self.replicas.state_dict()
        if Part.RECORDS in parts:
            updates = self.records.updates
            tensors["updates"] = updates.tensor(updates.count_until(records_after))
            tensors["epochs"] = self.records.epochs.tensor()
            plain["columns"] = list(self.records.updates.columns)
        if Part.RNG in parts:
            tensors["rng"] = self.rng or []
        if Part.HOST in parts:
            plain["host"] = self.host.plain
            tensors["host"] = self.host.tensors
        return {"json": json.dumps(plain, default=plain_number), "tensors": tensors}

    def load_state_dict(
        self, content: Mapping[str, Any], *, parts: Part = Part.ALL, origin: object = "The state"
    ) -> Part:
        """Replace what `content` holds and return which parts that was.

        Parameters
        ----------
        content : mapping
            What :meth:`state_dict` returned.
        parts : Part
            What to load at most.
        origin : object
            Where it came from, for messages.
        """
        plain, tensors = json.loads(content["json"]), content["tensors"]
        parts &= Part(plain["parts"])
        if Part.MODEL in parts:
            self.components.load_state_dict(tensors, plain["frozen"], origin=origin)
        if Part.POSITION in parts:
            self._load_position(plain)
            self.ema = None
            if "ema" in plain:
                from accelerando._engine.ema import WeightAverage

                self.ema = WeightAverage.saved(plain["ema"], tensors["ema"])
        if Part.REPLICAS in parts:
            from accelerando._engine.comm.replicas import ReplicaSet

            saved = tensors["replicas"]
            self.replicas = ReplicaSet.saved(saved) if saved else None
        if Part.RECORDS in parts:
            self.records.updates.load(tensors["updates"], plain["columns"])
            self.records.epochs.load(tensors["epochs"])
        if Part.RNG in parts:
            self.rng = tensors["rng"] or None
        if Part.HOST in parts:
            self.host = HostState(plain["host"], tensors["host"])
        return parts

    def _plain_position(self) -> dict[str, Any]:
        return {
            "seed": self.seed,
            "seeded": self.seeded,
            "position": dataclasses.asdict(self.position),
            "last": list(self.last),
            "batch_size": self.batch_size,
            "lr_scale": self.lr_scale,
            "settings": self.settings.to_json(),
            "memories": self.memories.to_json(),
            "averaging": dataclasses.asdict(self.averaging),
            "stream": self.stream,
            "micro_batch": self.micro_batch.to_json(),
            "seconds": self.seconds,
            "made_with": self.made_with,
        }

    def _load_position(self, plain: dict[str, Any]) -> None:
        self.seed, self.seeded = plain["seed"], plain["seeded"]
        self.position = Position(**plain["position"])
        self.last = LastUpdate(*plain["last"])
        self.batch_size, self.lr_scale = plain["batch_size"], plain["lr_scale"]
        self.settings = Settings.from_json(plain["settings"])
        self.memories = Memories.from_json(plain["memories"])
        self.averaging = AveragingState(**plain["averaging"])
        self.stream = plain.get("stream", {})
        self.micro_batch.from_json(plain["micro_batch"])
        self.seconds = plain["seconds"]
        self.made_with = plain["made_with"]

    def __getstate__(self) -> dict[str, Any]:
        # Modules and optimizers are pickled by the estimator, to which they belong.
        return self.state_dict(Part.ALL & ~Part.MODEL)

    def __setstate__(self, content: dict[str, Any]) -> None:
        vars(self).update(vars(TrainState()))
        columns = json.loads(content["json"])["columns"]
        self.records = Records(columns[len(UPDATE_COLUMNS) :])
        self.load_state_dict(content)


def describe(control: Controller, strategy: Strategy) -> dict[str, Any]:
    """Return texts that say which policies, monitors and strategy the memories belong to."""
    texts, base = control.describe(), len(control.monitors)
    standing = texts[:base] + texts[base + 1 :]
    return {"policy": texts[base], "control": standing, "sync": repr(strategy)}
