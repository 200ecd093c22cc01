"""The model as the engine sees it: components, and how to call them.

The engine never sees an estimator. It trains a :class:`Model`: something that knows a module, a
criterion and optimizers, and how to compute predictions, a loss and a step with them.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import nn

from accelerando._engine._torch import hooks_of
from accelerando.exceptions import StateError

LARGE_MODEL = 1 << 20  # bytes of parameters; optimizers and replicas have several times as many
# Attributes of modules and optimizers that are in the state, or that others send.
_MODULE = ("_parameters", "_buffers", "_modules", "training", "_non_persistent_buffers_set")
# What torch.compile adds to a module.
_COMPILED = ("forward", "dynamo_ctx", "get_compiler_config", "_torchdynamo_wrapper_id")
_LIBRARIES = ("accelerando", "builtins", "skorch", "torch", "types")
_VALUES = (bool, int, float, complex, str, bytes, type(None), list, tuple, dict, set, torch.Tensor)
OF_CLASS = "class."  # before the name of an attribute of a class
_OPTIMIZER = ("state", "param_groups", "step", "defaults", "_opt_called", "_zero_grad_profile_name")


@dataclass
class Components:
    """Live references to what is trained, by the names under which it is saved.

    Attributes
    ----------
    modules, criteria, optimizers : dict
        A criterion need not be a module; one without ``state_dict`` is not saved.
    extras : dict
        What else acts in every update of a rank, such as callbacks; the engine only describes it.
    """

    modules: dict[str, nn.Module] = field(default_factory=dict)
    criteria: dict[str, Any] = field(default_factory=dict)
    optimizers: dict[str, torch.optim.Optimizer] = field(default_factory=dict)
    extras: dict[str, Any] = field(default_factory=dict)

    def named_parameters(self) -> list[tuple[str, torch.Tensor]]:
        """Return the parameters of all modules and criteria, each once."""
        found: dict[int, tuple[str, torch.Tensor]] = {}
        for part in self.parts():
            if hasattr(part, "named_parameters"):
                for name, parameter in part.named_parameters():
                    found.setdefault(id(parameter), (name, parameter))
        return list(found.values())

    def parts(self) -> list[Any]:
        """Return all modules and criteria."""
        return [*self.modules.values(), *self.criteria.values()]

    @property
    def is_large(self) -> bool:
        """Whether the parameters are sent from process to process separately."""
        return sum(tensor.nbytes for _, tensor in self.named_parameters()) >= LARGE_MODEL

    def learnable(self) -> list[torch.Tensor]:
        """Return the parameters that are trained."""
        return [p for _, p in self.named_parameters() if p.requires_grad]

    def buffers(self) -> list[torch.Tensor]:
        """Return the buffers of all modules and criteria, each once."""
        found: dict[int, torch.Tensor] = {}
        for part in self.parts():
            for buffer in part.buffers() if hasattr(part, "buffers") else ():
                found.setdefault(id(buffer), buffer)
        return list(found.values())

    def group_settings(self) -> list[list[dict[str, Any]]]:
        """Return the settings of the optimizers' parameter groups that are plain values."""
        plain = (int, float, bool, str, type(None), list, tuple)
        return [
            [
                {k: v for k, v in group.items() if k != "params" and isinstance(v, plain)}
                for group in groups_of(optimizer)
            ]
            for optimizer in self.optimizers.values()
        ]

    def set_groups(self, settings: Sequence[Sequence[Mapping[str, Any]]]) -> None:
        """Set what :meth:`group_settings` returned, perhaps in another process."""
        for optimizer, groups in zip(self.optimizers.values(), settings, strict=False):
            for group, values in zip(groups_of(optimizer), groups, strict=True):
                group.update(
                    {  # JSON has no tuples
                        key: tuple(value) if isinstance(group.get(key), tuple) else value
                        for key, value in values.items()
                    }
                )

    # -- saving -----------------------------------------------------------------------------------

    def frozen(self) -> list[list[str]]:
        """Return the module and the name of every parameter that is not trained."""
        return [
            [part, name]
            for part, module in self.modules.items()
            for name, parameter in module.named_parameters()
            if not parameter.requires_grad
        ]

    def state_dict(self) -> dict[str, Any]:
        """Return parameters, buffers and the state of the optimizers."""
        return {
            "modules": _states({**self.modules, **self.criteria}),
            "optimizers": python_numbers(_states(self.optimizers)),
        }

    def load_state_dict(
        self, content: Mapping[str, Any], frozen: list[list[str]] | None, *, origin: object
    ) -> None:
        """Load what :meth:`state_dict` and :meth:`frozen` returned.

        Parameters
        ----------
        content : mapping
            Parameters, buffers and the state of the optimizers.
        frozen : list or None
            The parameters that are not trained; None leaves them as they are.
        origin : object
            Where it came from, for messages.
        """
        if frozen is not None:
            names = {(part, name) for part, name in frozen}
            for part, module in self.modules.items():
                for name, parameter in module.named_parameters():
                    parameter.requires_grad_((part, name) not in names)
        _load({**self.modules, **self.criteria}, content["modules"], origin)
        _load(self.optimizers, content["optimizers"], origin)


# -- names ----------------------------------------------------------------------------------------


class Registry:
    """The names of the objects that a model consists of."""

    def __init__(self, components: Components) -> None:
        self.components = components
        self.owners: dict[str, Any] = {}  # what has attributes, by name
        self.tensors: dict[str, torch.Tensor] = {}  # parameters and buffers, each once
        self.saved: dict[str, torch.Tensor] = {}  # those whose values are in the state
        self.name_of: dict[int, str] = {}
        roots = {**components.modules, **components.criteria}
        for root, part in roots.items():
            if isinstance(part, nn.Module):
                self._add_modules(root, part)
            elif hasattr(part, "__dict__") and not isinstance(part, type | types.FunctionType):
                self._add(root, part)
        for name, part in {**components.optimizers, **components.extras}.items():
            self._add(name, part)

    def _add(self, name: str, owner: Any) -> None:
        if id(owner) not in self.name_of:
            self.owners[name] = owner
            self.name_of[id(owner)] = name

    def _add_modules(self, root: str, module: nn.Module) -> None:
        for path, part in module.named_modules(prefix=root):
            self._add(path, part)
            for name, tensor in part._parameters.items():
                self._add_tensor(f"{path}.{name}", tensor, saved=True)
            for name, tensor in part._buffers.items():
                saved = name not in part._non_persistent_buffers_set
                self._add_tensor(f"{path}.{name}", tensor, saved=saved)

    def _add_tensor(self, name: str, tensor: torch.Tensor | None, *, saved: bool) -> None:
        if tensor is not None and id(tensor) not in self.name_of:
            self.tensors[name] = tensor
            self.name_of[id(tensor)] = name
            if saved:
                self.saved[name] = tensor

    def find(self, name: str) -> Any:
        """Return the object of a name, or raise KeyError."""
        return self.owners[name] if name in self.owners else self.tensors[name]

    def alias(self, value: Any) -> str | None:
        """Return the first name of an object that the model knows; None for others."""
        return None if value is None else self.name_of.get(id(value), f"another {kind_of(value)}")

    def attached(self, tensor: torch.Tensor) -> dict[str, Any]:
        """Return what somebody has attached to a tensor, other than PyTorch's compiler."""
        return {name: v for name, v in vars(tensor).items() if not name.startswith("_dynamo")}

    def attributes(self) -> Iterator[tuple[str, Any]]:
        """Yield the name and the value of every attribute that is not in the state."""
        for owner_name, owner in self.owners.items():
            hidden: tuple[str, ...] = ()
            if isinstance(owner, nn.Module):
                hidden = (*_MODULE, *_COMPILED) if is_compiled(owner) else _MODULE
                for name in sorted(owner._non_persistent_buffers_set):
                    yield f"{owner_name}#{name}", owner._buffers.get(name)
            elif isinstance(owner, torch.optim.Optimizer):
                hidden = _OPTIMIZER
            for name, value in vars(owner).items():
                if name not in hidden and not getattr(value, "belongs_to_a_rank", False):
                    yield f"{owner_name}#{name}", value
            for name, value in class_attributes(type(owner)).items():
                yield f"{owner_name}#{OF_CLASS}{name}", value
        for name, tensor in self.tensors.items():
            if hooks := hooks_of(tensor):
                yield f"{name}#gradient_hooks", hooks
            for attribute, value in self.attached(tensor).items():
                yield f"{name}#{attribute}", value


def class_attributes(kind: type[Any]) -> dict[str, Any]:
    """Return the values that the user's classes keep for all their objects.

    Examples
    --------
    >>> Net = type("Net", (nn.Module,), {"temperature": 2.0, "__module__": "__main__"})
    >>> class_attributes(Net)
    {'temperature': 2.0}
    """
    found: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        if base.__module__.partition(".")[0] not in _LIBRARIES:
            found.update(
                (name, value)
                for name, value in vars(base).items()
                if isinstance(value, _VALUES) and not name.startswith(("__", "_abc_"))
            )
    return found


def is_compiled(module: nn.Module) -> bool:
    """Return True if a module is one that ``torch.compile`` returned."""
    return hasattr(module, "_orig_mod") and "_orig_mod" in module._modules


def kind_of(value: Any) -> str:
    """Return the full name of the class of a value."""
    return f"{type(value).__module__}.{type(value).__qualname__}"


# -- the model -------------------------------------------------------------------------------------


class Model(Protocol):
    """The model that the engine trains.

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
    needs_closure, offers_closure : bool
        Whether an optimizer evaluates the loss itself, like L-BFGS, or may do so, like SAM.
    own_steps : bool
        Whether an optimizer's step is not PyTorch's, and may draw random numbers.
    loss_reads_inputs : bool
        Whether the loss may depend on `X` directly.
    """

    components: Components
    module: nn.Module
    criterion: Any
    optimizers: list[torch.optim.Optimizer]
    parameters: list[torch.Tensor]
    buffers: list[torch.Tensor]
    largest: float
    needs_closure: bool
    offers_closure: bool
    own_steps: bool
    loss_reads_inputs: bool

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


def groups_of(optimizer: Any) -> list[dict[str, Any]]:
    """Return an optimizer's parameter groups.

    A user's own training step may have no optimizer, or an object around one that shows no groups:
    that counts as one group with an unknown learning rate.
    """
    found = getattr(optimizer, "param_groups", None)
    return found if isinstance(found, list) else [{"params": [], "lr": math.nan}]


def python_numbers(content: Any) -> Any:
    """Replace NumPy's numbers, as a search draws them for ``lr``: PyTorch reads tensors only."""
    if isinstance(content, dict):
        return {key: python_numbers(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return type(content)(python_numbers(value) for value in content)
    is_numpy = type(content).__module__ == "numpy" and hasattr(content, "item")
    return content.item() if is_numpy else content


def _states(parts: Mapping[str, Any]) -> dict[str, Any]:
    for part in parts.values():
        if isinstance(part, torch.optim.Optimizer):
            # PyTorch cannot save the memory of a parameter that is trained no more.
            trained = {id(p) for group in part.param_groups for p in group["params"]}
            for parameter in [p for p in part.state if isinstance(p, torch.Tensor)]:
                if id(parameter) not in trained:
                    del part.state[parameter]
    return {name: part.state_dict() for name, part in parts.items() if hasattr(part, "state_dict")}


def _load(parts: Mapping[str, Any], states: Mapping[str, Any], origin: object) -> None:
    for name, part in parts.items():
        if not hasattr(part, "load_state_dict"):
            continue
        try:
            part.load_state_dict(states[name])
        except (LookupError, RuntimeError, ValueError, TypeError, AttributeError) as error:
            raise StateError(
                f"{origin} was saved from an estimator with another {name}: {error}. Build the "
                "estimator with the settings it was saved with, then load."
            ) from error
