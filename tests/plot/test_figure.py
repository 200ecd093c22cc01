"""A notebook shows a figure as a picture, whether or not pyplot was imported."""

import pickle

from accelerando import plot
from accelerando.plot._figure import NotebookFigure
from tests.plot.test_training import frame


def test_a_figure_is_a_picture_for_a_notebook():
    figure = plot.training(frame(), x="epochs")
    assert isinstance(figure, NotebookFigure)
    assert figure._repr_png_().startswith(b"\x89PNG")


def test_a_figure_can_be_pickled():
    figure = pickle.loads(pickle.dumps(plot.training(frame(), x="epochs")))
    assert len(figure.axes) == 4
