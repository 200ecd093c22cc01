"""Structure of a model, without the numbers in its state: described, compared and sent.

Callbacks run on the driver of a cluster, and the model that is trained is on the ranks. Whatever
they change has to reach the ranks. :func:`describe` reduces a model to short texts by name:

- its *structure*: classes, layers, shared weights, parameter groups;
- its *attributes*: a dropout probability, label smoothing, a tensor that is no parameter, a buffer
  that is not saved, hooks, the state of a scheduler;
- its *numbers*: parameters, buffers and the state of optimizers, as checksums of their bytes.
  PyTorch's version counters do not see changes through ``tensor.data`` or NumPy.

Two descriptions show what changed. Numbers travel in the state, attributes by name, and a changed
structure as a pickle of the whole model without its numbers. What cannot be pickled must be the
same object as before, and ranks use the one that they have built themselves.
"""

from __future__ import annotations

import copyreg
import io
import pickle
import types
import zlib
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import cloudpickle
import torch
from torch import nn

from accelerando._engine._torch import hooks_of, parametrize_like
from accelerando._engine.model import OF_CLASS, Components, Model, Registry, is_compiled, kind_of
from accelerando.exceptions import UnsupportedError

_PLAIN = (bool, int, float, complex, str, bytes, type(None))


@dataclass
class Description:
    """A model as texts by name.

    Attributes
    ----------
    structure, attributes, numbers : dict
        See the module.
    frozen : list of str
        The parameters that are not trained.
    fixed : dict
        The identity of attributes that cannot be sent.
    """

    structure: dict[str, str] = field(default_factory=dict)
    attributes: dict[str, str] = field(default_factory=dict)
    numbers: dict[str, str] = field(default_factory=dict)
    frozen: list[str] = field(default_factory=list)
    fixed: dict[str, int] = field(default_factory=dict)

    def is_like(self, other: Description) -> bool:
        """Return True if two processes have built the same model, whatever its numbers are."""
        return (self.structure, self.attributes) == (other.structure, other.attributes)

    def unsendable(self, before: Description) -> list[str]:
        """Return the attributes that are others than `before` and cannot be sent."""
        names = {**before.fixed, **self.fixed}
        return [
            name
            for name in names
            if before.fixed.get(name) != self.fixed.get(name)
            or before.attributes.get(name) != self.attributes.get(name)
        ]


def differences(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return the names whose texts are not the same.

    Examples
    --------
    >>> differences({"p": "0.5", "q": "1"}, {"p": "0.1", "q": "1", "r": "2"})
    ['p', 'r']
    """
    names = {**before, **now}
    return [name for name in names if before.get(name) != now.get(name)]


def checksum(tensor: torch.Tensor) -> str:
    """Return a checksum of the values of a tensor; 25 million floats take 20 ms.

    Examples
    --------
    >>> checksum(torch.zeros(2)) == checksum(torch.zeros(2)) != checksum(torch.ones(2))
    True
    """
    with torch.no_grad():
        values = tensor.detach()
        if values.is_meta:
            return f"{values.dtype}{tuple(values.shape)}"
        if values.layout != torch.strided:
            values = values.to_dense()
        values = values.resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
        total = zlib.crc32(cast(Any, values.view(torch.uint8).numpy())) if values.numel() else 0
    return f"{values.dtype}{tuple(tensor.shape)}{total:08x}"


# -- descriptions ---------------------------------------------------------------------------------


def describe(components: Components, *, numbers: bool = True) -> Description:
    """Reduce a model to texts by name; without `numbers` parameters are not read."""
    registry = Registry(components)
    found = Description()
    for name, owner in registry.owners.items():
        found.structure[name] = _structure(registry, owner)
    for name, value in registry.attributes():
        text = _text(registry, name, value)
        if text is None:
            if name.startswith("net#"):
                continue  # of a subclass of the estimator, and it may have nothing to do with it
            found.fixed[name] = 0 if "hooks" in name.partition("#")[2] else id(value)
            text = f"not sendable: {_code(value)}"
        found.attributes[name] = text
    found.frozen = [n for n, t in registry.tensors.items() if _is_frozen(t)]
    if numbers:
        found.numbers = _numbers(registry)
    return found


def _is_frozen(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, nn.Parameter) and not tensor.requires_grad


def _structure(registry: Registry, owner: Any) -> str:
    alias = registry.alias
    if isinstance(owner, nn.Module):
        tensors = {**owner._parameters, **owner._buffers}
        shapes = [
            (name, alias(t), None if t is None else (type(t).__name__, tuple(t.shape), t.dtype))
            for name, t in tensors.items()
        ]
        layers = [(name, alias(layer)) for name, layer in owner._modules.items()]
        unsaved = sorted(owner._non_persistent_buffers_set)
        return repr((kind_of(owner), layers, shapes, unsaved))
    if isinstance(owner, torch.optim.Optimizer):
        groups = [[alias(p) for p in group["params"]] for group in owner.param_groups]
        return repr((kind_of(owner), groups))
    return kind_of(owner)


def _text(registry: Registry, name: str, value: Any) -> str | None:
    """Return a short text that changes with the value; None if it cannot be sent."""
    if type(value) in _PLAIN:
        return repr(value)
    if type(value) is torch.Tensor:
        return checksum(value)
    is_hook = "hooks" in name.partition("#")[2]
    if isinstance(value, dict | list | tuple | set) and not value:
        return type(value).__name__
    try:
        content = _send_hooks(registry, value) if is_hook else _dumps(registry, value)
    except Exception:  # whatever a class raises that does not want to be pickled
        return None
    return f"{kind_of(value)} {zlib.crc32(content):08x} {len(content)}"


def _send_hooks(registry: Registry, hooks: Any) -> bytes:
    """Pickle hooks that another process can import.

    A function that is defined in this process, or a method of a callback, may look at objects that
    only this process has, and what it notes there would be lost.
    """
    functions = list(hooks.values()) if isinstance(hooks, dict) else list(hooks)
    for function in functions:
        owner = getattr(function, "__self__", None)
        bound = owner is not None and not isinstance(owner, nn.Module | types.ModuleType)
        if bound or getattr(function, "__module__", None) in (None, "__main__"):
            raise pickle.PicklingError
        if isinstance(function, types.FunctionType):
            pickle.dumps(function)  # refuses what cannot be imported by its name
    return _dumps(registry, functions)


def _code(value: Any) -> str:
    """Describe what cannot be pickled, so that two processes that built it alike agree."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return ", ".join(_code(one) for one in value)
    value = getattr(value, "__func__", value)
    code = getattr(value, "__code__", None)
    if code is None:
        return kind_of(value)
    return f"{value.__qualname__} {zlib.crc32(code.co_code):08x}"


def _numbers(registry: Registry) -> dict[str, str]:
    found = {name: checksum(tensor) for name, tensor in registry.saved.items()}
    for root, optimizer in registry.components.optimizers.items():
        for parameter, memory in optimizer.state.items():
            of = registry.alias(parameter) if isinstance(parameter, torch.Tensor) else parameter
            for key, value in memory.items() if isinstance(memory, dict) else (("", memory),):
                found[f"{root}.state of {of}: {key}"] = _number(registry, value)
        for number, group in enumerate(optimizer.param_groups):
            found[f"{root}.param_groups[{number}]"] = repr(sorted(group))
            for key, value in group.items():
                if isinstance(value, torch.Tensor):
                    found[f"{root}.param_groups[{number}].{key}"] = checksum(value)
    return found


def _number(registry: Registry, value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return checksum(value)
    return _text(registry, "", value) or repr(value)


# -- pickles --------------------------------------------------------------------------------------


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickle parts of a model; what the other process has is pickled as its name."""

    def __init__(self, file: io.BytesIO, ids: Mapping[int, tuple[Any, ...]]) -> None:
        super().__init__(file)
        self._ids = ids

    def persistent_id(self, value: Any) -> tuple[Any, ...] | None:
        return self._ids.get(id(value))

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, torch.optim.Optimizer):
            # PyTorch's own way forgets hooks and the attributes of subclasses.
            content = {k: v for k, v in vars(value).items() if k not in ("step", "_opt_called")}
            return copyreg.__newobj__, (type(value),), content, None, None, _set_optimizer  # type: ignore[attr-defined]
        if isinstance(value, nn.Module) and nn.utils.parametrize.is_parametrized(value):
            names = list(cast(Any, value.parametrizations))
            base = type(value).__bases__[0]
            return parametrize_like, (base, names), vars(value), None, None, _set_vars
        return super().reducer_override(value)


def _set_optimizer(optimizer: torch.optim.Optimizer, content: dict[str, Any]) -> None:
    optimizer.__setstate__(content)


def _set_vars(value: Any, content: dict[str, Any]) -> None:
    vars(value).update(content)


class _Unpickler(pickle.Unpickler):
    def __init__(self, content: bytes, registry: Registry) -> None:
        super().__init__(io.BytesIO(content))
        self._registry = registry
        self._made: dict[str, torch.Tensor] = {}

    def persistent_load(self, pid: Any) -> Any:
        kind, name, *rest = pid
        if kind == "name":
            return self._registry.find(name)
        if kind == "state":
            return defaultdict(dict)
        if kind == "fixed":
            owner, _, attribute = name.partition("#")
            return vars(self._registry.find(owner))[attribute]
        if name not in self._made:
            size, stride, dtype, device, trained, requires_grad, attributes = rest
            values = torch.empty_strided(size, stride, dtype=dtype, device=device)
            made = nn.Parameter(values, requires_grad=requires_grad) if trained else values
            vars(made).update(attributes)
            self._made[name] = made
        return self._made[name]


def _dumps(registry: Registry, value: Any) -> bytes:
    """Pickle a value; modules, parameters and optimizers of the model as their names."""
    file = io.BytesIO()
    _Pickler(file, {key: ("name", name) for key, name in registry.name_of.items()}).dump(value)
    return file.getvalue()


def pack_attributes(components: Components, names: list[str]) -> bytes:
    """Return the values of attributes by name; those that do not exist are deleted elsewhere."""
    registry = Registry(components)
    present = dict(registry.attributes())
    found = {name: present[name] for name in names if name in present}
    for name, value in found.items():
        if registry.name_of.get(id(value)) == name.replace("#", "."):
            found[name] = value.detach().clone()  # a buffer, which its name alone would not send
    return _dumps(registry, (found, [name for name in names if name not in present]))


def set_attributes(components: Components, content: bytes) -> None:
    """Set the attributes that :func:`pack_attributes` returned; objects stay the same objects."""
    registry = Registry(components)
    found, gone = _Unpickler(content, registry).load()
    for name, value in found.items():
        owner_name, _, attribute = name.partition("#")
        owner = registry.find(owner_name)
        if attribute.startswith(OF_CLASS):
            setattr(type(owner), attribute.removeprefix(OF_CLASS), value)
            continue
        place: dict[str, Any] = vars(owner)
        if isinstance(owner, nn.Module) and attribute in owner._non_persistent_buffers_set:
            place = cast(dict[str, Any], owner._buffers)
        old = place.get(attribute)
        if type(old) is type(value) and kind_of(old).startswith("torch.optim.lr_scheduler."):
            vars(old).update(vars(value))  # callbacks of the user may hold a reference
        else:
            place[attribute] = value
    for name in gone:
        owner_name, _, attribute = name.partition("#")
        vars(registry.find(owner_name)).pop(attribute, None)


def pack_structure(components: Components, found: Description) -> bytes:
    """Return a model without the numbers that are in its state."""
    registry = Registry(components)
    ids: dict[int, tuple[Any, ...]] = {}
    for name, tensor in registry.saved.items():
        trained = type(tensor) is nn.Parameter
        if (trained or type(tensor) is torch.Tensor) and tensor.layout == torch.strided:
            facts = (tensor.shape, tensor.stride(), tensor.dtype, str(tensor.device))
            own = registry.attached(tensor)
            own = {k: v for k, v in own.items() if f"{name}#{k}" not in found.fixed}
            ids[id(tensor)] = ("tensor", name, *facts, trained, tensor.requires_grad, own)
    for name, optimizer in components.optimizers.items():
        ids[id(optimizer.state)] = ("state", name)
    for name, value in registry.attributes():
        if name in found.fixed and not name.endswith("#gradient_hooks"):
            ids[id(value)] = ("fixed", name)
    for owner in registry.owners.values():
        for value in vars(owner).values():
            if getattr(value, "belongs_to_a_rank", False):
                ids[id(value)] = ("fixed", f"{registry.name_of[id(owner)]}#forward")
    parts = (components.modules, components.criteria, components.optimizers, components.extras)
    named = [n for n in found.attributes if f"#{OF_CLASS}" in n and n not in found.fixed]
    classes = pack_attributes(components, named)
    file = io.BytesIO()
    try:
        if any(is_compiled(part) for part in components.modules.values()):
            raise pickle.PicklingError("a module that torch.compile returned cannot be pickled")
        _Pickler(file, ids).dump(parts)
    except Exception as error:
        # Ranks build the model themselves. They can check whether it is the same.
        return pickle.dumps((found.structure, found.attributes, classes, None, str(error)))
    return pickle.dumps((found.structure, found.attributes, classes, file.getvalue(), ""))


def unpack_structure(components: Components, content: bytes) -> Components | None:
    """Return the model that :func:`pack_structure` was given; None if `components` is like it."""
    structure, attributes, classes, whole, reason = pickle.loads(content)  # noqa: S301  of ours
    if structure.keys() == Registry(components).owners.keys():
        set_attributes(components, classes)  # a worker has imported them as they are in the file
    sent, own = Description(structure, attributes), describe(components, numbers=False)
    if own.is_like(sent):
        return None
    changed = differences(structure, own.structure) + differences(attributes, own.attributes)
    fixed = [n for n in changed if attributes.get(n, "").startswith("not sendable")]
    fixed += [n for n in changed if n in own.fixed and n not in fixed]
    if whole is None or fixed:
        raise refusal(fixed or changed, reason)
    registry = Registry(components)
    new = Components(*_Unpickler(whole, registry).load())
    for name, tensor in Registry(new).tensors.items():
        old = registry.tensors.get(name)
        for hook in hooks_of(old) if old is not None else ():
            tensor.register_hook(hook)  # type: ignore[no-untyped-call]  # the same as on the driver, as was just compared
    return new


def set_frozen(components: Components, names: list[str]) -> None:
    """Train all parameters but those of these names."""
    for name, tensor in Registry(components).tensors.items():
        if isinstance(tensor, nn.Parameter) and tensor.is_floating_point():
            tensor.requires_grad_(name not in names)


def set_evaluated(model: Model, names: list[str] | None) -> None:
    """Set the layers of these names to evaluation mode and all others to training mode.

    None is for a module that is in evaluation mode itself: the next update trains all its layers.
    """
    model.train(True)
    if names is not None:
        for name, owner in Registry(model.components).owners.items():
            if isinstance(owner, nn.Module):
                owner.training = name not in names


def refusal(names: list[str], reason: str = "") -> UnsupportedError:
    """Return the error about changes that cannot be sent."""
    listed = ", ".join(name.replace("#", ".") for name in names[:5])
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    because = f" ({reason.splitlines()[0]})" if reason else ""
    return UnsupportedError(
        f"This process has changed {listed}{more}, which cannot be sent to the ranks of the "
        f"cluster{because}. Make the change in the __init__ of the module or criterion, which "
        "every rank calls; use hooks, functions and objects of a module that workers can import; "
        "or train in this process (client=None)."
    )
