"""Simulated participants of ``accelerando crowd demo``, which answer over HTTP."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPException

import numpy as np

from accelerando.crowd._respond import ResponseModel
from accelerando.crowd.client import Participant, ServiceError

__all__ = ["Habit", "SimulatedParticipants", "participate"]

_CARELESS_SHARE = 0.1
_EXIT_SECONDS = 2.0
_DEVICES = ["phone", "computer", "computer", "tablet"]


@dataclass(frozen=True)
class Habit:
    """Answers of a simulated participant.

    Attributes
    ----------
    seconds : float
        Median of the reported response time; the demo itself waits less.
    careless : bool
        True if the participant always chooses the left item.
    """

    seconds: float
    careless: bool = False


def habit(rng: np.random.Generator) -> Habit:
    """Return a random habit: one participant in ten is careless."""
    if rng.random() < _CARELESS_SHARE:
        return Habit(0.25, careless=True)
    return Habit(float(rng.lognormal(np.log(1.4), 0.3)))


def participate(
    who: Participant,
    answer: ResponseModel,
    rng: np.random.Generator,
    *,
    think: float,
    pause: Callable[[float], bool],
    answered: Callable[[], None],
) -> None:
    """Answer queries from the first to the last of a session.

    ``pause(seconds)`` waits and returns True if the participant shall continue. ``answered()`` is
    called after each answer except practice.
    """
    if who.session["consent_required"]:
        who.consent()
    mine, latency = habit(rng), None
    while pause(float(rng.exponential(think))) and not who.session["finished"]:
        query = who.next()
        if query is None:  # the experiment may be paused
            continue
        row = np.array([[query.head, query.left, query.right]], dtype=np.intp)
        left = mine.careless or int(answer(row, rng)[0]) == 1
        thought = round(float(rng.lognormal(np.log(mine.seconds), 0.45)), 3)
        start = time.perf_counter()
        winner = query.left if left else query.right
        who.answer(query, winner, response_time=thought, network_latency=latency)
        latency = round(time.perf_counter() - start, 4)
        if query.details["kind"] != "practice":
            answered()


class SimulatedParticipants:
    """Threads in which one simulated participant after the other answers.

    Parameters
    ----------
    url : str
        URL of the server.
    experiment : str
        Name of the experiment.
    answer : callable
        The response model, ``(queries, rng) -> answers``; see :mod:`accelerando.crowd._respond`.
    people : int
        Number of participants at a time.
    answers : int
        Total number of answers after which all stop.
    think : float
        Mean seconds between two answers of one participant.
    seed : int
    """

    def __init__(
        self,
        url: str,
        experiment: str,
        answer: ResponseModel,
        *,
        people: int = 12,
        answers: int = 3000,
        think: float = 0.8,
        seed: int = 0,
    ) -> None:
        self.url, self.experiment, self.answer = url, experiment, answer
        self.answers, self.think, self.seed = answers, think, seed
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._started = 0
        self._given = 0
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(people)]

    def __enter__(self) -> SimulatedParticipants:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self.wait(_EXIT_SECONDS)

    @property
    def given(self) -> int:
        """Number of answers so far."""
        with self._lock:
            return self._given

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until all threads have ended, at most `seconds`; return True if they have."""
        end = None if seconds is None else time.monotonic() + seconds
        for thread in self._threads:
            thread.join(None if end is None else max(0.0, end - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _run(self) -> None:
        """Run one participant after the other until there are enough answers."""
        # An error means that the server has stopped, and with it the demo.
        with contextlib.suppress(OSError, HTTPException, ServiceError):
            while not self._stop.is_set() and self.given < self.answers:
                self._run_participant()

    def _run_participant(self) -> None:
        with self._lock:
            self._started += 1
            number = self._started
        rng = np.random.default_rng([self.seed, number])
        who = Participant(
            self.url,
            self.experiment,
            {"participant": f"demo-{number:03d}"},
            device=str(rng.choice(_DEVICES)),
        )
        try:
            participate(
                who, self.answer, rng, think=self.think, pause=self._pause, answered=self._count
            )
        finally:
            who.close()

    def _pause(self, seconds: float) -> bool:
        return not self._stop.wait(seconds) and self.given < self.answers

    def _count(self) -> None:
        with self._lock:
            self._given += 1
