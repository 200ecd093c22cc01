"""Checkpoint of a search: a directory from which a killed search continues."""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import cloudpickle

from accelerando._files import atomic_write, check_owner, lock_file, sync_directory
from accelerando.search._identity import differences
from accelerando.search._train import State
from accelerando.search._workers import Workers

__all__ = ["Checkpoint"]

PAUSE = 12.0  # times as long as it wrote, the thread does not write
MAX_PAUSE = 2.0  # seconds


class _End(NamedTuple):
    """A finished job: its model, the pickled state, and the record for the log."""

    model: int
    pickled: Callable[[], bytes | None]
    record: tuple[Any, ...]


class Checkpoint:
    """History and model states of a search on disk.

    ``log.pickle`` is a sequence of pickles that only grows. The first record identifies the search.
    The others hold the parameters of each model and the scores of each finished job. ``models/``
    holds the latest state of every model that may still be needed. Every record and every state is
    flushed to disk. If the process is killed while it writes a record, the next start removes the
    incomplete record. Only one search at a time can use a directory.

    A thread writes the ends of jobs, so that the search does not wait for the disk. What was not
    written when the process is killed is trained again.

    Parameters
    ----------
    directory : path
        Created if it does not exist.
    identity : dict
        What distinguishes this search from others, as texts. A directory with another identity is
        refused.
    seed : int
        The seed of the search. The seed of the first run replaces it if this run continues one.
    former : mapping, optional
        What version 0.1 recorded in place of `identity`.

    Warnings
    --------
    These files are pickles: whoever can write them can run code in the process that resumes.
    Directories and files that belong to somebody else, or that everybody can write, are refused.
    A directory that you copied from somebody else is yours: copy only what you trust.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        identity: Mapping[str, str],
        seed: int,
        former: Mapping[str, Any] | None = None,
    ) -> None:
        self.directory = Path(directory)
        self._trust(self.directory, self.directory / "models", self.directory / "log.pickle")
        (self.directory / "models").mkdir(parents=True, exist_ok=True)
        self._lock = lock_file(self.directory / "lock")
        if self._lock is None:
            raise RuntimeError(
                f"checkpoint={str(directory)!r} is used by a search that is running. Wait for its "
                "end, or pass another directory."
            )
        for part in (self.directory / "models").glob(".*.part"):
            part.unlink()  # the process was killed while it wrote this file
        self.params: dict[int, dict[str, Any]] = {}
        self.ends: dict[tuple[int, int], tuple[list[dict[str, Any]], bool]] = {}
        self.identity = identity
        self.former = former or {}
        self.seed = seed
        self._incomplete = False  # continues a directory of version 0.1
        self._n_rows: dict[int, int] = {}  # model -> its rows in the log
        self._new = True
        self._queue: queue.Queue[_End | int | None] = queue.Queue(maxsize=1000)
        self._hurry = threading.Event()
        self._dropped: set[int] = set()
        self._writer: threading.Thread | None = None
        self.error: BaseException | None = None  # why nothing more is written
        try:
            self._read()
        except BaseException:
            self.close()
            raise
        if self._new:
            self._write(("identity", dict(identity), seed))
            sync_directory(self.directory)
        elif self._incomplete:
            warnings.warn(
                f"checkpoint={str(directory)!r} was written by version 0.1, which did not record "
                "the data and most settings. The search continues from it. If it was another "
                "search, the results are wrong; then delete the directory.",
                stacklevel=4,
            )
            self._write(("content", dict(identity)))

    def close(self) -> None:
        """Write what is left, and let another search use the directory."""
        if self._writer is not None:
            self._hurry.set()
            self._queue.put(None)
            self._writer.join()
            self._writer = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _trust(self, *paths: Path) -> None:
        for path in paths:
            check_owner(path, argument=f"checkpoint={str(self.directory)!r}")

    def _read(self) -> None:
        path = self.directory / "log.pickle"
        if not path.exists():
            return
        end = 0
        incomplete = contextlib.suppress(EOFError, pickle.UnpicklingError)
        with path.open("rb") as log, incomplete:
            while True:
                kind, *record = self._load(log)
                end = log.tell()
                self._replay(kind, record)
        with path.open("r+b") as log:
            log.truncate(end)

    def _load(self, log: BinaryIO) -> Any:
        try:
            return pickle.load(log)  # noqa: S301 — documented; it belongs to the user
        except (EOFError, pickle.UnpicklingError):
            raise  # the record is incomplete
        except Exception as error:
            raise ValueError(
                f"checkpoint={str(self.directory)!r} is damaged or needs a module that is not "
                f"there ({type(error).__name__}: {error}). Pass another directory, or delete this "
                "one."
            ) from error

    def _replay(self, kind: str, record: list[Any]) -> None:
        if kind == "identity":
            self._new = False
            saved, self.seed = record
            self._check_identity(saved)
        elif kind == "content":  # follows the record of version 0.1 when it was continued
            self._incomplete = False
            self._refuse(differences(record[0], self.identity))
        elif kind == "params":
            self.params[record[0]] = record[1]
        elif kind == "end":
            model, calls, rows, stopped = record
            self.ends[model, calls] = (rows, stopped)
            self._n_rows[model] = self._n_rows.get(model, 0) + len(rows)

    def _check_identity(self, saved: Mapping[str, Any]) -> None:
        if not self.former or set(saved) != set(self.former):
            self._refuse(differences(saved, self.identity))
            return
        self._refuse(differences(saved, self.former))
        self._incomplete = True

    def _refuse(self, differing: list[str]) -> None:
        if differing:
            raise ValueError(
                f"checkpoint={str(self.directory)!r} belongs to another search "
                f"({'; '.join(differing)}). Pass another directory, or delete this one."
            )

    def _write(self, *records: tuple[Any, ...]) -> None:
        with (self.directory / "log.pickle").open("ab") as log:
            for record in records:
                cloudpickle.dump(record, log)
            log.flush()
            os.fsync(log.fileno())

    def save_params(self, drawn: Mapping[int, dict[str, Any]]) -> None:
        """Save the parameters that were drawn, by model."""
        self._write(*(("params", model, params) for model, params in drawn.items()))

    def save_end(
        self,
        model: int,
        calls: int,
        stopped: bool,
        rows: list[dict[str, Any]],
        workers: Workers,
    ) -> None:
        """Save a finished job soon.

        The state is written before the record, so that every record in the log has a state.
        """
        if self.error is not None:
            raise self.error
        new = rows[self._n_rows.get(model, 0) :]
        self._n_rows[model] = len(rows)
        if self._writer is None:
            self._writer = threading.Thread(target=self._write_all, daemon=True)
            self._writer.start()
        record = ("end", model, calls, list(new), stopped)
        self._queue.put(_End(model, workers.pickled(model), record))

    def flush(self) -> None:
        """Return when everything is on disk; raise the error of the thread, if there was one."""
        if self._writer is not None:
            self._hurry.set()
            self._queue.join()
            self._hurry.clear()
        if self.error is not None:
            raise self.error

    def _write_all(self) -> None:
        """Write until None is taken from the queue; run by the thread."""
        seconds = 0.0
        while True:
            # Meanwhile models are dropped, whose states then need not be written.
            self._hurry.wait(min(MAX_PAUSE, PAUSE * seconds))
            batch = [self._queue.get()]
            began = time.monotonic()
            with contextlib.suppress(queue.Empty):
                while True:
                    batch.append(self._queue.get_nowait())
            try:
                if self.error is None:
                    self._write_batch([one for one in batch if one is not None])
            except BaseException as error:  # raised again in the thread of the search
                error.add_note(
                    f"The search ended because checkpoint={str(self.directory)!r} cannot be "
                    "written. best_estimator_ and the other attributes have the best model so far."
                )
                self.error = error
            seconds = time.monotonic() - began
            for _ in batch:
                self._queue.task_done()
            if None in batch:
                return

    def _write_batch(self, batch: Sequence[_End | int]) -> None:
        records = []
        for one in batch:
            if isinstance(one, int):
                self._path(one).unlink(missing_ok=True)
                continue
            blob = None if one.model in self._dropped else one.pickled()
            if blob is not None:
                with atomic_write(self._path(one.model)) as file:
                    file.write(blob)
            records.append(one.record)
        if records:
            self._write(*records)

    @property
    def seconds(self) -> float:
        """The time of the last score that was saved, in seconds of the searches before."""
        saved = (row["elapsed_wall_time"] for rows, _ in self.ends.values() for row in rows)
        return max(saved, default=0.0)

    def end_of(self, model: int, calls: int) -> tuple[list[dict[str, Any]], bool] | None:
        """Return the rows of a finished job, and True if the model stopped in it."""
        return self.ends.get((model, calls))

    def state(self, model: int) -> State | None:
        """Return the saved state of a model; None if there is none or it cannot be read."""
        if self.error is None:
            self.flush()
        self._trust(self._path(model))
        try:
            loaded = pickle.loads(self._path(model).read_bytes())  # noqa: S301 — documented
        except (OSError, EOFError, pickle.UnpicklingError):
            return None
        return loaded if isinstance(loaded, State) else None

    def drop(self, model: int) -> None:
        """Delete the state of a model that is no longer needed."""
        self._dropped.add(model)
        if self._writer is None:
            self._path(model).unlink(missing_ok=True)
        else:
            self._queue.put(model)  # after its state, if that is still to be written

    def _path(self, model: int) -> Path:
        return self.directory / "models" / f"{model}.pickle"
