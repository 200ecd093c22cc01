"""Plans for several numbers of workers, and the knee."""

import pytest

from accelerando.cost import Network, compare, plan


def test_the_knee_is_between_too_few_and_too_many():
    slow = plan(
        1024,
        n_examples=10_240,
        max_epochs=1,
        parameters=1_000_000,
        seconds_per_example=0.001,
        examples_per_worker=1,
        network=Network(bandwidth=1e9, latency=0.01),
        price_per_worker_hour=1.0,
    )
    found = compare(slow, workers=[64, 1, 2, 4, 8, 16, 32])
    frame = found.frame()
    assert frame["max_workers"].tolist() == [1, 2, 4, 8, 16, 32, 64]
    assert frame["speedup"].iloc[0] == 1
    assert 1 < found.knee.setting.max_workers < 64
    product = frame["seconds"] * frame["worker_seconds"]
    assert frame["knee"].tolist() == (product == product.min()).tolist()
    assert found.sentence().startswith("with 1 worker 10 s for 0.0028 $; with 2 workers ")


def test_of_equal_plans_the_one_with_fewest_workers_is_the_knee():
    small = plan(64, n_examples=640, max_epochs=1, parameters=1, seconds_per_example=1.0)
    assert compare(small, workers=[1, 2, 4]).knee.setting.max_workers == 1


@pytest.mark.parametrize(
    ("workers", "says"),
    [([], "at least one"), ([0], "'workers' parameter of compare must be an integer")],
)
def test_wrong_numbers_of_workers(workers, says):
    small = plan(64, n_examples=640, max_epochs=1, parameters=1, seconds_per_example=1.0)
    with pytest.raises(ValueError, match=says):
        compare(small, workers)


def test_the_method_plot_is_deprecated():
    small = plan(64, n_examples=640, max_epochs=1, parameters=1, seconds_per_example=1.0)
    with pytest.warns(FutureWarning, match=r"Use accelerando\.plot\.plan\(comparison\)"):
        figure = compare(small, [1, 2]).plot()
    assert [panel.get_ylabel() for panel in figure.axes] == ["hours", "worker-hours"]
