"""``accelerando plan``: what it prints, and what it says about wrong options."""

import contextlib
import math

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelerando import cli
from accelerando.batch_size import Constant, FullBatch, GeoDamp, PadaDamp, Schedule
from accelerando.cost._parse import (
    parse_bandwidth,
    parse_batch_size,
    parse_seconds,
    parse_workers,
)

PAPER = [
    "plan",
    "--batch-size=GeoDamp(initial=256, delay=60, factor=5)",
    "--max-batch-size=5120",
    "--examples=50000",
    "--epochs=200",
    "--parameters=2750000",
    "--seconds-per-example=0.73ms",
    "--bandwidth=10Gb/s",
    "--latency=50us",
    "--price=0.526",
]


def test_a_table_a_sentence_and_the_knee(capsys):
    assert cli.main([*PAPER, "--workers=1,8,40,80"]) == 0
    shown = capsys.readouterr().out
    assert "14,960 updates, 200 epochs" in shown
    assert "With 1 worker 2.0 h for 1.1 $; with " in shown
    assert "* The knee is at 40" in shown
    assert "No batch is worth more than 40 workers at 128 examples per worker." in shown
    assert shown.count(" h ") >= 2


def test_without_a_price_there_is_none(capsys):
    assert cli.main([*PAPER[:-1], "--workers=1"]) == 0
    shown = capsys.readouterr().out
    assert "price" not in shown
    assert "knee" not in shown


def test_a_recorded_run(tmp_path, capsys):
    record = pd.DataFrame(
        {"update": [1, 2, 3], "epoch": 1, "batch_size": [100, 200, 400], "seconds": [1, 3, 7]}
    )
    record.to_csv(tmp_path / "run.csv")
    picture = tmp_path / "plan.png"
    options = ["--parameters=9", "--workers=1,4", "--examples-per-worker=100"]
    assert cli.main(["plan", f"--run={tmp_path / 'run.csv'}", *options, f"--output={picture}"]) == 0
    assert "With 1 worker 7.0 s; with 4 workers 3.0 s." in capsys.readouterr().out
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--parameters=1"], "A plan needs --examples, --epochs, --seconds-per-example."),
        ([*PAPER[1:], "--workers=0"], "--workers must be numbers"),
        ([*PAPER[1:], "--network=centralized"], "--network brings its own bandwidth"),
        ([*PAPER[1:-3], "--network=fast"], "network must be a Network or one of"),
        ([*PAPER[1:], "--batch-size=exit()"], "--batch-size must be a number (128)"),
        ([*PAPER[1:], "--batch-size=GeoDamp(pace=3)"], "--batch-size: "),
        ([*PAPER[1:], "--batch-size=RadaDamp"], "looks at the model"),
        ([*PAPER[1:], "--seconds-per-example=fast"], "--seconds-per-example must be a time"),
        ([*PAPER[1:], "--run=nothing.csv"], "leave them out"),
        (["--parameters=1", "--run=nothing.csv"], "nothing.csv"),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_wrong_options_are_one_sentence(options, says, capsys):
    assert cli.main(["plan", *options]) == 2
    shown = capsys.readouterr().err
    assert says in shown
    assert shown.count("\n") == 1


@pytest.mark.parametrize(
    "policy",
    [Constant(3), FullBatch(), GeoDamp(8, 2.5, 3), PadaDamp(4, 0.1), Schedule({0: 4, 7: 9})],
    ids=repr,
)
def test_what_a_policy_prints_can_be_typed(policy):
    assert parse_batch_size(repr(policy)) == policy


@given(st.integers(0, 50), st.integers(1, 10**6), st.integers(1, 10**6))
def test_tables_of_epochs(epoch, first, then):
    expected = Schedule({0: first, epoch + 1: then})
    assert parse_batch_size(f"0:{first}, {epoch + 1}:{then}") == expected
    assert parse_batch_size(f"{{0: {first}, {epoch + 1}: {then},}}") == expected


@given(st.text())
def test_any_text_is_read_or_refused_with_a_sentence(text):
    for parse in (parse_batch_size, parse_bandwidth, parse_seconds, parse_workers):
        with contextlib.suppress(ValueError):  # any other error would be a traceback
            parse(text)


@given(st.floats(1e-3, 1e6), st.sampled_from(["k", "M", "G", "T"]))
def test_bandwidths_with_their_units(value, unit):
    factor = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}[unit]
    for suffix in ("b/s", "bit/s", "bps", "bit", ""):
        found = parse_bandwidth(f"{value}{unit}{suffix}")
        assert math.isclose(found, value * factor)


def test_bytes_are_not_taken_for_bits():
    with pytest.raises(ValueError, match="multiply bytes by eight"):
        parse_bandwidth("1GB/s")


@given(st.lists(st.integers(1, 1000), min_size=1))
def test_numbers_of_workers(counts):
    assert parse_workers(",".join(map(str, counts))) == sorted(set(counts))


def test_doublings_end_with_the_last():
    assert parse_workers("1..40") == [1, 2, 4, 8, 16, 32, 40]
    assert parse_workers("3..3") == [3]
