"""Simulated participants for ``accelerando crowd demo``: they answer over HTTP, as browsers do."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPException

import numpy as np

from accelerando.crowd._respond import ResponseModel
from accelerando.crowd.client import Participant, ServiceError

__all__ = ["Crowd", "Habit", "person"]

_CARELESS_SHARE = 0.1
_PATIENCE = 2.0  # seconds for all to leave
_DEVICES = ["phone", "computer", "computer", "tablet"]


@dataclass(frozen=True)
class Habit:
    """How somebody answers.

    Attributes
    ----------
    seconds : float
        Median response time that is reported; the demo itself does not wait so long.
    careless : bool
        Clicks on one side, fast.
    """

    seconds: float
    careless: bool = False


def habit(rng: np.random.Generator) -> Habit:
    """Most people think for a second or two; one in ten does not look."""
    if rng.random() < _CARELESS_SHARE:
        return Habit(0.25, careless=True)
    return Habit(float(rng.lognormal(np.log(1.4), 0.3)))


def person(
    who: Participant,
    answer: ResponseModel,
    rng: np.random.Generator,
    *,
    think: float,
    pause: Callable[[float], bool],
    tell: Callable[[], None],
) -> None:
    """One participant, from opening the page to its end.

    ``pause(seconds)`` waits and says whether to go on; ``tell()`` is called after each answer
    that counts.
    """
    if who.session["consent_required"]:
        who.consent()
    mine, latency = habit(rng), None
    while pause(float(rng.exponential(think))) and not who.session["finished"]:
        query = who.next()
        if query is None:  # paused, perhaps
            continue
        row = np.array([[query.head, query.left, query.right]], dtype=np.intp)
        left = mine.careless or int(answer(row, rng)[0]) == 1
        thought = round(float(rng.lognormal(np.log(mine.seconds), 0.45)), 3)
        start = time.perf_counter()
        winner = query.left if left else query.right
        who.answer(query, winner, response_time=thought, network_latency=latency)
        latency = round(time.perf_counter() - start, 4)
        if query.details["kind"] != "practice":
            tell()


class Crowd:
    """People who come, answer, and make room for the next ones, in threads.

    Parameters
    ----------
    url : str
        Of the server.
    experiment : str
    answer : callable
        ``(queries, rng) -> answers``; see :mod:`accelerando.crowd._respond`.
    people : int
        At the same time.
    answers : int
        After so many they all leave.
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
        self._came = 0
        self._given = 0
        self.trouble: Exception | None = None
        self._threads = [threading.Thread(target=self._seat, daemon=True) for _ in range(people)]

    def __enter__(self) -> Crowd:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self.wait(_PATIENCE)

    @property
    def given(self) -> int:
        """Answers so far."""
        with self._lock:
            return self._given

    def wait(self, seconds: float | None = None) -> bool:
        """Until all have left, or so long; returns whether all have."""
        end = None if seconds is None else time.monotonic() + seconds
        for thread in self._threads:
            thread.join(None if end is None else max(0.0, end - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _seat(self) -> None:
        """One chair in the waiting room: somebody sits on it until the study is over."""
        try:
            while not self._stop.is_set() and self.given < self.answers:
                self._sit_down()
        except (OSError, HTTPException, ServiceError) as error:
            # The server went away: the demo is over, or the user has stopped it.
            if not self._stop.is_set():
                self.trouble = error

    def _sit_down(self) -> None:
        with self._lock:
            self._came += 1
            number = self._came
        rng = np.random.default_rng([self.seed, number])
        who = Participant(
            self.url,
            self.experiment,
            {"participant": f"demo-{number:03d}"},
            device=str(rng.choice(_DEVICES)),
        )
        try:
            person(who, self.answer, rng, think=self.think, pause=self._pause, tell=self._count)
        finally:
            who.close()

    def _pause(self, seconds: float) -> bool:
        return not self._stop.wait(seconds) and self.given < self.answers

    def _count(self) -> None:
        with self._lock:
            self._given += 1
