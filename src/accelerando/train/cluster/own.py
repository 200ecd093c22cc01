"""The copy of what the ranks have learned in the process that drives them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from accelerando.train.cluster.packet import pack_state, take_up, unpack
from accelerando.train.fleet import Fleet
from accelerando.train.loop import Training
from accelerando.train.meeting import show

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
        net, fleet = self.net, self.net.fleet_
        if fleet is not None and not fleet.fits(net, fleet.here):
            net.fleet_ = None  # somebody has changed the model: all start from that
        if net.fleet_ is None and net.saved_ranks_ is None and net.run_.sync:
            net.run_.sync["since"] = 0
        return pack_state(self.net, records=False)

    def take_up(self, content: bytes) -> None:
        """Make a rank's state this process's own."""
        net, run = self.net, self.training.run
        until, seeded = run.until, run.seeded
        records = take_up(net, content)
        vars(run).update(vars(net.run_), until=until, seeded=seeded, epoch_open=True, rng=run.rng)
        run.seconds = self.training.clock()
        net.run_ = run
        for optimizer in self.training.optimizers:
            optimizer._opt_called = True  # schedulers warn if there was no step before theirs
        for row in records[records[:, 0] > self.newest_record()].tolist():
            net.records_.updates.add(*row)
            net.history_[-1]["batches"].append(
                {"train_loss": row[_LOSS], "train_batch_size": int(row[_ROWS])}
            )
        self._mark()

    def take_up_ranks(self, contents: Sequence[bytes | None]) -> None:
        """Have all ranks in this process, to be saved and to be averaged.

        They have parameters of their own, and `contents` are what only they have, in their order;
        None for those that are gone. An average of some is taken if that is all there is.
        """
        net = self.net
        found = [None if content is None else unpack(content)["ranks"] for content in contents]
        known = [rank for rank in found if rank]
        net.fleet_ = net.saved_ranks_ = None
        if known:
            own = {name: [rank[name][0] for rank in known] for name in ("ranks", "memories")}
            net.fleet_ = Fleet(net, len(known))
            net.fleet_.take_up({**known[0], **own})
            show(net)
        if len(known) < len(found):
            net.fleet_, net.run_.sync["since"] = None, 0
        self._mark()

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
