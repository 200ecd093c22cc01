"""The results that the demo shows, and what it does without matplotlib."""

import sys

import pytest
import torch
from skorch.callbacks import PassthroughScoring

from accelerando import cli, demo


@pytest.fixture(scope="module")
def frames():
    return demo.train(epochs=demo.EPOCHS, seed=0)


def test_all_runs_are_equal_but_for_the_batch_size(frames):
    assert list(frames) == ["Constant", "GeoDamp", "RadaDamp"]
    for frame in frames.values():
        assert frame["epoch"].iloc[-1] == demo.EPOCHS
        assert set(frame["lr"]) == {demo.LR}
        assert set(frame["examples"].diff().dropna()) == {1347.0}


def test_growing_batches_reach_the_accuracy_in_clearly_fewer_updates(frames):
    constant = frames["Constant"].iloc[-1]
    for label in ("GeoDamp", "RadaDamp"):
        grown = frames[label].iloc[-1]
        assert grown["batch_size"] > 3 * demo.INITIAL
        assert grown["updates"] < 0.6 * constant["updates"]
        assert grown["valid_acc"] > constant["valid_acc"] - 0.01


def test_one_seed_gives_the_same_numbers_again(frames):
    again = demo.train(epochs=2, seed=0)["Constant"]
    first = frames["Constant"].head(2)
    assert again["valid_loss"].tolist() == first["valid_loss"].tolist()


def test_the_number_of_threads_is_given_back():
    torch.set_num_threads(2)
    with demo.one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize("epochs", [1, 2, 7])
def test_few_epochs_work(epochs):
    frames = demo.train(epochs, seed=3)
    assert all(len(frame) == epochs for frame in frames.values())


def test_ctrl_c_ends_the_demo_and_not_only_one_run(monkeypatch, capsys):
    def stop(self, net, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(PassthroughScoring, "on_epoch_end", stop)
    assert cli.main(["demo", "--epochs", "2", "--no-picture"]) == 130
    assert capsys.readouterr().err == "accelerando: stopped.\n"


def test_without_matplotlib_there_is_the_table_and_a_hint(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert cli.main(["demo", "--epochs", "1"]) == 0
    shown = capsys.readouterr().out
    assert "RadaDamp" in shown
    assert "pip install 'accelerando[plot]'" in shown
    assert list(tmp_path.iterdir()) == []


def test_no_figure_on_request(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["demo", "--epochs", "1", "--no-picture"]) == 0
    assert "Figure saved" not in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []
