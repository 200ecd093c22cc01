"""The driver's state between two events, and the actions that its decisions lead to.

Types only. :mod:`accelerando._cluster.driver.machine` decides, ``driver/run.py`` carries out.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

from accelerando._cluster.driver.sizing import Sizing
from accelerando._cluster.messages import Command, Outcome, RankId, TrainEpoch

# -- state ----------------------------------------------------------------------------------------


class Phase(enum.Enum):
    """Phase of the driver, named for the event it waits for."""

    IDLE = "a call of the estimator"
    GATHERING = "ranks that are ready"
    TRAINING = "the end of a segment"
    DRAINING = "the other members, after the first one ended the segment or was lost"
    AVERAGING = "the members to average before some of them leave"
    COLLECTING = "states of ranks"
    EVALUATING = "results of validation batches"
    CLOSED = "nothing"


class Key(NamedTuple):
    """Sort key for recovery: more averagings are further ahead; the update breaks ties."""

    averagings: int = 0
    update: int = -1


NO_STATE = Key()  # of a rank that has not received a state yet
NO_UPDATE = Key(0, 0)

Status: TypeAlias = Literal["starting", "ready", "training", "averaging", "silent", "raised"]


@dataclass(frozen=True)
class RankInfo:
    """A rank as the driver knows it.

    Attributes
    ----------
    worker : str
        The address of its Dask worker.
    status : str
        ``starting`` (imports, data), ``ready`` (waits for a command; may be evaluating or sending
        its state), ``training``, ``averaging``, ``silent`` (did not answer in time) or ``raised``
        (the user's code raised).
    key : Key
        The state that it has.
    since : int
        Local SGD: updates since the last averaging.
    outcome : str or None
        How its last segment ended; None while it trains, and before its first segment.
    started_at : float
        When its task was submitted.
    """

    worker: str
    status: Status
    started_at: float
    key: Key = NO_STATE
    since: int = 0
    outcome: Outcome | None = None


@dataclass(frozen=True)
class Request:
    """A blob that a rank was asked for: its state, or the results of validation batches."""

    blob: str
    batches: tuple[int, ...] = ()


@dataclass(frozen=True)
class Attempts:
    """Number of losses in the same update: members, their workers, and contact alone.

    If nobody survived, the update is an estimate. Segments after that are careful, so that the
    update of the next loss is known exactly.
    """

    update: int = -1
    count: int = 0
    workers: tuple[str, ...] = ()
    contacts: int = 0


@dataclass
class DriverState:
    """Everything that the driver's decisions depend on. ``step`` never changes the one it is given.

    Attributes
    ----------
    sizing, worker_timeout, rank_timeout : Sizing, float, float
        How many ranks should train; parameters of the estimator.
    averages : bool
        Whether ranks have replicas (local SGD).
    call : TrainEpoch or None
        The epoch that is trained, or was trained last.
    here, held_at : Key, float
        The driver's model, and when it was the newest.
    noted : Key or None
        Where the run is if the driver has an older model; None if it has the newest.
    calls, began : tuple of TrainEpoch, int
        The epochs since the driver's model, and the epoch of the newest segment.
    changed : bool
        Whether ranks still have to load a change that was made on the driver.
    workers : tuple of str
        The workers of the cluster, without those that are leaving.
    leaving : mapping
        Workers that are about to leave, and since when that is known.
    hanging : tuple of str
        Workers that were silent at the last survey.
    ranks : mapping
        All ranks that were neither stopped nor lost, oldest first.
    counts : mapping
        The number of ranks with each status.
    started, resent, blobs : int
        Counters: ranks started, data sent again, blobs named.
    members : tuple of RankId
        The members of the current or last segment, in the order of their process group. Lost ones
        stay in it.
    lost : list of str
        The workers of members lost in the current segment.
    broken : bool
        Whether a member of the current segment was lost, has lost contact, or raised.
    ahead : int
        Ranks that a schedule needs in the next epoch.
    paused, abandoned : bool
        Whether Pause was sent in this segment, and Abandon in this generation.
    forming, begun : bool
        Whether members may still be forming their process group, which has reported no update;
        whether one that survived reports that an update may have begun in this segment.
    entered, deadline, served_at, spares_since : float or None
        When the phase was entered, when it ends at the latest, when there was a rank last, since
        when there is a spare.
    update_seconds, period, newest_update
        From progress events.
    collecting : str or None
        What is collected: ``model``, ``position`` or ``replicas``. None when it was loaded.
    ended, saving : bool
        Whether the state that was loaded or noted last is that of the epoch's end; whether the
        estimator asked for the replicas, outside of an epoch.
    requests : mapping
        Blobs that are awaited, by rank.
    received : mapping
        Blobs that arrived and are not loaded yet, by name, with the rank that sent them.
    todo, evaluated_update : tuple of int, int
        Validation batches that no rank evaluates, and the update of the model.
    parts : mapping
        Parts of checkpoints of this segment, by update.
    start_blobs : mapping
        States that the driver put for a first member, by rank, until the rank answers.
    attempts, stillborn : Attempts, tuple of str
        Segments that failed in the same update; workers that left while their rank started.
    unformed, unreached : int, str
        Process groups that could not be formed, one after the other, and why.
    compared, differing : mapping, tuple of str
        What members said about their models at the end of an epoch; attributes that were others.
    failure : str or None
        The error to raise when the best state was collected.
    """

    sizing: Sizing
    worker_timeout: float = 60.0
    rank_timeout: float = 10.0
    averages: bool = False
    phase: Phase = Phase.IDLE
    call: TrainEpoch | None = None
    here: Key = NO_UPDATE
    held_at: float = 0.0
    noted: Key | None = None
    calls: tuple[TrainEpoch, ...] = ()
    began: int = -1
    changed: bool = False
    interrupted: bool = False
    workers: tuple[str, ...] = ()
    leaving: Mapping[str, float] = field(default_factory=dict)
    hanging: tuple[str, ...] = ()
    ranks: dict[RankId, RankInfo] = field(default_factory=dict)
    counts: dict[Status, int] = field(default_factory=dict)
    started: int = 0
    resent: int = 0
    blobs: int = 0
    members: tuple[RankId, ...] = ()
    lost: list[str] = field(default_factory=list)
    broken: bool = False
    segment: int = 0
    generation: int = 0
    ahead: int = 0
    paused: bool = False
    abandoned: bool = False
    forming: bool = False
    begun: bool = False
    entered: float = 0.0
    deadline: float | None = None
    served_at: float = 0.0
    spares_since: float | None = None
    update_seconds: float = 0.0
    period: int = 1
    newest_update: int = 0
    collecting: Literal["model", "position", "replicas"] | None = None
    ended: bool = False
    saving: bool = False
    requests: dict[RankId, Request] = field(default_factory=dict)
    received: dict[str, RankId] = field(default_factory=dict)
    todo: tuple[int, ...] = ()
    evaluated_update: int = 0
    parts: Mapping[int, Mapping[RankId, str]] = field(default_factory=dict)
    start_blobs: dict[RankId, str] = field(default_factory=dict)
    attempts: Attempts = Attempts()
    stillborn: tuple[str, ...] = ()
    unformed: int = 0
    unreached: str = ""
    compared: Mapping[RankId, tuple[Mapping[str, str], tuple[float, ...]]] = field(
        default_factory=dict
    )
    differing: tuple[str, ...] = ()
    failure: str | None = None


# -- actions --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StartRank:
    """Submit the task of a rank to a worker; answer RankNotStarted if the data cannot be sent."""

    rank: RankId
    worker: str


@dataclass(frozen=True)
class CancelTask:
    """Cancel the task of a rank by force and forget it. It may have ended."""

    rank: RankId


@dataclass(frozen=True)
class AwaitTasks:
    """Wait until the tasks of stopped ranks ended, at most this number of seconds."""

    ranks: tuple[RankId, ...]
    seconds: float


@dataclass(frozen=True)
class Send:
    """Send a command to a rank."""

    rank: RankId
    command: Command


@dataclass(frozen=True)
class StartSegment:
    """Send TrainSegment to each member.

    The member number k gets ``group_rank=k``. The shell adds what the machine does not know:
    `records_after`, `seconds`, `threads`, and the chunks of data.

    Attributes
    ----------
    intact : tuple of bool
        Per member, whether it is known to hold the chunks that it was given last.
    """

    segment: int
    generation: int
    members: tuple[RankId, ...]
    source: int | None
    blob: str | None
    epoch: int
    until: int
    patch: dict[str, Any]
    intact: tuple[bool, ...]
    careful: bool = False


@dataclass(frozen=True)
class ScaleCluster:
    """Ask for workers: `wanted` ranks should run, `missing` of them have no worker."""

    wanted: int
    present: int
    missing: int


@dataclass(frozen=True)
class ShrinkCluster:
    """Give back workers beyond `wanted` that were asked for."""

    wanted: int


@dataclass(frozen=True)
class RestoreCluster:
    """Give the cluster the size that it had before the fit."""


@dataclass(frozen=True)
class Log:
    """Append a line to ``world_log_``."""

    event: str
    text: str


@dataclass(frozen=True)
class PutState:
    """Put the driver's state into the mailbox, of where its model is."""

    blob: str


@dataclass(frozen=True)
class LoadState:
    """Take a state from the mailbox and make it the driver's."""

    blob: str


@dataclass(frozen=True)
class NoteState:
    """Take from the mailbox where the run is; the driver's model stays as it is."""

    blob: str


@dataclass(frozen=True)
class LoadReplicas:
    """Take the members' replicas from the mailbox, in their order; None for a lost member."""

    blobs: tuple[str | None, ...]


@dataclass(frozen=True)
class SaveCheckpoint:
    """Load the first blob as a state, all blobs as replicas (local SGD), and save a checkpoint."""

    blobs: tuple[str, ...]


@dataclass(frozen=True)
class DropBlob:
    """Remove a blob from the mailbox. It may not exist."""

    blob: str


@dataclass(frozen=True)
class ResendData:
    """Forget the data on the cluster, so that the next rank that starts sends them again."""


@dataclass(frozen=True)
class Finish:
    """End the call: ``epoch``, ``interrupted``, ``evaluated``, ``unavailable`` (the driver has to
    evaluate the batches itself), ``collected``, or ``closed``.

    Attributes
    ----------
    blobs : tuple of str
        The results of an evaluation, to be taken from the mailbox.
    """

    outcome: Literal["epoch", "interrupted", "evaluated", "unavailable", "collected", "closed"]
    blobs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Fail:
    """End the call with a ClusterError, caused by the exception of a task if `rank` is given."""

    reason: str
    rank: RankId | None = None


@dataclass(frozen=True)
class RaiseFrom:
    """End the call with the exception of a rank's task, and forget the task."""

    rank: RankId


TaskAction: TypeAlias = StartRank | CancelTask | AwaitTasks | Send | StartSegment
ClusterAction: TypeAlias = ScaleCluster | ShrinkCluster | RestoreCluster | ResendData | Log
LoadAction: TypeAlias = LoadState | NoteState | LoadReplicas | SaveCheckpoint
StateAction: TypeAlias = PutState | LoadAction | DropBlob
Action: TypeAlias = TaskAction | ClusterAction | StateAction | Finish | Fail | RaiseFrom
