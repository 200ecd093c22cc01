"""The figure of periodic averaging."""

import pandas as pd
import pytest

from accelerando import plot
from accelerando.monitor import ParameterSpread
from accelerando.sync import PeriodicAveraging
from tests.nets import regressor


def test_averaging_draws_spread_and_period(line):
    settings = {"sync": PeriodicAveraging(3), "virtual_ranks": 2, "batch_size": 5, "max_epochs": 1}
    plain = regressor(**settings).fit(*line)
    figure = plot.averaging(plain, title="A run")
    assert figure.axes[0].get_ylabel() == "spread S_k before an averaging"
    averaged = plain.updates_frame().dropna()
    drawn = figure.axes[0].lines[0].get_xydata().tolist()
    assert drawn == averaged[["update", "spread"]].to_numpy().tolist()

    watched = regressor(**settings, monitors=[ParameterSpread(every=1)]).fit(*line)
    spread = watched.updates_frame()["parameter_spread"]
    drawn = plot.averaging(watched.updates_frame()).axes[0].lines[0].get_xydata()
    assert drawn[:, 0].tolist() == [3, 6, 9, 12]
    assert drawn[1, 1] == pytest.approx((0 + spread[3] + spread[4]) / 3)
    with pytest.raises(TypeError, match=r"'run' parameter of averaging .* averaging strategy"):
        plot.averaging(regressor(max_epochs=1).fit(*line))


@pytest.mark.parametrize("column", ["averagings", "synchronisations"])
def test_the_number_of_averagings_is_written_below(column):
    frame = pd.DataFrame(
        {"update": [1, 2, 3], "period": [1, 1, 2], "spread": [0.1, 0.2, None], column: [1, 2, 2]}
    )
    lower = plot.averaging(frame).axes[1]
    assert [text.get_text() for text in lower.texts] == ["2 averagings"]
