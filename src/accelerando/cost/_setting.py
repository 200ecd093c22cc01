"""Setting: the assumptions of a plan about machines, network and model."""

from __future__ import annotations

from dataclasses import dataclass, field

from accelerando._validation import check, check_choice, check_integer, check_number
from accelerando.cost._network import ARCHITECTURES, Network


@dataclass(frozen=True)
class Setting:
    """Machines, network and model: the parameters of :func:`plan` except the schedule.

    Parameters
    ----------
    parameters : int
        The number of trained numbers; each is sent as four bytes.
    seconds_per_example : float
        The duration of forward and backward pass of one row on one worker.
    overhead : float, default=0.0
        The additional seconds of every update.
    examples_per_worker : int, default=128
        The number of rows of a batch for which another worker is used.
    min_workers, max_workers : int, default=1
        The bounds of the number of workers.
    network : Network
        The network between workers. Default: one without cost.
    architecture : {"all-reduce", "centralized"}, default="all-reduce"
        The algorithm that sums the gradients.
    price_per_worker_hour : float or None, default=None
        The price of a worker, in any currency.
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
        for name in ("parameters", "examples_per_worker", "min_workers", "max_workers"):
            check_integer("plan", name, getattr(self, name))
        for name in ("seconds_per_example", "overhead"):
            check_number("plan", name, getattr(self, name), minimum=0)
        bound = f"at most max_workers={self.max_workers}"
        fewest = self.min_workers
        check(fewest <= self.max_workers, "plan", "min_workers", bound, fewest)
        check_choice("plan", "architecture", self.architecture, ARCHITECTURES)
        price = self.price_per_worker_hour
        check_number("plan", "price_per_worker_hour", price, minimum=0, also={None: "None"})
