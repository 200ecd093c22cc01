"""The copy of what the ranks have learned in the process that drives them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from accelerando.sync import Averaging
from accelerando.train.averaging import show
from accelerando.train.cluster.packet import pack_state, take_up, unpack
from accelerando.train.fleet import Fleet
from accelerando.train.loop import Training

_LOSS, _ROWS = 5, 3  # columns of the table of updates


class Own:
    """Keep the estimator here up to date, and notice when callbacks change it."""

    def __init__(self, net: Any, training: Training) -> None:
        self.net, self.training = net, training
        self._versions: list[int] = []

    def newest_record(self) -> int:
        """Return the newest update whose record has come."""
        updates = self.net.records_.updates
        return int(updates.values[-len(updates.columns)]) if len(updates) else 0

    def pack(self) -> bytes:
        """Return the state for ranks that are to go on from it."""
        self._mark()
        fleet = self.net.fleet_
        if fleet is not None and not fleet.fits(self.net, fleet.here):
            self.net.fleet_ = None  # somebody has changed the model: all start from that
            self.training.run.sync["since"] = 0
        return pack_state(self.net, records=False)

    def take_up(self, content: bytes, ranks: Sequence[bytes | None] = ()) -> None:
        """Make a rank's state this process's own.

        Where ranks have parameters of their own, `ranks` are what only they have, in their order;
        None for those that are gone.
        """
        net, run = self.net, self.training.run
        until, seeded = run.until, run.seeded
        records = take_up(net, content)
        vars(run).update(vars(net.run_), until=until, seeded=seeded, epoch_open=True, rng=run.rng)
        run.seconds = self.training.clock()
        net.run_ = run
        if isinstance(net.strategy_, Averaging):
            self._take_ranks([None if one is None else unpack(one)["ranks"] for one in ranks])
        for optimizer in self.training.optimizers:
            optimizer._opt_called = True  # schedulers warn if there was no step before theirs
        for row in records[records[:, 0] > self.newest_record()].tolist():
            net.records_.updates.add(*row)
            net.history_[-1]["batches"].append(
                {"train_loss": row[_LOSS], "train_batch_size": int(row[_ROWS])}
            )
        self._mark()

    def _take_ranks(self, ranks: list[dict[str, Any] | None]) -> None:
        """Have all ranks in this process: to be saved, and to be averaged."""
        net = self.net
        saved, net.saved_ranks_ = net.saved_ranks_, None
        known = [rank for rank in ranks if rank]
        if saved and known:
            own = {name: [rank[name][0] for rank in known] for name in ("ranks", "memories")}
            net.fleet_ = Fleet(net, len(known))
            net.fleet_.take_up({**saved, **own})
            show(net)
        if not saved or len(known) < len(ranks):  # an average of some is all there is
            net.fleet_, net.run_.sync["since"] = None, 0

    def _mark(self) -> None:
        self._versions = [tensor._version for tensor in self._tensors()]

    def changed(self) -> bool:
        """Tell whether anybody has changed the parameters here since they were taken up."""
        return self._versions != [tensor._version for tensor in self._tensors()]

    def _tensors(self) -> list[Any]:
        net = self.net
        modules = [getattr(net, name + "_") for name in net._modules + net._criteria]
        return [
            tensor
            for module in modules
            if hasattr(module, "state_dict")
            for tensor in (*module.parameters(), *module.buffers())
        ]

    def groups(self) -> list[Any]:
        """Return the settings of the optimizers' parameter groups that are plain values."""
        plain = (int, float, bool, str, type(None), list, tuple)
        return [
            [
                {
                    key: value
                    for key, value in group.items()
                    if key != "params" and isinstance(value, plain)
                }
                for group in getattr(self.net, name + "_").param_groups
            ]
            for name in self.net._optimizers
        ]
