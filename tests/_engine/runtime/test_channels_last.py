"""Convolutions in the faster memory format, where the module accepts it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from accelerando._engine.runtime.channels_last import channels_last, has_convolutions, settle

LAST, FIRST = (9, 1, 3, 1), (9, 9, 3, 1)


class CNN(nn.Module):
    def __init__(self, use_view=False):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.last = nn.Linear(4 * 36, 10)
        self.use_view = use_view

    def forward(self, x):
        x = self.norm(self.conv(x)).relu()
        return self.last(x.view(len(x), -1) if self.use_view else x.flatten(1))


def images():
    return torch.randn(2, 1, 8, 8)


def call(module, x):
    return module(x)


@pytest.mark.parametrize(
    ("mode", "use_view", "expected"),
    [("auto", False, LAST), ("auto", True, FIRST), (True, False, LAST), (False, False, FIRST)],
)
def test_the_format_is_chosen(mode, use_view, expected):
    module = CNN(use_view)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    settle(module, mode, images, call)
    assert module.conv.weight.stride() == expected
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name]), "values and statistics stay"


def test_both_formats_give_the_same_result():
    module, x = CNN(), images()
    first = module(x)
    settle(module, True, None, call)
    torch.testing.assert_close(module(x), first)
    with torch.no_grad():
        assert module.conv(x).is_contiguous(memory_format=torch.channels_last)
        assert module.conv(x).stride()[1] == 1, "the output follows the weight"


def test_the_trial_uses_up_no_random_numbers():
    class Noisy(CNN):
        def forward(self, x):
            return super().forward(x + 0.01 * torch.randn_like(x))

    module, x = Noisy(), images()
    before = torch.get_rng_state()
    settle(module, "auto", lambda: x, call)
    assert torch.equal(before, torch.get_rng_state())
    assert module.conv.weight.stride() == LAST


def test_the_trial_trains_without_gradients():
    seen = []

    def forward(module, x):
        seen.append((module.training, torch.is_grad_enabled()))
        return module(x)

    module = CNN().eval()
    settle(module, "auto", images, forward)
    assert seen == [(True, False)]
    assert not module.training


def test_without_rows_nothing_is_tried():
    module = CNN()
    settle(module, "auto", None, call)
    assert module.conv.weight.stride() == FIRST


def test_without_convolutions_nothing_is_read():
    def rows():
        raise AssertionError("not needed")

    settle(nn.Linear(2, 1), "auto", rows, call)
    settle(CNN(), False, rows, call)
    settle(CNN().to("meta"), "auto", rows, call)


def test_an_error_of_the_data_is_raised_and_one_of_the_module_is_not():
    module = CNN()
    settle(module, "auto", lambda: torch.zeros(2, 3, 8, 8), call)
    assert module.conv.weight.stride() == FIRST
    with pytest.raises(KeyError):
        settle(module, "auto", lambda: {}["missing"], call)


@pytest.mark.parametrize(
    ("layer", "memory_format"),
    [
        (nn.Conv2d(2, 3, 3), torch.channels_last),
        (nn.ConvTranspose2d(2, 3, 3), torch.channels_last),
        (nn.Conv3d(2, 3, 3), torch.channels_last_3d),
        (nn.ConvTranspose3d(2, 3, 3), torch.channels_last_3d),
    ],
)
def test_every_kind_of_convolution(layer, memory_format):
    assert has_convolutions(nn.Sequential(layer))
    before = layer.weight.detach().clone()
    assert not layer.weight.is_contiguous(memory_format=memory_format)
    channels_last(layer)
    assert layer.weight.is_contiguous(memory_format=memory_format)
    assert torch.equal(layer.weight, before)


def test_other_layers_stay():
    assert not has_convolutions(nn.Sequential(nn.Linear(2, 2), nn.Conv1d(1, 1, 1)))
