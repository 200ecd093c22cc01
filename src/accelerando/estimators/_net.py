"""skorch's net with accelerando's engine: the part that all estimators share."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any, Self

import torch
from skorch.callbacks import Callback
from torch.utils.data import DataLoader, Dataset

from accelerando._engine.comm.communicator import SingleProcess
from accelerando._engine.data.feed import ArrayBatches, Feed
from accelerando._engine.loop import Fit, FitSpec, LocalTrainer, Trainer, local_communicator
from accelerando._engine.micro_batch import MicroBatch, facts_of
from accelerando._engine.runtime.process import RNG_LOCK, Interrupt, keep_memory
from accelerando._engine.state import TrainState
from accelerando._sklearn import with_callbacks
from accelerando.compress._codec import Compressor
from accelerando.estimators import _checks as checks
from accelerando.estimators._base import ConfiguredNet, learning_rate, seed_from
from accelerando.estimators._probe import UNKNOWN
from accelerando.estimators._results import Results
from accelerando.estimators._skorch import (
    CallbackHooks,
    CallbacksByEvent,
    PostponedSaves,
    SkorchModel,
    components_of,
    counting,
    feed_of,
    has_convolutions,
    in_memory,
    last_row,
    module_of,
    overrides,
    split_params,
)
from accelerando.policies._controller import Controller
from accelerando.sync import AllReduce
from accelerando.sync._strategy import Strategy

EVALUATION_ROWS = 512


class AdaptiveNet(Results, ConfiguredNet):
    """A skorch net whose epochs are trained by accelerando's engine."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse, tags.non_deterministic = True, self.random_state is None
        if tags.classifier_tags is not None:
            tags.classifier_tags.multi_class = not hasattr(self, "threshold")
        tags.target_tags.multi_output = tags.regressor_tags is not None
        return tags

    def _controller(self) -> Controller:
        """Return the monitors and policies that the parameters describe."""
        size, settings = self.get_params_for("iterator_train").get("batch_size"), None
        if size is None:  # else: skorch's way to give training and validation different sizes
            size, settings = self.batch_size, self.get_params_for("batch_size")
        return Controller.of(self.monitors, self.policies, size, settings, self.max_batch_size)

    def _strategy(self) -> Strategy:
        """Return the averaging strategy that ``sync`` and ``sync__x`` describe."""
        settings = self.get_params_for("sync")
        if self.sync is None and not settings:
            return AllReduce()
        from accelerando.sync._make import as_strategy

        return as_strategy(self.sync, settings)

    def _compressor(self) -> Compressor | None:
        """Return the compressor that ``compression`` and ``compression__x`` describe."""
        settings = self.get_params_for("compression")
        if self.compression is None and not settings:
            return None
        from accelerando.compress._make import as_compressor

        return as_compressor(self.compression, settings)

    def initialize(self) -> Self:
        """Initialize all components; `random_state` decides the parameters of the module."""
        self.check_training_readiness()
        with RNG_LOCK, torch.random.fork_rng(devices=[], enabled=self.random_state is not None):
            checks.initialize(self, super().initialize)
        self._state_.components = components_of(self)
        return self

    def _initialize_virtual_params(self) -> None:
        # The first step of skorch's initialize, and of mixins that replace it (AccelerateMixin).
        super()._initialize_virtual_params()
        control, strategy = self._controller(), self._strategy()
        self._compressor()  # raises if `compression` is wrong
        checks.check_settings(self, strategy)
        seed, seeded = seed_from(self.random_state)
        state = self._state_ = TrainState(seed=seed, seeded=seeded)
        state.adopt(control, strategy, None)
        state.micro_batch = MicroBatch.of(self.micro_batch_size, timed=not seeded)
        self._pieces_ = (control, strategy)
        self._resume_: Any = None  # what callbacks remember, between a load and the next fit
        self._saves_, self._callbacks_by_event_ = PostponedSaves(), CallbacksByEvent()
        self._trainer_ = self._checkpoints_ = None
        self._recipe_ = UNKNOWN
        for name in {"n_features_in_", "feature_names_in_"} & vars(self).keys():
            delattr(self, name)  # the next fit decides
        self.world_log_: list[Any] = []
        if seeded:
            torch.manual_seed(seed)

    def get_params_for_optimizer(self, prefix: str, named_parameters: Any) -> tuple[Any, Any]:
        """Return the arguments of an optimizer; its learning rate as a number."""
        args, kwargs = super().get_params_for_optimizer(prefix, named_parameters)
        if kwargs["lr"] in (None, "auto"):
            kwargs["lr"] = learning_rate(kwargs["lr"], getattr(self, prefix, None))
        return args, kwargs

    def initialize_callbacks(self) -> Self:
        """Initialize callbacks; skorch's ProgressBar counts batches if their size may change."""
        super().initialize_callbacks()
        if not isinstance(self.batch_size, int):
            self.callbacks_ = [(name, counting(one)) for name, one in vars(self)["callbacks_"]]
        return self

    @with_callbacks  # type: ignore[untyped-decorator]
    def partial_fit(self, X: Any, y: Any = None, classes: Any = None, **fit_params: Any) -> Self:
        """Train further: finish an interrupted run, or train ``max_epochs`` more epochs.

        Parameters
        ----------
        X, y : arrays, tensors, frames, dictionaries of them, or a Dataset
            The training data; or a function that returns a Dataset, called in every process.
        classes : array
            All classes, for a classifier whose first `y` does not hold each of them.
        **fit_params
            ``sample_weight``, and further arguments of the module's ``forward``.
        """
        if classes is not None or not checks.are_arrays(X, y):
            from accelerando.estimators._data import open_inputs

            X, y = open_inputs(self, X, y, classes)
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
        """Split the data, then train epoch by epoch. Called by ``fit`` and ``partial_fit``."""
        params = split_params(self, _routing_method, fit_params)
        weighted = sample_weight is not None
        datasets = checks.split(self, X, y, params, fit_params, weighted=weighted)
        weights = None
        if weighted:
            from accelerando.estimators import _data

            _data.check_weights(self, X)
            weights = _data.training_weights(sample_weight, _data.count_examples(X), datasets[0])
        with ExitStack() as stack:
            interrupt = Interrupt()
            if self.checkpoint is not None:
                stack.callback(self._end_checkpoints)
            fit = self._prepare(datasets[0], epochs, weights, fit_params, interrupt)
            for context in (keep_memory(), fit.state.randomness(), interrupt):
                stack.enter_context(context)
            stack.callback(getattr(fit.feed, "close", lambda: None))  # its worker processes
            if self.verbose:
                self._show_progress(fit, stack)
            if self.channels_last is not False and has_convolutions(module_of(self)):
                from accelerando.estimators._data import settle_memory_format

                settle_memory_format(self, fit)
            trainer = stack.enter_context(self._trainer(fit, datasets, interrupt))
            try:
                self._train_epochs(fit, trainer, datasets, X, y, interrupt)
            except BaseException as error:
                self._note_end(fit, error, interrupt)
                raise
        return self

    def _prepare(
        self, dataset: Any, epochs: int | None, weights: Any, fit_params: Any, interrupt: Interrupt
    ) -> Fit:
        """Check what cannot work, begin or continue a run, and build the objects of this fit."""
        state: TrainState = self._state_
        control, strategy, compressor = self._controller(), self._strategy(), self._compressor()
        checks.check_settings(self, strategy)
        if self.checkpoint is not None:
            self._open_checkpoints()
        if self.ema is not None or state.ema is not None:
            self._prepare_average()
        custom = checks.check_overrides(self, weighted=weights is not None)
        if compressor is not None:
            checks.check_compressor(self, compressor, strategy)
        feed = feed_of(self, dataset, weighted=weights is not None)
        base = control.policies[0]
        measures = None if base.measures(0) is None else type(base).__name__
        checks.check_feed(self, feed, strategy, measures=measures, custom=custom)
        state.adopt(control, strategy, self._pieces_)
        self._pieces_ = (control, strategy)
        self._begin_or_continue(feed, checks.epochs_of(self, epochs))
        configured = MicroBatch.of(self.micro_batch_size, timed=not state.seeded)
        micro = state.micro_batch
        micro.fixed, micro.timed = configured.fixed, configured.timed
        whole = custom or self.couples_rows == "gather" or not checks.splits_exactly(self)
        micro.whole = self.micro_batch_size is None or (self.micro_batch_size == "auto" and whole)
        micro.verified = False
        divisible = checks.is_divisible(self) and not custom
        control.check(
            checks.monitor_setting(
                self, strategy, divisible=divisible, compressed=compressor is not None
            )
        )
        model = SkorchModel(self, fit_params)
        state.components = model.components
        spec = FitSpec(
            control=control,
            strategy=strategy,
            compressor=compressor,
            virtual_ranks=checks.ranks_here(self, strategy),
            divisible=divisible,
            **facts_of(model),
            weights=weights,
            fit_params=fit_params,
            custom_step=custom,
            couples_rows=self.couples_rows,
            checkpoint_every=None if self.checkpoint is None else self.checkpoint_every,
            rank_timeout=self.rank_timeout,
        )
        every = spec.checkpoint_every if self.client is None else None
        hooks = CallbackHooks(self, interrupt, self._write_checkpoint, every)
        comm = SingleProcess() if self.client else local_communicator(spec, state, feed)
        return Fit(spec, state, model, feed, comm, hooks)

    def _begin_or_continue(self, feed: Feed, epochs: int) -> None:
        """Continue an interrupted run, or begin one of `epochs` epochs."""
        state: TrainState = self._state_
        position, n_examples = state.position, feed.n_examples
        other_data = n_examples is not None and position.n_examples not in (None, n_examples)
        if state.interrupted and position.cursor and other_data:
            from accelerando.estimators._persist import leave_epoch

            leave_epoch(state, n_examples, epochs)
        resume, self._resume_ = self._resume_, None
        if state.interrupted and resume is not None:
            from accelerando.estimators._persist import continue_callbacks

            continue_callbacks(self, resume)  # after on_train_begin has reset them
        if not state.interrupted:
            position.until = position.epoch + epochs
        if n_examples is not None:
            position.n_examples = n_examples

    def _trainer(
        self, fit: Fit, datasets: Any, interrupt: Interrupt
    ) -> AbstractContextManager[Trainer]:
        """Return what trains the epochs: the loop in this process, or the ranks of a cluster."""
        if self.client is None:
            return nullcontext(LocalTrainer(fit))
        from accelerando.estimators._cluster import cluster_trainer

        return cluster_trainer(self, fit, datasets, interrupt)

    def _train_epochs(
        self, fit: Fit, trainer: Trainer, datasets: Any, X: Any, y: Any, interrupt: Interrupt
    ) -> None:
        state = fit.state
        position = state.position
        parts = {"dataset_train": datasets[0], "dataset_valid": datasets[1]}
        valid = None if datasets[1] is None else self.get_iterator(datasets[1], training=False)
        whole = self._init_callback_context(max_subtasks=position.until - position.epoch)
        whole.call_on_fit_task_begin(estimator=self, X=X, y=y)
        while position.epoch < position.until:
            task = whole.subcontext(task_name="epoch")
            task.call_on_fit_task_begin(estimator=self, X=X, y=y)
            self._begin_epoch(parts)
            trainer.train_epoch()
            state.end_epoch()
            position = state.position
            row = last_row(self.history_)
            row["train_batch_count"] = len(row["batches"])
            step = self._validation_step(None if valid is None else trainer.evaluate())
            self.run_single_epoch(valid, False, "valid", step, **fit.spec.fit_params)
            checks.look_at_epoch(fit, row["batches"])
            state.seconds = fit.clock()
            state.records.epochs.add(
                position.epoch,
                position.update,
                position.examples,
                state.batch_size,
                state.lr(),
                state.seconds,
            )
            self.notify("on_epoch_end", **parts)
            if self.checkpoint is not None:
                self._write_checkpoint(epoch_ended=True)
            stop = task.call_on_fit_task_end(
                estimator=self, X=X, y=y, reconstruction_attributes=dict
            )
            if stop:
                position.until = position.epoch
            interrupt.check()
        whole.call_on_fit_task_end(estimator=self, X=X, y=y, reconstruction_attributes=dict)

    def _validation_step(self, results: Any) -> Any:
        """Return what skorch's loop calls for each validation batch, or that knows its result."""
        if results is not None:
            from accelerando.estimators._cluster import known_step

            return known_step(self, results)
        return self.validation_step if self.ema is None else self._averaged_step()

    def _begin_epoch(self, parts: dict[str, Any]) -> None:
        position = self._state_.position
        if not position.epoch_open:
            self.notify("on_epoch_begin", **parts)
            position.epoch_open = True
            return
        for _, callback in self.callbacks_:  # the interrupted epoch has a row in the history
            callback.on_epoch_begin(self, **parts)

    def get_iterator(self, dataset: Any, training: bool = False) -> Any:
        """Return batches: gathered from memory, or by ``iterator_train`` or ``iterator_valid``."""
        name, size = "iterator_train" if training else "iterator_valid", self.batch_size
        options, loader = self.get_params_for(name), getattr(self, name)
        rows = options.pop("batch_size", size if isinstance(size, int) else EVALUATION_ROWS)
        rows = rows if rows > 0 else checks.all_rows(self, dataset)
        if training or overrides(self, "get_iterator"):  # who expects what skorch's returns
            from accelerando.estimators._overrides import batches_of

            return batches_of(loader, dataset, rows, options, training=training)
        plain = loader is DataLoader and not any(options.values())
        arrays = in_memory(dataset) if plain else None
        return ArrayBatches(arrays, rows) if arrays else loader(dataset, batch_size=rows, **options)

    # -- predictions: see Results for those of clusters, Dask arrays and averages ----------------

    def _predicts_here(self, X: Any) -> bool:
        # During a fit the module of this process is at hand, and the workers are busy.
        here = self.client is None or vars(self).get("_trainer_") is not None
        return here and self.ema is None and not hasattr(X, "__dask_graph__")

    def _predictor(self, X: Any) -> Any:
        """Return the methods of skorch, or those of Results around them."""
        return super(Results, self) if self._predicts_here(X) else super()

    def _decode(self, found: Any, X: Any) -> Any:
        """Return predictions as `y` was passed to ``fit``: labels, or values of its shape."""
        if self._recipe_.labels is None and not self._recipe_.column:
            return found
        from accelerando.estimators._targets import decoded

        return decoded(self, found, X)

    def predict(self, X: Any) -> Any:
        found = self._predictor(X).predict(X)
        return self._decode(found, X) if self._predicts_here(X) else found

    def predict_proba(self, X: Any) -> Any:
        if isinstance(self.criterion, str) and self._recipe_.logits is None:
            from accelerando.estimators._inputs import decide_for_prediction

            decide_for_prediction(self, X)
        return self._predictor(X).predict_proba(X)

    def forward(self, X: Any, training: bool = False, device: str = "cpu") -> Any:
        return self._predictor(X).forward(X, training=training, device=device)

    def forward_iter(self, X: Any, training: bool = False, device: str = "cpu") -> Any:
        if self.initialized_ and not isinstance(X, Dataset):
            from accelerando.estimators._inputs import converted

            X = converted(self, X)
        return self._predictor(X).forward_iter(X, training=training, device=device)

    def notify(self, method_name: str, **cb_kwargs: Any) -> None:
        callbacks = self._callbacks_at(method_name)  # then states that one of them asked for
        getattr(self, method_name)(self, **cb_kwargs)
        if not callbacks:
            return
        with self._saves_:
            for callback in callbacks:
                getattr(callback, method_name)(self, **cb_kwargs)
        for path in self._saves_.due():
            self._save(path, training=True)

    def _callbacks_at(self, method_name: str) -> list[Callback]:
        return self._callbacks_by_event_.at(method_name, self.callbacks_, self.verbose)

    def on_batch_begin(
        self, net: Any, batch: Any = None, training: bool = False, **kw: Any
    ) -> None:
        """Open the batch's row in the history."""
        last_row(self.history_)["batches"].append({})
