"""The driver: one loop that runs all brackets at once, on any kind of workers.

It asks the brackets for jobs, cuts the most promising ones into slices, hands these to the workers,
and tells the brackets the scores. What is decided where: ``_halving`` says which models go on,
``_schedule`` says in which order, ``_train`` says what a call does, and the workers say where.
"""

from __future__ import annotations

import math
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from sklearn.exceptions import FitFailedWarning

from accelerando.search._checkpoint import Checkpoint
from accelerando.search._halving import Job, Outcome, Step
from accelerando.search._sample import Sampler, Seen
from accelerando.search._schedule import Candidate, in_order
from accelerando.search._track import Model, Settings, Track
from accelerando.search._train import Report, Row, Slice, State

__all__ = ["Run", "Workers"]

TASK_FLOOR = 0.02  # seconds of work that make a task, when a rung is nearly over
SCORE_SHARE = 4  # a slice trains at least this many times as long as its score takes


class Workers(Protocol):
    """Where slices are trained: this process, or a cluster."""

    fuse_seconds: float

    @property
    def n_workers(self) -> int: ...
    @property
    def room(self) -> int: ...
    @property
    def busy(self) -> bool: ...
    def submit(self, slices: Sequence[Slice], seconds: float) -> None: ...
    def wait(self, timeout: float) -> list[Report]: ...
    def home(self, model: int) -> str | None: ...
    def drop(self, models: Sequence[int]) -> None: ...
    def put(self, model: int, state: State) -> None: ...
    def get(self, model: int) -> State | None: ...
    def pickled(self, model: int) -> bytes | None: ...
    def close(self) -> None: ...


class Run:
    """The state of one search."""

    def __init__(
        self,
        tracks: Sequence[Track],
        sampler: Sampler,
        settings: Settings,
        *,
        checkpoint: Checkpoint | None = None,
        stop_asked: Callable[[], bool] = lambda: False,
        watch: Callable[[Run], None] = lambda run: None,
    ) -> None:
        self.tracks = tracks
        self.sampler = sampler
        self.settings = settings
        self.checkpoint = checkpoint
        self.stop_asked = stop_asked
        self.watch = watch
        self.models: dict[int, Model] = {}
        self.history: list[dict[str, Any]] = []
        self.planned_calls = sum(track.planned_calls for track in tracks)
        self.calls = 0
        self.n_live = 0
        self.reason = "finished"
        self.last_error: BaseException | None = None
        self.began = time.perf_counter()
        self._ready: dict[int, tuple[Job, int]] = {}  # model -> its job and turn
        self._running: dict[int, tuple[Job, Slice]] = {}
        self._turn = 0
        self._kept: int | None = None  # the best of the models that take no more calls
        self.live: set[int] = set()  # models that have begun and are not over
        self._fit_mean = _Mean()
        self._score_mean = _Mean()
        first = 0
        for track in tracks:
            track.first = first
            first += track.n_models

    # ---- what can be asked at any time -------------------------------------------------------

    @property
    def elapsed(self) -> float:
        """Seconds since the search began."""
        return time.perf_counter() - self.began

    @property
    def best(self) -> Model | None:
        """The model with the highest latest score; of equal ones the first drawn."""
        scored = [model for model in list(self.models.values()) if model.score is not None]
        return min(scored, key=_rank, default=None)

    # ---- the loop ----------------------------------------------------------------------------

    def go(self, workers: Workers) -> None:
        """Run until the brackets want nothing more, or a limit or a request ends it."""
        self.workers = workers
        waiting = deque(self.tracks)
        while True:
            if not self._ready and not self._running:
                if not waiting:
                    return
                self._start(waiting)
                continue
            reason = self._why_stop()
            if reason is not None:
                self.reason = reason
                return
            self._dispatch()
            for report in workers.wait(timeout=0.1):
                self._record(report)
            self.watch(self)

    def state_of(self, model: Model) -> State | None:
        """Bring a model here: from its worker, from the checkpoint, or trained again."""
        saved = self.checkpoint.state(model.number) if self.checkpoint is not None else None
        for state in (self.workers.get(model.number), saved):
            if state is not None and state.calls == model.calls:
                return state
        if self.reason == "interrupted":
            return None
        again = Slice(model.number, model.params, model.calls, model.calls, model.calls, math.inf)
        self.workers.drop([model.number])
        self.workers.submit([again], math.inf)
        while self.workers.busy:
            self.workers.wait(timeout=0.1)
        return self.workers.get(model.number)

    def _start(self, waiting: deque[Track]) -> None:
        for _ in range(1 if self.sampler.waits else len(waiting)):
            track = waiting.popleft()
            seen = self._seen() if self.sampler.waits else []
            saved = self.checkpoint.params if self.checkpoint else {}
            numbers = range(track.first, track.first + track.n_models)
            drawn = {n: self.sampler.draw(n, seen) for n in numbers if n not in saved}
            if self.checkpoint is not None:
                self.checkpoint.save_params(drawn)
            for number in numbers:
                self.models[number] = Model(number, track, {**saved, **drawn}[number])
            self._take(track, next(track.steps))

    def _why_stop(self) -> str | None:
        limit = self.settings.max_seconds
        if self.history and self.stop_asked():  # the best so far needs one score at least
            return "stopped"
        if self.history and limit is not None and self.elapsed >= limit:
            return "max_seconds"
        if self._budget() <= 0 and not self._running:
            return "max_calls"
        return None

    def _budget(self) -> float:
        if self.settings.max_calls is None:
            return math.inf
        promised = sum(min(s.limit, s.stop) - s.start for _, s in self._running.values())
        return self.settings.max_calls - self.calls - promised

    # ---- from jobs to slices -----------------------------------------------------------------

    def _dispatch(self) -> None:
        if not self._ready or not self.workers.room:
            return
        n_workers = self.workers.n_workers
        left = self.planned_calls - self.calls
        candidates = list(self._candidates())
        order = deque(in_order(candidates, n_workers, self.settings.priority, left))
        while order and self.workers.room and self._budget() > 0:
            slices, seconds = self._next_task(order, n_workers)
            self.workers.submit(slices, seconds)

    def _candidates(self) -> Iterator[Candidate]:
        for number, (_, turn) in self._ready.items():
            model = self.models[number]
            path = model.track.max_calls - model.calls
            yield Candidate(number, model.track.index, model.score, path, turn)

    def _next_task(self, order: deque[Candidate], n_workers: int) -> tuple[list[Slice], float]:
        """Take the first model, and more while they are tiny and need not be moved."""
        share = -(-len(order) // n_workers)
        first = order.popleft()
        home = self.workers.home(first.model)
        slices = [self._cut(first.model)]
        seconds = self._guess(slices[0])
        # The next rung waits for all of this one, so its last tasks are small ones.
        rest = seconds * (1 + sum(other.bracket == first.bracket for other in order))
        fuse = min(self.workers.fuse_seconds, self.settings.slice_seconds)
        fuse = min(fuse, max(TASK_FLOOR, rest / (2 * n_workers)))
        while order and seconds < fuse and len(slices) < share and self._budget() > 0:
            other = self.workers.home(order[0].model)
            if home is not None and other not in (None, home):
                break
            home = home or other
            slices.append(self._cut(order.popleft().model))
            seconds += self._guess(slices[-1])
        return slices, seconds

    def _cut(self, number: int) -> Slice:
        job, _ = self._ready.pop(number)
        model = self.models[number]
        seconds = max(self.settings.slice_seconds, SCORE_SHARE * (self._score_mean.value or 0.0))
        if self.settings.max_seconds is not None:
            seconds = min(seconds, max(0.0, self.settings.max_seconds - self.elapsed))
        fit = model.fit_seconds or self._fit_mean.value
        # The clock ends a slice; this bound only says which chunks a worker may need for it.
        bound = 16 if fit is None else max(1, math.ceil(2 * seconds / max(fit, 1e-6)))
        limit = min(job.calls, model.calls + bound)
        limit = int(min(limit, model.calls + self._budget()))
        piece = Slice(number, model.params, model.calls, job.calls, limit, seconds)
        self._running[number] = (job, piece)
        self.live.add(number)
        self.n_live = max(self.n_live, len(self.live))
        return piece

    def _guess(self, piece: Slice) -> float:
        fit = self.models[piece.model].fit_seconds or self._fit_mean.value
        if fit is None:
            return math.inf
        return fit * (piece.limit - piece.start) + (self._score_mean.value or 0.0)

    # ---- from reports to decisions -----------------------------------------------------------

    def _record(self, report: Report) -> None:
        job, _ = self._running.pop(report.model)
        model = self.models[report.model]
        self.calls += report.calls - model.calls
        now = self.elapsed
        done = model.calls
        for row in report.rows:
            self._fit_mean.add(row.fit_seconds, row.calls - done)
            self._score_mean.add(row.score_seconds)
            model.fit_seconds = row.fit_seconds
            done = row.calls
            self._append(model, job, row, now - row.before_end)
        if report.error is not None:
            self._failed(model, job, report, now)
        model.calls = report.calls
        if report.stopped or report.calls >= job.calls:
            if self.checkpoint is not None:
                self.checkpoint.save_end(
                    report.model, job.calls, report.stopped, model.rows, self.workers
                )
            self._end_job(model, report.stopped)
        else:
            self._issue(job)

    def _append(self, model: Model, job: Job, row: Row, seconds: float) -> None:
        model.score = row.scores[self.settings.metric]
        record = {
            "model_id": self.settings.model_id(model.track.index, model.number - model.track.first),
            "bracket": model.track.index,
            "params": model.params,
            "partial_fit_calls": row.calls,
            "partial_fit_time": row.fit_seconds,
            "score_time": row.score_seconds,
            "score": model.score,
            "elapsed_wall_time": seconds,
            "job_calls": job.calls,
        }
        if set(row.scores) != {self.settings.metric}:
            record.update({f"score_{name}": value for name, value in row.scores.items()})
        model.rows.append(record)
        self.history.append(record)

    def _failed(self, model: Model, job: Job, report: Report, now: float) -> None:
        assert report.error is not None
        self.last_error = report.error
        if self.settings.error_score == "raise":
            report.error.add_note(f"The model had the parameters {model.params}.")
            raise report.error
        score = float(self.settings.error_score)
        warnings.warn(
            f"A model failed at call {report.calls + 1} and is scored error_score={score}: "
            f"{type(report.error).__name__}: {report.error}. Its parameters: {model.params}.",
            FitFailedWarning,
            stacklevel=2,
        )
        scores = {self.settings.metric: score}
        self._append(model, job, Row(report.calls, scores, math.nan, math.nan, 0.0), now)

    def _end_job(self, model: Model, stopped: bool) -> None:
        track = model.track
        assert model.score is not None
        try:
            step = track.steps.send(Outcome(model.number - track.first, model.score, stopped))
        except StopIteration:
            track.ended = True
            numbers = range(track.first, track.first + track.n_models)
            self._drop([number for number in numbers if number in self.live])
        else:
            self._take(track, step)

    def _take(self, track: Track, step: Step) -> None:
        self._drop([track.first + model for model in step.dropped])
        ends = []
        for local in step.jobs:
            job = Job(track.first + local.model, local.calls)
            end = None if self.checkpoint is None else self.checkpoint.end_of(job.model, job.calls)
            if end is None:
                self._restore(job)
                self._issue(job)
            else:
                ends.append((job, *end))
        for job, rows, stopped in ends:
            model = self.models[job.model]
            model.rows += rows
            self.history += rows
            self.calls += rows[-1]["partial_fit_calls"] - model.calls
            model.calls, model.score = rows[-1]["partial_fit_calls"], rows[-1]["score"]
            self.live.add(job.model)
            self._end_job(model, stopped)

    def _restore(self, job: Job) -> None:
        """Give the workers the state that an earlier, killed search saved."""
        if self.checkpoint is None or self.models[job.model].calls == 0:
            return
        if self.workers.home(job.model) is None:
            state = self.checkpoint.state(job.model)
            if state is not None and state.calls == self.models[job.model].calls:
                self.workers.put(job.model, state)

    def _issue(self, job: Job) -> None:
        self._ready[job.model] = (job, self._turn)
        self._turn += 1

    def _drop(self, numbers: Sequence[int]) -> None:
        """Let models go, except the best of all that are over: it may be the winner."""
        for number in numbers:
            self.live.discard(number)
            if self._kept is None or _rank(self.models[number]) < _rank(self.models[self._kept]):
                number, self._kept = self._kept, number  # type: ignore[assignment]
            if number is not None:
                self.workers.drop([number])
                if self.checkpoint is not None:
                    self.checkpoint.drop(number)

    def _seen(self) -> list[Seen]:
        return [
            Seen(model.params, row["partial_fit_calls"], row["score"])
            for model in self.models.values()
            if model.track.ended
            for row in model.rows
            if row["partial_fit_calls"] == row["job_calls"]
        ]


class _Mean:
    def __init__(self) -> None:
        self.total = 0.0
        self.weight = 0

    def add(self, value: float, weight: int = 1) -> None:
        self.total += value * weight
        self.weight += weight

    @property
    def value(self) -> float | None:
        return self.total / self.weight if self.weight else None


def _rank(model: Model) -> tuple[bool, float, int]:
    score = model.score
    missing = score is None or math.isnan(score)
    return (missing, 0.0 if missing else -score, model.number)  # type: ignore[operator]
