"""Checks that refuse, before training starts, what cannot work."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import skorch
import torch
from torch.utils.data import DataLoader, Subset

from accelerando._engine.data.feed import Feed
from accelerando._engine.loop import Fit
from accelerando._engine.micro_batch import is_mean_over_rows, net_couples_rows
from accelerando._validation import (
    check,
    check_choice,
    check_integer,
    check_number,
    parameter_error,
)
from accelerando.estimators._skorch import components_of, criterion_of, has_custom_loss
from accelerando.exceptions import UnsupportedError
from accelerando.monitor._monitor import Setting
from accelerando.sync import Averaging
from accelerando.sync._strategy import Strategy


def check_settings(net: Any, strategy: Strategy) -> None:
    """Check the parameters that skorch does not know."""
    kind = type(net)
    none, auto = {None: "None"}, {"auto": "'auto'"}
    _check_skorch(net, kind)
    check_integer(kind, "max_batch_size", net.max_batch_size, also=none)
    divided: dict[Any, str] = {**auto, None: "None (never divide a batch)"}
    check_integer(kind, "micro_batch_size", net.micro_batch_size, also=divided)
    check_number(kind, "ema", net.ema, above=0, below=1, also=none)
    check_choice(kind, "channels_last", net.channels_last, (True, False, "auto"))
    counts = ("examples_per_worker", "min_workers", "virtual_ranks")
    for name in (*counts, "checkpoint_every", "checkpoint_keep"):
        check_integer(kind, name, getattr(net, name))
    if net.checkpoint_best is not None and not isinstance(net.checkpoint_best, str):
        allowed = "the name of a score in the history, or None"
        raise parameter_error(kind, "checkpoint_best", allowed, net.checkpoint_best)
    check_integer(
        kind,
        "max_workers",
        net.max_workers,
        also={"auto": "'auto' (as many as pay)", None: "None (as many as the cluster has)"},
    )
    if isinstance(net.max_workers, int) and net.max_workers < net.min_workers:
        allowed = f"at least min_workers, which is {net.min_workers}"
        raise parameter_error(kind, "max_workers", allowed, net.max_workers)
    for name in ("rank_timeout", "worker_timeout"):
        check_number(kind, name, getattr(net, name), above=0)
    check_choice(kind, "couples_rows", net.couples_rows, ("gather", False, None))
    if net.couples_rows == "gather":
        from accelerando.estimators._check_strategy import check_gather

        check_gather(net, strategy)
    check_choice(kind, "data", net.data, ("replicate", "shard"))
    if net.client is not None:
        from accelerando.estimators._check_ranks import check_client

        check_client(kind, net.client)
    loader = net.iterator_train
    if not (isinstance(loader, type) and issubclass(loader, DataLoader)):
        from accelerando.estimators._overrides import check_iterator

        check_iterator(loader)
    if isinstance(strategy, Averaging) or net.virtual_ranks > 1:
        from accelerando.sync._make import check_sync

        check_sync(net, strategy, ranks_here(net, strategy))


def _check_skorch(net: Any, kind: type[Any]) -> None:
    """Check the parameters of skorch that it does not check itself."""
    check_integer(kind, "max_epochs", net.max_epochs, minimum=0)
    check_number(
        kind, "lr", net.lr, minimum=0, also={"auto": "'auto'", None: "None (the optimizer's)"}
    )
    for name in ("warm_start", "compile"):
        value = getattr(net, name)
        check(value is None or value in (True, False), kind, name, "True or False", value)
    verbose = net.verbose
    check(verbose is None or isinstance(verbose, int), kind, "verbose", "an integer", verbose)
    split = net.train_split
    allowed = "a function such as skorch.dataset.ValidSplit(5), or None to train on all rows"
    check(split is None or split is False or callable(split), kind, "train_split", allowed, split)
    final = net.predict_nonlinearity
    allowed = "a function, 'auto' or None"
    holds = final is None or final == "auto" or callable(final)
    if net.initialized_:  # `fit` refuses it; `initialize` leaves it to predict, as in skorch
        check(holds, kind, "predict_nonlinearity", allowed, final)
    for name in ("iterator_valid", "dataset"):
        value = getattr(net, name)
        holds = callable(value) or hasattr(value, "__getitem__")
        check(holds and not isinstance(value, str), kind, name, "a class", value)
    classes = getattr(net, "classes", None)
    holds = classes is None or (hasattr(classes, "__len__") and not isinstance(classes, str))
    check(holds, kind, "classes", "a list of classes, or None", classes)
    path = net.checkpoint
    holds = path is None or (isinstance(path, str | os.PathLike) and str(path) != "")
    check(holds, kind, "checkpoint", "the path of a folder, or None", path)
    if path is not None and "://" not in str(path):
        try:
            Path(path).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            allowed = f"a folder that can be written ({error.strerror})"
            raise parameter_error(kind, "checkpoint", allowed, path) from None
    if str(net.device) == "meta":
        from accelerando.estimators._explain import check_device

        check_device(net)
    for name in ("iterator_train", "iterator_valid"):
        if params := net.get_params_for(name):
            from accelerando.estimators._explain import check_names

            check_names(name, getattr(net, name), params)


def epochs_of(net: Any, epochs: Any) -> int:
    """Return the number of epochs of this fit."""
    if epochs is None:
        return int(net.max_epochs)
    check_integer("fit", "epochs", epochs, minimum=0)
    return int(epochs)


def initialize(net: Any, call: Callable[[], Any]) -> None:
    """Let skorch make the components; say in a sentence why one could not be made."""
    before = vars(net).get("_pieces_")
    try:
        call()
    except Exception as error:
        if vars(net).get("_pieces_") is not before:  # else a check of our own settings raised
            from accelerando.estimators._explain import explain_components

            explain_components(net, error)
        raise
    if any(key.startswith("callbacks__") for key in vars(net)):
        from accelerando.estimators._explain import check_callback_names

        check_callback_names(net, [name for name, _ in net._uniquely_named_callbacks()])
    made = [getattr(net, name + "_") for name in net._optimizers]
    shown = made and all(isinstance(getattr(one, "param_groups", 0), list) for one in made)
    rates = shown and all("lr" in group for one in made for group in one.param_groups)
    if not (rates if shown else has_own_step(net)):
        raise UnsupportedError(
            f"The optimizer {getattr(net.optimizer, '__name__', net.optimizer)} has no learning "
            "rate ('lr' in its param_groups), which accelerando adapts and records. Derive its "
            "class from torch.optim.Optimizer."
        )


def check_compressor(net: Any, compressor: Any, strategy: Strategy) -> None:
    """Refuse a compressor that does not fit the strategy, the optimizer or a single process."""
    from accelerando.estimators import _check_strategy

    _check_strategy.check_compressor(net, compressor, strategy)


def all_rows(net: Any, dataset: Any) -> int:
    """Return the number of rows, which batch_size=-1 means; refuse 0 and other numbers."""
    net._controller()
    return len(dataset)


def ranks_here(net: Any, strategy: Strategy) -> int:
    """Return how many ranks this process simulates."""
    wanted = strategy.ranks_wanted() if isinstance(strategy, Averaging) else None
    return wanted if isinstance(wanted, int) and net.client is None else int(net.virtual_ranks)


# -- subclasses -----------------------------------------------------------------------------------


def check_overrides(net: Any, *, weighted: bool) -> bool:
    """Return True if a subclass has its own training step; refuse what that cannot honor."""
    custom, epoch = has_own_step(net), _is_own(net, "run_single_epoch")
    if custom or epoch:
        from accelerando.estimators import _overrides

        if epoch:
            _overrides.refuse_epoch(net)
        _overrides.check_step(net, weighted=weighted)
    return custom


def has_own_step(net: Any) -> bool:
    """Return True if a subclass, or the instance, changes the parameters in its own way."""
    steps = ("train_step", "train_step_single", "get_train_step_accumulator")
    return any(_is_own(net, name) for name in (*steps, "_zero_grad_optimizer"))


def _is_own(net: Any, name: str) -> bool:
    return name in vars(net) or getattr(type(net), name) is not getattr(skorch.NeuralNet, name)


# -- data -----------------------------------------------------------------------------------------


def split(
    net: Any,
    X: Any,
    y: Any,
    params: dict[str, Any],
    fit_params: dict[str, Any],
    *,
    weighted: bool,
) -> Any:
    """Check and convert the data; return those for training and those for validation."""
    plain = _are_plain(X, y)
    if not plain:
        from accelerando.estimators._inputs import as_arrays

        X, y = as_arrays(net, X, y)
    if net.data == "shard" and not hasattr(X, "lengths"):
        raise UnsupportedError(
            'data="shard" trains on the chunks of Dask arrays where they are, and X is a '
            f'{type(X).__name__}. Pass dask.array arrays, or leave data at "replicate".'
        )
    net.check_data(X, y)
    net.check_training_readiness()
    # Ranks, and weights of rows, want to know the criterion before the first update.
    early = isinstance(net.criterion, str) and (weighted or net.client is not None)
    fits = plain and not early and _need_nothing(net, X, y)
    if not fits:
        from accelerando.estimators._inputs import convert

        X, y = convert(net, X, y, fit_params, early=early)
    try:
        found = net.get_split_datasets(X, y, **params)
    except (TypeError, ValueError) as error:
        from accelerando.estimators._input_checks import split_otherwise

        found = split_otherwise(net, X, y, params, error)
    if not isinstance(found, list | tuple) or len(found) != 2:
        from accelerando.estimators._input_checks import refuse_split

        refuse_split(net, found)
    if fits and (found[1] is None or type(found[1]) is Subset):
        return found
    from accelerando.estimators._targets import mark

    return mark(net, found)


def _need_nothing(net: Any, X: Any, y: Any) -> bool:
    """Return True if a fit can use plain arrays as they are, without asking the module.

    The classes of a classifier are then 0, 1, 2, ...
    """
    if hasattr(X, "lengths"):
        return False  # chunks of a Dask array
    first: Any = next(iter(net.get_all_learnable_params()), (None, None))[1]
    names = [str(dtype).removeprefix("torch.") for dtype in (X.dtype, y.dtype)]
    float32 = getattr(first, "dtype", None) is torch.float32
    if names != ["float32", "int64"] or not float32 or torch.nn.parameter.is_lazy(first):
        return False
    classes = getattr(net, "classes_inferred_", None)
    if not isinstance(criterion_of(net), torch.nn.NLLLoss | torch.nn.CrossEntropyLoss):
        return False
    if y.ndim != 1 or classes is None or (classes[0], classes[-1]) != (0, len(classes) - 1):
        return False
    if getattr(net, "classes", None) is not None or X.ndim != 2 or not X.shape[1]:
        return False  # more dimensions are noted, to compare predictions with
    if vars(net).setdefault("n_features_in_", X.shape[1]) != X.shape[1]:
        return False
    known = net._recipe_.labels is not None or net._recipe_.ndim is not None
    return not known and not hasattr(net, "feature_names_in_")


def are_arrays(X: Any, y: Any) -> bool:
    """Return True for two arrays or tensors."""
    return all(isinstance(data, np.ndarray | torch.Tensor) for data in (X, y))


def _are_plain(X: Any, y: Any) -> bool:
    """Return True for two arrays of numbers with the same number of rows, and for chunks."""
    if hasattr(X, "lengths"):
        return True  # chunks of a Dask array
    return is_plain(X) and is_plain(y) and bool(X.shape[0] == y.shape[0] > 0)


def is_plain(data: Any) -> bool:
    """Return True for an array or a tensor of numbers that PyTorch knows, with rows."""
    if isinstance(data, torch.Tensor):
        return data.layout == torch.strided and data.dim() > 0
    known = isinstance(data, np.ndarray) and data.dtype.kind in "biufc"
    # Numbers of long double precision are unknown to PyTorch, and masks would be lost.
    return known and data.ndim > 0 and data.dtype.char not in "gG" and not _is_masked(data)


def _is_masked(data: Any) -> bool:
    return isinstance(data, np.ma.MaskedArray)


def look_at_epoch(fit: Fit, batches: list[dict[str, Any]]) -> None:
    """Refuse an empty stream; warn of a validation loss that is no number, and of wasted bytes."""
    if not fit.state.position.update:
        raise ValueError("There are no training examples: the data set yielded none.")
    if unknown := [x for row in batches if not math.isfinite(x := row.get("valid_loss", 0.0))]:
        warnings.warn(
            f"The loss on the validation rows is {unknown[-1]}, and training continues. Look at "
            "them for nan and inf: EarlyStopping and Checkpoint cannot compare epochs.",
            stacklevel=2,
        )
    if fit.spec.compressor is not None:
        from accelerando.estimators import _check_strategy

        _check_strategy.look_at_bytes(fit)


def check_feed(
    net: Any, feed: Feed, strategy: Strategy, *, measures: str | None, custom: bool
) -> None:
    """Refuse what this kind of data cannot provide.

    Parameters
    ----------
    net : estimator
        With the settings.
    feed : Feed
        The data.
    strategy : Strategy
        How ranks agree.
    measures : str or None
        The name of the batch-size policy if it measures on the training set.
    custom : bool
        Whether a subclass has its own training step.
    """
    n_examples = feed.n_examples
    if n_examples == 0:
        raise ValueError("There are no training examples: X is empty, or train_split took all.")
    if n_examples is None and measures:
        raise UnsupportedError(
            f"{measures} measures on the training set, which an IterableDataset cannot provide "
            "out of turn. Use RadaDamp, which needs no extra pass."
        )
    coupled = net_couples_rows(components_of(net))
    if coupled and isinstance(net.micro_batch_size, int):
        if net.client is not None:
            raise UnsupportedError(
                "micro_batch_size divides a batch into parts, and on a cluster BatchNorm wants the "
                'whole of it at once. Leave micro_batch_size at "auto", or use GroupNorm.'
            )
        warnings.warn(
            f"The module has BatchNorm layers, whose statistics are those of a micro-batch of "
            f"{net.micro_batch_size} rows and not of the whole batch: results depend on "
            "micro_batch_size.",
            stacklevel=2,
        )
    ranks = ranks_here(net, strategy)
    needed = 2 if coupled else 1
    if n_examples is not None and n_examples < ranks * needed:
        raise ValueError(
            f"There are {n_examples} training examples for {ranks} virtual ranks, each of which "
            f"needs {needed}. Have fewer of them, or more examples."
        )
    if isinstance(strategy, Averaging):
        from accelerando.estimators._check_strategy import check_averaging

        check_averaging(net, strategy, custom=custom)


# -- what the engine may do -----------------------------------------------------------------------


def is_divisible(net: Any) -> bool:
    """Return True if a batch may be divided at all, if only to compare gradients of its parts."""
    separable = is_mean_over_rows(criterion_of(net)) and not has_custom_loss(net)
    coupled = net_couples_rows(components_of(net))
    return separable and not coupled and net.micro_batch_size is not None


def splits_exactly(net: Any) -> bool:
    """Return True if dividing a batch is certain not to change the result, and pays.

    That holds for a mean over rows without BatchNorm, on a CPU; a GPU prefers whole batches.
    """
    on_cpu = all(p.is_cpu for _, p in net.get_all_learnable_params())
    separable = is_mean_over_rows(criterion_of(net)) and not has_custom_loss(net)
    return on_cpu and separable and not net_couples_rows(components_of(net))


def monitor_setting(net: Any, strategy: Strategy, *, divisible: bool, compressed: bool) -> Setting:
    """Return what monitors want to know before training."""
    return Setting(
        several_ranks=net.client is not None and net.max_workers != 1,
        divisible=divisible,
        averages_parameters=isinstance(strategy, Averaging),
        compressed=compressed,
    )
