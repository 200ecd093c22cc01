"""One small run of the demo for all its tests."""

import pytest
from rich.console import Console

from accelerando import demo
from accelerando.demo import _search


@pytest.fixture(scope="package")
def results():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_search, "MAX_ITER", 9)
        return demo.compute(range(1), Console(quiet=True))
