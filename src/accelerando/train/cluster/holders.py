"""Which rank holds which chunks of the training data, from one segment to the next."""

from __future__ import annotations

from typing import Any

from accelerando.train.cluster.chunks import Chunks, deposit, share_out
from accelerando.train.cluster.crew import Host


class Holders:
    """Give every chunk of a Dask array to a rank, if possible to one on whose worker it is."""

    def __init__(self, client: Any, run: str, data: Any) -> None:
        self.client, self.run = client, run
        self.data = data if isinstance(data, Chunks) else None
        self._places: dict[int, str] = {}
        self._deposits: list[Any] = []  # a future that is dropped takes its task with it

    @property
    def most(self) -> int | None:
        """How many ranks can have rows of their own; None if every rank has all of them."""
        return None if self.data is None else max(1, sum(n > 0 for n in self.data.lengths))

    def orders(self, members: list[Host], segment: int) -> dict[str, dict[str, Any]]:
        """Return for each member's place the chunks it trains on and where the new ones come in."""
        data = self.data
        if data is None:
            return {host.place: {"chunks": [], "deposit": None} for host in members}
        # Ranks that have lost contact may not have got what was on its way to them.
        intact = all(host.how in ("epoch", "paused") for host in members)
        before = self._places if intact else {}
        given = share_out(
            data.lengths,
            self._places or self._where_dask_has_them(data, members),
            [host.place for host in members],
        )
        self._places = {n: place for place, numbers in given.items() for n in numbers}
        self._deposits = []
        orders: dict[str, dict[str, Any]] = {}
        for host in members:
            missing = [n for n in given[host.place] if before.get(n) != host.place]
            name = f"{self.run}/{host.place}/{segment}" if missing else None
            orders[host.place] = {"chunks": given[host.place], "deposit": name}
            if missing:
                chunks = [data.futures[number] for number in missing]
                options = {"workers": [host.worker], "pure": False, "priority": 1000}
                self._deposits.append(
                    self.client.submit(deposit, name, missing, *chunks, **options)
                )
        return orders

    def _where_dask_has_them(self, data: Chunks, members: list[Host]) -> dict[int, str]:
        has = self.client.who_has(data.futures)
        places = {}
        for number, future in enumerate(data.futures):
            here = [h.place for h in members if h.worker in has.get(future.key, ())]
            if here:
                places[number] = here[0]
        return places
