"""Convolutions train in the faster memory format where the module accepts it."""

from __future__ import annotations

import pytest
import torch

from tests.nets import CNN, classifier, parameters_of


def layout_of(net):
    return net.module_.conv.weight.stride()


LAST, FIRST = (9, 1, 3, 1), (9, 9, 3, 1)


@pytest.mark.parametrize(
    ("setting", "use_view", "expected"),
    [("auto", False, LAST), ("auto", True, FIRST), (True, False, LAST), (False, False, FIRST)],
)
def test_layout_is_chosen(digits, setting, use_view, expected):
    images = digits[0].reshape(-1, 1, 8, 8)
    net = classifier(CNN, module__use_view=use_view, channels_last=setting, max_epochs=1)
    assert layout_of(net.fit(images, digits[1])) == expected


def test_the_same_result_in_both_layouts(digits):
    images = digits[0].reshape(-1, 1, 8, 8)
    one, two = (
        classifier(CNN, channels_last=setting).fit(images, digits[1]) for setting in (True, False)
    )
    assert torch.allclose(parameters_of(one), parameters_of(two), atol=1e-5)


def test_trying_the_layout_changes_nothing_else(digits):
    """The trial runs on a copy: no random numbers are used up, no statistics move."""
    images = digits[0].reshape(-1, 1, 8, 8)

    class Noisy(CNN):
        calls = 0

        def forward(self, x):
            x = x + 0.01 * torch.randn_like(x)
            return super().forward(x)

    auto = classifier(Noisy, channels_last="auto", max_epochs=1).fit(images, digits[1])
    always = classifier(Noisy, channels_last=True, max_epochs=1).fit(images, digits[1])
    assert torch.equal(parameters_of(auto), parameters_of(always))


def test_an_error_of_the_module_arrives_as_itself(digits):
    with pytest.raises(RuntimeError, match="channels"):
        classifier(CNN, max_epochs=1).fit(digits[0].reshape(-1, 2, 8, 4), digits[1])
