"""The figure of training runs: what is drawn for which runs, and what is said about wrong ones."""

import sys

import pandas as pd
import pytest
import torch
from matplotlib.figure import Figure

from accelerando import NeuralNetRegressor, plot
from accelerando.batch_size import GeoDamp


def frame(*, updates=(10, 15, 18), sizes=(16, 32, 64), validated=True, **more):
    columns = {
        "epoch": [1, 2, 3],
        "updates": updates,
        "examples": [160, 320, 480],
        "batch_size": sizes,
        "lr": [0.1] * 3,
        "seconds": [0.1, 0.2, 0.3],
        "train_loss": [1.0, 0.5, 0.4],
    }
    if validated:
        columns |= {"valid_loss": [1.1, 0.6, 0.5], "valid_acc": [0.5, 0.8, 0.9]}
    return pd.DataFrame(columns | more)


def curves(panel):
    """The lines of a panel as lists of y, without the dots at their ends."""
    return [line.get_ydata().tolist() for line in panel.lines if len(line.get_xdata()) > 1]


def labels(figure):
    return [(panel.get_ylabel(), panel.get_xlabel()) for panel in figure.axes if panel.lines]


def names(figure):
    """The labels at the ends of the batch sizes, from top to bottom, or those of the legend."""
    if figure.legends:
        return [text.get_text() for text in figure.legends[0].get_texts()]
    (panel,) = [panel for panel in figure.axes if panel.get_ylabel() == "batch size"]
    return [text.get_text().replace("\n", " ") for text in panel.texts]


def test_rows_are_accuracy_and_loss_and_the_last_shows_what_the_policy_did():
    assert labels(plot.training(frame())) == [
        ("validation accuracy", "epochs"),
        ("", "model updates"),
        ("", "seconds"),
        ("validation loss (dashed: training)", "epochs"),
        ("", "model updates"),
        ("", "seconds"),
        ("batch size", "epochs"),
        ("learning rate", "epochs"),
    ]


def test_every_run_is_drawn_in_every_panel_in_its_color():
    figure = plot.training({"a": frame(), "b": frame(updates=(1, 2, 3), sizes=(64, 64, 64))})
    assert names(figure) == ["a", "b"]
    for number, panel in enumerate(figure.axes):
        assert len(curves(panel)) == (4 if 3 <= number < 6 else 2)  # losses of both sets
        assert len({line.get_color() for line in panel.lines}) == 2
    assert figure.axes[1].lines[0].get_xdata().tolist() == [10, 15, 18]
    assert curves(figure.axes[6]) == [[16, 32, 64], [64, 64, 64]]


def test_columns_are_chosen_with_x():
    figure = plot.training(frame(), x="updates", held_out="test")
    assert labels(figure)[:2] == [
        ("test accuracy", "model updates"),
        ("test loss (dashed: training)", "model updates"),
    ]
    assert [label for _, label in labels(plot.training(frame(), x=("seconds", "epochs")))][:2] == [
        "seconds",
        "epochs",
    ]


def test_runs_with_and_without_validation_share_a_figure():
    figure = plot.training(frame(), frame(validated=False))
    assert len(curves(figure.axes[0])) == 1
    assert len(curves(figure.axes[3])) == 3
    assert figure.axes[3].get_ylabel() == "validation loss (dashed: training)"


def test_another_score_can_be_drawn():
    figure = plot.training(frame(r2=[0.1, 0.2, 0.3]), score="r2")
    assert figure.axes[0].get_ylabel() == "r2"
    assert curves(figure.axes[0]) == [[0.1, 0.2, 0.3]]


@pytest.fixture(scope="module")
def fitted():
    X = torch.linspace(-1, 1, 40).reshape(-1, 1)

    def fit(batch_size):
        return NeuralNetRegressor(
            torch.nn.Linear,
            module__in_features=1,
            module__out_features=1,
            batch_size=batch_size,
            max_epochs=3,
            random_state=0,
            verbose=0,
        ).fit(X, 2 * X)

    return fit


def test_fitted_nets_are_named_by_their_policies(fitted, tmp_path):
    def eight(signals):
        return 8

    figure = plot.training(fitted(GeoDamp(initial=4, delay=1)), fitted(eight), frame())
    assert names(figure) == ["GeoDamp", "eight", "run 3"]
    figure.savefig(tmp_path / "runs.png")
    assert (tmp_path / "runs.png").stat().st_size > 10_000


def test_policies_of_one_class_are_named_by_settings_and_by_number(fitted):
    small, large = fitted(GeoDamp(initial=4)), fitted(GeoDamp(initial=8))
    assert names(plot.training(small, large, large, x="epochs")) == [
        "GeoDamp(initial=4, delay=5, factor=2)",
        "GeoDamp(initial=8, delay=5, factor=2) (2)",
        "GeoDamp(initial=8, delay=5, factor=2) (3)",
    ]
    assert names(plot.training(small, large, labels=["small", "large"])) == ["small", "large"]


def test_a_number_and_a_class_with_settings_are_policies_too(fitted):
    net = fitted(GeoDamp)
    figure = plot.training(fitted(8), fitted(16), net, net.set_params(batch_size__initial=64))
    assert names(figure)[:2] == ["Constant(size=8)", "Constant(size=16)"]
    assert names(figure)[2] == "GeoDamp(initial=64) (3)"
    assert names(plot.training(fitted(-1), fitted(8))) == ["FullBatch", "Constant"]


def test_many_runs_repeat_colors_with_another_dash():
    figure = plot.training({f"{i}": frame() for i in range(8)})
    first, last = figure.axes[0].lines[0], figure.axes[0].lines[14]
    assert first.get_color() == last.get_color()
    assert first.get_linestyle() != last.get_linestyle()
    assert len(names(figure)) == 8


def test_runs_of_several_seeds_are_a_mean_and_a_band():
    seeds = [frame(valid_acc=[0.5, 0.7, 0.9]), frame(valid_acc=[0.7, 0.9, 0.9]).head(2)]
    figure = plot.training({"seeds": seeds, "one": frame()})
    panel = figure.axes[0]
    assert curves(panel)[0] == pytest.approx([0.6, 0.8])  # the epochs that both have
    (band,) = panel.collections
    heights = band.get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == (0.5, 0.9)
    assert len(figure.axes[6].collections) == 0


def test_ranks_are_drawn_if_there_were_several_and_no_panel_is_empty():
    figure = plot.training(frame(ranks=[1, 2, 4]))
    assert figure.axes[-1].get_ylabel() == "ranks"
    assert curves(figure.axes[-1]) == [[1, 2, 4]]
    for drawn in (
        figure,
        plot.training(frame(ranks=[1, 1, 1])),
        plot.training(frame(), x="epochs"),
    ):
        assert all(curves(panel) for panel in drawn.axes)


def test_ends_are_labeled_with_the_score():
    figure = plot.training({"good": frame(), "bad": frame(valid_acc=[0.1, 0.1, 0.2])})
    labeled = {text.get_text(): text.xy[1] for text in figure.axes[2].texts}
    assert list(labeled) == ["good, 90.0 %", "bad, 20.0 %"]
    assert labeled["good, 90.0 %"] > labeled["bad, 20.0 %"] + 0.5
    assert not figure.legends


def test_it_draws_into_a_part_of_a_figure_of_the_user():
    whole = Figure()
    left, right = whole.subfigures(1, 2)
    assert plot.training(frame(), figure=left) is left
    assert len(left.axes) == 8
    assert right.axes == []
    with pytest.raises(
        TypeError, match=r"'figure' parameter must be a Figure or SubFigure.*Got int"
    ):
        plot.training(frame(), figure=3)


def test_no_backend_is_chosen_and_pyplot_stays_out(tmp_path):
    loaded = "matplotlib.pyplot" in sys.modules
    plot.training(frame()).savefig(tmp_path / "run.svg")
    assert ("matplotlib.pyplot" in sys.modules) == loaded


@pytest.mark.parametrize(
    ("arguments", "options", "error", "says"),
    [
        pytest.param([], {}, ValueError, "at least one run", id="nothing"),
        pytest.param([{}], {}, ValueError, "at least one run", id="empty dictionary"),
        pytest.param([3], {}, TypeError, "history_frame.*Got int", id="a number"),
        pytest.param(
            [frame()],
            {"x": "days"},
            ValueError,
            "'x' parameter of training.*'epochs'.*'days'",
            id="x",
        ),
        pytest.param(
            [frame()], {"x": ()}, ValueError, "'x' .* must be one or several of", id="no x"
        ),
        pytest.param([frame()], {"x": ["epochs"] * 2}, ValueError, "each once", id="x twice"),
        pytest.param(
            [frame()], {"labels": "ab"}, ValueError, "'labels' .* must be a list", id="label"
        ),
        pytest.param(
            [frame()], {"labels": ["a", "b"]}, ValueError, "each of the 1 run", id="labels"
        ),
        pytest.param([{"a": frame()}], {"labels": ["b"]}, ValueError, "keys", id="both labels"),
        pytest.param([frame()], {"score": "f1"}, ValueError, "valid_acc.*Got 'f1'", id="score"),
        pytest.param([frame().head(0)], {}, ValueError, "no finished epoch", id="no epoch"),
        pytest.param(
            [pd.DataFrame({"update": [1], "loss": [1.0]})],
            {},
            ValueError,
            "no column epoch.*updates_frame",
            id="updates frame",
        ),
    ],
)
def test_wrong_arguments_are_named(arguments, options, error, says):
    with pytest.raises(error, match=says):
        plot.training(*arguments, **options)
