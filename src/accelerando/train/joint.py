"""The tensors of a model, one after the other in a few long ones: arithmetic takes few calls."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch._utils import _unflatten_dense_tensors


class Joint:
    """Where each floating tensor of a model stands.

    There is a long tensor for each number type (and device) of parameters, and then of other
    tensors, such as BatchNorm's statistics. Numbers are in the order that the shapes say, however
    tensors lie in memory, so that models of different layout can be added up.

    Parameters
    ----------
    tensors : sequence of Tensor
        Of the model, parameters first.
    n_parameters : int
        How many of them are parameters.

    Examples
    --------
    >>> model = [torch.ones(2, 2), torch.zeros(3), torch.tensor(7)]
    >>> joint = Joint(model, n_parameters=1)
    >>> joint.numbers, joint.joined(model)
    ([0, 1], [tensor([1., 1., 1., 1.]), tensor([0., 0., 0.])])
    """

    def __init__(self, tensors: Sequence[torch.Tensor], n_parameters: int) -> None:
        groups: dict[object, list[int]] = {}
        for number, tensor in enumerate(tensors):
            if tensor.is_floating_point():  # counters, like those of BatchNorm, have no mean
                key = (number >= n_parameters, tensor.dtype, tensor.device)
                groups.setdefault(key, []).append(number)
        self._groups = list(groups.values())
        self._shapes = [
            [torch.empty(tensors[n].shape, device="meta") for n in group] for group in self._groups
        ]
        self.numbers = [n for group in self._groups for n in group]
        self.n_parameters = sum(group[0] < n_parameters for group in self._groups)

    def joined(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the long tensors of a model, or of its parameters if there are no others."""
        groups = [group for group in self._groups if group[-1] < len(tensors)]
        with torch.no_grad():
            return [torch.cat([tensors[n].reshape(-1) for n in group]) for group in groups]

    def parts(self, joined: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the tensors in long ones as views, in the order of ``numbers``."""
        found: list[torch.Tensor] = []
        for whole, shapes in zip(joined, self._shapes, strict=False):
            # Faster than split and view by far.
            found += _unflatten_dense_tensors(whole, shapes)  # type: ignore[no-untyped-call]
        return found


def square_of(tensors: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> float:
    """Return the squared distance of two models.

    Examples
    --------
    >>> square_of([torch.tensor([3.0, 1.0])], [torch.tensor([1.0, 2.0])])
    5.0
    """
    apart = torch._foreach_sub(list(tensors), list(others))
    return float(sum(float(one.square_().sum(dtype=torch.float64)) for one in apart))
