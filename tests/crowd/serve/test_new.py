"""The template of ``accelerando crowd new``."""

import pytest

from accelerando.crowd.experiment import (
    Files,
    load_experiment,
    make_experiment,
    read_yaml,
)
from accelerando.crowd.serve.new import new_experiment


def test_a_new_experiment_is_ready_to_be_served(tmp_path):
    file = new_experiment(tmp_path / "Mein Versuch!")
    made = load_experiment(file)
    assert made.settings.name == "mein-versuch"
    assert len(made.items) == 8
    with pytest.raises(ValueError, match="already"):
        new_experiment(tmp_path / "Mein Versuch!")


def test_every_commented_line_of_it_is_right(tmp_path):
    """What the template shows in comments must work when it is uncommented."""
    text = new_experiment(tmp_path / "x").read_text()
    head, _, rest = text.partition("instructions:")
    lines = [
        line.removeprefix("# ") if line.startswith("# ") else line for line in rest.split("\n")
    ]
    lines = [line.removeprefix("#") if line.startswith("#   ") else line for line in lines]
    made = make_experiment(read_yaml(head + "instructions:" + "\n".join(lines)), Files())
    assert made.settings.checks.fail_after == 3
    assert made.settings.participants.total_answers == 3000
    assert set(made.settings.samplers) == {"arr", "random"}
