"""What a training run will take: updates, time, work, traffic, money."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from accelerando.cost._checks import check_number, check_whole
from accelerando.cost._network import (
    BYTES_PER_PARAMETER,
    Network,
    check_architecture,
    communication,
    resolve,
)
from accelerando.cost._updates import Updates, of_schedule

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Setting:
    """Machines, network and model that updates are made with, as :func:`plan` takes them.

    Parameters
    ----------
    parameters : int
        Numbers that are trained; each travels as four bytes.
    seconds_per_example : float
        Forward and backward pass of one row on one worker.
    overhead : float, default=0.0
        Seconds that every update takes besides.
    examples_per_worker : int, default=128
        Rows of a batch that are worth a worker of their own.
    min_workers, max_workers : int, default=1
        The fewest and the most workers that a batch gets.
    network : Network
        The network between workers; one that costs nothing if not given.
    architecture : {"all-reduce", "centralized"}, default="all-reduce"
        How gradients meet; see :func:`communication`.
    price_per_worker_hour : float or None, default=None
        What a worker costs, in any currency.
    """

    parameters: int
    seconds_per_example: float
    overhead: float = 0.0
    examples_per_worker: int = 128
    min_workers: int = 1
    max_workers: int = 1
    network: Network = field(default_factory=lambda: Network(float("inf")))
    architecture: str = "all-reduce"
    price_per_worker_hour: float | None = None

    def __post_init__(self) -> None:
        check_whole("parameters", self.parameters)
        check_number("seconds_per_example", self.seconds_per_example, least=0)
        check_number("overhead", self.overhead, least=0)
        check_whole("examples_per_worker", self.examples_per_worker)
        check_whole("min_workers", self.min_workers)
        check_whole("max_workers", self.max_workers)
        if self.min_workers > self.max_workers:
            raise ValueError(
                f"min_workers must not be above max_workers, which is {self.max_workers}. "
                f"Got {self.min_workers} instead."
            )
        check_architecture(self.architecture)
        if self.price_per_worker_hour is not None:
            check_number("price_per_worker_hour", self.price_per_worker_hour, least=0)


@dataclass(frozen=True)
class Plan:
    """What a training run will take; made by :func:`plan` and :func:`replay`.

    Parameters
    ----------
    updates_ : Updates
        Epoch, rows and batch size of every update.
    setting : Setting
        What is assumed about machines, network and model.

    Attributes
    ----------
    updates : int
        Model updates.
    seconds : float
        Time from the first update's begin to the last one's end. Validation, starting workers and
        moving data are not in it.
    worker_seconds : float
        Seconds of all workers together, each counted while the batch is worth it.
    bytes : int
        Bytes that all machines send.
    peak_workers : int
        The most workers at once.
    price : float or None
        ``worker_seconds`` at the given price; None without one. The server of the centralized
        architecture is not counted.
    """

    updates_: Updates = field(repr=False)
    setting: Setting

    @cached_property
    def _table(self) -> pd.DataFrame:
        """One row per update."""
        setting, (epoch, rows, sizes) = self.setting, self.updates_
        workers = np.clip(
            -(-sizes // setting.examples_per_worker), setting.min_workers, setting.max_workers
        )
        size = BYTES_PER_PARAMETER * setting.parameters
        counts, which = np.unique(workers, return_inverse=True)
        talk = np.array(
            [
                communication(setting.architecture, int(count), size, setting.network)
                for count in counts
            ]
        )[which]
        # The slowest rank decides, and the largest share is the slowest.
        compute = -(-rows // workers) * setting.seconds_per_example
        seconds = setting.overhead + compute + talk[:, 0]
        return pd.DataFrame(
            {
                "epoch": epoch,
                "examples": rows,
                "batch_size": sizes,
                "workers": workers,
                "seconds": seconds,
                "compute_seconds": compute,
                "communication_seconds": talk[:, 0],
                "worker_seconds": seconds * workers,
                "bytes": talk[:, 1],
            }
        )

    @property
    def updates(self) -> int:
        return len(self.updates_.rows)

    @property
    def seconds(self) -> float:
        return float(self._table["seconds"].sum())

    @property
    def worker_seconds(self) -> float:
        return float(self._table["worker_seconds"].sum())

    @property
    def bytes(self) -> int:
        return round(self._table["bytes"].sum())

    @property
    def peak_workers(self) -> int:
        return int(self._table["workers"].max())

    @property
    def price(self) -> float | None:
        price = self.setting.price_per_worker_hour
        return None if price is None else self.worker_seconds / 3600 * price

    def frame(self) -> pd.DataFrame:
        """Return one row per epoch.

        ``updates``, ``examples``, ``seconds``, ``worker_seconds``, ``bytes`` and ``price`` are
        totals since training began, as in ``history_frame()``; ``batch_size`` and ``workers`` are
        those of the epoch's last update; ``communication_share`` is the part of the epoch's time
        that goes into communication.
        """
        epochs = self._table.groupby("epoch")
        added = epochs[["examples", "seconds", "worker_seconds", "bytes"]].sum()
        result = added.cumsum()
        result.insert(0, "updates", epochs.size().cumsum())
        result["batch_size"] = epochs["batch_size"].last()
        result["workers"] = epochs["workers"].last()
        talk = epochs["communication_seconds"].sum()
        result["communication_share"] = talk / added["seconds"].where(added["seconds"] > 0, 1.0)
        price = self.setting.price_per_worker_hour
        if price is not None:
            result["price"] = result["worker_seconds"] / 3600 * price
        return result.astype({"bytes": "int64"}).reset_index()

    def plot(self) -> Figure:
        """Draw batch size, workers, time and worker-hours against epochs.

        Returns
        -------
        matplotlib.figure.Figure
            Save it with ``figure.savefig("plan.png")``.
        """
        from accelerando.cost._plot import draw_plan

        return draw_plan(self)

    def on(self, **changes: Any) -> Plan:
        """Return the same updates in another setting.

        Parameters
        ----------
        **changes
            Arguments of :func:`plan` that describe machines, network or model: ``max_workers``,
            ``network``, ``price_per_worker_hour``, ``seconds_per_example`` and so on.

        Examples
        --------
        >>> from accelerando.cost import plan
        >>> alone = plan(512, n_examples=5120, max_epochs=1, parameters=1000,
        ...              seconds_per_example=0.001, max_workers=1)
        >>> [round(p.seconds, 2) for p in (alone, alone.on(max_workers=4))]
        [5.12, 1.28]
        """
        known = [f.name for f in dataclasses.fields(Setting)]
        unknown = sorted(set(changes) - set(known))
        if unknown:
            raise TypeError(
                f"on() can change {', '.join(known)}. Got {', '.join(unknown)} instead."
            )
        if "network" in changes:
            changes["network"], changes["architecture"] = resolve(
                changes["network"],
                changes.get("architecture")
                or (None if isinstance(changes["network"], str) else self.setting.architecture),
            )
        return dataclasses.replace(self, setting=dataclasses.replace(self.setting, **changes))


def plan(
    batch_size: Any,
    *,
    n_examples: int,
    max_epochs: int,
    parameters: int,
    seconds_per_example: float,
    max_batch_size: int | None = None,
    examples_per_worker: int = 128,
    min_workers: int = 1,
    max_workers: int = 1,
    network: Network | str | None = None,
    architecture: str | None = None,
    overhead: float = 0.0,
    price_per_worker_hour: float | None = None,
) -> Plan:
    r"""Predict what training will take, before anything is rented.

    The updates follow from the schedule exactly. An update of :math:`B` rows on :math:`P` workers
    takes

    .. math:: \mathrm{overhead} + \lceil B / P \rceil \cdot \mathrm{seconds\ per\ example} + T(P)

    where :math:`T` is what communication takes (see :func:`communication`) and :math:`P` is
    clip(⌈batch size / `examples_per_worker`⌉, `min_workers`, `max_workers`), as in training.
    PyTorch's DDP hides a part of :math:`T` behind the backward pass; here it is not hidden, so that
    the prediction errs on the slow side where communication is long.

    Parameters
    ----------
    batch_size : int or policy
        As for an estimator, if the sizes are known ahead. A policy that looks at the model while it
        trains needs a recorded run: see :func:`replay`.
    n_examples, max_epochs : int
        Rows of the training set, and how often they are visited.
    parameters : int
        Numbers that are trained; each travels as four bytes.
    seconds_per_example : float
        Forward and backward pass of one row on one worker. :func:`measure` finds it.
    max_batch_size : int, optional
        The largest batch, as for an estimator.
    examples_per_worker, min_workers, max_workers : int
        How many workers a batch gets, as for an estimator.
    network : Network, str or None
        The network between workers, or the name of one of :data:`PRESETS`; None is one that costs
        nothing.
    architecture : {"all-reduce", "centralized"}, optional
        How gradients meet; what the preset says, or ``"all-reduce"``, if not given.
    overhead : float
        Seconds that every update takes besides.
    price_per_worker_hour : float, optional
        What a worker costs, in any currency.

    Returns
    -------
    Plan
        With ``updates``, ``seconds``, ``worker_seconds``, ``bytes``, ``peak_workers``, ``price``,
        ``frame()`` and ``plot()``.

    References
    ----------
    S. Sievert, *Training machine learning models faster with Dask*, SciPy 2021: its Table 1 has
    the updates of five schedules, of which the example below is one.

    Examples
    --------
    >>> from accelerando.batch_size import GeoDamp
    >>> from accelerando.cost import plan
    >>> plan(128, n_examples=50_000, max_epochs=200, parameters=2_750_000,
    ...      seconds_per_example=0.00073).updates
    78200
    >>> grown = plan(GeoDamp(initial=256, delay=60, factor=5), max_batch_size=5120, max_workers=40,
    ...              n_examples=50_000, max_epochs=200, parameters=2_750_000,
    ...              seconds_per_example=0.00073, network="decentralized-moderate")
    >>> grown.updates, grown.peak_workers, f"{grown.seconds / 60:.1f} minutes"
    (14960, 40, '23.6 minutes')
    """
    check_whole("n_examples", n_examples)
    check_whole("max_epochs", max_epochs)
    if max_batch_size is not None:
        check_whole("max_batch_size", max_batch_size)
    chosen, way = resolve(network, architecture)
    setting = Setting(
        parameters=parameters,
        seconds_per_example=seconds_per_example,
        overhead=overhead,
        examples_per_worker=examples_per_worker,
        min_workers=min_workers,
        max_workers=max_workers,
        network=chosen,
        architecture=way,
        price_per_worker_hour=price_per_worker_hour,
    )
    return Plan(of_schedule(batch_size, n_examples, max_epochs, max_batch_size), setting)
