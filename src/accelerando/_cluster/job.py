"""The job of a fit on a cluster: what the estimator hands over, and what every rank receives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from accelerando._cluster.driver.placement import FeedPlan, ValidationPlan
from accelerando._cluster.driver.sizing import Limits
from accelerando._engine.comm.communicator import UpdateResult
from accelerando._engine.data.feed import Batch, Feed
from accelerando._engine.loop import Fit, FitSpec
from accelerando._engine.micro_batch import MicroBatch
from accelerando._engine.model import Components, Model
from accelerando._engine.runtime.process import Interrupt
from accelerando._engine.runtime.progress import Progress
from accelerando._engine.state import TrainState


class RankModel(Protocol):
    """The model of one rank.

    Attributes
    ----------
    model : Model
        What the engine trains.
    device : torch.device
        Where it is.
    """

    model: Model
    device: torch.device

    def adopt(self, components: Components) -> None:
        """Use other modules, criteria, optimizers and callbacks from now on."""

    def prepare(self, feed: Feed) -> None:
        """Settle the memory format of the module, once rows are at hand."""

    def evaluate(self, batch: Any) -> tuple[torch.Tensor, Any]:
        """Return the loss and the predictions of a validation batch."""

    def begin_update(self, state: TrainState) -> None:
        """Let the user's code know which update begins."""

    def gradients_ready(self, batch: Batch, state: TrainState, *, alone: bool) -> None:
        """Call the callbacks that act on gradients; what they draw depends on seed and update."""

    def updated(self, batch: Batch, result: UpdateResult) -> None:
        """Call the callbacks that act after every update."""


class ModelBuilder(Protocol):
    """Builds the model on a rank; it is pickled to the workers."""

    def build(self) -> RankModel:
        """Return an initialized model."""


@dataclass
class RankSpec:
    """Everything about a fit that does not change, sent to every rank once.

    Attributes
    ----------
    builder : ModelBuilder
        Builds the model.
    fit : FitSpec
        Monitors, policies, strategy, weights, ...
    feed : FeedPlan
        How to read the training set from the data placed on the worker.
    validation : ValidationPlan or None
        How to read the validation batches; None if the driver evaluates them.
    micro_batch : MicroBatch
        The settings of micro-batches.
    topic : str
        The Dask topic of progress events.
    """

    builder: ModelBuilder
    fit: FitSpec
    feed: FeedPlan
    validation: ValidationPlan | None
    micro_batch: MicroBatch
    topic: str


@dataclass
class ClusterJob:
    """Job for the cluster: the settings and functions that the estimator hands over.

    Attributes
    ----------
    client : distributed.Client
        Of the cluster.
    fit : Fit
        The driver's fit: its state, its feed, its spec.
    builder, feed, validation
        See :class:`RankSpec`.
    content : object
        The data that workers need.
    owners : list
        The user's objects: the data stay on the cluster while they exist.
    chunks : object or None
        The chunks of a Dask array, if ranks train on those.
    limits : Limits
        How many ranks the user allows.
    worker_timeout : float
        Seconds to wait for a cluster that has no workers.
    interrupt : Interrupt
        Ctrl-C.
    progress : Progress or None
        The progress line.
    log : list of dict
        ``world_log_``.
    verbose : bool
        Whether log lines are printed.
    add_records : callable
        Receives the records of new updates, each as a mapping by column.
    add_to_history : callable
        Receives values for the history of the current epoch.
    save_checkpoint : callable
        Writes a checkpoint of the driver's state.
    needs_model : callable
        Returns False if nobody reads or changes the model in this process after this epoch.
    capture, forget : callable
        Returns what callbacks remember; drops the history of lost updates, and receives how many
        updates of the current epoch are left, and what callbacks remembered when it began.
    checkpoint : str or None
        The folder of checkpoints.
    check : callable
        Called before each epoch, with whether callbacks have changed what the model computes;
        raises if ranks cannot train it, or if the data are not those that ranks have.
    """

    client: Any
    fit: Fit
    builder: ModelBuilder
    feed: FeedPlan
    validation: ValidationPlan | None
    content: Any
    owners: Sequence[Any]
    chunks: Any
    limits: Limits
    worker_timeout: float
    interrupt: Interrupt
    progress: Progress | None
    log: list[dict[str, Any]]
    verbose: bool
    add_records: Callable[[Sequence[Mapping[str, float]]], None]
    add_to_history: Callable[[Mapping[str, Any]], None]
    save_checkpoint: Callable[[], None]
    needs_model: Callable[[], bool] = lambda: True
    capture: Callable[[], Any] = lambda: None
    forget: Callable[[int, Any], None] = lambda known, memories: None
    checkpoint: str | None = None
    check: Callable[[bool], None] = lambda changed: None
