"""Checks that refuse, before training starts, what cannot work."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import skorch
import torch
from sklearn.utils import check_random_state
from torch.utils.data import DataLoader, IterableDataset

from accelerando._engine.data.feed import Feed
from accelerando._engine.micro_batch import check_weightable, couples_rows, is_mean_over_rows
from accelerando._engine.step import needs_closure
from accelerando._validation import (
    check_choice,
    check_integer,
    check_number,
    parameter_error,
)
from accelerando.compress import Adaptive, ErrorFeedback, PowerSGD
from accelerando.compress._codec import Compressor
from accelerando.estimators._skorch import has_custom_loss
from accelerando.exceptions import UnsupportedError
from accelerando.monitor._monitor import Setting
from accelerando.sync import Averaging
from accelerando.sync._strategy import Strategy

# -- parameters -----------------------------------------------------------------------------------


def check_settings(net: Any, strategy: Strategy) -> None:
    """Check the parameters that skorch does not know."""
    kind = type(net)
    none, auto = {None: "None"}, {"auto": "'auto'"}
    check_integer(kind, "max_batch_size", net.max_batch_size, also=none)
    check_integer(
        kind,
        "micro_batch_size",
        net.micro_batch_size,
        also={**auto, None: "None (never divide a batch)"},
    )
    check_choice(kind, "channels_last", net.channels_last, (True, False, "auto"))
    for name in ("examples_per_worker", "min_workers", "checkpoint_every", "virtual_ranks"):
        check_integer(kind, name, getattr(net, name))
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
    check_choice(kind, "data", net.data, ("replicate", "shard"))
    if net.client is not None and not hasattr(net.client, "scheduler_info"):
        raise TypeError(
            f"The 'client' parameter of {kind.__name__} must be a distributed.Client, or None to "
            f"train in this process. Got {net.client!r} instead."
        )
    loader = net.iterator_train
    if not (isinstance(loader, type) and issubclass(loader, DataLoader)):
        raise UnsupportedError(
            "iterator_train must be torch's DataLoader or a subclass of it, since its chunks are "
            f"put together to batches of changing size. Got {loader!r}."
        )
    if isinstance(strategy, Averaging) or net.virtual_ranks > 1:
        _check_sync(net, strategy)


def _check_sync(net: Any, strategy: Strategy) -> None:
    averages, virtual = isinstance(strategy, Averaging), net.virtual_ranks > 1
    if virtual and net.client is not None:
        raise UnsupportedError(
            f"virtual_ranks={net.virtual_ranks} are ranks of this process, and with client= the "
            "ranks are workers of the cluster. Leave one of them out."
        )
    wanted = strategy.ranks_wanted() if isinstance(strategy, Averaging) else None
    name = type(strategy).__name__
    if wanted == "auto" and net.client is None:
        raise UnsupportedError(
            f'{name}(replicas="auto") tries how many workers of a Dask cluster pay, and here there '
            "is one process. Pass client=distributed.Client(), which starts a cluster on this "
            "machine, or a number of replicas."
        )
    if wanted is not None and virtual and wanted != net.virtual_ranks:
        raise ValueError(
            f"{name} has {wanted} replicas, and virtual_ranks is {net.virtual_ranks}. Leave "
            "virtual_ranks out: replicas are virtual ranks."
        )
    if averages and net.client is None and ranks_here(net, strategy) == 1:
        raise UnsupportedError(
            f"sync={strategy!r} averages the parameters of several ranks, and here there is one. "
            "Pass virtual_ranks=2 or more, or a client."
        )
    if averages and net.client is not None and net.max_workers == 1:
        raise UnsupportedError(
            f"sync={strategy!r} averages the parameters of several ranks, and max_workers=1 allows "
            "one. Leave max_workers out, or allow more."
        )
    if net.compression is not None:
        why = (
            "ranks that average parameters exchange no gradients"
            if averages
            else "virtual ranks compute the gradient of all their rows at once"
        )
        raise UnsupportedError(
            f"compression={net.compression!r} compresses the gradients of single ranks; {why}. "
            "Leave compression out, or train without sync and virtual_ranks."
        )


def ranks_here(net: Any, strategy: Strategy) -> int:
    """Return how many ranks this process simulates."""
    wanted = strategy.ranks_wanted() if isinstance(strategy, Averaging) else None
    return wanted if isinstance(wanted, int) and net.client is None else int(net.virtual_ranks)


def check_compressor(net: Any, compressor: Compressor | None) -> None:
    """Refuse a compressor that does not fit the optimizer, or a single process."""
    inner = compressor.codec if isinstance(compressor, Adaptive) else compressor
    if isinstance(inner, PowerSGD) and net.client is None:
        raise UnsupportedError(
            f"compression={compressor!r} is a way to add gradients up over ranks, and without a "
            "client there is only this process. Pass a client, or a codec such as Atomo or QSGD, "
            "which this process applies to its own gradient."
        )
    if not isinstance(inner, ErrorFeedback | PowerSGD):
        return
    # L-BFGS uses differences of the gradients it has evaluated: what error feedback would add to
    # the next one belongs to no step.
    if searching := _with_closures(net):
        raise UnsupportedError(
            f"{searching[0]} evaluates gradients several times in one update, and "
            f"compression={compressor!r} adds to each what those before it left out: the "
            "differences that the optimizer looks at would not be those of the loss. Use a codec "
            "without memory, such as Atomo or QSGD, or another optimizer."
        )


def _with_closures(net: Any) -> list[str]:
    """Return the names of the optimizers that evaluate the loss themselves."""
    optimizers = [getattr(net, name + "_") for name in net._optimizers]
    return [type(one).__name__ for one in optimizers if needs_closure(one)]


def seed_from(random_state: Any) -> tuple[int, bool]:
    """Return the seed of a run, and whether the user gave one.

    Without a `random_state` the seed is drawn from PyTorch's generator, so that shuffles follow
    ``torch.manual_seed``.
    """
    if random_state is None:
        return int(torch.randint(2**31, ()).item()), False
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(2**31)), True
    if isinstance(random_state, int | np.integer) and random_state >= 0:
        return int(random_state), True
    try:
        return int(check_random_state(random_state).randint(2**31)), True
    except ValueError:
        raise ValueError(
            "The 'random_state' parameter must be None, an integer of at least 0, or a NumPy "
            f"random generator. Got {random_state!r} instead."
        ) from None


# -- subclasses -----------------------------------------------------------------------------------


def check_overrides(net: Any, *, weighted: bool) -> bool:
    """Return True if a subclass has its own training step; refuse what that cannot honor."""
    kind = type(net)
    if kind.run_single_epoch is not skorch.NeuralNet.run_single_epoch:
        raise UnsupportedError(
            f"{kind.__name__} overrides run_single_epoch, which accelerando's loop replaces. "
            "Override train_step, get_loss or infer, or write a callback."
        )
    custom = any(
        getattr(kind, name) is not getattr(skorch.NeuralNet, name)
        for name in ("train_step", "train_step_single")
    )
    if not custom:
        return False
    changes = f"{kind.__name__} has its own train_step, which moves the parameters by itself"
    if net.client is not None:
        raise UnsupportedError(
            f"{changes}: ranks on a cluster could not agree. Override get_loss or infer instead, "
            "or train in this process (client=None)."
        )
    if net.compression is not None:
        raise UnsupportedError(
            f"{changes}: compression could not reach the gradient. Override get_loss or infer "
            "instead."
        )
    if weighted:
        raise UnsupportedError(
            f"{kind.__name__} has its own train_step, which computes the loss itself: "
            "sample_weight and class_weight cannot reach it. Override get_loss instead."
        )
    if isinstance(net.micro_batch_size, int):
        raise UnsupportedError(
            f"{kind.__name__} has its own train_step, so that micro_batch_size="
            f"{net.micro_batch_size} would have no effect. Leave it at 'auto', or override "
            "get_loss instead of train_step."
        )
    return True


# -- data -----------------------------------------------------------------------------------------


def check_weights(net: Any, X: Any) -> None:
    """Refuse weights that the criterion cannot use, or that belong to no numbered rows."""
    check_weightable(net.criterion_)
    if isinstance(X, IterableDataset):
        raise UnsupportedError(
            "sample_weight belongs to numbered examples, and an IterableDataset has no numbers. "
            "Let the data set yield the weights to your criterion, or use a map-style Dataset."
        )


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
    coupled = couples_rows(net.module_)
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
        _check_averaging(net, strategy, custom=custom)


def _check_averaging(net: Any, strategy: Averaging, *, custom: bool) -> None:
    name = type(strategy).__name__
    if custom:
        raise UnsupportedError(
            f"{type(net).__name__} has its own train_step, in which the rows of ranks could not be "
            f"weighed as {name} requires. Override get_loss or infer instead."
        )
    if searching := _with_closures(net):
        raise UnsupportedError(
            f"{searching[0]} searches along a line by the loss of its own batch, from which {name} "
            "would move it away. Use SGD, Adam or another optimizer that steps by the gradient "
            "alone."
        )


# -- what the engine may do -----------------------------------------------------------------------


def is_divisible(net: Any) -> bool:
    """Return True if a batch may be divided at all, if only to compare gradients of its parts."""
    separable = is_mean_over_rows(net.criterion_) and not has_custom_loss(net)
    return separable and not couples_rows(net.module_) and net.micro_batch_size is not None


def splits_exactly(net: Any) -> bool:
    """Return True if dividing a batch is certain not to change the result, and pays.

    That holds for a loss that is a mean over rows and a module without BatchNorm, on a CPU. On a
    GPU undivided batches are faster.
    """
    on_cpu = all(p.is_cpu for _, p in net.get_all_learnable_params())
    separable = is_mean_over_rows(net.criterion_) and not has_custom_loss(net)
    return on_cpu and separable and not couples_rows(net.module_)


def monitor_setting(net: Any, strategy: Strategy, *, divisible: bool, compressed: bool) -> Setting:
    """Return what monitors want to know before training."""
    return Setting(
        several_ranks=net.client is not None and net.max_workers != 1,
        divisible=divisible,
        averages_parameters=isinstance(strategy, Averaging),
        compressed=compressed,
    )
