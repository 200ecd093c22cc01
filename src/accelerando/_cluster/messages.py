"""Messages between the driver and its ranks: who sends what to whom, and when.

Commands (driver to one rank)

================  ============================================================================
TrainSegment      an epoch begins, or continues with the same or with other members
SendState         the driver collects the state: end of an epoch, Ctrl-C, a save
Evaluate          validation: the batches that this rank evaluates
AverageNow        local SGD, between two epochs, before some of the members leave
Pause             Ctrl-C, or the membership changes; the first member passes it on to the others
Abandon           a member was lost while others may still be joining the process group
Stop              the rank is released, the fit is over, or its error is about to be raised
================  ============================================================================

Events (to the driver)

================  ===============  ===========================================================
RankReady         rank             imports are done and the model is built
SegmentEnded      rank             a segment or an averaging ended, in one way or another
RankRaised        rank             the user's code raised; the exception is that of the task
StateSent         rank             the answer to SendState is in the mailbox
BatchesEvaluated  rank             the answer to Evaluate is in the mailbox
CheckpointSent    rank             a part of a checkpoint is in the mailbox
BatchSizeChanged  first member     the batch size of the next updates
RanksAllowed      first member     a policy decided on the number of workers; careful segments
UpdateTimed       first member     the usual duration of an update, once per process group
WorkerJoined      scheduler        a worker joined the cluster
WorkerLeft        scheduler        a worker died, was retired, or is restarted by its Nanny
LeaveRequested    worker           SIGTERM, or it is closed: its rank is to leave before it ends;
                                   the scheduler sends it when a worker is retired
================  ===============  ===========================================================

Events of the driver's own process (never sent)

================  ===============  ===========================================================
TrainEpoch        estimator        train to the end of the epoch
EvaluateBatches   estimator        evaluate the validation batches on the ranks
Fetch             estimator        somebody needs the model: collect it
Collect           estimator        a callback saves the state: collect the replicas
Close             estimator        the fit is over
Interrupt         Ctrl-C           stop after the current update
Surveyed          every second     the workers of the cluster, and the tasks that ended
ProgressSeen      Dask topic       the newest update, and the duration of an update
RankNotStarted    Dask             the task of a rank could not be submitted
Tick              every 0.1 s      nothing happened; deadlines are checked
================  ===============  ===========================================================

States and results are *blobs*, byte strings in the mailbox; messages, as JSON, contain their names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

RankId: TypeAlias = str
Outcome: TypeAlias = Literal["epoch", "paused", "lost", "averaged"]

# Parts of a state, by the names of ``accelerando._engine.state.Part``.
MODEL_PARTS = ("MODEL", "POSITION", "RECORDS")
NOTE_PARTS = ("POSITION", "RECORDS")
REPLICA_PARTS = ("REPLICAS",)

# -- commands -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TrainSegment:
    """Train with the members of a process group until the epoch ends, a pause, or a loss.

    Attributes
    ----------
    segment, generation : int
        A generation is one process group. Segments of the same members share it.
    group_rank, group_size : int
        This rank's number within the process group, and the number of members. The member 0 is
        the *first member*: it receives Pause and reports for all.
    source : int or None
        The member that broadcasts its state; None if all members have the same.
    blob : str or None
        The state that `source` loads before it broadcasts; None if it has its state already.
    epoch, until : int
        The epoch to train, and the epoch at which the fit ends.
    patch : dict
        Changes made before update ``update``; ranks that are further ignore them. ``groups``: per
        optimizer the settings of its parameter groups; ``frozen``, ``evaluated``: parameters and
        layers; ``attributes``: others; ``rewired``: whether other parameters are trained.
    records_after, seconds : int, float
        The newest update whose record the driver has; the training time of the run so far.
    threads : tuple of int or None
        The threads of the workers of this machine, and the ranks that share them, if they matter.
    chunks, deposit : tuple of int, str or None
        The chunks of a Dask array for this rank; the name under which new ones arrive.
    careful : bool
        After a failure: the first member reports before each update, all members knock first.
    """

    segment: int
    generation: int
    group_rank: int
    group_size: int
    source: int | None
    blob: str | None
    epoch: int
    until: int
    patch: dict[str, Any] = field(default_factory=dict)
    records_after: int = 0
    seconds: float = 0.0
    threads: tuple[int, int] | None = None
    chunks: tuple[int, ...] = ()
    deposit: str | None = None
    careful: bool = False


@dataclass(frozen=True)
class SendState:
    """Put these parts of the state into the mailbox as `blob`, then send StateSent."""

    blob: str
    parts: tuple[str, ...]


@dataclass(frozen=True)
class Evaluate:
    """Evaluate validation batches, put the results into the mailbox as `blob`."""

    batches: tuple[int, ...]
    blob: str


@dataclass(frozen=True)
class AverageNow:
    """Average the replicas although the period is not over; all members receive it."""


@dataclass(frozen=True)
class Pause:
    """End the segment after the next update of all members; with a change, replicas average."""

    segment: int
    membership_changes: bool


@dataclass(frozen=True)
class Abandon:
    """Give up joining the process group of this generation."""

    generation: int


@dataclass(frozen=True)
class Stop:
    """End the task."""


Command: TypeAlias = TrainSegment | SendState | Evaluate | AverageNow | Pause | Abandon | Stop

# -- events: from ranks ---------------------------------------------------------------------------


@dataclass(frozen=True)
class RankReady:
    """The rank waits for commands."""

    rank: RankId


@dataclass(frozen=True)
class SegmentEnded:
    """A segment ended, or an averaging.

    Attributes
    ----------
    outcome : str
        ``epoch`` (to its end), ``paused``, ``lost`` (contact to a member) or ``averaged``.
    update, averagings, since : int
        The state of this rank: its update, averagings, and updates since the last one.
    begun, reason : bool, str
        Whether this rank had the source's state, so that an update may have begun; or why not.
    own, sizes : dict, tuple of float
        At the end of an epoch: attributes that forward passes changed, numbers of parameters.
    """

    rank: RankId
    generation: int
    outcome: Outcome
    update: int
    averagings: int = 0
    since: int = 0
    begun: bool = True
    reason: str = ""
    own: dict[str, str] = field(default_factory=dict)
    sizes: tuple[float, ...] = ()


@dataclass(frozen=True)
class RankRaised:
    """The user's code raised on a rank, which keeps its state until Stop."""

    rank: RankId
    update: int
    averagings: int = 0
    since: int = 0
    begun: bool = True


@dataclass(frozen=True)
class StateSent:
    """The state is in the mailbox."""

    rank: RankId
    blob: str
    update: int
    averagings: int = 0
    since: int = 0


@dataclass(frozen=True)
class BatchesEvaluated:
    """The results are in the mailbox, unless predictions are not tensors (not `sendable`)."""

    rank: RankId
    blob: str
    sendable: bool = True


@dataclass(frozen=True)
class CheckpointSent:
    """A part of a checkpoint is in the mailbox."""

    rank: RankId
    blob: str
    segment: int
    update: int
    averagings: int = 0


@dataclass(frozen=True)
class BatchSizeChanged:
    """The next updates have `rows` rows."""

    rank: RankId
    rows: int


@dataclass(frozen=True)
class RanksAllowed:
    """Policies allow at most this number of ranks; None: no limit."""

    rank: RankId
    most: int | None
    update: int


@dataclass(frozen=True)
class UpdateTimed:
    """An update of `rows` rows on `ranks` ranks usually takes `seconds`."""

    rank: RankId
    ranks: int
    rows: int
    seconds: float


@dataclass(frozen=True)
class WorkerJoined:
    """A worker joined the cluster."""

    worker: str


@dataclass(frozen=True)
class WorkerLeft:
    """A worker left for good; if it is `retired`, its rank may still be there."""

    worker: str
    retired: bool = False


@dataclass(frozen=True)
class LeaveRequested:
    """A worker is about to leave, and waits a while for its rank."""

    worker: str


# -- events: of the driver's own process ---------------------------------------------------------


@dataclass(frozen=True)
class TrainEpoch:
    """Train to the end of an epoch.

    Attributes
    ----------
    epoch, until, update, averagings : int
        The current epoch, the epoch at which the fit ends, and where the run is.
    changed : bool
        Whether the driver's model was changed since it was collected: ranks have to load it.
    fetch : bool
        Whether the driver collects the model at the end, or notes where the run is.
    patch : dict
        See ``TrainSegment``.
    batch_size, next_batch_size, n_examples : int or None
        What a schedule plans for this epoch and for the next one; training rows. None: not known.
    """

    epoch: int
    until: int
    update: int = 0
    averagings: int = 0
    changed: bool = False
    fetch: bool = True
    patch: dict[str, Any] = field(default_factory=dict)
    batch_size: int | None = None
    next_batch_size: int | None = None
    n_examples: int | None = None


@dataclass(frozen=True)
class EvaluateBatches:
    """Evaluate the first `batches` validation batches with the model of `update`."""

    batches: int
    update: int


@dataclass(frozen=True)
class Fetch:
    """Collect the model at the end of the last epoch."""


@dataclass(frozen=True)
class Collect:
    """Collect the replicas of `update`, if the ranks have them."""

    update: int


@dataclass(frozen=True)
class Interrupt:
    """The user pressed Ctrl-C."""


@dataclass(frozen=True)
class Close:
    """End all ranks."""


@dataclass(frozen=True)
class TaskEnd:
    """Unexpected end of the Dask task of a rank, with the reason in a sentence.

    ``finished`` (without the mailbox), ``cancelled`` (Dask lost its data), ``killed`` (Dask gave it
    up), ``unreachable`` (a RuntimeError or an OSError at its start), ``raised`` (anything else).
    """

    status: Literal["finished", "cancelled", "killed", "unreachable", "raised"]
    reason: str = ""


@dataclass(frozen=True)
class Surveyed:
    """Snapshot of the cluster: workers, tasks of ranks that ended, workers that close or hang."""

    workers: tuple[str, ...]
    tasks: Mapping[RankId, TaskEnd] = field(default_factory=dict)
    closing: tuple[str, ...] = ()
    hanging: tuple[str, ...] = ()


@dataclass(frozen=True)
class ProgressSeen:
    """The first member reported its progress; see ``LiveProgress`` of the driver."""

    update: int
    update_seconds: float
    period: int = 1


@dataclass(frozen=True)
class RankNotStarted:
    """The task could not be submitted: the worker that was to receive the data left."""

    rank: RankId


@dataclass(frozen=True)
class Tick:
    """Time passed."""


Answer: TypeAlias = RankReady | SegmentEnded | RankRaised | StateSent | BatchesEvaluated
RankEvent: TypeAlias = Answer | CheckpointSent | BatchSizeChanged | RanksAllowed | UpdateTimed
WorkerEvent: TypeAlias = WorkerJoined | WorkerLeft | LeaveRequested
Call: TypeAlias = TrainEpoch | EvaluateBatches | Fetch | Collect | Close
DriverEvent: TypeAlias = Call | Interrupt | Surveyed | ProgressSeen | RankNotStarted | Tick
Event: TypeAlias = RankEvent | WorkerEvent | DriverEvent
Message: TypeAlias = Command | RankEvent | WorkerEvent  # what is sent between processes
