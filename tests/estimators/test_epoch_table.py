"""The table of epochs: what the policy did is in it, and in a log."""

import logging
import pickle
import sys
import types

import pytest
from skorch.callbacks import PrintLog

from accelerando.batch_size import GeoDamp
from accelerando.estimators import _epoch_table
from accelerando.estimators._epoch_table import EpochTable, facts, reasons
from accelerando.estimators._skorch import prints_for_nobody
from accelerando.policies import Decision, Policy
from tests.nets import regressor


def fit(line, **settings):
    growing = GeoDamp(initial=7, delay=1, factor=2)
    return regressor(batch_size=growing, lr=1e-5, max_epochs=2, **settings).fit(*line)


def rows(text):
    lines = [line.split() for line in text.splitlines() if line.strip()[:1].isdigit()]
    return [[cell.strip() for cell in line] for line in lines]


def test_batch_size_and_learning_rate_are_the_ones_of_history_frame(line, capsys):
    net = fit(line, verbose=1)
    text = capsys.readouterr().out
    header = next(text_line.split() for text_line in text.splitlines() if "epoch" in text_line)
    assert header[:3] == ["epoch", "batch_size", "lr"]
    frame = net.history_frame()
    assert [row[:2] for row in rows(text)] == [
        [str(epoch), str(size)]
        for epoch, size in zip(frame["epoch"], frame["batch_size"], strict=True)
    ]
    assert frame["batch_size"].tolist() == [7, 14]
    assert {row[2] for row in rows(text)} == {"1.000e-05"}, "not rounded to 0"


def test_ranks_are_shown_with_a_client_only(line):
    net = fit(line, verbose=0)
    assert "ranks" not in facts(net)
    net.client = object()
    assert facts(net)["ranks"] == 1
    assert facts(regressor()) == {}


def test_the_log_has_the_same_facts_without_a_table(line, capsys, caplog):
    with caplog.at_level(logging.INFO, logger="accelerando"):
        net = fit(line, verbose=0)
    assert capsys.readouterr().out == ""
    first, second = [r.getMessage() for r in caplog.records if r.getMessage().startswith("epoch")]
    assert first.startswith("epoch 1: batch_size 7, lr 1.000e-05")
    assert f"train_loss {net.history[-1]['train_loss']:.4g}" in second
    assert "_best" not in second


def test_the_log_says_why_a_policy_decided(line, caplog):
    class Reasoned(Policy):
        def decide(self, signals, state):
            return Decision(batch_size=12), {"reason": "Twelve rows are a dozen"}

    with caplog.at_level(logging.INFO, logger="accelerando"):
        regressor(batch_size=Reasoned(), max_epochs=1).fit(*line)
    assert "epoch 1: Twelve rows are a dozen." in caplog.messages
    assert reasons(regressor()) == []


def test_a_table_for_nobody_is_not_formatted(caplog):
    table = EpochTable()
    assert prints_for_nobody(table, verbose=0)
    assert not prints_for_nobody(table, verbose=1)
    assert not prints_for_nobody(EpochTable(sink=lambda text: None), verbose=0)
    with caplog.at_level(logging.INFO, logger="accelerando"):
        assert not prints_for_nobody(table, verbose=0)
        assert prints_for_nobody(PrintLog(), verbose=0)


@pytest.mark.parametrize("setting", [{"callbacks__print_log": None}, {"callbacks": "disable"}])
def test_it_is_skorchs_callback_by_name(line, capsys, setting):
    fit(line, verbose=1, **setting)
    assert "batch_size" not in capsys.readouterr().out


def test_callbacks_hold_nothing_after_an_epoch(line):
    net = fit(line, verbose=1)
    (table,) = [one for _, one in net.callbacks_ if isinstance(one, EpochTable)]
    assert "facts_" not in vars(table)


@pytest.fixture
def notebook(monkeypatch):
    """What a notebook shows: a list of outputs, each of them its newest HTML and text."""
    shown = []

    class Handle:
        def __init__(self, forms):
            shown.append(forms)
            self.number = len(shown) - 1

        def update(self, forms, raw):
            shown[self.number] = forms

    module = types.ModuleType("IPython.display")
    module.display = lambda forms, raw, display_id: Handle(forms)
    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    in_notebook = types.SimpleNamespace(is_jupyter=True)
    monkeypatch.setattr(_epoch_table, "Console", lambda: in_notebook)
    return shown


def test_a_notebook_has_a_table_in_html_that_grows(line, capsys, notebook):
    net = fit(line, verbose=1)
    tables = [forms for forms in notebook if "<table>" in forms.get("text/html", "")]
    assert len(tables) == 1, "one table for all epochs"
    shown = tables[0]["text/html"]
    assert shown.count("<tr>") == 3
    assert "<th>epoch</th><th>batch_size</th><th>lr</th>" in shown
    assert "<td>2</td><td>14</td><td>1.000e-05</td>" in shown
    assert "<b>" in shown, "the best loss"
    assert "\x1b" not in shown + tables[0]["text/plain"]
    assert [row[:2] for row in rows(tables[0]["text/plain"])] == [["1", "7"], ["2", "14"]]
    assert "epoch" not in capsys.readouterr().out
    pickle.dumps(net)
    net.partial_fit(*line)
    assert len([forms for forms in notebook if "<table>" in forms.get("text/html", "")]) == 2


def test_a_silent_net_and_another_sink_show_no_table_in_a_notebook(line, notebook):
    fit(line, verbose=0)
    got = []
    fit(line, verbose=1, callbacks__print_log__sink=got.append)
    assert not [forms for forms in notebook if "<table>" in forms.get("text/html", "")]
    assert len(got) == 4


def test_cells_of_a_notebook_are_escaped(notebook):
    _epoch_table.NotebookTable().add({"<script>": "<b>1"})
    assert "<th>&lt;script&gt;</th>" in notebook[0]["text/html"]
    assert "<td>&lt;b&gt;1</td>" in notebook[0]["text/html"]
