"""``accelerando plan``: what it prints, and what it says about wrong options."""

import sys

import pandas as pd
import pytest

from accelerando import cli

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
    assert "No batch uses more than 40 workers at 128 examples per worker." in shown
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
        ([*PAPER[1:], "--network=centralized"], "--network includes bandwidth"),
        ([*PAPER[1:-3], "--network=fast"], "must be a Network, 'decentralized-moderate'"),
        ([*PAPER[1:], "--batch-size=exit()"], "--batch-size must be a number (128)"),
        ([*PAPER[1:], "--batch-size=GeoDamp(speed=3)"], "--batch-size: "),
        ([*PAPER[1:], "--batch-size=RadaDamp"], "depends on the model"),
        ([*PAPER[1:], "--seconds-per-example=fast"], "--seconds-per-example must be a time"),
        ([*PAPER[1:], "--run=nothing.csv"], "leave them out"),
        (["--parameters=1", "--run=nothing.csv"], "nothing.csv"),
        ([*PAPER[1:], "--output=plan.txt"], "--output must end in one of"),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_wrong_options_are_one_sentence(options, says, capsys):
    assert cli.main(["plan", *options]) == 2
    shown = capsys.readouterr().err
    assert says in shown
    assert shown.count("\n") == 1


def test_a_figure_without_matplotlib_is_refused_before_the_work(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert cli.main([*PAPER, f"--output={tmp_path / 'plan.png'}"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("accelerando: --output: A figure needs matplotlib")
    assert "pip install 'accelerando[plot]'" in shown.err
