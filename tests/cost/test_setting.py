"""Settings of plans: which values are allowed."""

import math

import pytest

from accelerando.cost._setting import Setting

NEEDED = {"parameters": 10, "seconds_per_example": 0.001}


def test_by_default_one_worker_and_a_network_without_cost():
    setting = Setting(**NEEDED)
    assert (setting.min_workers, setting.max_workers) == (1, 1)
    assert setting.network.bandwidth == math.inf
    assert setting.price_per_worker_hour is None


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("parameters", 0),
        ("seconds_per_example", -1.0),
        ("overhead", math.inf),
        ("examples_per_worker", 1.5),
        ("min_workers", 2),
        ("max_workers", 0),
        ("architecture", "ring"),
        ("price_per_worker_hour", -0.1),
    ],
)
def test_wrong_values_are_named_as_parameters_of_plan(name, wrong):
    with pytest.raises(ValueError, match=f"'{name}' parameter of plan must be .* Got"):
        Setting(**{**NEEDED, name: wrong})
