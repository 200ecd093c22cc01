"""The command ``accelerando demo``: its output, its hints, and what it does without matplotlib."""

import shlex
import sys

import pytest

from accelerando import cli, demo


@pytest.fixture
def computed(monkeypatch, results, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "compute", lambda seeds, console: results)
    return tmp_path


def test_it_prints_one_table_and_saves_one_figure(computed, capsys):
    assert cli.main(["demo"]) == 0
    shown = capsys.readouterr().out
    for word in ("Train", "Search", "Ask", "What to try next"):
        assert word in shown
    assert f"Figure saved: {computed / demo.FIGURE}" in shown.replace("\n", "")
    assert (computed / demo.FIGURE).read_bytes().startswith(b"\x89PNG")


def test_every_hint_is_a_command(capsys):
    for words, _ in demo.HINTS:
        arguments = shlex.split(words)
        if arguments == ["--help"]:
            continue
        parsed = cli.build_parser().parse_args(arguments)
        assert callable(parsed.run)


def test_without_matplotlib_there_is_the_table_and_a_hint(computed, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert cli.main(["demo"]) == 0
    shown = capsys.readouterr().out
    assert "RadaDamp" in shown
    assert "pip install 'accelerando[plot]'" in shown
    assert list(computed.iterdir()) == []


def test_no_figure_on_request(computed, capsys):
    assert cli.main(["demo", "--no-picture"]) == 0
    assert "Figure saved" not in capsys.readouterr().out
    assert list(computed.iterdir()) == []


def test_the_seeds_are_those_that_were_asked_for(computed, results, monkeypatch):
    asked = []
    monkeypatch.setattr(demo, "compute", lambda seeds, console: asked.append(seeds) or results)
    assert cli.main(["demo", "--no-picture", "--seed", "5", "--seeds", "2"]) == 0
    assert [list(seeds) for seeds in asked] == [[5, 6]]
