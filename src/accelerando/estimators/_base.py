"""The parameters of all estimators: how they are stored, set, cloned and pickled."""

from __future__ import annotations

import copy
import difflib
import inspect
import os
import pickle
from typing import Any, ClassVar, Literal, Self

import cloudpickle
import numpy as np
import skorch
import torch
from sklearn.utils import check_random_state
from skorch.callbacks import PassthroughScoring

from accelerando._sklearn import CallbackSupportMixin
from accelerando._validation import is_integer
from accelerando.estimators._epoch_table import EpochTable
from accelerando.estimators._probe import UNKNOWN

PIECES = ("batch_size", "compression", "sync")  # parameters with parameters, such as sync__period
LATER = (*PIECES, "iterator_train", "iterator_valid", "dataset")  # read by the next fit
SKORCH_LR = 0.01
# Private attributes of scikit-learn's callbacks, which clone() copies by itself.
SKLEARN_CALLBACKS = ("_skl_callbacks", "_callback_fit_ctx", "_parent_callback_ctx")


class ConfiguredNet(CallbackSupportMixin, skorch.NeuralNet):  # type: ignore[misc]
    """A skorch net with the parameters of accelerando."""

    prefixes_: ClassVar[list[str]] = [*skorch.NeuralNet.prefixes_, *PIECES]
    _recipe_: Any = UNKNOWN

    def __init__(
        self,
        module: Any,
        *args: Any,
        batch_size: Any = 128,
        max_batch_size: int | None = None,
        micro_batch_size: int | str | None = "auto",
        couples_rows: str | bool | None = None,
        channels_last: bool | str = "auto",
        ema: float | None = None,
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
        checkpoint_keep: int = 3,
        checkpoint_best: str | None = "valid_loss",
        monitors: Any = (),
        policies: Any = (),
        **kwargs: Any,
    ) -> None:
        super().__init__(module, *args, batch_size=batch_size, **kwargs)
        self.max_batch_size = max_batch_size
        self.micro_batch_size = micro_batch_size
        self.couples_rows = couples_rows
        self.channels_last = channels_last
        self.ema = ema
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
        self.checkpoint_keep = checkpoint_keep
        self.checkpoint_best = checkpoint_best
        self.monitors = monitors
        self.policies = policies

    @property
    def _default_callbacks(self) -> list[tuple[str, Any]]:
        """Skorch's callbacks, with our columns in the table of epochs."""
        return [
            (name, EpochTable() if name == "print_log" else EpochAverage.instead_of(one))
            for name, one in super()._default_callbacks
        ]

    # -- parameters -------------------------------------------------------------------------------

    def set_params(self, **kwargs: Any) -> Self:
        """Set parameters; a fitted net uses them from the next ``partial_fit`` on."""
        ours = {key: value for key, value in kwargs.items() if key.split("__")[0] in LATER}
        for piece in PIECES:
            if piece in ours and ours[piece] is not getattr(self, piece):
                # Another policy or codec does not inherit the settings of the one before.
                for key in [key for key in vars(self) if key.startswith(piece + "__")]:
                    del self.__dict__[key]
                    self._params_to_validate.discard(key)
        for key, value in ours.items():
            setattr(self, key, value)
            if key not in LATER:
                self._params_to_validate.add(key)
        others = {key: value for key, value in kwargs.items() if key not in ours}
        if others.get("lr", 0.0) in (None, "auto"):  # optimizer_ gets a number
            others["lr"] = learning_rate(
                others["lr"], others.get("optimizer", vars(self)["optimizer"])
            )
        replaced = "optimizer" in others  # skorch cannot replace the one of a fitted net
        optimizer = others.pop("optimizer", None)
        super().set_params(**others)
        if "lr" in kwargs:
            self.lr = kwargs["lr"]
        if replaced:
            self.optimizer = optimizer
            if self.initialized_:
                self._initialize_optimizer()
        return self

    def __repr__(self) -> str:
        from accelerando.estimators._display import shown

        return shown(self)

    def _suggestions(self) -> str:
        """Return a sentence for each misspelled parameter."""
        known = [name for name in inspect.signature(type(self)).parameters if name != "kwargs"]
        wrong = sorted(name for name in self._params_to_validate if name not in known)
        found = [(name, difflib.get_close_matches(name, known, n=1)) for name in wrong]
        return "".join(
            f" Did you mean {near[0]!r} instead of {name!r}?" for name, near in found if near
        )

    def __sklearn_clone__(self) -> Self:
        """Clone everything but the client: a connection is shared, not copied."""
        client, self.client = self.client, None
        try:
            twin: Self = super().__sklearn_clone__()
        except (TypeError, AttributeError) as error:
            raise cannot_copy(self, "cloned", error) from None
        finally:
            self.client = client
        twin.client = client
        return twin

    def __copy__(self) -> Self:
        """Copy all of it: two estimators cannot share a run."""
        return copy.deepcopy(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Copy everything but the client: a connection is shared, not copied."""
        twin = memo[id(self)] = type(self).__new__(type(self))
        twin.__setstate__(copy.deepcopy(self.__getstate__(), memo))
        twin.client = self.client
        return twin

    def __getstate__(self) -> dict[str, Any]:
        """Leave the connection to the cluster out: another process has its own."""
        try:
            state = super().__getstate__()
        except (pickle.PicklingError, TypeError, AttributeError):
            state = self._state_by_value()
        return {**state, "client": None, "_trainer_": None}

    def _state_by_value(self) -> dict[str, Any]:
        """Return skorch's state with classes that pickle does not find, as those of a script.

        On a worker of Dask, the class of a module that was defined in the user's script is not the
        one that the worker finds under its name.
        """
        state = vars(self).copy()
        prefixes = tuple(self.cuda_dependent_attributes_)
        taken = {name: state.pop(name) for name in list(state) if name.startswith(prefixes)}
        try:
            state["__cuda_dependent_attributes__"] = cloudpickle.dumps(taken)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise cannot_copy(self, "pickled", error) from None
        return state

    def _get_param_names(self) -> list[str]:
        # scikit-learn's callbacks live in private attributes that clone() copies by itself.
        return [name for name in super()._get_param_names() if not name.startswith("_")]


class EpochAverage(PassthroughScoring):  # type: ignore[misc]
    """The mean of a score of batches over an epoch, as skorch's callback records it.

    skorch's looks through the history three times, which takes long if an epoch has few updates.
    """

    @classmethod
    def instead_of(cls, callback: Any) -> Any:
        """Return an average in place of skorch's, and other callbacks as they are."""
        if type(callback) is not PassthroughScoring:
            return callback
        return cls(callback.name, callback.lower_is_better, callback.on_train)

    def on_epoch_end(self, net: Any, **kwargs: Any) -> None:
        """Record the mean, weighted by the sizes of the batches, and whether it is the best."""
        rows = [row for row in net.history[-1]["batches"] if self.name in row]
        if not rows:
            return
        sizes = [row["train_batch_size" if self.on_train else "valid_batch_size"] for row in rows]
        mean = np.average([row[self.name] for row in rows], weights=sizes)
        is_best = self._is_best_score(mean)
        if is_best:
            self.best_score_ = mean
        net.history.record(self.name, mean)
        if is_best is not None:
            net.history.record(self.name + "_best", bool(is_best))


def cannot_copy(net: Any, how: str, error: Exception) -> TypeError:
    """Return the error about a net that cannot be cloned or pickled."""
    return TypeError(
        f"This {type(net).__name__} cannot be {how}: {error}. The module, or another parameter, "
        "holds a lock, an open file, a connection or a function without a name. Pass the class of "
        "the module instead of an instance, make such attributes in forward, or leave them out in "
        "the module's __getstate__; save_state saves a run without them."
    )


def learning_rate(lr: Literal["auto"] | None, optimizer: Any) -> Any:
    """Return the learning rate that "auto" or None means.

    Examples
    --------
    >>> import torch
    >>> [learning_rate("auto", one) for one in (torch.optim.SGD, torch.optim.Adadelta)]
    [0.01, 1.0]
    >>> learning_rate(None, torch.optim.SGD)
    0.001
    """
    try:
        parameters = inspect.signature(optimizer).parameters
    except (TypeError, ValueError):
        return SKORCH_LR  # not callable, or without a signature
    if "lr" not in parameters:
        return SKORCH_LR
    own = parameters["lr"].default
    if own is inspect.Parameter.empty:
        if lr is None:
            raise ValueError(
                f"lr=None leaves the learning rate to {optimizer.__name__}, which has none of its "
                "own. Pass a number."
            )
        return SKORCH_LR
    given = "lr" in getattr(optimizer, "keywords", ())  # by functools.partial
    return own if lr is None or given else max(SKORCH_LR, own)


def seed_from(random_state: Any) -> tuple[int, bool]:
    """Return the seed of a run, and whether the user gave one.

    Without a `random_state` the seed is drawn from PyTorch's generator, so that shuffles follow
    ``torch.manual_seed``.
    """
    if random_state is None:
        return int(torch.randint(2**31, ()).item()), False
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(2**31)), True
    if is_integer(random_state, 0):
        return int(random_state), True
    try:
        if isinstance(random_state, bool):
            raise ValueError
        return int(check_random_state(random_state).randint(2**31)), True
    except ValueError:
        raise ValueError(
            "The 'random_state' parameter must be None, an integer of at least 0, or a NumPy "
            f"random generator. Got {random_state!r} instead."
        ) from None
