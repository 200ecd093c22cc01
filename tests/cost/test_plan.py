"""Plans: the paper's updates to the last one, and every number by hand for small cases."""

import pytest

from accelerando.batch_size import GeoDamp, PadaDamp, RadaDamp, Schedule
from accelerando.cost import PRESETS, Network, plan

CIFAR10 = {
    "n_examples": 50_000,
    "max_epochs": 200,
    "parameters": 2_750_000,
    "seconds_per_example": 0.00073,
}


@pytest.mark.parametrize(
    ("initial", "largest", "updates", "workers"),
    [
        (128, 128, 78_200, 1),
        (128, 640, 34_520, 5),
        (128, 3_200, 29_480, 25),
        (128, 16_000, 29_240, 125),
        (256, 5_120, 14_960, 40),
    ],
)
def test_updates_and_workers_of_the_adadamp_papers_table_1(initial, largest, updates, workers):
    policy = GeoDamp(initial=initial, delay=60, factor=5)
    found = plan(policy, max_batch_size=largest, max_workers=125, **CIFAR10)
    assert found.updates == updates
    assert found.peak_workers == workers


SMALL = {"n_examples": 1000, "max_epochs": 2, "parameters": 250_000, "seconds_per_example": 0.001}


def test_every_number_of_a_small_plan():
    found = plan(
        400,
        **SMALL,
        examples_per_worker=100,
        max_workers=4,
        network=Network(bandwidth=80e6, latency=0.01),  # 10 MB a second
        overhead=0.005,
        price_per_worker_hour=3.6,
    )
    # 400, 400 and 200 rows on four workers: 0.1, 0.1 and 0.05 s, and a ring of six steps of
    # 0.01 s and 250 kB.
    ring = 6 * (0.01 + 0.025)
    assert found.updates == 6
    assert found.seconds == pytest.approx(2 * (0.25 + 3 * (0.005 + ring)))
    assert found.worker_seconds == pytest.approx(4 * found.seconds)
    assert found.bytes == 6 * 6 * 1_000_000
    assert found.price == pytest.approx(found.worker_seconds * 0.001)
    assert found.peak_workers == 4


def test_the_largest_share_determines_the_time():
    shares = {"n_examples": 10, "max_epochs": 1, "examples_per_worker": 4, "max_workers": 3}
    found = plan(10, **{**SMALL, **shares, "seconds_per_example": 1.0})
    assert found.peak_workers == 3
    assert found.seconds == 4.0  # 4, 3 and 3 rows


def test_the_frame_has_totals_per_epoch():
    frame = plan(
        Schedule({0: 100, 1: 500}),
        **SMALL,
        examples_per_worker=100,
        max_workers=8,
        price_per_worker_hour=3600.0,
        **PRESETS["centralized"]._asdict(),
    ).frame()
    assert frame["epoch"].tolist() == [1, 2]
    assert frame["updates"].tolist() == [10, 12]
    assert frame["examples"].tolist() == [1000, 2000]
    assert frame["batch_size"].tolist() == [100, 500]
    assert frame["workers"].tolist() == [1, 5]
    assert frame["bytes"].tolist() == [20_000_000, 40_000_000]
    assert frame["price"].tolist() == pytest.approx(frame["worker_seconds"].tolist())
    assert (frame["communication_share"] > 0).all()


def test_workers_are_those_of_training():
    pytest.importorskip("torch")
    from accelerando._cluster.driver.sizing import ranks_for

    policy = PadaDamp(initial=3, rate=0.7)
    found = plan(policy, **SMALL, examples_per_worker=10, min_workers=2, max_workers=5)
    table = found._table
    expected = [ranks_for(size, 10, 2, 5) for size in table["batch_size"]]
    assert table["workers"].tolist() == expected
    assert set(expected) == {2, 3, 4, 5}


def test_the_same_updates_in_another_setting():
    first = plan(400, **SMALL, network="centralized", max_workers=4, examples_per_worker=100)
    other = first.on(network="decentralized-high", max_workers=2)
    again = plan(400, **SMALL, network="decentralized-high", max_workers=2, examples_per_worker=100)
    assert other.setting == again.setting
    assert other.seconds == again.seconds
    kept = first.on(network=Network(1e9))
    assert kept.setting.architecture == "centralized"
    with pytest.raises(TypeError, match=r"on\(\) can change .*max_workers.* Got workers"):
        first.on(workers=3)


@pytest.mark.parametrize(
    ("wrong", "error", "says"),
    [
        (
            {"n_examples": 0},
            ValueError,
            "'n_examples' parameter of plan must be an integer of at least 1",
        ),
        ({"max_epochs": 1.5}, ValueError, "'max_epochs' parameter of plan must be an integer"),
        ({"max_batch_size": 0}, ValueError, "max_batch_size"),
        ({"parameters": -1}, ValueError, "parameters"),
        (
            {"seconds_per_example": float("nan")},
            ValueError,
            "'seconds_per_example' parameter of plan must be a number",
        ),
        ({"overhead": -0.1}, ValueError, "'overhead' .* must be a number of at least 0. Got -0.1"),
        ({"examples_per_worker": 0}, ValueError, "examples_per_worker"),
        ({"min_workers": 3}, ValueError, "'min_workers' .* must be at most max_workers=2. Got 3"),
        ({"max_workers": True}, ValueError, "max_workers"),
        ({"network": "fast"}, ValueError, "must be a Network, .*'centralized' or None. Got 'fast'"),
        ({"network": 10e9}, TypeError, "'network' parameter of plan must be a Network"),
        (
            {"architecture": "ring"},
            ValueError,
            "'architecture' .* must be 'all-reduce' or 'centralized'",
        ),
        ({"price_per_worker_hour": -1}, ValueError, "price_per_worker_hour"),
        ({"batch_size": RadaDamp()}, ValueError, "RadaDamp.* depends on the model.*cost.replan"),
        ({"batch_size": lambda signals: 3}, ValueError, "cost.replan"),
    ],
    ids=lambda value: str(next(iter(value))) if isinstance(value, dict) else "",
)
def test_wrong_arguments_are_named(wrong, error, says):
    with pytest.raises(error, match=says):
        plan(**{"batch_size": 10, "max_workers": 2, **SMALL, **wrong})


def test_the_method_plot_is_deprecated():
    with pytest.warns(FutureWarning, match=r"Use accelerando\.plot\.plan\(plan\)") as caught:
        figure = plan(10, **SMALL).plot()
    assert caught[0].filename == __file__
    assert len(figure.axes) == 4
