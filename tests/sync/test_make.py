"""What users may pass as ``sync``."""

from __future__ import annotations

import pytest

from accelerando.sync import AllReduce, PeriodicAveraging
from accelerando.sync._make import as_strategy


def test_what_sync_may_be():
    assert as_strategy(None) == AllReduce()
    assert as_strategy(PeriodicAveraging, {"period": 2}) == PeriodicAveraging(2)
    assert as_strategy(PeriodicAveraging(3), {"period": 2}) == PeriodicAveraging(2)
    strategy = PeriodicAveraging(3)
    assert as_strategy(strategy) is strategy


@pytest.mark.parametrize(
    ("given", "params", "error", "message"),
    [
        (4, {}, TypeError, "'sync' parameter must be a strategy of accelerando.sync"),
        (None, {"period": 4}, ValueError, "but sync=None"),
        (PeriodicAveraging, {}, ValueError, "needs more sync__x parameters"),
        (PeriodicAveraging, {"p": 4}, ValueError, "no parameter 'p'.*sync__period"),
        (PeriodicAveraging(4), {"p": 4}, ValueError, "no parameter 'p'"),
    ],
)
def test_what_is_no_strategy_says_so(given, params, error, message):
    with pytest.raises(error, match=message):
        as_strategy(given, params)
