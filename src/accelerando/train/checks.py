"""What cannot work is said before training starts."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

import skorch
import torch
from torch.utils.data import DataLoader, IterableDataset

from accelerando._whole import is_whole
from accelerando.compress import Adaptive, Compressor, ErrorFeedback, PowerSGD
from accelerando.exceptions import UnsupportedError
from accelerando.monitor import Setting
from accelerando.sync import Averaging, Strategy
from accelerando.train.feed import Feed
from accelerando.train.loss import check_weightable, is_mean_over_rows
from accelerando.train.microbatch import couples_rows
from accelerando.train.plain import has_own_loss


def check_settings(net: Any) -> None:
    """Check the parameters that are accelerando's own."""
    _check_rows("max_batch_size", net.max_batch_size, "None", lambda value: value is None)
    _check_rows(
        "micro_batch_size",
        net.micro_batch_size,
        '"auto" or None (never divide a batch)',
        lambda value: value is None or value == "auto",
    )
    if net.channels_last not in (True, False, "auto"):
        raise ValueError(
            f'channels_last must be True, False or "auto". Got {net.channels_last!r} instead.'
        )
    _check_cluster(net)
    net.compressor()  # says what is wrong with `compression`
    _check_rows("virtual_ranks", net.virtual_ranks, "no less", lambda value: False)
    _check_sync(net)
    loader = net.iterator_train
    if not (isinstance(loader, type) and issubclass(loader, DataLoader)):
        raise UnsupportedError(
            "iterator_train must be torch's DataLoader or a subclass of it, since its chunks are "
            f"put together to batches of changing size. Got {loader!r}."
        )


def _check_rows(name: str, value: Any, otherwise: str, allowed: Any) -> None:
    if allowed(value):
        return
    if not is_whole(value, 1):
        raise ValueError(
            f"{name} must be a whole number of at least 1, {otherwise}. Got {value!r} instead."
        )


def _check_cluster(net: Any) -> None:
    for name in ("examples_per_worker", "min_workers", "checkpoint_every"):
        _check_rows(name, getattr(net, name), "no less", lambda value: False)
    _check_rows(
        "max_workers",
        net.max_workers,
        '"auto" (as many as pay) or None (as many as the cluster has)',
        lambda value: value is None or value == "auto",
    )
    if isinstance(net.max_workers, int) and net.max_workers < net.min_workers:
        raise ValueError(
            f"min_workers must be at most max_workers. Got min_workers={net.min_workers} and "
            f"max_workers={net.max_workers}."
        )
    for name in ("rank_timeout", "worker_timeout"):
        seconds = getattr(net, name)
        if not isinstance(seconds, int | float) or not seconds > 0:
            raise ValueError(f"{name} must be a positive number of seconds. Got {seconds!r}.")
    if net.data not in ("replicate", "shard"):
        raise ValueError(f'data must be "replicate" or "shard". Got {net.data!r}.')
    if net.client is not None and not hasattr(net.client, "scheduler_info"):
        raise TypeError(
            "client must be a distributed.Client, or None to train in this process. Got "
            f"{net.client!r}."
        )


def _check_sync(net: Any) -> None:
    strategy = net.strategy()  # says what is wrong with `sync`
    averages, virtual = isinstance(strategy, Averaging), net.virtual_ranks > 1
    if virtual and net.client is not None:
        raise UnsupportedError(
            f"virtual_ranks={net.virtual_ranks} are ranks of this process, and with client= the "
            "ranks are workers of the cluster. Leave one of them out."
        )
    own = strategy.ranks_wanted() if isinstance(strategy, Averaging) else None
    name = type(strategy).__name__
    if own == "auto" and net.client is None:
        raise UnsupportedError(
            f'{name}(replicas="auto") tries how many workers of a Dask cluster pay, and here there '
            "is one process. Pass client=distributed.Client(), which makes a cluster of this "
            "machine, or a number of replicas."
        )
    if own is not None and virtual and own != net.virtual_ranks:
        raise ValueError(
            f"{name} has {own} replicas, and virtual_ranks is {net.virtual_ranks}. Leave "
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
    if (averages or virtual) and net.compression is not None:
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
    """Return how many ranks this process is."""
    own = strategy.ranks_wanted() if isinstance(strategy, Averaging) else None
    return own if isinstance(own, int) and net.client is None else int(net.virtual_ranks)


def check_ranks(net: Any, feed: Feed, *, own_step: bool) -> None:
    """Refuse what cannot be divided among virtual ranks."""
    ranks = ranks_here(net, net.strategy_)
    fewest = ranks * (2 if couples_rows(net.module_) else 1)
    if feed.n_examples is not None and feed.n_examples < fewest:
        raise ValueError(
            f"There are {feed.n_examples} training examples for {ranks} virtual ranks, each of "
            f"which needs {fewest // ranks}. Have fewer of them, or more examples."
        )
    if not isinstance(net.strategy_, Averaging):
        return
    name = type(net.strategy_).__name__
    if own_step:
        raise UnsupportedError(
            f"{type(net).__name__} has its own train_step, in which the rows of ranks could not be "
            f"weighed as {name} wants. Override get_loss or infer instead."
        )
    if searching := _with_closures(net):
        raise UnsupportedError(
            f"{searching[0]} searches along a line by the loss of its own batch, from which {name} "
            "would take it away. Use SGD, Adam or another optimizer that steps by the gradient "
            "alone."
        )


def _with_closures(net: Any) -> list[str]:
    """Return the names of the optimizers that evaluate the loss themselves."""
    optimizers = [getattr(net, name + "_") for name in net._optimizers]
    return [type(one).__name__ for one in optimizers if needs_closure(one)]


def needs_closure(optimizer: torch.optim.Optimizer) -> bool:
    """Tell whether the optimizer evaluates the loss itself, like L-BFGS."""
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty


def check_alone(compressor: Compressor) -> None:
    """Refuse a compressor that a single process cannot apply to its own gradient."""
    if isinstance(compressor, PowerSGD):
        raise UnsupportedError(
            f"compression={compressor!r} is a way to add gradients up over ranks, and without a "
            "client there is only this process. Pass a client, or a codec such as Atomo or QSGD, "
            "which this process applies to its own gradient."
        )


def check_closures(net: Any) -> None:
    """Refuse to remember what was not sent where one update sends several gradients.

    L-BFGS takes differences of the gradients it has asked for, and steps by none of them as it is:
    what error feedback would add to the next one belongs to no step.
    """
    compressor = net.compressor()
    inner = compressor.codec if isinstance(compressor, Adaptive) else compressor
    if not isinstance(inner, ErrorFeedback | PowerSGD):
        return
    if searching := _with_closures(net):
        raise UnsupportedError(
            f"{searching[0]} evaluates gradients several times in one update, and "
            f"compression={compressor!r} adds to each what those before it left out: the "
            "differences that the optimizer looks at would not be those of the loss. Take a codec "
            "without memory, such as Atomo or QSGD, or another optimizer."
        )


def check_classes(y: Any) -> None:
    """Refuse classes that are names: no loss of PyTorch takes them."""
    kind = getattr(getattr(y, "dtype", None), "kind", "")
    if kind in "OUS" and kind:
        raise ValueError(
            "y holds names or objects; PyTorch's losses want whole numbers from 0 on. Encode it: "
            "y = sklearn.preprocessing.LabelEncoder().fit_transform(y)."
        )


def check_overrides(net: Any, *, weighted: bool) -> bool:
    """Tell whether a subclass has its own training step, and refuse what that cannot honour."""
    kind = type(net)
    if kind.run_single_epoch is not skorch.NeuralNet.run_single_epoch:
        raise UnsupportedError(
            f"{kind.__name__} overrides run_single_epoch, which accelerando's loop replaces. "
            "Override train_step, get_loss or infer, or write a callback."
        )
    own = any(
        getattr(kind, name) is not getattr(skorch.NeuralNet, name)
        for name in ("train_step", "train_step_single")
    )
    if own and net.client is not None:
        raise UnsupportedError(
            f"{kind.__name__} has its own train_step, which moves the parameters by itself: ranks "
            "on a cluster could not agree. Override get_loss or infer instead, or train in this "
            "process (client=None)."
        )
    if own and net.compression is not None:
        raise UnsupportedError(
            f"{kind.__name__} has its own train_step, which moves the parameters by itself: "
            "compression could not reach the gradient. Override get_loss or infer instead."
        )
    if own and weighted:
        raise UnsupportedError(
            f"{kind.__name__} has its own train_step, which computes the loss itself: "
            "sample_weight and class_weight cannot reach it. Override get_loss instead."
        )
    if own and isinstance(net.micro_batch_size, int):
        raise UnsupportedError(
            f"{kind.__name__} has its own train_step, so that micro_batch_size="
            f"{net.micro_batch_size} would have no effect. Leave it at 'auto', or override "
            "get_loss instead of train_step."
        )
    return own


def check_weights(net: Any, X: Any) -> None:
    """Refuse weights that the criterion cannot use or that have no rows to belong to."""
    check_weightable(net.criterion_)
    if isinstance(X, IterableDataset):
        raise UnsupportedError(
            "sample_weight belongs to numbered examples, and an IterableDataset has no numbers. "
            "Let the data set yield the weights to your criterion, or use a map-style Dataset."
        )


def check_feed(net: Any, feed: Feed) -> None:
    """Refuse what this kind of data cannot give."""
    if feed.n_examples == 0:
        raise ValueError("There are no training examples: X is empty, or train_split took all.")
    if feed.n_examples is None and net.policy_.measures(0) is not None:
        raise UnsupportedError(
            f"{type(net.policy_).__name__} measures on the training set, which an IterableDataset "
            "cannot give out of turn. Use RadaDamp, which needs no extra pass."
        )
    if (
        net.client is not None
        and isinstance(net.micro_batch_size, int)
        and couples_rows(net.module_)
    ):
        raise UnsupportedError(
            "micro_batch_size divides a batch into parts, and on a cluster BatchNorm wants the "
            'whole of it at once. Leave micro_batch_size at "auto", or use GroupNorm.'
        )
    if isinstance(net.micro_batch_size, int) and couples_rows(net.module_):
        warnings.warn(
            f"The module has BatchNorm layers, whose statistics are those of a micro-batch of "
            f"{net.micro_batch_size} rows and not of the whole batch: results depend on "
            "micro_batch_size.",
            stacklevel=2,
        )


def divisible(net: Any) -> bool:
    """Tell whether a batch may be divided at all, if only to look at the gradients of its parts."""
    separable = is_mean_over_rows(net.criterion_) and not has_own_loss(net)
    return separable and not couples_rows(net.module_) and net.micro_batch_size is not None


def setting(net: Any, *, own_step: bool) -> Setting:
    """Return what monitors want to know before training."""
    several = net.client is not None and net.max_workers != 1
    return Setting(
        several_ranks=several,
        divisible=divisible(net) and not own_step,
        averages_parameters=isinstance(net.strategy_, Averaging),
        compressed=net.compressor() is not None,
    )


def may_split(net: Any) -> bool:
    """Tell whether dividing a batch is sure to leave the result as it is.

    That holds for a loss that is a mean over rows and a module without BatchNorm, on a CPU; on a
    GPU whole batches are faster.
    """
    on_cpu = all(p.is_cpu for _, p in net.get_all_learnable_params())
    separable = is_mean_over_rows(net.criterion_) and not has_own_loss(net)
    return on_cpu and separable and not couples_rows(net.module_)
