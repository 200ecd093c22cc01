"""The progress table of a search."""

import math
from types import SimpleNamespace

from scipy.stats import uniform

from accelerando import _progress
from accelerando.search import HyperbandSearchCV
from accelerando.search._bracket_run import Model, Settings
from accelerando.search._progress import Progress, leaders, progress_table, time_left

from .estimators import Counter


def test_verbose_shows_brackets_and_the_best_score(data, capsys):
    search = HyperbandSearchCV(
        Counter(), {"slope": uniform(0, 1)}, max_iter=9, client=None, verbose=True,
        prefix="nightly", random_state=0,
    ).fit(*data)  # fmt: skip
    shown = capsys.readouterr().out
    assert "nightly" in shown
    assert f"best {search.best_score_:.4f}" in shown
    assert "69/69 calls" in shown


def driver(**settings):
    bracket = SimpleNamespace(index=1)
    models = {
        0: Model(0, bracket, {}, calls=3, score=0.25),
        1: Model(1, bracket, {}, calls=2, score=math.nan),
        2: Model(2, SimpleNamespace(index=0), {}),
    }
    return SimpleNamespace(
        models=models, best=models[0], calls=5, elapsed=10.0, live={1},
        settings=Settings(**settings),
    )  # fmt: skip


PLAN = {
    "partial_fit_calls": 20,
    "brackets": [
        {"bracket": 0, "n_models": 1, "partial_fit_calls": 8},
        {"bracket": 1, "n_models": 2, "partial_fit_calls": 12},
    ],
}


def test_the_table_has_a_row_per_bracket():
    table = progress_table(driver(), PLAN, "nightly")
    assert table.title == "nightly: best 0.2500 · 5/20 calls · 10 s, 30 s left"
    columns = {column.header: list(column.cells) for column in table.columns}
    assert columns == {
        "bracket": ["0", "1"],
        "models": ["1", "2"],
        "alive": ["0", "1"],
        "calls": ["0/8", "5/12"],
        "best": ["–", "0.2500"],
    }


def test_the_time_left_follows_the_mean_call_and_the_limit():
    assert time_left(driver(), 20) == "30 s"
    assert time_left(driver(max_seconds=12.0), 20) == "2 s"
    assert time_left(driver(), 4) == "0 s"  # ASHA may need more calls than planned
    started = driver()
    started.calls = 0
    assert time_left(started, 20) == "?"


def racing():
    """Seven models with scores, of which the sixth is the best and the last has none."""
    bracket = SimpleNamespace(index=0)
    state = driver()
    state.models = {
        i: Model(i, bracket, {"a": i / 3, "kind": "<b>"}, calls=i, score=score)
        for i, score in enumerate([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, math.nan])
    }
    state.best = state.models[5]
    return state


def test_the_leaders_are_the_best_models_in_their_order():
    assert [row[:3] for row in leaders(racing())] == [
        (str(i), str(i), f"0.{i + 1}000") for i in (5, 4, 3, 2, 1)
    ]
    assert leaders(racing())[0][3] == "a=1.667, kind='<b>'"


def test_progress_is_a_line_in_a_log_and_plain_html_in_a_notebook():
    shown = Progress(racing(), PLAN, "nightly")
    assert str(shown) == (
        "nightly: best 0.6000 · 5/20 calls · 10 s, 30 s left · leader: 5 a=1.667, kind='<b>'"
    )
    page = shown._repr_html_()
    assert page.count("<table>") == 2
    assert "<td>0.6000</td><td>a=1.667, kind=&#x27;&lt;b&gt;&#x27;</td>" in page
    assert "<script" not in page
    assert "<b>" not in page


def test_a_log_gets_a_line_now_and_then_and_both_tables_at_the_end(data, capsys, monkeypatch):
    monkeypatch.setattr(_progress, "PLAIN_SECONDS", 0.0)
    HyperbandSearchCV(
        Counter(), {"slope": uniform(0, 1)}, max_iter=9, client=None, verbose=True, random_state=0
    ).fit(*data)
    lines = capsys.readouterr().out.split("\n")
    assert sum(" · leader: bracket=" in line for line in lines) > 3
    assert any(line.startswith("leaders") for line in lines)
