"""Tasks of a search on Dask workers: the functions that workers run, their inputs and results."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import cloudpickle
from distributed import Worker, get_worker

from accelerando.search._data import Chunk, ChunkGroup
from accelerando.search._train import Report, Slice, State, TrainingSpec, train_slice

__all__ = [
    "BoxedChunk",
    "TaskContext",
    "TaskResult",
    "extract_model",
    "pickle_of",
    "reports_of",
    "run_task",
    "state_of",
]


class TaskResult:
    """The states of the models that a task trained, and a second copy of its reports."""

    def __init__(self, states: dict[int, State], reports: list[Report]) -> None:
        self.states = states
        self.reports = reports

    def __sizeof__(self) -> int:
        return 64 + sum(state.__sizeof__() for state in self.states.values())


@dataclass(frozen=True)
class TaskContext:
    """The inputs that all tasks share. Each worker receives them once."""

    spec: TrainingSpec
    locations: list[tuple[int, int]]  # chunk -> (group, position in the group)
    topic: str


class BoxedChunk:
    """A chunk in a box: ``scatter`` would split the chunk itself, because it is a tuple."""

    def __init__(self, chunk: Chunk) -> None:
        self.chunk = chunk

    def __sizeof__(self) -> int:
        return ChunkGroup([self.chunk]).__sizeof__()


def run_task(
    context: TaskContext,
    number: int,
    slices: list[Slice],
    parents: list[TaskResult],
    groups: dict[int, ChunkGroup],
    validation: BoxedChunk | Chunk,
) -> TaskResult:
    """Train some models on a worker, send the reports to the driver, and return the states.

    A task never changes its inputs: it trains copies, so that Dask may run it twice.
    """
    before = {model: state for parent in parents for model, state in parent.states.items()}
    rows = validation.chunk if isinstance(validation, BoxedChunk) else validation
    states: dict[int, State] = {}
    reports: list[Report] = []

    def chunk(i: int) -> Chunk:
        group, position = context.locations[i]
        return groups[group].chunks[position]

    worker = get_worker()
    single_thread = worker.state.nthreads == 1 and len(Worker._instances) == 1
    for part in slices:
        try:
            copied = copy.deepcopy(before.get(part.model))
        except Exception as error:  # of this model; the others of the task are trained
            reports.append(Report(part.model, part.start, stopped=True, error=error))
            continue
        state, report = train_slice(
            context.spec,
            copied,
            part,
            chunk=chunk,
            validation=rows,
            single_thread=single_thread,
        )
        if state is not None and part.model not in before:
            state, report = _movable(state, report)
        if state is not None:
            report.nbytes = state.__sizeof__()
            states[part.model] = state
        reports.append(report)
    message = {"task": number, "worker": worker.address, "reports": dump_reports(reports)}
    worker.log_event(context.topic, message)
    return TaskResult(states, reports)


def _movable(state: State, report: Report) -> tuple[State | None, Report]:
    """Return a state that can be pickled, or None and a report with the error.

    Dask would try for ever to move a state that cannot be pickled to another worker.
    """
    try:  # without the bytes of arrays
        cloudpickle.dumps(state, protocol=5, buffer_callback=lambda buffer: None)
    except Exception as error:
        name = type(state.estimator).__name__
        failed = TypeError(
            f"A trained {name} cannot be pickled ({error}), so it cannot move between workers. "
            "Pass client=None to search in this process."
        )
        return None, Report(report.model, report.calls, stopped=True, error=failed)
    return state, report


def dump_reports(reports: list[Report]) -> bytes:
    """Pickle reports. An exception that does not survive this is replaced by its text."""
    for report in reports:
        if report.error is not None and not _survives(report.error):
            report.error = RuntimeError(f"{type(report.error).__name__}: {report.error}")
    return bytes(cloudpickle.dumps(reports))


def _survives(error: BaseException) -> bool:
    """Return True if an exception can be pickled and made again.

    An exception whose ``__init__`` has other arguments than it passes on can only be pickled.
    """
    try:
        cloudpickle.loads(cloudpickle.dumps(error))
    except Exception:  # a user's exception may raise anything
        return False
    return True


def extract_model(result: TaskResult, model: int) -> TaskResult:
    """Return a result that contains one model, on the worker where this function runs."""
    return TaskResult({model: result.states[model]}, [])


def reports_of(result: TaskResult) -> list[Report]:
    """Return the reports of a task."""
    return result.reports


def state_of(result: TaskResult, model: int) -> State:
    """Return the state of a model."""
    return result.states[model]


def pickle_of(result: TaskResult, model: int) -> bytes:
    """Return the pickled state of a model."""
    return bytes(cloudpickle.dumps(result.states[model]))
