"""Plan: the updates, time, work, traffic and price of a training run."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from accelerando._deprecation import warn_deprecated
from accelerando._validation import check_integer
from accelerando.cost._network import BYTES_PER_PARAMETER, Network, communication, resolve
from accelerando.cost._setting import Setting
from accelerando.cost._updates import Updates, of_schedule

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Plan:
    """The prediction of a training run; the result of :func:`plan` and :func:`replan`.

    Parameters
    ----------
    updates_ : Updates
        The epoch, rows and batch size of every update.
    setting : Setting
        The assumptions about machines, network and model.

    Attributes
    ----------
    updates : int
        The number of model updates.
    seconds : float
        The time from the start of the first update to the end of the last one. It does not include
        validation, the start of workers and the transfer of data.
    worker_seconds : float
        The sum of the seconds of all workers, each counted while the batch size requires it.
    bytes : int
        The bytes that all machines send.
    peak_workers : int
        The largest number of workers at the same time.
    price : float or None
        The price of ``worker_seconds``; None if no price was given. The server of the centralized
        architecture is not included.
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
        sending = np.array(
            [
                communication(setting.architecture, int(count), size, setting.network)
                for count in counts
            ]
        )[which]
        # The largest share takes longest, and the other workers wait for it.
        compute = -(-rows // workers) * setting.seconds_per_example
        seconds = setting.overhead + compute + sending[:, 0]
        return pd.DataFrame(
            {
                "epoch": epoch,
                "examples": rows,
                "batch_size": sizes,
                "workers": workers,
                "seconds": seconds,
                "compute_seconds": compute,
                "communication_seconds": sending[:, 0],
                "worker_seconds": seconds * workers,
                "bytes": sending[:, 1],
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
        totals since the start of training, as in ``history_frame()``. ``batch_size`` and
        ``workers`` are those of the epoch's last update. ``communication_share`` is the share of
        the epoch's time that is spent on communication.
        """
        epochs = self._table.groupby("epoch")
        added = epochs[["examples", "seconds", "worker_seconds", "bytes"]].sum()
        result = added.cumsum()
        result.insert(0, "updates", epochs.size().cumsum())
        result["batch_size"] = epochs["batch_size"].last()
        result["workers"] = epochs["workers"].last()
        sending = epochs["communication_seconds"].sum()
        result["communication_share"] = sending / added["seconds"].where(added["seconds"] > 0, 1.0)
        price = self.setting.price_per_worker_hour
        if price is not None:
            result["price"] = result["worker_seconds"] / 3600 * price
        return result.astype({"bytes": "int64"}).reset_index()

    def plot(self) -> Figure:
        """Draw the plan. Deprecated: use :func:`accelerando.plot.plan`."""
        warn_deprecated("Plan.plot", "Use accelerando.plot.plan(plan).")
        return draw(self)

    def on(self, **changes: Any) -> Plan:
        """Return the plan of the same updates with other machines, network or model.

        Parameters
        ----------
        **changes
            Parameters of :func:`plan` that describe machines, network or model: ``max_workers``,
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


def draw(planned: Any) -> Figure:
    """Draw a plan or a comparison; for the deprecated methods ``plot``.

    This is the only import of a higher layer in this package. It goes when the methods go.
    """
    from accelerando import plot

    return plot.plan(planned)


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
    r"""Predict time, work, traffic and price of training before machines are rented.

    The updates follow from the schedule exactly. An update of :math:`B` rows on :math:`P` workers
    takes

    .. math:: \mathrm{overhead} + \lceil B / P \rceil \cdot \mathrm{seconds\ per\ example} + T(P)

    where :math:`P` is clip(⌈batch size / `examples_per_worker`⌉, `min_workers`, `max_workers`), as
    in training, and :math:`T` the time of communication. With :math:`n` bytes of gradients, latency
    :math:`\alpha` and bandwidth :math:`\beta` in bytes per second, it is

    .. math:: T = 2 (P - 1) \left(\alpha + \frac{n}{P \beta}\right)
        \quad\text{or}\quad T = 2 \left(\alpha + \frac{P n}{\beta}\right)

    for a ring all-reduce and for a parameter server (``"centralized"``). PyTorch's DDP hides a part
    of :math:`T` behind the backward pass. The model does not, so its prediction is too slow if
    communication takes long.

    Parameters
    ----------
    batch_size : int or policy
        As for an estimator, if the sizes are known in advance. A policy that depends on the model
        needs a recorded run: see :func:`replan`.
    n_examples, max_epochs : int
        The number of rows of the training set, and of passes over them.
    parameters : int
        The number of trained numbers; each is sent as four bytes.
    seconds_per_example : float
        The duration of forward and backward pass of one row on one worker. :func:`measure` measures
        it.
    max_batch_size : int, optional
        The largest batch, as for an estimator.
    examples_per_worker, min_workers, max_workers : int
        They determine the number of workers of a batch, as for an estimator.
    network : Network, str or None
        The network between workers, or the name of one of :data:`PRESETS`; None is a network
        without cost.
    architecture : {"all-reduce", "centralized"}, optional
        The algorithm that sums the gradients. Default: that of the preset, or ``"all-reduce"``.
    overhead : float
        The additional seconds of every update.
    price_per_worker_hour : float, optional
        The price of a worker, in any currency.

    Returns
    -------
    Plan
        It has ``updates``, ``seconds``, ``worker_seconds``, ``bytes``, ``peak_workers``, ``price``
        and ``frame()``. :func:`accelerando.plot.plan` draws it.

    References
    ----------
    S. Sievert, *Training machine learning models faster with Dask*, SciPy 2021: its Table 1 has
    the updates of five schedules, one of which is the example below.

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
    check_integer("plan", "n_examples", n_examples)
    check_integer("plan", "max_epochs", max_epochs)
    check_integer("plan", "max_batch_size", max_batch_size, also={None: "None"})
    chosen, algorithm = resolve(network, architecture)
    setting = Setting(
        parameters=parameters,
        seconds_per_example=seconds_per_example,
        overhead=overhead,
        examples_per_worker=examples_per_worker,
        min_workers=min_workers,
        max_workers=max_workers,
        network=chosen,
        architecture=algorithm,
        price_per_worker_hour=price_per_worker_hour,
    )
    return Plan(of_schedule(batch_size, n_examples, max_epochs, max_batch_size), setting)
