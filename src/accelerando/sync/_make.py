"""The conversion of ``sync=`` into a strategy, and settings that it does not fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from accelerando._validation import as_piece
from accelerando.exceptions import UnsupportedError
from accelerando.sync._strategy import AllReduce, Averaging, Strategy


def as_strategy(sync: Any, params: Mapping[str, Any] | None = None) -> Strategy:
    """Return the strategy that ``sync`` and ``sync__x`` parameters describe.

    Parameters
    ----------
    sync : strategy, class of one, or None
        None is :class:`AllReduce`.
    params : mapping
        The ``sync__x`` parameters.

    Examples
    --------
    >>> from accelerando.sync import PeriodicAveraging
    >>> as_strategy(PeriodicAveraging, {"period": 8})
    PeriodicAveraging(period=8, optimizer_state='keep')
    """
    return as_piece(
        "sync",
        sync,
        Strategy,
        settings=params,
        convert=lambda given: AllReduce() if given is None else None,
        allowed="a strategy of accelerando.sync, like PeriodicAveraging(8), or None",
    )


def check_sync(net: Any, strategy: Strategy, ranks: int) -> None:
    """Refuse strategies and virtual ranks that do not fit the other settings."""
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
    if averages and net.client is None and ranks == 1:
        raise UnsupportedError(
            f"sync={strategy!r} averages the parameters of several ranks, and here there is one. "
            "Pass virtual_ranks=2 or more, or a client."
        )
    if averages and net.client is not None and net.max_workers == 1:
        raise UnsupportedError(
            f"sync={strategy!r} averages the parameters of several ranks, and max_workers=1 allows "
            "one. Leave max_workers out, or allow more."
        )
    if averages and net.ema is not None:
        raise UnsupportedError(
            f"ema={net.ema} averages the weights after every update, and with sync={strategy!r} "
            "every rank has its own weights between two averagings. Leave one of them out."
        )
    if net.compression is not None and virtual and not averages:
        raise UnsupportedError(
            f"compression={net.compression!r} compresses the gradients of single ranks; virtual "
            "ranks compute the gradient of all their rows at once. Pass a strategy that averages "
            "parameters, such as sync=PeriodicAveraging(8), or leave virtual_ranks out."
        )
