"""Placement of the data on Dask workers: each worker gets its copy once.

Every worker has the data under keys that only it uses. Copies of one key would not work: Dask's
active memory manager deletes all but one of them, and the data would be sent again and again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from distributed import Client, Future

from accelerando._dask import send_to
from accelerando.search._data import Data, chunk_of_call
from accelerando.search._task import BoxedChunk, TaskContext

__all__ = ["Placement", "WorkerData"]

MANY_CALLS = 10**9
LOST = ("error", "cancelled", "lost")  # statuses of a future without a result


class WorkerData(NamedTuple):
    """The futures that a task on one worker takes as inputs."""

    context: Future
    groups: list[Future]
    validation: Future


class Placement:
    """The data of a search on the workers of a Dask client.

    Parameters
    ----------
    client : Client
        The cluster.
    context : TaskContext
        The inputs that all tasks share.
    data : Data
        Data in memory is sent to each worker. Delayed data is computed once on the cluster, and
        tasks fetch the blocks that they need.
    """

    def __init__(self, client: Client, context: TaskContext, data: Data) -> None:
        self.client = client
        self.context = context
        self.data = data
        self.placed: dict[str, WorkerData] = {}
        self.blocks: list[Future] = []

    def on(self, worker: str) -> WorkerData:
        """Return the data on a worker; a worker without data receives it now."""
        placed = self.placed.get(worker)
        if placed is not None and not any(
            future.status in LOST for future in (placed.context, placed.validation, *placed.groups)
        ):
            return placed
        data = self.data
        in_memory = [] if data.lazy else [BoxedChunk(data.validation), *data.groups]
        parts = [self.context, *in_memory]
        context, *sent = send_to(self.client, parts, worker)
        validation, *groups = self._compute_blocks() if data.lazy else sent
        self.placed[worker] = WorkerData(context, groups, validation)
        return self.placed[worker]

    def _compute_blocks(self) -> list[Future]:
        """Compute the blocks of a Dask collection, once.

        Dask can compute lost blocks again, and would then repeat all tasks that led to a lost
        model. It cannot do so for the context, which was scattered to the worker. Therefore a task
        that is lost with its worker fails, and the driver continues from a copy of the model.
        """
        if not self.blocks or any(future.status in LOST for future in self.blocks):
            from accelerando._cluster.driver.chunks import where_ranks_can_be  # imports PyTorch

            where = where_ranks_can_be(self.client) or {}
            self.blocks = self.client.compute([self.data.validation, *self.data.groups], **where)
        return self.blocks

    def groups_for(self, calls: Iterable[int]) -> set[int]:
        """Return the groups that contain the chunks of some calls."""
        if len(self.data.groups) == 1:
            return {0}
        spec = self.context.spec
        return {
            self.data.locations[chunk_of_call(call, spec.n_chunks, spec.seed)][0] for call in calls
        }

    def most_calls(self, first: int, budget: float) -> int:
        """Return how many calls from `first` on can be made with `budget` bytes of data."""
        sizes = self.data.group_bytes
        if not self.data.lazy or sizes is None:
            return MANY_CALLS
        spec = self.context.spec
        needed: set[int] = set()
        total = 0
        for calls in range(len(sizes)):
            chunk = chunk_of_call(first + calls, spec.n_chunks, spec.seed)
            group = self.data.locations[chunk][0]
            if group not in needed:
                needed.add(group)
                total += sizes[group]
            if total > budget and calls:
                return calls
        return MANY_CALLS

    def clear(self) -> None:
        """Release the data on all workers."""
        self.placed.clear()
        self.blocks.clear()
