"""Results of an estimator: frames, signals, position, saved states."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import pandas as pd
import torch
from skorch.utils import to_device

from accelerando._engine.state import Table
from accelerando.exceptions import NotFiniteError

if TYPE_CHECKING:
    from contextlib import ExitStack

    from accelerando._engine.checkpoint_folder import CheckpointWriter
    from accelerando._engine.loop import Fit, Trainer
    from accelerando._engine.runtime.process import Interrupt
    from accelerando._engine.state import TrainState

_EPOCHS = ("epoch", "batch_size", "lr", "updates", "examples", "seconds")  # pandas shows the first
_INTEGERS = {"update", "epoch", "examples", "batch_size", "updates", "ranks", "bytes"}
_NO_WEIGHTS = {"f_optimizer", "f_history", "use_safetensors"}
_RENAMED = {"synchronisations": "averagings"}


class RunPosition(NamedTuple):
    """Position of a run.

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
        client: Any
        ema: float | None
        verbose: int
        _checkpoints_: CheckpointWriter | None
        checkpoint: str | os.PathLike[str] | None

        def check_is_fitted(self) -> None: ...
        def _decode(self, found: Any, X: Any) -> Any: ...

    # -- progress ---------------------------------------------------------------------------------

    def _show_progress(self, fit: Fit, stack: ExitStack) -> None:
        """Show a line that lives until the fit ends."""
        from accelerando._engine.runtime.progress import Progress
        from accelerando.estimators._skorch import CallbackHooks

        progress = stack.enter_context(Progress(self.verbose))
        progress.begin(fit.state.position)
        hooks = fit.hooks
        assert isinstance(hooks, CallbackHooks)
        hooks.progress = progress

    # -- during a fit -----------------------------------------------------------------------------

    def _note_end(self, fit: Fit, error: BaseException, interrupt: Interrupt) -> None:
        """Keep what a later ``partial_fit`` needs to continue, unless a callback ended the run."""
        from accelerando.estimators._persist import capture_callbacks, learning_rates
        from accelerando.sync import Averaging

        state = fit.state
        position = state.position
        state.seconds = fit.clock()
        if isinstance(error, NotFiniteError):
            from accelerando.estimators._explain import explain_not_finite

            explain_not_finite(self, fit, error)
        elif isinstance(error, Exception):
            from accelerando.estimators._explain import explain_evaluation

            explain_evaluation(self, error)
        if isinstance(fit.spec.strategy, Averaging):
            # Between two epochs all ranks of a cluster can still be asked.
            self._collect_replicas(ask_ranks=position.cursor == 0)
        if isinstance(error, KeyboardInterrupt) and position.cursor == 0 and not interrupt.pending:
            position.until = position.epoch  # EarlyStopping raises it between two epochs
        self._resume_ = (*capture_callbacks(self), learning_rates(self), "captured here")

    # -- predictions ------------------------------------------------------------------------------

    def predict(self, X: Any) -> Any:
        """Return classes or values.

        Parameters
        ----------
        X : array, tensor, frame, dictionary of them, Dataset, or Dask array
            The examples. With ``client=``, arrays of more than one batch are computed on the
            cluster. The predictions of a Dask array are a Dask array that is computed when its
            chunks are, with the parameters of now.
        """
        with self._averaged():
            found = self._predicted("predict", X)
            if found is not None:
                return found
            return self._decode(super().predict(X), X)  # type: ignore[misc]

    def predict_proba(self, X: Any) -> Any:
        """Return the output of the module after the criterion's nonlinearity; see ``predict``."""
        with self._averaged():
            found = self._predicted("predict_proba", X)
            return super().predict_proba(X) if found is None else found  # type: ignore[misc]

    def forward(self, X: Any, training: bool = False, device: str = "cpu") -> Any:
        """Return the output of the module as tensors; see ``predict``."""
        with self._averaged():
            found = None if training else self._predicted("forward", X)
            if found is None:
                return super().forward(X, training=training, device=device)  # type: ignore[misc]
        return to_device(found, device) if isinstance(found, torch.Tensor | tuple) else found

    def forward_iter(self, X: Any, training: bool = False, device: str = "cpu") -> Iterator[Any]:
        """Yield the output of the module for each batch, as tensors."""
        outputs: Iterator[Any] = super().forward_iter(X, training, device)  # type: ignore[misc]
        if self.ema is None:
            return outputs
        from accelerando.estimators._average import averaged_outputs

        return averaged_outputs(self, outputs)

    def evaluation_step(self, batch: Any, training: bool = False) -> Any:
        """Return the outputs of a batch."""
        try:
            return super().evaluation_step(batch, training)  # type: ignore[misc]
        except Exception as error:
            from accelerando.estimators._explain import explain_evaluation

            explain_evaluation(self, error)
            raise

    def averaged_weights(self) -> AbstractContextManager[None]:
        """Let ``module_`` hold the average of its weights (``ema=``) inside a ``with`` statement.

        Before the first update there is no average, and the module keeps its weights.

        Examples
        --------
        >>> import numpy as np, torch
        >>> from accelerando import NeuralNetRegressor
        >>> X, y = np.ones((20, 1), "float32"), np.ones((20, 1), "float32")
        >>> net = NeuralNetRegressor(torch.nn.Linear(1, 1), ema=0.9, verbose=0).fit(X, y)
        >>> with net.averaged_weights():
        ...     weights = {name: w.clone() for name, w in net.module_.state_dict().items()}
        >>> bool(weights["weight"] == net.module_.weight)
        False
        """
        if self.ema is None:
            raise ValueError("There is no average of the weights: pass ema=0.999, for example.")
        return self._averaged()

    def _prepare_average(self) -> None:
        from accelerando.estimators._average import prepare_average

        prepare_average(self)

    def _averaged_step(self) -> Any:
        """Return the validation step with the average of the weights."""
        from accelerando.estimators._average import averaged_step

        return averaged_step(self)

    def _averaged(self) -> AbstractContextManager[None]:
        if self.ema is None:
            return nullcontext()
        from accelerando.estimators._average import averaged

        return averaged(self)

    def _predicted(self, method: str, X: Any) -> Any:
        """Return what a cluster has predicted; None if this process has to."""
        if self.client is None and not hasattr(X, "__dask_graph__"):
            return None
        from accelerando.estimators._predict import predict_elsewhere

        return predict_elsewhere(self, method, X)

    # -- frames -----------------------------------------------------------------------------------

    @property
    def position_(self) -> RunPosition:
        """Position of the run: ``epoch``, ``update``, ``examples``, ``cursor``, ``until``."""
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
        epochs = frame_of(self._state_.records.epochs)[list(_EPOCHS)]
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

    def save_params(self, *args: Any, **kwargs: Any) -> None:
        """Write weights and optimizer to files, as in skorch; with ``ema=``, averaged weights."""
        with self._averaged():
            super().save_params(*args, **kwargs)  # type: ignore[misc]

    def load_params(self, *args: Any, **kwargs: Any) -> None:
        """Load files of ``save_params``, as in skorch; with ``ema=``, a new average begins."""
        super().load_params(*args, **kwargs)  # type: ignore[misc]
        loaded = {name for name, value in kwargs.items() if value is not None}
        average = getattr(vars(self).get("_state_"), "ema", None)
        if average is not None and (args or loaded - _NO_WEIGHTS):
            average.restart()

    def trim_for_prediction(self) -> None:
        """Leave out what only training needs, as in skorch; ``fit`` raises then."""
        if not getattr(self, "_trimmed_for_prediction", False):
            super().trim_for_prediction()  # type: ignore[misc]
            state = self._state_
            self._state_ = type(state)(seed=state.seed, seeded=state.seeded)
            self._state_.ema = state.ema  # predictions use the average
            vars(self).update(_resume_=None, _checkpoints_=None, _pieces_=None)

    def save_state(self, path: str | os.PathLike[str]) -> None:
        """Write the whole training run to one file, atomically. The path may be a URL of fsspec.

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

    def load_state(self, path: str | os.PathLike[str], *, best: bool = False) -> Self:
        """Load a run that ``save_state`` or ``checkpoint=`` wrote; ``partial_fit`` continues it.

        Continuing gives the same parameters as a run that never stopped. Loading never runs code
        from the file.

        Parameters
        ----------
        path : path
            A file written by an estimator with the same settings, or a checkpoint directory, of
            which the newest checkpoint is loaded that can be read. Or a URL that fsspec knows.
        best : bool, default=False
            Load the newest checkpoint of an epoch that was the best one so far; `path` is a
            checkpoint directory.
        """
        from accelerando.estimators._persist import load

        load(self, path, best=best)
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

    def _write_checkpoint(self, *, epoch_ended: bool = False) -> None:
        if self.checkpoint is not None:
            from accelerando.estimators._persist import save_checkpoint

            self._collect_replicas()
            save_checkpoint(self, epoch_ended=epoch_ended)

    def _open_checkpoints(self) -> None:
        from accelerando.estimators._persist import open_checkpoints

        open_checkpoints(self)

    def _end_checkpoints(self) -> None:
        """Wait until the last checkpoint is complete."""
        if self._checkpoints_ is not None:
            self._checkpoints_.wait()


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
