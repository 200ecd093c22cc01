"""Trial passes: what a model computes for some rows, and everything is as it was before.

A trial changes what training would change: buffers, counters, lists and dictionaries that modules
keep, generators that belong to them. :func:`nothing_changes` puts all of it back. Random numbers
are constants in a trial, so that a batch and its parts get the same ones.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch
from torch import nn

from accelerando._engine._torch import ConstantRandomness
from accelerando._engine.data.feed import map_leaves
from accelerando._engine.micro_batch import is_plain_batch_norm
from accelerando._engine.runtime.process import seed_torch
from accelerando.exceptions import UnsupportedError

if TYPE_CHECKING:
    from accelerando._engine.model import Model

Reset = Callable[[], None]
Where = Literal["module", "loss", "buffers", "padding", "hook"]

_DEPTH = 6
_LONG = 10_000  # longer lists are data


# -- what some rows yield -------------------------------------------------------------------------


class Found(NamedTuple):
    """Results of a few rows."""

    y_pred: Any
    loss: torch.Tensor
    gradient: list[torch.Tensor]
    buffers: list[torch.Tensor]


class RaisesError(Exception):
    """The module or the loss raises an error for some rows."""

    def __init__(self, where: Where) -> None:
        self.where = where


def _begin(reset: Reset | None) -> None:
    if reset is not None:
        reset()
    random.seed(0)
    np.random.seed(0)
    seed_torch(0)


def evaluate(model: Model, X: Any, y: Any, reset: Reset | None) -> Found:
    """Compute predictions, loss and gradient; without `reset`, after the trials before."""
    _begin(reset)
    with torch.enable_grad(), ConstantRandomness():  # type: ignore[no-untyped-call]
        try:
            y_pred = model.forward(X, model.module)
        except Exception as error:
            raise RaisesError("module") from error
        try:
            loss = model.loss(y_pred, y, X)
            if loss.dim():
                raise UnsupportedError("no single number")
            found = torch.autograd.grad(loss, model.parameters, allow_unused=True)
        except Exception as error:
            raise RaisesError("loss") from error
    gradient = [
        torch.zeros_like(p) if g is None else g.to_dense() if g.is_sparse else g
        for p, g in zip(model.parameters, found, strict=True)
    ]
    detached = map_leaves(lambda t: t.detach() if isinstance(t, torch.Tensor) else t, y_pred)
    changed = [*(memory.clone() for memory in memories(model)), *_summaries(model)]
    return Found(detached, loss.detach(), gradient, changed)


def loss_of(model: Model, X: Any, y: Any, y_pred: Any, reset: Reset) -> float:
    """Return the loss of predictions as a number."""
    return float(evaluate_loss(model, X, y, y_pred, reset).detach())


def evaluate_loss(model: Model, X: Any, y: Any, y_pred: Any, reset: Reset) -> torch.Tensor:
    """Return the loss of predictions."""
    _begin(reset)
    try:
        with torch.enable_grad(), ConstantRandomness():  # type: ignore[no-untyped-call]
            return model.loss(y_pred, y, X)
    except Exception as error:
        raise RaisesError("loss") from error


def changed_by_forward(model: Model, X: Any) -> str | None:
    """Return what a forward pass changes of the module's structure; None if nothing.

    What is sent between processes, or saved, must have the parameters and shapes that ``__init__``
    has made. Nothing stays changed; a module that raises is not looked at.
    """
    with nothing_changes(model) as reset:
        before = _structure(model)
        _begin(reset)
        try:
            with ConstantRandomness():  # type: ignore[no-untyped-call]
                model.forward(X, model.module)
        except Exception:
            return None  # training raises it, too, and explains it
        after = _structure(model)
    for name in [*after, *before]:
        was, now = before.get(name), after.get(name)
        if was == now:
            continue
        if was is None or now is None:
            return f"{'adds' if was is None else 'removes'} {name}"
        what = "the shape" if was[0] != now[0] else "requires_grad"
        return f"changes {what} of {name}"
    return None


def _structure(model: Model) -> dict[str, tuple[torch.Size, bool]]:
    """Return shape and ``requires_grad`` of all parameters and buffers."""
    found = {}
    for top in (model.module, model.criterion):
        if isinstance(top, nn.Module):
            kind = "module" if top is model.module else "criterion"
            for name, tensor in [*top.named_parameters(), *top.named_buffers()]:
                found[f"{kind}.{name}"] = tensor.shape, tensor.requires_grad
    return found


# -- nothing changes ------------------------------------------------------------------------------


def parts_of(model: Model) -> list[nn.Module]:
    """Return all modules of the model and of its criteria."""
    tops = [part for part in model.components.parts() if isinstance(part, nn.Module)]
    return [part for top in tops for part in top.modules()]


def memories(model: Model) -> list[torch.Tensor]:
    """Return what a forward pass may change: buffers, and tensors that are plain attributes."""
    found: list[torch.Tensor] = []
    for part in parts_of(model):
        if not is_plain_batch_norm(part):
            found += [b for b in part.buffers(recurse=False) if b.numel()]
            found += [v for v in vars(part).values() if type(v) is torch.Tensor and v.numel()]
    return [tensor.detach() for tensor in found]


def _summaries(model: Model) -> list[torch.Tensor]:
    """Return two numbers for each parameter: embeddings with ``max_norm`` write to theirs."""
    own = [p.detach() for part in parts_of(model) for p in part.parameters(recurse=False)]
    return [
        torch.stack([p.sum(dtype=torch.float64), torch.linalg.vector_norm(p, dtype=torch.float64)])
        for p in own
        if p.numel() and p.is_floating_point()
    ]


@contextmanager
def nothing_changes(model: Model) -> Iterator[Reset]:
    """Put back what forward passes inside change; yield a function that does so between them."""
    parts = parts_of(model)
    training = [(part, part.training) for part in parts]
    owners = [*parts, *([] if isinstance(model.criterion, nn.Module) else [model.criterion])]
    objects = _Objects(owners)
    attributes = [(part, dict(vars(part))) for part in parts]
    tensors = [b for part in parts for b in part.buffers(recurse=False)]
    tensors += [v for _, kept in attributes for v in kept.values() if type(v) is torch.Tensor]
    values = [tensor.detach().clone() for tensor in tensors]
    registered = [(part, dict(part.named_buffers(recurse=False))) for part in parts]
    trained = [(p, p.requires_grad) for part in parts for p in part.parameters(recurse=False)]
    states = random.getstate(), np.random.get_state()
    devices = sorted({p.device.index or 0 for p in model.parameters if p.is_cuda})
    layers = [part for part in parts if is_plain_batch_norm(part)]

    def reset() -> None:
        for part, kept in attributes:
            present = vars(part)
            for name in [name for name in present if name not in kept]:
                del present[name]
            present.update(kept)
        for part, kept in registered:
            for name, buffer in kept.items():
                setattr(part, name, buffer)
        for parameter, wanted in trained:
            parameter.requires_grad_(wanted)
        objects.put_back()
        with torch.no_grad():
            for tensor, value in zip(tensors, values, strict=True):
                if tensor.dtype == value.dtype:
                    tensor.copy_(value)
        for layer in layers:
            vars(layer)["forward"] = _Affine(layer)

    with torch.random.fork_rng(devices=devices):
        try:
            model.train(True)
            attributes = [(part, dict(vars(part))) for part in parts]
            plain = [(layer, vars(layer).get("forward")) for layer in layers]
            yield reset
        finally:
            reset()
            for layer, forward in plain:
                vars(layer).pop("forward")
                if forward is not None:
                    vars(layer)["forward"] = forward
            for part, mode in training:
                part.training = mode
            random.setstate(states[0])
            np.random.set_state(states[1])


class _Objects:
    """The contents of the containers, objects and generators that modules keep as attributes.

    Modules, and tensors that are attributes of modules, are somebody else's.
    """

    def __init__(self, owners: list[Any]) -> None:
        self._undo: list[Callable[[], None]] = []
        self._seen: set[int] = set()
        for owner in owners:
            for value in list(getattr(owner, "__dict__", {}).values()):
                if not isinstance(value, torch.Tensor):
                    self._keep(value, _DEPTH)
            if not isinstance(owner, nn.Module):
                self._keep(owner, _DEPTH)

    def put_back(self) -> None:
        for undo in self._undo:
            undo()

    def _keep(self, value: Any, depth: int) -> None:
        if depth == 0 or id(value) in self._seen:
            return
        self._seen.add(id(value))
        undo = _undo_of(value)
        if undo is not None:
            self._undo.append(undo)
        for inner in _contents(value):
            self._keep(inner, depth - 1)


def _contents(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    if isinstance(value, list | tuple | set | deque):
        return list(value) if len(value) <= _LONG else []
    return list(vars(value).values()) if _is_object(value) else []


def _is_object(value: Any) -> bool:
    """Return True for objects of the user's classes."""
    kind = type(value)
    known = (type, nn.Module, torch.Tensor, torch.optim.Optimizer, np.ndarray)
    if isinstance(value, known) or not hasattr(value, "__dict__") or callable(value):
        return False
    return kind.__module__.partition(".")[0] not in ("builtins", "torch", "accelerando", "skorch")


def _undo_of(value: Any) -> Callable[[], None] | None:
    """Return a function that gives an object the content that it has now."""
    if isinstance(value, torch.Tensor):
        copied = value.detach().clone()

        def put(tensor: torch.Tensor = value) -> None:
            with torch.no_grad():
                tensor.copy_(copied)

        return put
    if isinstance(value, dict):
        return _refill(value, dict(value), value.update)
    if isinstance(value, list | deque):
        return _refill(value, list(value), value.extend) if len(value) <= _LONG else None
    if isinstance(value, set):
        return _refill(value, set(value), value.update)
    if isinstance(value, np.ndarray):
        return _assign(value, value.copy()) if value.flags.writeable else None
    if isinstance(value, torch.Generator):
        state = value.get_state()

        def rewind(generator: torch.Generator = value) -> None:
            generator.set_state(state)

        return rewind
    if isinstance(value, random.Random):
        numbers = value.getstate()
        return lambda: value.setstate(numbers)
    if isinstance(value, np.random.Generator | np.random.RandomState):
        bits: Any = getattr(value, "bit_generator", None) or value._bit_generator  # type: ignore[union-attr]
        inner = bits.state
        return lambda: setattr(bits, "state", inner)
    if _is_object(value):
        own = vars(value)
        return _refill(own, dict(own), own.update)
    return None


def _refill(container: Any, content: Any, fill: Callable[[Any], Any]) -> Callable[[], None]:
    def put() -> None:
        container.clear()
        fill(content)

    return put


def _assign(array: Any, content: Any) -> Callable[[], None]:
    def put() -> None:
        array[...] = content

    return put


class _Affine:
    """BatchNorm without statistics: ranks compute those of all rows."""

    def __init__(self, layer: Any) -> None:
        self.layer = layer

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if not self.layer.affine:
            return x
        shape = [1, -1, *[1] * (x.dim() - 2)]
        scaled: torch.Tensor = x * self.layer.weight.view(shape) + self.layer.bias.view(shape)
        return scaled


@contextmanager
def in_double_precision(model: Model, reset: Reset) -> Iterator[Reset]:
    """Let parameters and buffers be in double precision; put back the tensors that were there."""
    parts = parts_of(model)
    parameters = [p for part in parts for p in part.parameters(recurse=False)]
    kept = [(p, p.data) for p in dict.fromkeys(parameters) if p.is_floating_point()]
    reset()
    buffers = [(part, *named) for part in parts for named in part.named_buffers(recurse=False)]

    def wide_reset() -> None:
        reset()
        for part, name, buffer in buffers:
            setattr(part, name, to_double(buffer))

    try:
        for parameter, data in kept:
            parameter.data = data.double()
        yield wide_reset
    finally:
        for parameter, data in kept:
            parameter.data = data
        reset()


def to_double(leaf: torch.Tensor) -> torch.Tensor:
    """Return a floating tensor in double precision, and others as they are."""
    return leaf.double() if leaf.is_floating_point() else leaf
