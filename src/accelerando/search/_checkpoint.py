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
from typing import Any, NamedTuple

import cloudpickle

from accelerando._files import atomic_write, check_owner, lock_file, make_directory, sync_directory
from accelerando.exceptions import StateError
from accelerando.search._identity import differences
from accelerando.search._records import (
    DamagedError,
    is_plain,
    plain_records,
    read_records,
    record,
    sole_record,
)
from accelerando.search._train import State
from accelerando.search._trust import TRUSTED, is_trusted, own_key
from accelerando.search._workers import Workers

__all__ = ["Checkpoint"]

PAUSE = 12.0  # times as long as it wrote, the thread does not write
MAX_PAUSE = 2.0  # seconds


class _End(NamedTuple):
    """A finished job: its model, the pickled state, and the values for the log."""

    model: int
    pickled: Callable[[], bytes | None]
    values: tuple[Any, ...]


class Checkpoint:
    """History and model states of a search on disk.

    ``log.pickle`` is a sequence of pickles that only grows. The first record identifies the search.
    The others hold the parameters of each model and the scores of each finished job. ``models/``
    holds the latest state of every model that may still be needed. Every record and every state has
    a checksum and a signature, and is flushed to disk. If the process is killed while it writes a
    record, the next start removes the incomplete record. A damaged record is refused, and a model
    whose state is damaged is trained again; neither is unpickled. Only one search at a time can use
    a directory. What was not signed with the key of this user is refused, too, unless the directory
    is in a folder that the user trusts. There, directories without checksums, from earlier
    versions, get them when they are continued.

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
    These files are pickles, which can run any code when they are read. So nothing is unpickled that
    was not signed with the key of this user (see :mod:`accelerando.search._trust`), and directories
    and files that belong to somebody else, or that everybody can write, are refused.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        identity: Mapping[str, str],
        seed: int,
        former: Mapping[str, Any] | None = None,
    ) -> None:
        self.directory = Path(directory)
        self._trusted = is_trusted(self.directory)
        self._key = own_key(needed=not self._trusted)
        self._trust(self.directory, self.directory / "models", self.directory / "log.pickle")
        make_directory(self.directory / "models")
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
            self._begin()
        except BaseException:
            self.close()
            raise

    def _begin(self) -> None:
        """Read what is there, and record which search this is."""
        self._read()
        if self._new:
            for state in (self.directory / "models").glob("*.pickle"):
                state.unlink()  # of a search whose log is gone
            self._write(("identity", dict(self.identity), self.seed))
            sync_directory(self.directory)
        elif self._incomplete:
            warnings.warn(
                f"checkpoint={str(self.directory)!r} was written by version 0.1, which did not "
                "record the data and most settings. The search continues from it. If it was "
                "another search, the results are wrong; then delete the directory.",
                stacklevel=5,
            )
            self._write(("content", dict(self.identity)))

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
        old: list[bytes] = []
        with path.open("r+b") as log:
            plain = is_plain(log.read(3))
            log.seek(0)
            if plain and not self._trusted:
                raise self._foreign(path)
            expected = None if self._trusted else self._key
            try:
                for content in plain_records(log) if plain else read_records(log, expected):
                    kind, *values = self._unpickled(content, path)
                    self._replay(kind, values)
                    if self._trusted:
                        old.append(content)
            except DamagedError as error:
                if error.foreign and not error.start:
                    raise self._foreign(path) from error
                cut = (
                    f", or cut the file there (truncate -s {error.start} {path}): the search then "
                )
                cut += "continues from what is before"
                raise StateError(
                    f"checkpoint={str(self.directory)!r}: {path} is damaged at byte {error.start}. "
                    f"Delete the directory{cut if error.start else ''}."
                ) from error
            if not plain:
                log.truncate()  # the rest is a record that was not written to its end
        if plain or old:  # so that it can be continued without the trust
            with atomic_write(path) as log:
                log.writelines(record(content, self._key) for content in old)
            self._sign_states()

    def _sign_states(self) -> None:
        for path in (self.directory / "models").glob("*.pickle"):
            content = path.read_bytes()
            with contextlib.suppress(DamagedError):
                signed = record(sole_record(content, None), self._key)
                if signed != content:
                    with atomic_write(path) as file:
                        file.write(signed)

    def _foreign(self, path: Path) -> StateError:
        return StateError(
            f"checkpoint={str(self.directory)!r}: {path} was not written with your key. Somebody "
            "else wrote it, or you did with an earlier version, on another computer or in another "
            "container. It holds pickles, which can run any code when they are read. If you trust "
            f"its content, set the environment variable {TRUSTED}={self.directory.resolve()}, "
            "otherwise pass another directory."
        )

    def _unpickled(self, content: bytes, path: Path) -> Any:
        try:
            return pickle.loads(content)  # noqa: S301 — signed by this user, or trusted
        except Exception as error:
            raise StateError(
                f"checkpoint={str(self.directory)!r}: {path} cannot be read "
                f"({type(error).__name__}: {error}). Install what it needs, pass another "
                "directory, or delete this one."
            ) from error

    def _replay(self, kind: str, values: list[Any]) -> None:
        if kind == "identity":
            self._new = False
            saved, self.seed = values
            self._check_identity(saved)
        elif kind == "content":  # follows the record of version 0.1 when it was continued
            self._incomplete = False
            self._refuse(differences(values[0], self.identity))
        elif kind == "params":
            self.params[values[0]] = values[1]
        elif kind == "end":
            model, calls, rows, stopped = values
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
            for values in records:
                log.write(record(cloudpickle.dumps(values), self._key))
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
        values = ("end", model, calls, list(new), stopped)
        self._queue.put(_End(model, workers.pickled(model), values))

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
                    file.write(record(blob, self._key))
            records.append(one.values)
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
        """Return the saved state of a model; None if there is none.

        A warning tells of a state that is damaged. The driver trains the model again.
        """
        if self.error is None:
            self.flush()
        path = self._path(model)
        self._trust(path)
        try:
            content = sole_record(path.read_bytes(), None if self._trusted else self._key)
            loaded = pickle.loads(content)  # noqa: S301 — signed by this user, or trusted
            if not isinstance(loaded, State):
                raise TypeError(f"a {type(loaded).__name__}, not a state")
        except FileNotFoundError:
            return None
        except Exception as error:
            warnings.warn(
                f"checkpoint={str(self.directory)!r}: {path} is damaged and is not used "
                f"({type(error).__name__}: {error}). If the search needs this model, it is trained "
                "again.",
                stacklevel=2,
            )
            return None
        return loaded

    def drop(self, model: int) -> None:
        """Delete the state of a model that is no longer needed."""
        self._dropped.add(model)
        if self._writer is None:
            self._path(model).unlink(missing_ok=True)
        else:
            self._queue.put(model)  # after its state, if that is still to be written

    def _path(self, model: int) -> Path:
        return self.directory / "models" / f"{model}.pickle"
