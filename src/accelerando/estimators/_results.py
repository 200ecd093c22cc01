"""What users read from an estimator, and how they save it."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import pandas as pd

from accelerando._engine import checkpoint
from accelerando._engine.state import Table

if TYPE_CHECKING:
    from accelerando._engine.loop import Trainer
    from accelerando._engine.state import TrainState

_INTEGERS = {"update", "epoch", "examples", "batch_size", "updates", "ranks", "bytes"}
_RENAMED = {"synchronisations": "averagings"}


class RunPosition(NamedTuple):
    """Where a run is.

    Attributes
    ----------
    epoch, cursor : int
        Epochs finished, and rows of the current epoch already used.
    update, examples : int
        Updates done, and examples seen.
    until : int
        The epoch at which the current call of ``fit`` ends.
    n_examples : int or None
        Rows of the training set; None while the length of a stream is unknown.
    epoch_open : bool
        Whether the current epoch has begun.
    """

    epoch: int
    cursor: int
    update: int
    examples: int
    until: int
    n_examples: int | None
    epoch_open: bool


class UpdatesFrame(pd.DataFrame):
    """A frame whose renamed columns answer to their former names, with a warning."""

    @property
    def _constructor(self) -> type[pd.DataFrame]:
        return pd.DataFrame

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str) and key in _RENAMED and key not in self.columns:
            warnings.warn(
                f"The column {key!r} is now called {_RENAMED[key]!r}; the former name will be "
                "removed in the next minor release.",
                FutureWarning,
                stacklevel=2,
            )
            key = _RENAMED[key]
        return super().__getitem__(key)


class Results:
    """Frames, signals and files of an estimator."""

    if TYPE_CHECKING:
        _state_: TrainState
        _trainer_: Trainer | None
        _saves_: Any
        _pieces_: Any
        history: Any
        checkpoint: str | os.PathLike[str] | None

        def check_is_fitted(self) -> None: ...

    @property
    def position_(self) -> RunPosition:
        """Where the run is: ``epoch``, ``update``, ``examples``, ``cursor``, ``until``."""
        state: TrainState = vars(self)["_state_"] if "_state_" in vars(self) else _missing(self)
        return RunPosition(**vars(state.position))

    @property
    def run_(self) -> Any:
        """Deprecated: use ``position_``."""
        warnings.warn(
            "run_ is deprecated and will be removed in the next minor release; use position_.",
            FutureWarning,
            stacklevel=2,
        )
        state = self._state_
        return SimpleNamespace(
            **self.position_._asdict(),
            seed=state.seed,
            seeded=state.seeded,
            batch_size=state.batch_size,
            lr_scale=state.lr_scale,
            seconds=state.seconds,
            interrupted=state.interrupted,
        )

    def history_frame(self) -> pd.DataFrame:
        """Return one row per epoch: updates, examples, batch size, lr, losses, scores, seconds.

        ``updates``, ``examples`` and ``seconds`` are totals since training began; ``batch_size``
        and ``lr`` are those of the epoch's last update.
        """
        self.check_is_fitted()
        rows = list(self.history)
        rows = rows[:-1] if self._state_.position.epoch_open else rows
        epochs = frame_of(self._state_.records.epochs)
        scores = pd.DataFrame([_scores(row) for row in rows[: len(epochs)]], index=epochs.index)
        return pd.concat([epochs, scores], axis=1)

    def updates_frame(self) -> pd.DataFrame:
        """Return one row per update: batch size, lr, loss, gradient norm, seconds, signals."""
        self.check_is_fitted()
        return UpdatesFrame(frame_of(self._state_.records.updates))

    def signals(self) -> dict[str, float]:
        """Return the newest row of ``updates_frame()``, during training as well.

        With ``client=`` it is up to a second old while an epoch is being trained.
        """
        newest = self._state_.records.updates.newest()
        live = dict(getattr(self._trainer_, "live_signals", {}))
        if live.get("update", 0) > newest.get("update", 0):
            newest = {**newest, **live}
        return {name: float(value) for name, value in newest.items()}

    # -- saving -----------------------------------------------------------------------------------

    def save_state(self, path: str | os.PathLike[str]) -> None:
        """Write the whole training run to one file, atomically.

        If a callback calls it during training, the file is written as soon as all callbacks have
        received the same event, so that nothing of it is missing from the state.

        Parameters
        ----------
        path : path
            A file; an older one is replaced only when the new one is complete.

        See Also
        --------
        load_state : Continue such a run, in another process if need be.
        """
        self.check_is_fitted()
        if not self._saves_.postpone(path):
            self._save(path, training=False)

    def load_state(self, path: str | os.PathLike[str]) -> Self:
        """Load a run that ``save_state`` wrote; ``partial_fit`` then continues it.

        Continuing gives the same parameters as a run that never stopped. Loading never runs code
        from the file.

        Parameters
        ----------
        path : path
            A file written by an estimator with the same settings.
        """
        from accelerando.estimators._persist import load

        load(self, path)
        return self

    def _save(self, path: str | os.PathLike[str] | Path, *, training: bool) -> None:
        from accelerando.estimators._persist import save

        self._collect_replicas()
        save(self, path, training=training)

    def _collect_replicas(self, *, ask_ranks: bool = True) -> None:
        """Fetch replicas that only ranks hold, and let the module hold their average."""
        if ask_ranks and self._trainer_ is not None:
            self._trainer_.collect_replicas()
        state = self._state_
        if state.replicas is not None and state.replicas.bound:
            from accelerando._engine.comm.average import show
            from accelerando._engine.comm.members import VirtualGroup

            show(state, self._pieces_[1], VirtualGroup(len(state.replicas)))

    def _write_checkpoint(self) -> None:
        if self.checkpoint is not None:
            self._save(checkpoint.checkpoint_file(self.checkpoint), training=True)

    def _read_checkpoint(self) -> None:
        """Load an unfinished run from the checkpoint directory if this one has not begun."""
        if self.checkpoint is None:
            return
        file = checkpoint.checkpoint_file(self.checkpoint)
        if self._state_.position.update == 0 and checkpoint.is_unfinished(file):
            self.load_state(file)


def _missing(net: Any) -> Any:
    raise AttributeError(
        f"This {type(net).__name__} has no position_ yet; call fit or initialize first."
    )


def frame_of(table: Table) -> pd.DataFrame:
    """Return a table as a frame, with integers where they are integers."""
    frame = pd.DataFrame(table.tensor().numpy(), columns=list(table.columns))
    return frame.astype({name: "int64" for name in table.columns if name in _INTEGERS})


def _scores(row: dict[str, Any]) -> dict[str, Any]:
    skip = {"batches", "epoch", "train_batch_count", "valid_batch_count", "dur"}
    return {key: value for key, value in row.items() if key not in skip and key[-5:] != "_best"}
