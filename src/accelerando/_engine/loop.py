"""The training loop: one epoch, one update after the other.

The loop is the same here and on fifty machines. It asks neither whether ranks average, nor whether
there is a policy: each question is answered once, when :class:`Fit` is built.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, cast

import torch

from accelerando._decisions import Plan, Settings
from accelerando._engine import step as steps
from accelerando._engine.comm.communicator import (
    Communicator,
    PartNorms,
    SingleProcess,
    UpdateResult,
    VirtualAllReduce,
)
from accelerando._engine.data.feed import Batch, Batches, Feed
from accelerando._engine.micro_batch import facts_of
from accelerando._engine.model import Model
from accelerando._engine.runtime.process import update_generators
from accelerando._engine.state import TrainState
from accelerando.compress._codec import Compressor
from accelerando.monitor import Observation
from accelerando.policies._controller import Controller
from accelerando.sync import AllReduce, Averaging
from accelerando.sync._strategy import Strategy


@dataclass(frozen=True)
class FitSpec:
    """Constants of a fit. They are pickled to ranks as they are.

    Attributes
    ----------
    control : Controller
        The monitors and policies.
    strategy : Strategy
        When ranks average parameters, and by what rule; all-reduce averages gradients.
    compressor : Compressor or None
        How exchanged tensors are encoded.
    virtual_ranks : int
        Ranks that this process simulates.
    divisible : bool
        Whether a batch may be divided at all, if only to compare the gradients of its parts.
    min_rows : int
        The fewest rows of a batch: 2 with BatchNorm.
    sums : bool
        Whether the loss is a sum over rows instead of a mean.
    every_row_counts : bool
        Whether the mass of a part of a batch is its number of rows, whatever its targets are.
    weights : Tensor or None
        Weights of the training rows.
    fit_params : mapping
        Further arguments of the module's ``forward``.
    custom_step : bool
        Whether the user's subclass has its own training step.
    checkpoint_every : int or None
        Updates between two checkpoints.
    couples_rows : "gather", False or None
        "gather" computes the loss of the whole batch on every rank; False trusts the user that
        rows are independent; None finds out.
    probes : bool
        Whether ranks find out in their first update, because the driver has no rows.
    rank_timeout : float
        Seconds after which a silent rank counts as lost, in addition to twenty usual updates.
    """

    control: Controller
    strategy: Strategy = field(default_factory=AllReduce)
    compressor: Compressor | None = None
    virtual_ranks: int = 1
    divisible: bool = False
    min_rows: int = 1
    sums: bool = False
    every_row_counts: bool = False
    weights: torch.Tensor | None = None
    fit_params: Mapping[str, Any] = field(default_factory=dict)
    custom_step: bool = False
    checkpoint_every: int | None = None
    couples_rows: str | bool | None = None
    probes: bool = False
    rank_timeout: float = 10.0


NOTHING_DECIDED = Settings()  # its fields 3 to 7 are momentum, betas, workers, period, precision


class Hooks(Protocol):
    """Hooks around an update: callbacks, progress, checkpoints."""

    def before_update(self, batch: Batch) -> None:
        """Do what comes before an update."""

    def gradients_ready(self, batch: Batch) -> None:
        """Look at the gradients, or change them, before the optimizer's step."""

    def after_update(self, batch: Batch, result: UpdateResult) -> None:
        """Do what comes after an update; raise to leave the epoch."""


class StreamBatches(Batches, Protocol):
    """Batches of a stream, about which ranks agree before each update.

    Attributes
    ----------
    mark : dict
        Plain values that say what has been read.
    """

    @property
    def mark(self) -> dict[str, Any]: ...

    def join(self, total: Callable[..., list[float]], mark: Mapping[str, Any]) -> None:
        """Open the stream with the other ranks, where `mark` says; `total` sums over them."""


class NoHooks:
    """Hooks that do nothing."""

    def before_update(self, batch: Batch) -> None:
        return None

    def gradients_ready(self, batch: Batch) -> None:
        return None

    def after_update(self, batch: Batch, result: UpdateResult) -> None:
        return None


@dataclass
class Fit:
    """The live objects of one fit in one process.

    Attributes
    ----------
    spec : FitSpec
        What does not change.
    state : TrainState
        What changes.
    model, feed, comm, hooks
        What is trained, on which data, with which ranks, and what happens around updates.
    seconds_before : float
        Time that was spent before this fit.
    started : float
        When this fit began.
    measured, planned, row_norms : tuple or None
        The newest measurement on the training set, the newest plan, what looks at single rows.
    """

    spec: FitSpec
    state: TrainState
    model: Model
    feed: Feed
    comm: Communicator
    hooks: Hooks = field(default_factory=NoHooks)
    started: float = field(default_factory=time.perf_counter)
    measured: tuple[int, float] | None = None
    planned: tuple[Plan, int | None] | None = None
    row_norms: tuple[list[int], Any] | None = None

    def __post_init__(self) -> None:
        self.seconds_before = self.state.seconds
        self.control = self.spec.control
        self.step: Callable[[Fit, Plan, Batch], UpdateResult] = (
            steps.custom_step if self.spec.custom_step else steps.step
        )
        self.min_rows = self.spec.min_rows * self.comm.batches_per_update

    def clock(self) -> float:
        """Return the seconds of training, those before an interruption included."""
        return self.seconds_before + time.perf_counter() - self.started


def train_epoch(fit: Fit) -> None:
    """Train the rest of the current epoch, one update at a time."""
    state, comm, control, hooks = fit.state, fit.comm, fit.control, fit.hooks
    position = state.position
    fit.model.refresh()  # a callback may have frozen or replaced parameters
    state.components = fit.model.components
    facts = facts_of(fit.model)
    if any(getattr(fit.spec, name) != fact for name, fact in facts.items()):
        fit.spec = replace(fit.spec, **facts)
    fit.min_rows = fit.spec.min_rows * comm.batches_per_update
    comm.follow(sums=fit.spec.sums, min_rows=fit.spec.min_rows)
    state.micro_batch.verified = False  # whether a batch may be divided
    if state.ema is not None:
        state.ema.begin_epoch()
    comm.begin_epoch(state)
    batches = fit.feed.epoch(state.seed, position.epoch, position.cursor, comm.shard)
    stream = cast("StreamBatches", batches) if hasattr(batches, "join") else None
    if stream is not None:
        stream.join(comm.sum, state.stream)
    while True:
        started = time.perf_counter()
        plan = next_plan(fit)  # pure: nothing is remembered before `advance`
        batch = batches.take(plan.rows, fit.min_rows)
        if batch is None:
            break
        hooks.before_update(batch)
        result = steps.update(fit, plan, batch)
        if stream is not None:
            state.stream = stream.mark
        state.advance(plan, batch.size, result.loss, result.grad_norm, comm.batches_per_update)
        if state.ema is not None:
            state.ema.update(state.components)
        if control.active:
            observed = observation(fit, batch, result, time.perf_counter() - started)
            state.memories = control.observe(observed, state.memories)
        state.seconds = fit.clock()
        record(fit, batch, result)
        hooks.after_update(batch, result)
    if stream is not None:
        state.stream = stream.mark
    comm.end_epoch(state)


def next_plan(fit: Fit) -> Plan:
    """Ask the policies about the next update."""
    state, comm, control = fit.state, fit.comm, fit.control
    if control.constant and fit.planned is not None:
        plan, n_examples = fit.planned
        # Nothing that a constant batch size depends on has changed since the last update.
        if (
            state.settings is plan.settings
            and state.memories.policies is plan.policy_memories
            and n_examples == state.position.n_examples
        ):
            return plan
    values = state.values()
    group = state.first_group()
    measure = control.needs_measure(state.position.update)
    if measure is not None:
        values[f"full_{measure.quantity}"] = _measurement(fit, measure)
    if not control.scheduled:  # a schedule reads the epoch and the update only
        if state.batch_size:
            values["batch_size"] = state.batch_size // comm.batches_per_update
        values["momentum"], values["beta2"] = _momentum(group)
        values["ranks"] = comm.ranks
        values["period"] = comm.period(state, max(1, state.batch_size))
    base_lr = float(group["lr"])
    plan = control.plan(values, state.memories, state.settings, base_lr, comm.batches_per_update)
    settings = plan.settings
    if settings[3:8] != NOTHING_DECIDED[3:8]:
        from accelerando._engine.decided import check_settings

        check_settings(fit, settings, *_momentum(group))
    fit.planned = plan, state.position.n_examples
    return plan


def _measurement(fit: Fit, measure: Any) -> float:
    """Measure what a policy asks for, once per update: the plan is asked for again at the end."""
    update = fit.state.position.update
    if fit.measured is None or fit.measured[0] != update:
        from accelerando._engine.measure import measure_on_training_set

        fit.comm.show(fit.state)  # measured on what the estimator would return now
        fit.measured = (update, measure_on_training_set(fit, measure))
    return fit.measured[1]


def _momentum(group: Mapping[str, Any]) -> tuple[float, float]:
    """Return SGD's momentum or Adam's first beta, and Adam's second beta; nan if missing."""
    if "betas" in group:
        return float(group["betas"][0]), float(group["betas"][1])
    return float(group.get("momentum", math.nan)), math.nan


def observation(fit: Fit, batch: Batch, result: UpdateResult, seconds: float) -> Observation:
    """Return what monitors see of an update."""
    position, comm = fit.state.position, fit.comm
    # A loss that is a sum over rows has such a gradient; noise is about the gradients of rows.
    rows = float(batch.size) if fit.spec.sums else 1.0
    noise, every, curvature = (
        result.noise or PartNorms(0, 0.0),
        fit.control.looks_at_curvature,
        None,
    )
    if every and position.update % every == 0:
        from accelerando._engine.curvature import look_at_curvature

        curvature = look_at_curvature(fit, batch)
    return Observation(
        position.update,
        batch.size,
        position.n_examples,
        result.loss,
        (result.grad_norm / rows) ** 2,
        noise.number,
        noise.square / rows,
        *comm.mean_seconds(seconds),
        comm.ranks,
        comm.spread,
        curvature,
    )


def record(fit: Fit, batch: Batch, result: UpdateResult) -> None:
    """Add a row to the table of updates."""
    state, comm, control = fit.state, fit.comm, fit.control
    position = state.position
    state.records.updates.add(
        position.update,
        position.epoch + 1,
        position.examples,
        batch.size,
        result.lr,
        result.loss,
        result.grad_norm,
        state.seconds,
        comm.ranks,
        *comm.traffic,
        *comm.row(state),
        *(control.row(state.memories, state.settings) if control.active else ()),
    )


def local_communicator(spec: FitSpec, state: TrainState, feed: Feed) -> Communicator:
    """Return the communicator of a fit in this process; ranks of a cluster build their own."""
    if isinstance(spec.strategy, Averaging):
        from accelerando._engine.comm.local_sgd import LocalSGD, VirtualGroup

        return LocalSGD(
            spec.strategy,
            VirtualGroup(spec.virtual_ranks),
            min_rows=spec.min_rows,
            drop_last=feed.drop_last,
            sums=spec.sums,
            watch_every=spec.control.watches_spread,
            compressor=spec.compressor,
        )
    if spec.virtual_ranks > 1:
        learnable = [p for _, p in state.components.named_parameters() if p.requires_grad]
        return VirtualAllReduce(spec.virtual_ranks, sum(p.nbytes for p in learnable))
    if spec.compressor is not None:
        from accelerando._engine.comm.compressed import CompressedSingle

        return CompressedSingle(spec.compressor)
    return SingleProcess()


class Trainer(Protocol):
    """Something that trains the epochs of a fit: the loop in this process, or a cluster."""

    def train_epoch(self) -> None:
        """Train the rest of the current epoch."""

    def evaluate(self) -> list[tuple[torch.Tensor, Any]] | None:
        """Return loss and predictions of each validation batch; None if the caller must do it."""

    def collect_replicas(self) -> None:
        """Fetch replicas that only ranks elsewhere hold, before the state is saved."""


class LocalTrainer:
    """Train in this process.

    Parameters
    ----------
    fit : Fit
        What to train with.
    """

    def __init__(self, fit: Fit) -> None:
        self.fit = fit

    def train_epoch(self) -> None:
        with update_generators(self.fit.state):
            train_epoch(self.fit)

    def evaluate(self) -> list[tuple[torch.Tensor, Any]] | None:
        return None

    def collect_replicas(self) -> None:
        return None
