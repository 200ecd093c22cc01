"""PowerSGD: parameters."""

import pytest

from accelerando.compress import PowerSGD


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"rank": 0}, "'rank' parameter of PowerSGD must be an integer of at least 1"),
        ({"rank": 1.5}, "'rank' parameter of PowerSGD"),
        ({"start": 1}, "'start' parameter of PowerSGD must be an integer of at least 2"),
    ],
)
def test_wrong_settings_are_named(parameters, message):
    with pytest.raises(ValueError, match=message):
        PowerSGD(**parameters)


def test_settings_can_be_changed():
    assert PowerSGD(4).with_settings(start=20) == PowerSGD(rank=4, start=20)
