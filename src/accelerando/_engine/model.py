"""The model as the engine sees it: components, and how to call them.

The engine never sees an estimator. It trains a :class:`Model`: something that knows a module, a
criterion and optimizers, and how to compute predictions, a loss and a step with them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import nn

from accelerando._engine.micro_batch import couples_rows


@dataclass
class Components:
    """Live references to what is trained, by the names under which it is saved.

    Attributes
    ----------
    modules, criteria, optimizers : dict
        A criterion need not be a module; one without ``state_dict`` is not saved.
    """

    modules: dict[str, nn.Module] = field(default_factory=dict)
    criteria: dict[str, Any] = field(default_factory=dict)
    optimizers: dict[str, torch.optim.Optimizer] = field(default_factory=dict)

    def named_parameters(self) -> list[tuple[str, torch.Tensor]]:
        """Return the parameters of all modules and criteria, each once."""
        found: dict[int, tuple[str, torch.Tensor]] = {}
        for part in (*self.modules.values(), *self.criteria.values()):
            if hasattr(part, "named_parameters"):
                for name, parameter in part.named_parameters():
                    found.setdefault(id(parameter), (name, parameter))
        return list(found.values())

    def buffers(self) -> list[torch.Tensor]:
        """Return the buffers of all modules and criteria, each once."""
        found: dict[int, torch.Tensor] = {}
        for part in (*self.modules.values(), *self.criteria.values()):
            for buffer in part.buffers() if hasattr(part, "buffers") else ():
                found.setdefault(id(buffer), buffer)
        return list(found.values())


class Model(Protocol):
    """What the engine trains.

    Attributes
    ----------
    components : Components
        Everything that is saved.
    module : torch.nn.Module
        What the forward pass calls.
    criterion : object
        The loss function.
    optimizers : list of Optimizer
        All of them step in every update.
    parameters : list of Tensor
        The learnable parameters.
    buffers : list of Tensor
        What a forward pass may change, such as the running statistics of BatchNorm.
    largest : float
        The largest finite number of the parameters' dtypes.
    needs_closure : bool
        Whether an optimizer evaluates the loss itself, like L-BFGS.
    """

    components: Components
    module: nn.Module
    criterion: Any
    optimizers: list[torch.optim.Optimizer]
    parameters: list[torch.Tensor]
    buffers: list[torch.Tensor]
    largest: float
    needs_closure: bool

    def refresh(self) -> None:
        """List parameters and buffers again; a callback may have replaced or frozen some."""

    def train(self, mode: bool) -> None:
        """Set the module and the criterion to training or evaluation mode."""

    def forward(self, X: Any, call: Callable[..., Any]) -> Any:
        """Return the predictions for `X`; `call` stands in for the module."""

    def loss(self, y_pred: Any, y: Any, X: Any, *, training: bool = True) -> torch.Tensor:
        """Return the loss of a batch."""

    def step(self, closure: Callable[[], torch.Tensor] | None) -> None:
        """Let every optimizer take its step."""

    def custom_step(self, batch: Any) -> dict[str, Any]:
        """Run the user's training step; return ``loss`` and ``y_pred``."""


def needs_closure(optimizer: torch.optim.Optimizer) -> bool:
    """Return True if the optimizer evaluates the loss itself, like L-BFGS."""
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty


def largest_number(parameters: Sequence[torch.Tensor]) -> float:
    """Return the largest finite number that every floating dtype of the parameters can hold."""
    dtypes = {p.dtype for p in parameters if p.is_floating_point()}
    return min((torch.finfo(dtype).max for dtype in dtypes), default=1.0)


class PlainModel:
    """A module, a criterion and optimizers without an estimator.

    Parameters
    ----------
    module : torch.nn.Module
        The model.
    criterion : callable
        The loss function.
    optimizer : torch.optim.Optimizer
        Of the module's parameters.

    Examples
    --------
    >>> module = nn.Linear(2, 1)
    >>> model = PlainModel(module, nn.MSELoss(), torch.optim.SGD(module.parameters(), lr=0.1))
    >>> len(model.parameters), model.needs_closure
    (2, False)
    """

    def __init__(self, module: nn.Module, criterion: Any, optimizer: torch.optim.Optimizer) -> None:
        self.components = Components(
            {"module": module}, {"criterion": criterion}, {"optimizer": optimizer}
        )
        self.module = module
        self.criterion = criterion
        self.optimizers = [optimizer]
        self.needs_closure = needs_closure(optimizer)
        self.refresh()

    def refresh(self) -> None:
        self.parameters = [parameter for _, parameter in self.components.named_parameters()]
        self.buffers = list(self.module.buffers())
        self.largest = largest_number(self.parameters)

    def train(self, mode: bool) -> None:
        self.module.train(mode)

    def forward(self, X: Any, call: Callable[..., Any]) -> Any:
        return call(**X) if isinstance(X, Mapping) else call(X)

    def loss(self, y_pred: Any, y: Any, X: Any, *, training: bool = True) -> torch.Tensor:
        loss: torch.Tensor = self.criterion(y_pred, y)
        return loss

    def step(self, closure: Callable[[], torch.Tensor] | None) -> None:
        for optimizer in self.optimizers:
            optimizer.step(closure)  # type: ignore[arg-type]

    def custom_step(self, batch: Any) -> dict[str, Any]:
        raise AssertionError("A plain model has no training step of the user's.")


def min_rows(module: nn.Module) -> int:
    """Return the fewest rows of a batch: BatchNorm cannot train on a single row."""
    return 2 if couples_rows(module) else 1
