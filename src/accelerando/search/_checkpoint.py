"""Checkpoint of a search: a directory from which a killed search continues."""

from __future__ import annotations

import contextlib
import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import cloudpickle

from accelerando._files import atomic_write, sync_directory
from accelerando.search._train import State
from accelerando.search._workers import Workers

__all__ = ["Checkpoint"]


class Checkpoint:
    """History and model states of a search on disk.

    ``log.pickle`` is a sequence of pickles that only grows. The first record identifies the search.
    The others hold the parameters of each model and the scores of each finished job. ``models/``
    holds the latest state of every model that may still be needed. Every record and every state is
    flushed to disk. If the process is killed while it writes a record, the next start removes the
    incomplete record.

    Parameters
    ----------
    directory : path
        Created if it does not exist.
    identity : dict
        What distinguishes this search from others. A directory with another identity is refused.
    seed : int
        The seed of the search. The seed of the first run replaces it if this run continues one.

    Warnings
    --------
    These files are pickles: whoever can write them can run code in the process that resumes. Use
    only directories that you trust.
    """

    def __init__(
        self, directory: str | os.PathLike[str], identity: dict[str, Any], seed: int
    ) -> None:
        self.directory = Path(directory)
        (self.directory / "models").mkdir(parents=True, exist_ok=True)
        for part in (self.directory / "models").glob(".*.part"):
            part.unlink()  # the process was killed while it wrote this file
        self.params: dict[int, dict[str, Any]] = {}
        self.ends: dict[tuple[int, int], tuple[list[dict[str, Any]], bool]] = {}
        self.identity = identity
        self.seed = seed
        self._n_rows: dict[int, int] = {}  # model -> its rows in the log
        self._new = True
        self._read()
        if self._new:
            self._write(("identity", identity, seed))
            sync_directory(self.directory)

    def _read(self) -> None:
        path = self.directory / "log.pickle"
        if not path.exists():
            return
        end = 0
        incomplete = contextlib.suppress(EOFError, pickle.UnpicklingError)
        with path.open("rb") as log, incomplete:
            while True:
                kind, *record = pickle.load(log)  # noqa: S301 — documented: a trusted directory
                end = log.tell()
                self._replay(kind, record)
        with path.open("r+b") as log:
            log.truncate(end)

    def _replay(self, kind: str, record: list[Any]) -> None:
        if kind == "identity":
            self._new = False
            saved, self.seed = record
            self._check_identity(saved)
        elif kind == "params":
            self.params[record[0]] = record[1]
        elif kind == "end":
            model, calls, rows, stopped = record
            self.ends[model, calls] = (rows, stopped)
            self._n_rows[model] = self._n_rows.get(model, 0) + len(rows)

    def _check_identity(self, saved: Mapping[str, Any]) -> None:
        listed = ", ".join(
            f"{key}: saved {saved.get(key)!r}, now {value!r}"
            for key, value in self.identity.items()
            if saved.get(key) != value
        )
        if listed:
            raise ValueError(
                f"checkpoint={str(self.directory)!r} belongs to another search ({listed}). Pass "
                "another directory, or delete this one."
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
        """Save a finished job.

        The state is written before the record, so that every record in the log has a state.
        """
        blob = workers.pickled(model)
        if blob is not None:
            with atomic_write(self._path(model)) as file:
                file.write(blob)
        new = rows[self._n_rows.get(model, 0) :]
        self._n_rows[model] = len(rows)
        self._write(("end", model, calls, new, stopped))

    def end_of(self, model: int, calls: int) -> tuple[list[dict[str, Any]], bool] | None:
        """Return the rows of a finished job, and True if the model stopped in it."""
        return self.ends.get((model, calls))

    def state(self, model: int) -> State | None:
        """Return the saved state of a model; None if there is none or it cannot be read."""
        try:
            loaded = pickle.loads(self._path(model).read_bytes())  # noqa: S301 — documented
        except (OSError, EOFError, pickle.UnpicklingError):
            return None
        return loaded if isinstance(loaded, State) else None

    def drop(self, model: int) -> None:
        """Delete the state of a model that is no longer needed."""
        self._path(model).unlink(missing_ok=True)

    def _path(self, model: int) -> Path:
        return self.directory / "models" / f"{model}.pickle"
