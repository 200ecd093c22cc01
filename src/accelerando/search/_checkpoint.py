"""A directory that makes a search resumable."""

from __future__ import annotations

import contextlib
import os
import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cloudpickle

from accelerando.search._train import State

if TYPE_CHECKING:
    from accelerando.search._run import Workers

__all__ = ["Checkpoint"]


class Checkpoint:
    """History and model states of a search, on disk.

    ``log.pickle`` is a sequence of pickles that only grows: first what the search is, then the
    parameters of each model and the rows of each finished job. ``models/`` has the latest state of
    every model that may still be needed. A record that was being written when the process was
    killed is cut off at the next start.

    Warnings
    --------
    These files are pickles: whoever can write them can run code in the process that resumes. Use
    directories that you trust only.
    """

    def __init__(
        self, directory: str | os.PathLike[str], identity: dict[str, Any], seed: int
    ) -> None:
        self.directory = Path(directory)
        (self.directory / "models").mkdir(parents=True, exist_ok=True)
        self.params: dict[int, dict[str, Any]] = {}
        self.ends: dict[tuple[int, int], tuple[list[dict[str, Any]], bool]] = {}
        self.identity = identity
        self.seed = seed  # of the first run, when this one resumes it
        self._rows: dict[int, int] = {}  # rows of each model that are in the log
        self._read()
        if self._new:
            self._write("identity", identity, seed)

    def _read(self) -> None:
        path = self.directory / "log.pickle"
        self._new = True
        if not path.exists():
            return
        end = 0
        torn = contextlib.suppress(EOFError, pickle.UnpicklingError)
        with path.open("rb") as log, torn:
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
            different = [key for key in self.identity if saved.get(key) != self.identity[key]]
            if different:
                listed = ", ".join(
                    f"{key}: saved {saved.get(key)!r}, now {self.identity[key]!r}"
                    for key in different
                )
                raise ValueError(
                    f"checkpoint={str(self.directory)!r} belongs to another search ({listed}). "
                    "Give the search a directory of its own, or delete this one."
                )
        elif kind == "params":
            self.params[record[0]] = record[1]
        elif kind == "end":
            model, calls, rows, stopped = record
            self.ends[model, calls] = (rows, stopped)
            self._rows[model] = self._rows.get(model, 0) + len(rows)

    def _write(self, *record: Any) -> None:
        with (self.directory / "log.pickle").open("ab") as log:
            cloudpickle.dump(record, log)

    def save_params(self, model: int, params: dict[str, Any]) -> None:
        """Remember what was drawn."""
        self._write("params", model, params)

    def save_end(
        self,
        model: int,
        calls: int,
        stopped: bool,
        rows: list[dict[str, Any]],
        workers: Workers,
    ) -> None:
        """Remember a finished job: the state first, so that a logged end always has one."""
        blob = workers.pickled(model)
        if blob is not None:
            path = self._path(model)
            part = path.with_suffix(".part")
            part.write_bytes(blob)
            part.replace(path)
        new = rows[self._rows.get(model, 0) :]
        self._rows[model] = len(rows)
        self._write("end", model, calls, new, stopped)

    def end_of(self, model: int, calls: int) -> tuple[list[dict[str, Any]], bool] | None:
        """Return the rows of a job that is already done, and whether the model stopped in it."""
        return self.ends.get((model, calls))

    def state(self, model: int) -> State | None:
        """Return the saved state of a model, None if there is none that can be read."""
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
