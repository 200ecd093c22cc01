"""The tail of a model that DDP wraps."""

import torch
from torch import nn

from accelerando._engine.comm.ddp_tail import Carrier, TailLoss
from tests._engine.comm.ranks import MLP
from tests._engine.comm.test_ddp import Scaled


def test_the_tail_is_in_double_precision_only_if_all_parameters_are():
    assert Carrier(MLP(), None, 3).tail.dtype == torch.float32
    assert Carrier(MLP().double(), None, 3).tail.dtype == torch.float64
    mixed = nn.Sequential(MLP(), MLP().double())
    assert Carrier(mixed, None, 3).tail.dtype == torch.float32
    names = [name for name, _ in Carrier(MLP(), Scaled(), 3).named_parameters()]
    assert names[0] == "tail"
    assert "module.first.weight" in names
    assert "criterion.log_scale" in names


def test_the_tail_carries_numbers_and_gives_parameters_no_gradient():
    tail = nn.Parameter(torch.zeros(3))
    weight = nn.Parameter(torch.ones(2))
    calls = []
    numbers = torch.tensor([2.0, 3.0, 5.0])
    loss = TailLoss.apply(tail, numbers, lambda: calls.append(tail.grad is not None), weight)
    loss.backward()
    assert tail.grad.tolist() == [2.0, 3.0, 5.0]
    assert weight.grad is None
    assert calls == [True]  # after the backward pass
