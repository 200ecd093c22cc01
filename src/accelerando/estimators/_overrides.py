"""Overrides of skorch's training: a step, the batches, an epoch; honored or refused."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from skorch.dataset import Dataset as SkorchDataset
from skorch.dataset import get_len
from torch.utils.data import DataLoader, IterableDataset, Subset, default_collate

from accelerando._engine.data.feed import (
    WHOLE,
    Batch,
    Batches,
    Rows,
    Shard,
    batch_rows,
    epoch_order,
)
from accelerando.estimators._skorch import overrides
from accelerando.exceptions import UnsupportedError


def check_step(net: Any, *, weighted: bool) -> None:
    """Refuse what a subclass with its own training step cannot honor."""
    kind = type(net).__name__
    changes = f"{kind} has its own train_step, which moves the parameters by itself"
    if net.client is not None and hasattr(net, "accelerator"):
        raise UnsupportedError(
            f"{kind} is trained by Accelerate, which has its own processes, and client= would "
            "train it on the ranks of Dask. Leave AccelerateMixin out of the class, or pass "
            "client=None."
        )
    if net.client is not None:
        raise UnsupportedError(
            f"{changes}: ranks on a cluster could not agree. Override get_loss or infer instead, "
            "or train in this process (client=None)."
        )
    if net.compression is not None:
        raise UnsupportedError(
            f"{changes}: compression could not reach the gradient. Override get_loss or infer."
        )
    if weighted:
        raise UnsupportedError(
            f"{kind} has its own train_step, which computes the loss itself: sample_weight and "
            "class_weight cannot reach it. Override get_loss instead."
        )
    if isinstance(net.micro_batch_size, int):
        raise UnsupportedError(
            f"{changes}: micro_batch_size={net.micro_batch_size} would have no effect. Leave it at "
            "'auto', or override get_loss instead of train_step."
        )


def refuse_epoch(net: Any) -> None:
    """Refuse an own ``run_single_epoch``."""
    raise UnsupportedError(
        f"{type(net).__name__} overrides run_single_epoch, which accelerando's loop replaces. "
        "Override train_step, get_loss or infer, or write a callback."
    )


# -- batches of the user's ------------------------------------------------------------------------


def check_batches(net: Any, *, weighted: bool) -> None:
    """Refuse what needs other batches than those of the user's iterator."""
    if overrides(net, "get_iterator"):
        cause = f"{type(net).__name__} overrides get_iterator, which decides the batches itself"
    else:
        cause = f"iterator_train={net.iterator_train!r} decides the batches itself"
    remedy = "Pass a DataLoader, or a subclass of it, as iterator_train, and leave get_iterator."
    for holds, what in (
        (net.client is not None, "ranks on a cluster could not divide them"),
        (net.virtual_ranks > 1 or net.sync is not None, "virtual ranks could not divide them"),
        (weighted, "sample_weight and class_weight could not find the rows of a batch"),
        (not isinstance(net.batch_size, int), "a batch-size policy could not change their size"),
        (len(net.policies) > 0, "policies could not change their size"),
    ):
        if holds:
            raise UnsupportedError(f"{cause}: {what}. {remedy}")


def check_iterator(iterator: Any) -> None:
    """Refuse what cannot make batches of a data set."""
    try:
        inspect.signature(iterator).bind(None, batch_size=1)
    except (TypeError, ValueError):
        raise UnsupportedError(
            "The 'iterator_train' parameter must be torch's DataLoader, a subclass of it, or a "
            "function of a data set and batch_size= that returns batches. Got "
            f"{iterator!r} instead."
        ) from None


def batches_of(
    loader: Any, dataset: Any, rows: int, options: dict[str, Any], *, training: bool
) -> Any:
    """Return the batches that an own ``get_iterator`` builds on, as skorch would.

    Accelerate prepares a DataLoader, and nothing else. For training it shuffles, as our own loop
    does, unless the options say otherwise.
    """
    is_loader = isinstance(loader, type) and issubclass(loader, DataLoader)
    ordered = {"shuffle", "sampler", "batch_sampler"} & options.keys()
    if training and is_loader and not ordered and not isinstance(dataset, IterableDataset):
        options = {**options, "shuffle": True}
    return loader(dataset, batch_size=rows, **options)


class IteratorFeed:
    """The batches of an iterator that the user made, as they come.

    Parameters
    ----------
    iterator : iterable
        Yields pairs (X, y); iterated once per epoch.
    n_examples : int or None
        Rows of the training set; the iterator may leave some out, or repeat them.
    """

    drop_last = False

    def __init__(self, iterator: Iterable[Any], n_examples: int | None) -> None:
        self.iterator = iterator
        self.n_examples = n_examples

    def epoch(self, seed: int, epoch: int, cursor: int, shard: Shard = WHOLE) -> Batches:
        return _IteratorEpoch(iter(self.iterator), cursor)

    def gather(self, rows: Rows) -> Any:
        raise AssertionError("An iterator has no numbered rows.")

    def share(self, rows: Rows, shard: Shard) -> Rows:
        raise AssertionError("An iterator has no numbered rows.")


class _IteratorEpoch:
    def __init__(self, batches: Iterator[Any], cursor: int) -> None:
        self.batches = batches
        while cursor > 0:  # an interrupted epoch continues behind the batches it has seen
            batch = self.take(0)
            if batch is None:
                break
            cursor -= batch.size

    def take(self, rows: int, min_rows: int = 1) -> Batch | None:
        data = next(self.batches, None)
        if data is None:
            return None
        size = get_len(data[0]) if isinstance(data, tuple | list) else get_len(data)
        return Batch(data, size, None, size)


class ItemsFeed:
    """Rows of a data set whose targets are Python objects, read one by one and collated.

    Parameters
    ----------
    dataset : Dataset
        Of pairs (X, y).
    """

    drop_last = False

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self.n_examples: int | None = len(dataset)

    def epoch(self, seed: int, epoch: int, cursor: int, shard: Shard = WHOLE) -> Batches:
        return _ItemsEpoch(self, epoch_order(seed, epoch, len(self.dataset)), cursor)

    def gather(self, rows: Rows) -> Any:
        return default_collate([self.dataset[int(row)] for row in rows])

    def share(self, rows: Rows, shard: Shard) -> Rows:
        return shard.of(rows, start=0)


class _ItemsEpoch:
    def __init__(self, feed: ItemsFeed, order: Rows, cursor: int) -> None:
        self.feed, self.order, self.cursor = feed, order, cursor

    def take(self, rows: int, min_rows: int = 1) -> Batch | None:
        start = self.cursor
        size = batch_rows(len(self.order) - start, rows, min_rows, self.feed.drop_last)
        if size == 0:
            return None
        self.cursor += size
        chosen = self.order[start : self.cursor]
        return Batch(self.feed.gather(chosen), size, chosen, size)


def items_feed(net: Any, dataset: Any) -> ItemsFeed:
    """Return the feed of targets that are Python objects; refuse them on a cluster."""
    if net.client is not None:
        raise UnsupportedError(
            "y holds Python objects, which no rank of a cluster can divide. Encode them as arrays, "
            "pass a Dataset that converts its items, or train in this process (client=None)."
        )
    return ItemsFeed(dataset)


def holds_objects(dataset: Any) -> bool:
    """Return True if the targets of a data set are an array of Python objects, or of words."""
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    targets = getattr(dataset, "y", None) if type(dataset) is SkorchDataset else None
    return isinstance(targets, np.ndarray) and targets.dtype.kind in "OUS"
