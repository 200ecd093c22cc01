"""What a policy may decide depends on what there is: on the optimizer, on the averaging."""

from __future__ import annotations

import math

import pytest

from accelerando._decisions import Settings
from accelerando._engine.decided import check_settings
from accelerando.exceptions import UnsupportedError
from tests._engine.fits import plain_fit


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"precision": "bfloat16"}, "precision='bfloat16'"),
        ({"period": 4}, "decided period=4"),
        ({"momentum": 0.5}, "SGD has none"),
        ({"betas": (0.9, 0.99)}, "SGD has none"),
    ],
)
def test_what_the_fit_does_not_have_is_refused(settings, message):
    with pytest.raises(UnsupportedError, match=message):
        check_settings(plain_fit(), Settings(**settings), math.nan, math.nan)


def test_what_it_has_is_accepted():
    settings = Settings(momentum=0.5, betas=(0.9, 0.99), precision="float32")
    check_settings(plain_fit(), settings, 0.9, 0.999)
