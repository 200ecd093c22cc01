"""``accelerando crowd``: every command reaches the function that runs it, with its options."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from accelerando import cli

# Command line, module and function that runs it, and what that function gets of the options.
COMMANDS = [
    ("new study", "serve.new", "run_new", {"directory": Path("study")}),
    (
        "serve a b --port 0 --proxy 10.0.0.1 --turn 0.5 --certificate c --key k",
        "serve.commands",
        "run_serve",
        {
            "experiments": [Path("a"), Path("b")],
            "port": 0,
            "host": "127.0.0.1",  # this computer only, unless somebody says otherwise
            "proxy": "10.0.0.1",
            "turn": 0.5,
            "processes": 1,
            "certificate": Path("c"),
            "key": Path("k"),
            "no_worker": False,
            "reset_password": False,
        },
    ),
    ("demo --people 3 --answers 9 --no-browser", "_demo", "run_demo", {"people": 3, "answers": 9}),
    ("backup d -o b.zip", "serve.backup", "run_backup", {"output": Path("b.zip")}),
    (
        "restore b.zip d --key-file k",
        "serve.backup",
        "run_restore",
        {"file": Path("b.zip"), "directory": Path("d"), "key_file": Path("k")},
    ),
    ("check d --database x", "serve.check", "run_check", {"directory": Path("d"), "database": "x"}),
    ("links --ids people.txt", "serve.backup", "run_links", {"ids": Path("people.txt")}),
    (
        "codes --check sent.csv --use --experiment faces",
        "serve.paid",
        "run_codes",
        {"check": Path("sent.csv"), "use": True, "experiment": "faces"},
    ),
    (
        "analyze a.zip --exclude 3 4 --alpha 2 --cold",
        "serve.analysis",
        "run_analyze",
        {"archive": Path("a.zip"), "exclude": ["3", "4"], "alpha": 2.0, "cold": True},
    ),
    ("reproduce a.zip a.json", "serve.analysis", "run_reproduce", {"analysis": Path("a.json")}),
    (
        "embed answers.csv --dimensions auto --held-out 0",
        "_cli",
        "run_embed",
        {"answers": Path("answers.csv"), "dimensions": "auto", "held_out": 0.0, "seed": 0},
    ),
    ("plan --items 30", "_cli", "run_plan", {"items": 30, "dimensions": 2, "within": 0.03}),
]

# These need the extra `crowd`; to write a template, to embed and to plan needs no web stack.
WEB = {"serve.commands", "serve.backup", "serve.check", "serve.paid", "serve.analysis", "_demo"}


@pytest.mark.parametrize("row", COMMANDS, ids=lambda row: row[0].split()[0])
def test_a_command_runs_its_function_with_its_options(row, monkeypatch):
    line, module, function, options = row
    got = {}

    def run(arguments, *draw):
        got.update(vars(arguments))
        assert all(map(callable, draw))
        return 7

    monkeypatch.setattr(importlib.import_module(f"accelerando.crowd.{module}"), function, run)
    assert cli.main(["crowd", *line.split()]) == 7
    assert {name: got[name] for name in options} == options


def test_every_command_is_in_the_table(capsys):
    with pytest.raises(SystemExit):
        cli.main(["crowd", "--help"])
    shown = capsys.readouterr().out
    listed = {
        line.split()[0] for line in shown.split("commands:")[1].splitlines() if line[4:5] > " "
    }
    assert listed - {"COMMAND"} == {row[0].split()[0] for row in COMMANDS}


def test_a_missing_web_stack_names_the_extra():
    lines = [row[0] for row in COMMANDS if row[1] in WEB]
    code = (
        "import sys\n"
        "sys.modules['fastapi'] = None\n"
        "from accelerando import cli\n"
        f"for line in {lines!r}:\n"
        "    assert cli.main(['crowd', *line.split()]) == 2, line\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=100
    )
    sentence = (
        "accelerando: The web service needs fastapi, which is not installed. "
        "Install the extra 'crowd': pip install 'accelerando[crowd]'"
    )
    assert done.stderr.splitlines() == [sentence] * len(lines)


@pytest.mark.parametrize(
    "line",
    [
        "crowd",
        "crowd serve --port eight",
        "crowd codes",
        "crowd plan",
        "crowd restore",
        "crowd sing",
    ],
)
def test_what_is_missing_or_no_number_ends_with_the_usage(line, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(line.split())
    assert stop.value.code == 2
    assert "usage: accelerando crowd" in capsys.readouterr().err
