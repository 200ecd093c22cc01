"""What a Dask worker runs: the tasks of a search, and what they take and give."""

from __future__ import annotations

import copy
import os
import signal
import socket
import threading
from dataclasses import dataclass
from typing import Any

import cloudpickle
from distributed import Worker, get_worker

from accelerando.search._data import Chunk, Source
from accelerando.search._train import Recipe, Report, Slice, State, train_slice

__all__ = [
    "Held",
    "Kit",
    "Whole",
    "heed_interrupts",
    "ignore_interrupts",
    "only",
    "pickle_of",
    "reports_of",
    "run_task",
    "state_of",
]


class Held:
    """The result of a task: the states of its models, and its reports once more."""

    def __init__(self, states: dict[int, State], reports: list[Report]) -> None:
        self.states = states
        self.reports = reports

    def __sizeof__(self) -> int:
        return 64 + sum(state.__sizeof__() for state in self.states.values())


@dataclass(frozen=True)
class Kit:
    """What every task needs; placed once."""

    recipe: Recipe
    where: list[tuple[int, int]]
    topic: str


class Whole:
    """Keeps ``scatter`` from taking a chunk, which is a tuple, apart."""

    def __init__(self, chunk: Chunk) -> None:
        self.chunk = chunk

    def __sizeof__(self) -> int:
        return Source([self.chunk]).__sizeof__()


def run_task(
    kit: Kit,
    number: int,
    slices: list[Slice],
    parents: list[Held],
    sources: dict[int, Source],
    validation: Whole | Chunk,
) -> Held:
    """Train some models on a worker, tell the driver, keep the states."""
    before = {model: state for parent in parents for model, state in parent.states.items()}
    rows = validation.chunk if isinstance(validation, Whole) else validation
    states: dict[int, State] = {}
    reports: list[Report] = []

    def chunk(i: int) -> Chunk:
        source, position = kit.where[i]
        return sources[source].chunks[position]

    worker = get_worker()
    alone = worker.state.nthreads == 1 and len(Worker._instances) == 1
    for piece in slices:
        state = copy.deepcopy(before.get(piece.model))
        state, report = train_slice(
            kit.recipe, state, piece, chunk=chunk, validation=rows, alone=alone
        )
        report.nbytes = state.__sizeof__() if state is not None else 0
        if state is not None:
            states[piece.model] = state
        reports.append(report)
    message = {"task": number, "worker": worker.address, "reports": _dump(reports)}
    worker.log_event(kit.topic, message)
    return Held(states, reports)


def ignore_interrupts(group: int, host: str, dask_worker: Any) -> None:
    """Let a worker that gets the driver's Ctrl-C live on: it has the best model so far.

    A terminal sends SIGINT to all processes of its group, so also to the workers of a local
    cluster. Workers elsewhere, and workers that are threads of the driver, are left alone.
    """
    same_group = os.getpgid(0) == group and socket.gethostname() == host
    if same_group and threading.current_thread() is threading.main_thread():
        dask_worker.accelerando_sigint = signal.signal(signal.SIGINT, signal.SIG_IGN)


def heed_interrupts(dask_worker: Any) -> None:
    """Undo :func:`ignore_interrupts`."""
    before = dask_worker.__dict__.pop("accelerando_sigint", None)
    if before is not None:
        signal.signal(signal.SIGINT, before)


def only(held: Held, model: int) -> Held:
    """Keep one model of a task, on the worker where this runs."""
    return Held({model: held.states[model]}, [])


def _dump(reports: list[Report]) -> bytes:
    try:
        return bytes(cloudpickle.dumps(reports))
    except Exception:  # only a user's exception can be that odd; its words survive
        for report in reports:
            if report.error is not None:
                report.error = RuntimeError(f"{type(report.error).__name__}: {report.error}")
        return bytes(cloudpickle.dumps(reports))


def reports_of(held: Held) -> list[Report]:
    return held.reports


def state_of(held: Held, model: int) -> State:
    return held.states[model]


def pickle_of(held: Held, model: int) -> bytes:
    return bytes(cloudpickle.dumps(held.states[model]))
