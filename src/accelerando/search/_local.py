"""Training in this process, one slice after the other."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import cloudpickle
import dask

from accelerando.search._data import Chunk, Data
from accelerando.search._train import Recipe, Report, Slice, State, train_slice

__all__ = ["ThisProcess"]


class ThisProcess:
    """Workers of a search without a cluster: there is one, and it is here.

    Models are trained in place and nothing is copied.
    """

    n_workers = 1
    fuse_seconds = 0.0  # a task costs nothing here

    def __init__(self, recipe: Recipe, data: Data, halt: Callable[[], bool]) -> None:
        self.recipe = recipe
        self.halt = halt
        if data.lazy:
            *sources, validation = dask.compute(*data.sources, data.validation)
        else:
            sources, validation = data.sources, data.validation
        self.chunks = [sources[i].chunks[j] for i, j in data.where]
        self.validation: Chunk = validation
        self.states: dict[int, State] = {}
        self.queue: deque[Slice] = deque()

    @property
    def room(self) -> int:
        """How many tasks can be taken now."""
        return 0 if self.queue else 1

    @property
    def busy(self) -> bool:
        """Whether a slice is under way."""
        return bool(self.queue)

    def submit(self, slices: Sequence[Slice], seconds: float) -> None:
        """Take a task: some slices, done one after the other."""
        del seconds  # how long it may take matters where tasks wait in line
        self.queue.extend(slices)

    def wait(self, timeout: float) -> list[Report]:
        """Train until the task is done, or a stop is asked for."""
        del timeout  # a slice ends by itself
        reports: list[Report] = []
        while self.queue and not (reports and self.halt()):
            piece = self.queue.popleft()
            # Taken out while it is trained: an interrupt leaves no half-trained state behind.
            state, report = train_slice(
                self.recipe,
                self.states.pop(piece.model, None),
                piece,
                chunk=self.chunks.__getitem__,
                validation=self.validation,
                halt=self.halt,
            )
            if state is not None:
                self.states[piece.model] = state
            reports.append(report)
        return reports

    def home(self, model: int) -> str | None:
        """Where the state of ``model`` is; None if it has none."""
        return "here" if model in self.states else None

    def drop(self, models: Sequence[int]) -> None:
        """Forget models that are no longer needed."""
        for model in models:
            self.states.pop(model, None)

    def put(self, model: int, state: State) -> None:
        """Take over a state that was saved."""
        self.states[model] = state

    def get(self, model: int) -> State | None:
        """Return the state of a model, None if it is lost."""
        return self.states.get(model)

    def pickled(self, model: int) -> bytes | None:
        """Return the state of a model for a checkpoint."""
        state = self.states.get(model)
        return None if state is None else bytes(cloudpickle.dumps(state))

    def close(self) -> None:
        """Give everything back."""
        self.states.clear()
        self.queue.clear()
