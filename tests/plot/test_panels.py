"""Panels of a training run: losses, batch sizes, learning rates and the legend."""

import re

import pandas as pd
import pytest

from accelerando import plot
from accelerando.plot._panels import Line, outcome_name, updates_of
from tests.plot.test_training import frame, labels


def test_without_validation_there_is_no_accuracy_and_the_training_loss_is_dashed():
    figure = plot.training(frame(validated=False))
    assert [label for label, _ in labels(figure)] == [
        "training loss",
        "",
        "",
        "batch size",
        "learning rate",
    ]
    assert figure.axes[0].lines[0].get_linestyle() == "--"


def test_batch_sizes_far_apart_get_a_logarithmic_scale():
    assert plot.training(frame()).axes[6].get_yscale() == "log"
    assert plot.training(frame(sizes=(16, 16, 32))).axes[6].get_yscale() == "linear"


def test_a_loss_of_zero_or_missing_values_do_not_stop_the_figure(tmp_path):
    odd = frame(valid_loss=[1.0, 0.0, float("nan")], valid_acc=[0.5, float("nan"), 0.9])
    plot.training(odd).savefig(tmp_path / "odd.png")


def line(**settings):
    return Line("a", frame(**settings), "#000000", "-")


def test_the_name_of_the_loss_says_which_loss_is_drawn():
    with_validation, without = line(), line(validated=False)
    assert outcome_name("loss", None, [with_validation], "test") == "test loss (dashed: training)"
    assert outcome_name("loss", None, [without], "test") == "training loss"
    both = outcome_name("loss", None, [with_validation, without], "test")
    assert both == "test loss (dashed: training)"
    assert outcome_name("score", "train_acc", [without], "test") == "training accuracy"


def test_runs_with_equal_rates_stay_visible():
    panel = plot.training(frame(), frame()).axes[7]
    widths = [curve.get_linewidth() for curve in panel.lines if len(curve.get_xdata()) > 1]
    assert widths[0] > widths[1]


class Fitted:
    def updates_frame(self):
        return pd.DataFrame({"update": [1], "loss": [0.5]})


def test_updates_are_those_of_an_estimator_or_a_frame():
    found = updates_of("X", Fitted(), ("update", "loss"))
    assert updates_of("X", found, ("update",)) is found


@pytest.mark.parametrize(
    ("run", "sentence"),
    [
        (5, "X must be a net or its updates_frame(). Got int instead."),
        (Fitted(), "Got Fitted without 'ranks', 'bytes' instead."),
        (pd.DataFrame({"bytes": [1]}), "Got DataFrame without 'ranks' instead."),
    ],
)
def test_what_has_no_such_updates_is_refused(run, sentence):
    with pytest.raises(TypeError, match=re.escape(sentence)):
        updates_of("X", run, ("ranks", "bytes"), "a net")
