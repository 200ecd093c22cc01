"""The demo's table: one screen, and the numbers of the results."""

import io
import math

import numpy as np
from rich.console import Console

from accelerando.demo import _screen, _train
from accelerando.demo._crowd import Asked


def shown(results):
    file = io.StringIO()
    Console(file=file, width=80, highlight=False).print(_screen.table(results))
    return file.getvalue()


def test_it_fits_on_a_screen_with_all_three_blocks(results):
    lines = shown(results).splitlines()
    assert len(lines) < 20
    assert max(map(len, lines)) <= 80
    starts = [line.split()[0] for line in lines if line.strip()]
    assert [word for word in starts if word in ("Train", "Search", "Ask")] == [
        "Train",
        "Search",
        "Ask",
    ]


def test_its_numbers_are_those_of_the_results(results):
    text = shown(results)
    for frames in results.training.values():
        found = _train.reached(frames)
        assert f"{found.updates:,.0f} updates" in text
        assert f"{found.seconds:.2f}" in text
    for (asked,) in results.crowds.values():
        assert f"{asked.answers:,.0f} answers" in text
    assert "one seed" not in text
    assert "1 seed" in text


def test_what_was_not_reached_is_said(results):
    asked = Asked(math.nan, np.zeros((30, 2)))
    curves = {"random search": [np.array([0.5, 0.9])], "Hyperband": [np.array([0.5, 0.6])]}
    text = shown(results._replace(crowds={"chosen": [asked]}, searches=curves))
    assert text.count("not reached") == 2
