"""The arithmetic behind the plots, run where it lives: in the browser."""

import math
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page

from tests.crowd.pages.lab import Lab


@pytest.fixture
def js(lab: Lab, open_window: Callable[..., Page]) -> Callable[..., Any]:
    """Call an exported function of a module of the pages."""
    page = open_window(timezone_id="Europe/Berlin")
    page.goto(f"{lab.url}/sign-in")
    code = "async ([module, name, args]) => (await import(`/static/${module}`))[name](...args)"

    def call(module: str, name: str, *arguments: Any) -> Any:
        return page.evaluate(code, [module, name, list(arguments)])

    return call


def test_a_new_embedding_is_turned_onto_the_old_one(js: Callable[..., Any]) -> None:
    old = [[0.0, 1.0], [2.0, 0.5], [-1.0, -1.0], [0.3, -2.0]]
    c, s = math.cos(2.2), math.sin(2.2)
    for mirror in (1, -1):
        new = [[c * x - s * y * mirror, s * x + c * y * mirror] for x, y in old]
        back = js("charts/align.js", "alignTo", old, new)
        for (x, y), (u, v) in zip(old, back, strict=True):
            assert x == pytest.approx(u)
            assert y == pytest.approx(v)
    spread = js("charts/align.js", "normalize", [[3, 3], [5, 3], [3, 5], [5, 5]])
    assert spread[0] == pytest.approx([-math.sqrt(0.5)] * 2)


def test_axes_have_round_numbers(js: Callable[..., Any]) -> None:
    assert js("charts/scale.js", "ticks", 0, 1, 5) == [0, 0.2, 0.4, 0.6, 0.8, 1]
    assert js("charts/scale.js", "ticks", 37, 1234, 4) == [500, 1000]
    assert js("charts/scale.js", "ticks", 5, 5, 4) == [5]
    assert js("charts/scale.js", "wholeTicks", 0, 2, 4) == [0, 1, 2]
    # Midnight in Berlin, not in Greenwich.
    day = js("charts/scale.js", "timeTicks", 1_767_225_600, 1_767_225_600 + 3 * 86_400, 4)
    assert [at % 86_400 for at in day] == [82_800] * len(day)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 ms"), (0.85, "850 ms"), (2.44, "2.4 s"), (150, "3 min"), (9000, "3 h"), (None, "–")],
)
def test_durations_read_well(js: Callable[..., Any], seconds: float | None, text: str) -> None:
    assert js("charts/scale.js", "duration", seconds) == text
