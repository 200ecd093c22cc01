"""The training loop: one epoch, one update.

It runs the same way wherever it runs. What is decided is decided by pure functions elsewhere (the
policy, the caps, the order of rows, the cut into micro-batches); here things happen in order.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from skorch.utils import TeeGenerator

from accelerando.batch_size import BatchSizePolicy, Measure
from accelerando.exceptions import UnsupportedError
from accelerando.monitor import Observation
from accelerando.train.averaging import Together
from accelerando.train.checks import needs_closure
from accelerando.train.control import Control, Plan, fingerprint
from accelerando.train.feed import Batch, Feed
from accelerando.train.gradient import (
    Gradient,
    Step,
    accumulate,
    check_finite,
    grad_norm,
    not_finite,
)
from accelerando.train.hints import explain
from accelerando.train.interrupt import Interrupt
from accelerando.train.loss import share_of
from accelerando.train.measure import measure
from accelerando.train.microbatch import MicroBatch, couples_rows
from accelerando.train.parts import Parts
from accelerando.train.plain import Plain
from accelerando.train.progress import Progress
from accelerando.train.records import Records, last_row
from accelerando.train.run import Choice, Run
from accelerando.train.world import Alone, World


@dataclass
class Training:
    """What one call of ``fit`` works with."""

    net: Any
    feed: Feed
    run: Run
    policy: BatchSizePolicy
    max_batch_size: int | None
    micro: MicroBatch
    records: Records
    progress: Progress
    interrupt: Interrupt
    world: World = field(default_factory=Alone)
    control: Control = field(default_factory=Control)
    averaging: Together | None = None  # of ranks with parameters of their own
    batches: int = 1  # of the size that the policy chooses; where every rank has its own, several
    divisible: bool = False  # a batch may be divided without another result
    weights: torch.Tensor | None = None
    fit_params: Mapping[str, Any] = field(default_factory=dict)
    every_row_counts: bool = False  # a part's mass is its rows, whatever its targets
    own_step: bool = False  # the user's subclass has a train_step of its own
    after_updates: Callable[[], None] | None = None  # called after each `every` updates
    every: int | None = None
    started: float = field(default_factory=time.perf_counter)
    measured: tuple[int, float] | None = None

    def __post_init__(self) -> None:
        self._seconds_before = self.run.seconds
        self.optimizers = [getattr(self.net, name + "_") for name in self.net._optimizers]
        self.look_at_parameters()
        # BatchNorm cannot train on a single row, and a batch size that adapts may leave one over.
        self.fewest_rows = 2 if couples_rows(self.net.module_) else 1
        self.plain = Plain(self.net, self.fit_params)
        self.sums = getattr(self.net.criterion_, "reduction", "mean") == "sum"
        self.momentum: float | None = None  # what policies want it to be
        self.needs_closure = any(needs_closure(optimizer) for optimizer in self.optimizers)

    def look_at_parameters(self) -> None:
        """List the parameters; a callback may freeze or replace some between two epochs."""
        self.parameters = [p for _, p in self.net.get_all_learnable_params()]
        # What a forward pass changes: the running statistics of BatchNorm.
        self.buffers = list(self.net.module_.buffers())
        floats = {p.dtype for p in self.parameters if p.is_floating_point()}
        self.largest = min((torch.finfo(dtype).max for dtype in floats), default=1.0)

    def share(self, y: Any, rows: int, whole: float) -> float:
        """Return the factor of a part's loss in the loss of a batch of mass `whole`."""
        if self.every_row_counts:
            return rows / whole
        return share_of(self.net.criterion_, y, rows, whole)

    def clock(self) -> float:
        """Seconds of training, those before an interruption included."""
        return self._seconds_before + time.perf_counter() - self.started

    @property
    def ranks(self) -> int:
        """How many ranks train."""
        return max(self.world.part.size, self.batches)

    def lr(self) -> float:
        """The learning rate of the next update: what schedulers say, times the damping."""
        return float(self.optimizers[0].param_groups[0]["lr"]) * self.run.lr_scale


def train_epoch(training: Training) -> None:
    """Train on the rest of the current epoch, one batch after the other."""
    net, run, policy = training.net, training.run, training.policy
    training.look_at_parameters()
    stream = training.feed.epoch(run.seed, run.epoch, run.cursor, training.world.part)
    control, averaging, batches = training.control, training.averaging, training.batches
    if averaging is not None:
        averaging.begin()
    while True:
        began = time.perf_counter()
        choice = run.choose(policy, training.max_batch_size, measurement(training))
        plan = ask(training, choice) if control.policies else None
        choice = choice if plan is None else plan.choice
        batch = stream.take(choice.batch_size * batches, training.fewest_rows * batches)
        if batch is None:
            break
        run.batch_size, run.lr_scale = choice.batch_size * batches, choice.lr_scale
        net.notify("on_batch_begin", batch=batch.data, training=True)
        try:
            if averaging is None:
                step = update(training, batch)
            else:
                step = averaging.update(training, batch, update)
        except (RuntimeError, TypeError) as error:
            if run.update == 0:
                explain(error, batch.data, net.module_)
            raise
        run.advance(batch.size, step.loss, step.grad_norm, choice.policy_state, batches)
        if control.active:
            control.observe(run, observation(training, batch, step, began), plan)
        run.seconds = training.clock()
        record(training, batch, step)
        net.notify("on_batch_end", batch=batch.data, training=True, **step.for_callbacks)
        training.progress.update(run, step.loss, step.lr)
        if training.every and training.after_updates and run.update % training.every == 0:
            training.after_updates()
        training.interrupt.check()
    if averaging is not None:
        averaging.tell(training.records.updates)
        averaging.show()


class Here:
    """Train in this process."""

    train_epoch = staticmethod(train_epoch)

    @staticmethod
    def validation(net: Any) -> Any:
        """Return the step for a validation batch."""
        return net.validation_step


def ask(training: Training, choice: Choice) -> Plan:
    """Ask the policies what the next update should be like."""
    group = training.optimizers[0].param_groups[0]
    averaging, rows = training.averaging, choice.batch_size * training.batches
    plan = training.control.plan(
        training.run,
        choice,
        max_batch_size=training.max_batch_size,
        base_lr=float(group["lr"]),
        momentum=_momentum(group),
        ranks=training.ranks,
        period=math.nan if averaging is None else float(averaging.own_period(training, rows)),
    )
    if averaging is not None:
        averaging.wanted = plan.wish.period
    elif plan.wish.period is not None:
        raise UnsupportedError(
            f"A policy decided period={plan.wish.period}, the updates between two averagings of "
            "parameters; here ranks average their gradients in every update, and there is no "
            "period. Pass sync=PeriodicAveraging(...) or another strategy that averages."
        )
    if plan.wish.momentum is not None and math.isnan(_momentum(group)):
        raise UnsupportedError(
            f"A policy decided momentum={plan.wish.momentum}, and "
            f"{type(training.optimizers[0]).__name__} has none. Take SGD or an optimizer with "
            "betas, or decide something else."
        )
    training.momentum = plan.wish.momentum
    training.world.fingerprint = fingerprint(plan.choice, plan.wish)
    return plan


def observation(training: Training, batch: Batch, step: Step, began: float) -> Observation:
    """Gather what monitors see of an update."""
    run, world = training.run, training.world
    seconds, waited = world.timed(time.perf_counter() - began)
    # Where the loss is a sum over rows, so is the gradient; noise is about that of single rows.
    rows = float(batch.size) if training.sums else 1.0
    parts = step.parts or Parts(0, 0.0)
    return Observation(
        run.update,
        batch.size,
        run.n_examples,
        step.loss,
        (step.grad_norm / rows) ** 2,
        parts.number,
        parts.square / rows,
        seconds,
        waited,
        training.ranks,
        None if training.averaging is None else training.averaging.spread,
    )


def update(training: Training, batch: Batch) -> Step:
    """Move the parameters once: gradients of the batch, then ``optimizer.step``."""
    net, run = training.net, training.run
    lr = training.lr()
    if not net.module_.training:
        net._set_training(True)
    if training.own_step:
        with _set(training.optimizers, run.lr_scale, training.momentum):
            result = net.train_step(batch.data, **training.fit_params)
        loss, norm = result["loss"].item(), grad_norm(training.parameters)
        check_finite(training, loss, norm, stepped=True)
        return Step(loss, norm, lr, result)

    training.world.begin_update(run.seed, run.update, batch.held)
    weights = _weights_of(training, batch)
    statistics = [buffer.clone() for buffer in training.buffers]
    seen: list[tuple[Gradient, float, float]] = []

    def gradient() -> torch.Tensor:
        for parameter in training.parameters:
            parameter.grad = None
        began = time.perf_counter()
        try:
            found = accumulate(training, batch, weights)
            loss, norm = float(found.loss), grad_norm(training.parameters)
            training.micro.observe(batch.held, time.perf_counter() - began)
            check_finite(training, loss, norm)
        except Exception:
            _put_back(training.buffers, statistics)
            raise
        if net.listeners("on_grad_computed"):
            named = TeeGenerator(net.get_all_learnable_params())
            net.notify("on_grad_computed", named_parameters=named, batch=batch.data, training=True)
        seen.append((found, loss, norm))
        return found.loss

    if not training.needs_closure:
        gradient()
    norm = seen[0][2] if seen else float("inf")
    if run.lr_scale == 1.0 and training.momentum is None:
        _step_safely(training, gradient, lr, norm)
    else:
        with _set(training.optimizers, run.lr_scale, training.momentum):
            _step_safely(training, gradient, lr, norm)
    found, loss, norm = seen[0]
    return Step(loss, norm, lr, {"loss": found.loss, "y_pred": found.y_pred}, found.parts)


def record(training: Training, batch: Batch, step: Step) -> None:
    """Write the update down, in skorch's history and in the table of updates."""
    run = training.run
    net_row = last_row(training.net.history)["batches"][-1]
    net_row["train_loss"] = step.loss
    net_row["train_batch_size"] = batch.size
    training.records.updates.add(
        run.update,
        run.epoch + 1,
        run.examples,
        batch.size,
        step.lr,
        step.loss,
        step.grad_norm,
        run.seconds,
        training.ranks,
        *training.world.traffic,
        *(training.averaging.row() if training.averaging is not None else ()),
        *(training.control.row(run) if training.control.active else ()),
    )


def measurement(training: Training) -> tuple[Measure, float] | None:
    """Measure on the training set what the policy asks for before the next update, once."""
    run = training.run
    wanted = training.policy.measures(run.update)
    if wanted is None:
        return None
    if training.measured is None or training.measured[0] != run.update:
        if training.averaging is not None:
            training.averaging.show()  # measured on what the estimator would return now
        training.measured = (run.update, measure(training, wanted))
    return wanted, training.measured[1]


def _weights_of(training: Training, batch: Batch) -> torch.Tensor | None:
    if training.weights is None:
        return None
    assert batch.rows is not None
    return training.weights[torch.from_numpy(batch.rows)]


@contextmanager
def _set(
    optimizers: Sequence[torch.optim.Optimizer], scale: float, momentum: float | None
) -> Iterator[None]:
    """Damp the learning rates inside only, so that schedulers never see the damping."""
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    names = ("lr", "momentum", "betas")
    before = [{name: group[name] for name in names if name in group} for group in groups]
    for group in groups:
        group["lr"] = group["lr"] * scale
        if momentum is not None and "betas" in group:
            group["betas"] = (momentum, *group["betas"][1:])
        elif momentum is not None and "momentum" in group:
            group["momentum"] = momentum
    try:
        yield
    finally:
        for group, values in zip(groups, before, strict=True):
            group.update(values)


def _momentum(group: Mapping[str, Any]) -> float:
    """Return the momentum of SGD or the first of Adam's betas; nan where there is neither."""
    return float(group["betas"][0] if "betas" in group else group.get("momentum", math.nan))


def _step_safely(
    training: Training, gradient: Callable[[], torch.Tensor], lr: float, norm: float
) -> None:
    """Step, and take the step back if it left a parameter that is not finite.

    A copy of the parameters is made only where a step could be that large: when the learning rate
    times the gradient comes near the largest number, or when the optimizer searches by itself.
    """
    parameters = training.parameters
    risky = not lr * max(1.0, norm) < 1e-8 * training.largest
    before = [p.detach().clone() for p in parameters] if risky else []
    try:
        training.net._step_optimizer(gradient if training.needs_closure else None)
        if before and not all(bool(p.isfinite().all()) for p in parameters):
            raise not_finite(training, "step made a parameter overflow: the result is not finite")
    except ArithmeticError:
        _put_back(parameters, before)
        raise


def _put_back(tensors: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
    with torch.no_grad():
        for tensor, value in zip(tensors, values, strict=False):
            tensor.copy_(value)
