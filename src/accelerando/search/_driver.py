"""Driver of a search: one loop that runs all brackets at once on any kind of workers.

The driver asks the brackets for jobs, submits tasks to the workers, and sends the scores to the
brackets. ``_halving`` decides which models continue, ``_schedule`` in which order, ``_jobs`` how
long a task is, ``_train`` what a call does, and the workers where it runs.
"""

from __future__ import annotations

import math
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from sklearn.exceptions import FitFailedWarning

from accelerando.search._bracket_run import BracketRun, Model, Settings
from accelerando.search._checkpoint import Checkpoint
from accelerando.search._halving import Job, Outcome, Step
from accelerando.search._jobs import JobQueue
from accelerando.search._sample import Observation, Sampler
from accelerando.search._train import Report, Row, ScoringError, Slice, State
from accelerando.search._unchanged import ChangedRowsError
from accelerando.search._workers import Workers

__all__ = ["Driver"]

MAX_SECONDS_HERE = 30.0  # of training the winner once more after the search ended


class Driver:
    """The state of one search, and its loop.

    Parameters
    ----------
    brackets : sequence of BracketRun
        The brackets in the order in which they start.
    sampler : Sampler
        Draws the parameters of the models.
    settings : Settings
        Limits and priorities.
    checkpoint : Checkpoint, optional
        Where finished jobs are saved, and from which the search continues.
    stop_requested : callable
        Returns True if the search should end.
    on_progress : callable
        Called with the driver after each round of the loop.
    local_workers : callable
        Returns workers in this process; None if the data is not here.
    """

    def __init__(
        self,
        brackets: Sequence[BracketRun],
        sampler: Sampler,
        settings: Settings,
        *,
        checkpoint: Checkpoint | None = None,
        stop_requested: Callable[[], bool] = lambda: False,
        on_progress: Callable[[Driver], None] = lambda driver: None,
        local_workers: Callable[[], Workers | None] = lambda: None,
    ) -> None:
        self.brackets = brackets
        self.sampler = sampler
        self.settings = settings
        self.checkpoint = checkpoint
        self.stop_requested = stop_requested
        self.on_progress = on_progress
        self.local_workers = local_workers
        self.models: dict[int, Model] = {}
        self.history: list[dict[str, Any]] = []
        self.planned_calls = sum(bracket.plan.partial_fit_calls for bracket in brackets)
        self.calls = 0
        self.n_live = 0
        self.reason = "finished"
        self.last_error: BaseException | None = None
        self.began = time.perf_counter()
        # A search that continues also continues its clock, or history_ would not be in order.
        self._before = 0.0 if checkpoint is None else checkpoint.seconds
        self.live: set[int] = set()  # models that have started and are not dropped
        self.jobs = JobQueue(settings, self.models)
        self._best_dropped: int | None = None  # may still be the best model of the search
        first = 0
        for bracket in brackets:
            bracket.first = first
            first += bracket.plan.n_models

    # ---- what can be read at any time --------------------------------------------------------

    @property
    def elapsed(self) -> float:
        """Seconds since the search began."""
        return time.perf_counter() - self.began

    @property
    def best(self) -> Model | None:
        """The model with the highest latest score; on a tie the one that was drawn first."""
        scored = [model for model in list(self.models.values()) if model.score is not None]
        return min(scored, key=lambda model: model.rank, default=None)

    # ---- the loop ----------------------------------------------------------------------------

    def run(self, workers: Workers) -> None:
        """Run until all brackets end, a limit is reached, or a stop is requested."""
        self.workers = workers
        waiting = deque(self.brackets)
        while True:
            self._start(waiting)
            if not self.jobs.ready and not self.jobs.running:
                return
            reason = self._stop_reason()
            if reason is not None:
                self.reason = reason
                return
            self._dispatch()
            for report in workers.wait(timeout=0.1):
                self._record(report)
            self.on_progress(self)

    def state_of(self, model: Model) -> State | None:
        """Return the state of a model: from its worker, from the checkpoint, or trained again.

        After an interrupt a lost model is not trained again, and the result is None.
        """
        state = self.workers.get(model.number)
        if (state is None or state.calls != model.calls) and self.checkpoint is not None:
            state = self.checkpoint.state(model.number)
        if state is not None and state.calls == model.calls:
            return state
        if self.reason == "interrupted":
            return None
        calls = model.calls
        self.workers.drop([model.number])
        self.workers.submit(
            [Slice(model.number, model.params, calls, calls, calls, math.inf)], math.inf
        )
        while self.workers.busy:
            self.workers.wait(timeout=0.1)
            if not self.workers.present and (self.reason != "finished" or self.stop_requested()):
                return self._train_here(model)
        return self.workers.get(model.number)

    def _train_here(self, model: Model) -> State | None:
        """Train a lost model again in this process, because the search ended without a worker."""
        seconds = model.calls * (model.fit_seconds or 0.0)
        here = self.local_workers() if seconds < MAX_SECONDS_HERE else None
        if here is None:
            raise RuntimeError(
                f"The search ended ({self.reason}), but no worker is left, and the best model was "
                f"lost with the last one. Its parameters: {model.params}. Its score: {model.score}."
            )
        calls = model.calls
        here.submit([Slice(model.number, model.params, calls, calls, calls, math.inf)], math.inf)
        while here.busy:
            here.wait(timeout=0.0)
        return here.get(model.number)

    def _start(self, waiting: deque[BracketRun]) -> None:
        """Start the brackets that can start now.

        If the sampler learns, a bracket starts when the one before it is in its last rung and all
        earlier ones have ended. So no worker waits for the few models of a last rung, and what the
        sampler knows does not depend on the workers. A bracket with one rung must end first.
        """
        while waiting:
            started = self.brackets[: -len(waiting)]
            if self.sampler.learns and not (
                all(bracket.ended for bracket in started[:-1])
                and all(bracket.in_last_rung for bracket in started[-1:])
            ):
                return
            observed = self._observations(started[-1:]) if self.sampler.learns else []
            bracket = waiting.popleft()
            saved = self.checkpoint.params if self.checkpoint else {}
            drawn = {
                number: self.sampler.draw(number, observed)
                for number in bracket.models
                if number not in saved
            }
            if self.checkpoint is not None:
                self.checkpoint.save_params(drawn)
            for number in bracket.models:
                params = drawn[number] if number in drawn else saved[number]
                self.models[number] = Model(number, bracket, params)
            self._advance(bracket, next(bracket.steps))

    def _stop_reason(self) -> str | None:
        limit = self.settings.max_seconds
        # The best model so far needs a score, unless there is no worker to compute one.
        if self.history or not self.workers.present:
            if self.stop_requested():
                return "stopped"
            if limit is not None and self.elapsed >= limit:
                return "max_seconds"
        target = self.settings.target_score
        if target is not None and self.history:
            best = self.best
            if best is not None and best.score is not None and best.score >= target:
                return "target_score"
        if self.jobs.calls_left(self.calls) <= 0 and not self.jobs.running:
            return "max_calls"
        return None

    # ---- from jobs to tasks ------------------------------------------------------------------

    def _dispatch(self) -> None:
        """Fill the free slots of the workers."""
        self.workers.want(len(self.jobs.ready) + len(self.jobs.running))
        if not self.jobs.ready or not self.workers.free_slots:
            return
        limit = self.settings.max_seconds
        seconds_left = math.inf if limit is None else max(0.0, limit - self.elapsed)
        planned = self.planned_calls - self.calls
        for slices, seconds in self.jobs.tasks(self.workers, self.calls, planned, seconds_left):
            self.live.update(part.model for part in slices)
            self.n_live = max(self.n_live, len(self.live))
            self.workers.submit(slices, seconds)

    # ---- from reports to decisions -----------------------------------------------------------

    def _record(self, report: Report) -> None:
        """Record the result of a slice; end its job, or make it ready for the next slice."""
        job = self.jobs.pop(report.model)
        model = self.models[report.model]
        self.calls += report.calls - model.calls
        now = self._before + self.elapsed
        self.jobs.measure(model, report.rows)
        for row in report.rows:
            self._append(model, job, row, now - row.before_end)
        if report.error is not None:
            self._record_failure(model, job, report, report.error)
        model.calls = report.calls
        if report.stopped or report.calls >= job.calls:
            if self.checkpoint is not None:
                self.checkpoint.save_end(
                    report.model, job.calls, report.stopped, model.rows, self.workers
                )
            self._advance(model.bracket, self._end_job(model, report.stopped))
        else:
            self.jobs.issue(job)

    def _append(self, model: Model, job: Job, row: Row, seconds: float) -> None:
        """Add a score to the history."""
        bracket = model.bracket
        model.score = row.scores[self.settings.metric]
        record = {
            "model_id": self.settings.model_id(bracket.index, model.number - bracket.first),
            "bracket": bracket.index,
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
        if row.splits:
            record["split_scores"] = list(row.splits)
        model.rows.append(record)
        self.history.append(record)

    def _record_failure(self, model: Model, job: Job, report: Report, error: BaseException) -> None:
        """Score a model that raised an exception with ``error_score``."""
        self.last_error = error
        for_all = isinstance(error, ScoringError | ChangedRowsError)  # not of this model only
        if self.settings.error_score == "raise" or for_all:
            error.add_note(f"The model had the parameters {model.params}.")
            raise error
        score = float(self.settings.error_score)
        warnings.warn(
            f"A model failed after {report.calls} calls and is scored error_score={score}: "
            f"{type(error).__name__}: {str(error).rstrip('.')}. Its parameters: {model.params}.",
            FitFailedWarning,
            stacklevel=2,
        )
        row = Row(report.calls, {self.settings.metric: score}, math.nan, math.nan, 0.0)
        self._append(model, job, row, self._before + self.elapsed)

    def _end_job(self, model: Model, stopped: bool) -> Step:
        """Send the score of a finished job to the bracket of its model; return what it decides."""
        bracket = model.bracket
        assert model.score is not None
        try:
            return bracket.steps.send(Outcome(model.number - bracket.first, model.score, stopped))
        except StopIteration:
            bracket.ended = bracket.in_last_rung = True
            return Step(dropped=[n - bracket.first for n in bracket.models if n in self.live])

    def _advance(self, bracket: BracketRun, step: Step) -> None:
        """Carry out a decision of a bracket, and those that follow from it at once.

        Jobs that the checkpoint contains end at once. Thousands of them may follow each other.
        """
        ended = deque(self._issue(bracket, step))
        while ended:
            model, rows, stopped = ended.popleft()
            model.rows += rows
            self.history += rows
            self.calls += rows[-1]["partial_fit_calls"] - model.calls
            model.calls, model.score = rows[-1]["partial_fit_calls"], rows[-1]["score"]
            self.live.add(model.number)
            ended += self._issue(bracket, self._end_job(model, stopped))

    def _issue(
        self, bracket: BracketRun, step: Step
    ) -> Iterator[tuple[Model, list[dict[str, Any]], bool]]:
        """Drop models and issue jobs. Yield the jobs that the checkpoint contains, with rows."""
        last = bracket.plan.max_calls if len(bracket.plan.rungs) > 1 else math.inf
        if any(job.calls >= last for job in step.jobs):
            bracket.in_last_rung = True
        self._drop([bracket.first + model for model in step.dropped])
        for local in step.jobs:
            job = Job(bracket.first + local.model, local.calls)
            end = None if self.checkpoint is None else self.checkpoint.end_of(job.model, job.calls)
            if end is None:
                self._restore(job)
                self.jobs.issue(job)
            else:
                yield (self.models[job.model], *end)

    def _restore(self, job: Job) -> None:
        """Give the workers the state of a model that an earlier, killed search saved."""
        if self.checkpoint is None or self.models[job.model].calls == 0:
            return
        if self.workers.location(job.model) is None:
            state = self.checkpoint.state(job.model)
            if state is not None and state.calls == self.models[job.model].calls:
                self.workers.put(job.model, state)

    def _drop(self, numbers: Sequence[int]) -> None:
        """Release models, except the best of all that were dropped."""
        for number in numbers:
            self.live.discard(number)
            best = self._best_dropped
            released: int | None = number
            if best is None or self.models[number].rank < self.models[best].rank:
                released, self._best_dropped = best, number
            if released is not None:
                self.workers.drop([released])
                if self.checkpoint is not None:
                    self.checkpoint.drop(released)

    def _observations(self, unfinished: Sequence[BracketRun]) -> list[Observation]:
        """Return the scores at the end of each rung, but not of the last rung of `unfinished`."""
        in_last = {
            bracket.index: bracket.plan.max_calls
            for bracket in unfinished
            if len(bracket.plan.rungs) > 1
        }
        return [
            Observation(model.params, row["partial_fit_calls"], row["score"])
            for model in self.models.values()
            for row in model.rows
            if row["partial_fit_calls"] == row["job_calls"]
            and row["job_calls"] < in_last.get(model.bracket.index, math.inf)
        ]
