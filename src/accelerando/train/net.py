"""skorch's net with our training loop: the part all three estimators share."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any, ClassVar, Self

import pandas as pd
import skorch
import torch
from dask import is_dask_collection
from sklearn.callback import CallbackSupportMixin, with_callbacks
from skorch.callbacks import Callback
from skorch.dataset import get_len
from torch.utils.data import DataLoader

from accelerando.batch_size import BatchSizePolicy, as_policy
from accelerando.compress import Compressor, as_compressor
from accelerando.sync import Averaging, Strategy, as_strategy
from accelerando.train import averaging, checks, meeting, state
from accelerando.train.built import Built, is_factory
from accelerando.train.control import Control
from accelerando.train.data import MemoryBatches, in_memory
from accelerando.train.fleet import Fleet
from accelerando.train.layout import settle_layout
from accelerando.train.listeners import Listeners, counting
from accelerando.train.loop import Here, Training
from accelerando.train.memory import steady_memory
from accelerando.train.microbatch import MicroBatch
from accelerando.train.prepare import prepare
from accelerando.train.records import Records, last_row
from accelerando.train.routing import split_params
from accelerando.train.run import RNG_LOCK, Run
from accelerando.train.weights import training_weights

EVALUATION_ROWS = 512
OWN_PREFIXES = ("batch_size", "compression", "sync")


class AdaptiveNet(CallbackSupportMixin, skorch.NeuralNet):  # type: ignore[misc]
    """Batch sizes that adapt, data by the batch, exact resume; the rest is skorch's."""

    prefixes_: ClassVar[list[str]] = [*skorch.NeuralNet.prefixes_, *OWN_PREFIXES]

    def __init__(
        self,
        module: Any,
        *args: Any,
        batch_size: Any = 128,
        max_batch_size: int | None = None,
        micro_batch_size: int | str | None = "auto",
        channels_last: bool | str = "auto",
        random_state: Any = None,
        client: Any = None,
        examples_per_worker: int = 128,
        min_workers: int = 1,
        max_workers: int | str | None = None,
        data: str = "replicate",
        compression: Any = None,
        sync: Any = None,
        virtual_ranks: int = 1,
        rank_timeout: float = 10.0,
        worker_timeout: float = 300.0,
        checkpoint: str | os.PathLike[str] | None = None,
        checkpoint_every: int = 100,
        monitors: Any = (),
        policies: Any = (),
        **kwargs: Any,
    ) -> None:
        super().__init__(module, *args, batch_size=batch_size, **kwargs)
        self.max_batch_size = max_batch_size
        self.micro_batch_size = micro_batch_size
        self.channels_last = channels_last
        self.random_state = random_state
        self.client = client
        self.examples_per_worker = examples_per_worker
        self.min_workers = min_workers
        self.max_workers = max_workers
        self.data = data
        self.compression = compression
        self.sync = sync
        self.virtual_ranks = virtual_ranks
        self.rank_timeout = rank_timeout
        self.worker_timeout = worker_timeout
        self.checkpoint = checkpoint
        self.checkpoint_every = checkpoint_every
        self.monitors = monitors
        self.policies = policies

    # -- parameters ---------------------------------------------------------------------------

    def set_params(self, **kwargs: Any) -> Self:
        """Set parameters, ``batch_size__x``, ``compression__x`` and ``sync__x`` among them."""
        ours = {key: value for key, value in kwargs.items() if key.split("__")[0] in OWN_PREFIXES}
        for piece in OWN_PREFIXES:
            if piece in ours and ours[piece] is not getattr(self, piece):
                # Another policy or codec does not inherit the settings of the one before.
                for key in [key for key in vars(self) if key.startswith(piece + "__")]:
                    del self.__dict__[key]
                    self._params_to_validate.discard(key)
        for key, value in ours.items():
            setattr(self, key, value)
            if key not in OWN_PREFIXES:
                self._params_to_validate.add(key)
        super().set_params(**{key: value for key, value in kwargs.items() if key not in ours})
        return self

    def __sklearn_clone__(self) -> Self:
        """Clone everything but the client: a connection is shared, not copied."""
        client, self.client = self.client, None
        try:
            twin: Self = super().__sklearn_clone__()
        finally:
            self.client = client
        twin.client = client
        return twin

    def __getstate__(self) -> dict[str, Any]:
        """Leave the connection to the cluster out: another process has its own."""
        fleet = vars(self).get("fleet_")
        saved = vars(self).get("saved_ranks_") if fleet is None else fleet.to_save()
        ranks = {"fleet_": None, "saved_ranks_": saved} if "fleet_" in vars(self) else {}
        return {**super().__getstate__(), "client": None, "drive_": None, **ranks}

    def _get_param_names(self) -> list[str]:
        # scikit-learn's callbacks live in private attributes that clone() copies by itself.
        private = ("_skl_callbacks", "_callback_fit_ctx", "_parent_callback_ctx")
        return [name for name in super()._get_param_names() if not name.startswith(private)]

    def _policy(self) -> BatchSizePolicy:
        size = self.get_params_for("iterator_train").get("batch_size")
        if size is not None:  # skorch's own way to give training and validation different sizes
            return as_policy(size)
        return as_policy(self.batch_size, self.get_params_for("batch_size"))

    def compressor(self) -> Compressor | None:
        """Return what ``compression`` and ``compression__x`` describe."""
        return as_compressor(self.compression, self.get_params_for("compression"))

    def strategy(self) -> Strategy:
        """Return what ``sync`` and ``sync__x`` describe."""
        return as_strategy(self.sync, self.get_params_for("sync"))

    def _columns(self) -> tuple[str, ...]:
        """Return what ``updates_frame()`` has beside the usual columns."""
        averages = isinstance(self.strategy_, Averaging)
        return (*(averaging.COLUMNS if averages else ()), *self.control_.columns)

    # -- initialization -----------------------------------------------------------------------

    def initialize(self) -> Self:
        """Initialize all components, module parameters by ``random_state``."""
        checks.check_settings(self)
        self.policy_ = self._policy()
        self.control_ = Control.of(self.monitors, self.policies, self.policy_)
        self.run_ = Run.start(self.random_state)
        self.run_.control = self.control_.start()
        self.strategy_ = self.strategy()
        self.run_.sync = averaging.start(self.strategy_)
        self.fleet_: Fleet | None = None  # ranks with parameters of their own
        self.saved_ranks_: dict[str, Any] | None = None
        self.records_ = Records(self._columns())
        self.micro_ = self._micro_batch(self.run_)
        self.resume_: state.Resume | None = None
        self.saves_ = state.Saves()
        self.listeners_ = Listeners()
        with RNG_LOCK, torch.random.fork_rng(devices=[], enabled=self.run_.seeded):
            if self.run_.seeded:
                torch.manual_seed(self.run_.seed)
            super().initialize()
        return self

    def initialize_callbacks(self) -> Self:
        """Initialize callbacks; skorch's ProgressBar counts batches whose size is not a number."""
        super().initialize_callbacks()
        if not isinstance(self.batch_size, int):
            named: list[tuple[str, Any]] = vars(self)["callbacks_"]
            self.callbacks_ = [(name, counting(callback)) for name, callback in named]
        return self

    def _micro_batch(self, run: Run) -> MicroBatch:
        if self.micro_batch_size is None:
            return MicroBatch(whole=True)
        if self.micro_batch_size != "auto":
            return MicroBatch(fixed=int(self.micro_batch_size))
        return MicroBatch(timed=not run.seeded)

    # -- training -----------------------------------------------------------------------------

    @with_callbacks  # type: ignore[untyped-decorator]
    def partial_fit(self, X: Any, y: Any = None, classes: Any = None, **fit_params: Any) -> Self:
        """Train further: finish an interrupted run, or train ``max_epochs`` more epochs.

        Parameters
        ----------
        X, y : arrays, tensors, frames, dictionaries of them, or a Dataset
            The training data; or a function that returns a Dataset, called in every process.
        classes : array
            For scikit-learn; the classes are taken from `y`.
        **fit_params
            ``sample_weight``, and what the module's ``forward`` takes.
        """
        if is_factory(X):
            X = Built(X)
        elif is_dask_collection(X):
            from accelerando.train.cluster.chunks import take_chunks

            X, y = take_chunks(self, X, y), None
            if X.classes is not None:
                self.classes_inferred_ = X.classes
        super().partial_fit(X, y, classes=classes, **fit_params)
        return self

    def fit_loop(
        self,
        X: Any,
        y: Any = None,
        epochs: int | None = None,
        *,
        _routing_method: str = "fit",
        sample_weight: Any = None,
        **fit_params: Any,
    ) -> Self:
        """Split the data, then train epoch by epoch; called by ``fit`` and ``partial_fit``."""
        self.check_data(X, y)
        self.check_training_readiness()
        datasets = self.get_split_datasets(X, y, **split_params(self, _routing_method, fit_params))
        weights = None
        if sample_weight is not None:
            checks.check_weights(self, X)
            weights = training_weights(sample_weight, get_len(X), datasets[0])
        with ExitStack() as stack:
            training = prepare(self, datasets[0], epochs, weights, fit_params)
            for context in (steady_memory(), self.run_.randomness()):
                stack.enter_context(context)
            stack.enter_context(training.progress)
            stack.enter_context(training.interrupt)
            settle_layout(self, training.feed, fit_params)
            training.progress.begin(self.run_)
            engine = stack.enter_context(self._engine(training, datasets))
            try:
                self._train_epochs(training, engine, datasets, X, y)
            except BaseException as error:
                self._note_end(training, error)
                raise
        return self

    def _engine(self, training: Training, datasets: Any) -> AbstractContextManager[Any]:
        """Return what trains the epochs: the loop in this process, or the ranks of a cluster."""
        if self.client is None:
            return nullcontext(Here())
        from accelerando.train.cluster.drive import driving

        return driving(self, training, datasets)

    def _train_epochs(self, training: Training, engine: Any, datasets: Any, X: Any, y: Any) -> None:
        run = training.run
        dataset_train, dataset_valid = datasets
        parts = {"dataset_train": dataset_train, "dataset_valid": dataset_valid}
        valid = None if dataset_valid is None else self.get_iterator(dataset_valid, training=False)
        whole = self._init_callback_context(max_subtasks=run.until - run.epoch)
        whole.call_on_fit_task_begin(estimator=self, X=X, y=y)
        while run.epoch < run.until:
            task = whole.subcontext(task_name="epoch")
            task.call_on_fit_task_begin(estimator=self, X=X, y=y)
            self._begin_epoch(run, parts)
            engine.train_epoch(training)
            run.end_epoch()
            self.history.record("train_batch_count", len(self.history[-1, "batches"]))
            step = self.validation_step if valid is None else engine.validation(self)
            self.run_single_epoch(valid, False, "valid", step, **training.fit_params)
            run.seconds = training.clock()
            self.records_.epochs.add(
                run.epoch, run.update, run.examples, run.batch_size, training.lr(), run.seconds
            )
            self.notify("on_epoch_end", **parts)
            self._write_checkpoint()
            stop = task.call_on_fit_task_end(
                estimator=self, X=X, y=y, reconstruction_attributes=dict
            )
            if stop:
                run.until = run.epoch
            training.interrupt.check()
        whole.call_on_fit_task_end(estimator=self, X=X, y=y, reconstruction_attributes=dict)

    def _begin_epoch(self, run: Run, parts: dict[str, Any]) -> None:
        if not run.epoch_open:
            self.notify("on_epoch_begin", **parts)
            run.epoch_open = True
            return
        for _, callback in self.callbacks_:  # the interrupted epoch has its row in the history
            callback.on_epoch_begin(self, **parts)

    def _note_end(self, training: Training, error: BaseException) -> None:
        """Keep what a later ``partial_fit`` needs to go on, unless a callback ended the run."""
        run = training.run
        run.seconds = training.clock()
        if isinstance(self.strategy_, Averaging):
            if run.cursor == 0:  # between two epochs, all ranks can still be asked
                state.gather(self)
            meeting.show(self)
        if isinstance(error, KeyboardInterrupt) and run.cursor == 0:
            # EarlyStopping raises KeyboardInterrupt between two epochs; Ctrl-C sets `pending`.
            run.until = run.until if training.interrupt.pending else run.epoch
        self.resume_ = (*state.capture_callbacks(self), state.learning_rates(self))

    def get_iterator(self, dataset: Any, training: bool = False) -> Any:
        """Return batches for evaluation: gathered from memory, or by ``iterator_valid``."""
        name = "iterator_train" if training else "iterator_valid"
        options = self.get_params_for(name)
        fixed = self.batch_size if isinstance(self.batch_size, int) else EVALUATION_ROWS
        rows = options.pop("batch_size", fixed)
        rows = len(dataset) if rows == -1 else rows
        loader = getattr(self, name)
        memory = in_memory(dataset) if loader is DataLoader and not any(options.values()) else None
        if memory is not None:
            return MemoryBatches(memory, rows)
        return loader(dataset, batch_size=rows, **options)

    # -- what happened ------------------------------------------------------------------------

    def history_frame(self) -> pd.DataFrame:
        """Return one row per epoch: updates, examples, batch size, lr, losses, scores, seconds.

        ``updates``, ``examples`` and ``seconds`` are totals since training began; ``batch_size``
        and ``lr`` are those of the epoch's last update.
        """
        self.check_is_fitted()
        rows = list(self.history)
        rows = rows[:-1] if self.run_.epoch_open else rows
        return self.records_.history_frame(rows)

    def updates_frame(self) -> pd.DataFrame:
        """Return one row per model update: batch size, lr, loss, gradient norm, seconds."""
        self.check_is_fitted()
        return self.records_.updates.frame()

    def signals(self) -> dict[str, float]:
        """Return the newest row of ``updates_frame()``, while it trains as well.

        With ``client=`` it is up to a second old while an epoch is being trained.
        """
        table = self.records_.updates
        row = table.values[-len(table.columns) :]
        newest = dict(zip(table.columns, row, strict=False))
        drive = vars(self).get("drive_")
        heard = dict(drive.hearing.newest) if drive is not None else {}
        if heard.get("update", 0) > newest.get("update", 0):
            told = heard.pop("signals", {})
            numbers = {k: v for k, v in heard.items() if isinstance(v, int | float)}
            newest = {**newest, **numbers, "epoch": heard["epoch"] + 1, **told}
        return {name: float(value) for name, value in newest.items()}

    # -- saving -------------------------------------------------------------------------------

    def save_state(self, path: str | os.PathLike[str]) -> None:
        """Write the whole training run to one file, atomically.

        Called by a callback while it trains, the file is written as soon as all callbacks have
        had the same event, so that nothing of it is missing from the state.

        Parameters
        ----------
        path : path
            A file; an older one is replaced only when the new one is complete.

        See Also
        --------
        load_state : Continue such a run, in another process if need be.
        """
        self.check_is_fitted()
        if self.saves_.postpone(path):
            return
        state.save(self, path, training=False)

    def load_state(self, path: str | os.PathLike[str]) -> Self:
        """Take up a run that ``save_state`` wrote; ``partial_fit`` then continues it.

        Continuing gives the same parameters as never having stopped. Loading never runs code from
        the file.

        Parameters
        ----------
        path : path
            A file written by an estimator with the same settings.
        """
        state.load(self, path)
        return self

    def _write_checkpoint(self) -> None:
        if self.checkpoint is not None:
            state.save(self, state.checkpoint_file(self.checkpoint), training=True)

    def _read_checkpoint(self) -> None:
        """Take up an unfinished run from the checkpoint directory, if this one has not begun."""
        if self.checkpoint is None:
            return
        file = state.checkpoint_file(self.checkpoint)
        if self.run_.update == 0 and state.is_unfinished(file):
            state.load(self, file)

    def notify(self, method_name: str, **cb_kwargs: Any) -> None:
        """Call every callback, then write the states that one of them asked for."""
        listeners = self.listeners(method_name)
        getattr(self, method_name)(self, **cb_kwargs)
        if not listeners:
            return
        with self.saves_:
            for callback in listeners:
                getattr(callback, method_name)(self, **cb_kwargs)
        for path in self.saves_.due():
            state.save(self, path, training=True)

    def listeners(self, method_name: str) -> list[Callback]:
        """Return the callbacks that do anything at this event; most do nothing at most events."""
        return self.listeners_.at(method_name, self.callbacks_, self.verbose)

    def on_batch_begin(
        self, net: Any, batch: Any = None, training: bool = False, **kw: Any
    ) -> None:
        """Open the batch's row in the history."""
        last_row(self.history_)["batches"].append({})
