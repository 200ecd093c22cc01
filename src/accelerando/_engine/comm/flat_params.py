"""Flat parameters: the tensors of a model, concatenated to a few long ones.

Arithmetic on replicas then takes one call per dtype instead of one call per tensor.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from accelerando._engine._torch import Tensors, foreach_sub, unflatten


class FlatParameters:
    """The position of each floating tensor of a model in its flat tensors.

    There is one flat tensor for each dtype (and device) of parameters, followed by those of other
    tensors, such as the statistics of BatchNorm. Numbers have the order of the shapes, whatever the
    memory layout is: replicas with channels-last and contiguous tensors can be added.

    Parameters
    ----------
    tensors : sequence of Tensor
        Of the model, parameters first.
    n_parameters : int
        Number of parameters among them.

    Attributes
    ----------
    numbers : list of int
        Positions of the floating tensors in `tensors`, in the order in which they are concatenated.
    n_parameters : int
        Number of flat tensors that consist of parameters.

    Examples
    --------
    >>> model = [torch.ones(2, 2), torch.zeros(3), torch.tensor(7)]
    >>> flat = FlatParameters(model, n_parameters=1)
    >>> flat.numbers, flat.flatten(model)
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

    def flatten(self, tensors: Sequence[torch.Tensor]) -> Tensors:
        """Return copies of a model's tensors as flat ones; of its parameters if only they come."""
        groups = [group for group in self._groups if group[-1] < len(tensors)]
        with torch.no_grad():
            return [torch.cat([tensors[n].reshape(-1) for n in group]) for group in groups]

    def unflatten(self, flat: Sequence[torch.Tensor]) -> Tensors:
        """Return views of flat tensors with the shapes of the model, in the order of `numbers`."""
        found: Tensors = []
        for tensor, shapes in zip(flat, self._shapes, strict=False):
            found += unflatten(tensor, shapes)
        return found


def square_distance(tensors: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> float:
    """Return the squared Euclidean distance of two models, summed in double precision.

    Examples
    --------
    >>> square_distance([torch.tensor([3.0, 1.0])], [torch.tensor([1.0, 2.0])])
    5.0
    """
    differences = foreach_sub(list(tensors), list(others))
    return float(sum(float(one.square_().sum(dtype=torch.float64)) for one in differences))
