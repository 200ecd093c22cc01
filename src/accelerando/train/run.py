"""Where a training run stands: everything that has to survive between two updates."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.utils import check_random_state

from accelerando.batch_size import BatchSizePolicy, Measure, Signals
from accelerando.batch_size._policy import State, cap

# PyTorch's generators belong to the whole process. Two fits in two threads must not seed them while
# one of them draws its first parameters.
RNG_LOCK = threading.RLock()


class Choice(NamedTuple):
    """What a policy decided, within the caps, and what it wants to remember."""

    batch_size: int
    lr_scale: float
    policy_state: State


@dataclass
class Run:
    """The position of a training run.

    Attributes
    ----------
    seed : int
        Decides every shuffle.
    seeded : bool
        Whether the user gave a ``random_state``; then the model's randomness is the run's own.
    epoch, cursor : int
        Epochs finished, and rows of the current epoch's order already used.
    update, examples : int
        Model updates done and examples seen.
    until : int
        The epoch at which the current call of ``fit`` ends.
    n_examples : int or None
        Rows of the training set of the current epoch.
    epoch_open : bool
        Whether the current epoch has begun: its row in the history exists.
    last_rows, last_loss, last_grad_norm
        What the last update yielded, for the policy's next decision.
    batch_size, lr_scale : int, float
        The policy's last decision, within its caps.
    policy_state : mapping
        What the policy remembers.
    control : dict
        What monitors and policies remember, the newest signals, and what policies have decided.
    sync : dict
        Where ranks with parameters of their own stand: updates since they met, how often they have
        met, what the strategy remembers.
    seconds : float
        Time spent in training so far, validation and callbacks included.
    rng : list of torch.Tensor, or None
        The states of the random generators that dropout draws from.
    """

    seed: int = 0
    seeded: bool = False
    epoch: int = 0
    cursor: int = 0
    update: int = 0
    examples: int = 0
    until: int = 0
    n_examples: int | None = None
    epoch_open: bool = False
    last_rows: int = 0
    last_loss: float | None = None
    last_grad_norm: float | None = None
    batch_size: int = 0
    lr_scale: float = 1.0
    policy_state: State = field(default_factory=dict)
    control: dict[str, Any] = field(default_factory=dict)
    sync: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    rng: list[torch.Tensor] | None = None

    @classmethod
    def start(cls, random_state: Any) -> Run:
        """Begin a run; without a `random_state` the shuffles follow ``torch.manual_seed``."""
        if random_state is None:
            return cls(seed=int(torch.randint(2**31, ()).item()), seeded=False)
        if isinstance(random_state, np.random.Generator):
            return cls(seed=int(random_state.integers(2**31)), seeded=True)
        if isinstance(random_state, int | np.integer) and random_state >= 0:
            return cls(seed=int(random_state), seeded=True)
        try:
            drawn = check_random_state(random_state).randint(2**31)
        except ValueError:
            raise ValueError(
                "random_state must be None, a whole number of at least 0, or a NumPy random "
                f"generator; got {random_state!r}."
            ) from None
        return cls(seed=int(drawn), seeded=True)

    @property
    def interrupted(self) -> bool:
        """Whether the last call of ``fit`` ended before its last epoch did."""
        return self.epoch < self.until

    def signals(self) -> Signals:
        """Return what is known before the next update, the same on all ranks."""
        return Signals(
            self.update,
            self.epoch,
            self.examples,
            self.last_rows,
            self.n_examples,
            self.last_loss,
            self.last_grad_norm,
        )

    def choose(
        self,
        policy: BatchSizePolicy,
        max_batch_size: int | None,
        measured: tuple[Measure, float] | None = None,
    ) -> Choice:
        """Ask the policy for the next batch size; it remembers nothing before :meth:`advance`."""
        signals = self.signals()
        if measured and measured[0].quantity == "loss":
            signals = signals._replace(full_loss=measured[1])
        elif measured:
            signals = signals._replace(full_grad_norm=measured[1])
        damping, state = policy.decide(signals, self.policy_state)
        capped = cap(damping, max_batch_size=max_batch_size, n_examples=self.n_examples)
        return Choice(capped.batch_size, capped.lr_scale, state)

    def advance(
        self, rows: int, loss: float, grad_norm: float, policy_state: State, batches: int = 1
    ) -> None:
        """Count one update, and let the policy remember what it decided for it.

        The rows may be those of several batches, one of each virtual rank; a policy hears of one.
        """
        self.policy_state = policy_state
        self.cursor += rows
        self.examples += rows
        self.update += 1
        self.last_rows = -(-rows // batches)
        self.last_loss, self.last_grad_norm = loss, grad_norm

    def end_epoch(self) -> None:
        """Count one epoch."""
        if self.n_examples is None:
            self.n_examples = self.cursor  # a stream has told its length by ending
        self.epoch += 1
        self.cursor = 0
        self.epoch_open = False

    @contextmanager
    def randomness(self) -> Iterator[None]:
        """Draw from the run's own generators inside, and give the user's back afterwards."""
        with RNG_LOCK:
            users = get_rng()
            if self.rng is not None:
                set_rng(self.rng)
            elif self.seeded:
                torch.manual_seed(self.seed)
        try:
            yield
        finally:
            with RNG_LOCK:
                self.rng = get_rng() if self.seeded else None
                if self.seeded:
                    set_rng(users)

    def to_json(self) -> dict[str, Any]:
        """Return everything but the generator's state as plain numbers."""
        saved = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "rng"}
        return {**saved, "policy_state": dict(self.policy_state)}


def get_rng() -> list[torch.Tensor]:
    """Return the states of PyTorch's generators: the CPU's, then each GPU's."""
    gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return [torch.get_rng_state(), *gpus]


def set_rng(states: list[torch.Tensor]) -> None:
    """Set PyTorch's generators; states of GPUs that are not here are left out."""
    torch.set_rng_state(states[0])
    if torch.cuda.is_available():
        for device, state in zip(range(torch.cuda.device_count()), states[1:], strict=False):
            torch.cuda.set_rng_state(state, device)
