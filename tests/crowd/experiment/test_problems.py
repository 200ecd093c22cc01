"""Problems of an experiment's files."""

import pytest

from accelerando.crowd.experiment.problems import SettingsError, SettingsProblem


@pytest.mark.parametrize(
    ("problem", "text"),
    [
        (
            SettingsProblem("no items.", "Add some.", "e.yaml", 3, 1, "items"),
            "e.yaml:3: items: no items. Add some.",
        ),
        (SettingsProblem("not UTF-8.", file="list.csv"), "list.csv: not UTF-8."),
        (SettingsProblem("too many."), "too many."),
    ],
)
def test_a_problem_names_its_file_line_and_key(problem, text):
    assert str(problem) == text


def test_a_problem_becomes_json():
    found = SettingsProblem("m", "r", "f", 1, 2, "k").to_json()
    assert found == {
        "message": "m",
        "remedy": "r",
        "file": "f",
        "line": 1,
        "column": 2,
        "key": "k",
    }


def test_an_error_lists_all_problems():
    problems = [SettingsProblem("one."), SettingsProblem("two.")]
    error = SettingsError(problems)
    assert error.problems == problems
    assert str(error) == "2 problems:\n  one.\n  two."
    assert str(SettingsError(problems[:1])) == "1 problem:\n  one."
    assert isinstance(error, ValueError)
