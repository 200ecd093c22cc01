"""The command line, in processes of its own where that is what matters."""

import argparse
import os
import subprocess
import sys

import pytest

from accelerando import __version__, cli
from accelerando.exceptions import UnsupportedError


def python(*arguments, cwd=None):
    return subprocess.run(
        [sys.executable, "-W", "error", *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},  # two waiting threads are slow on busy cores
    )


def test_help_names_the_commands():
    done = python("-m", "accelerando", "--help")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: accelerando")
    assert "demo" in done.stdout
    assert "NeuralNetClassifier" in done.stdout


def test_help_does_not_load_pytorch():
    code = (
        "import sys\n"
        "from accelerando.cli import main\n"
        "main([])\n"
        "heavy = {'torch', 'numpy', 'pandas', 'sklearn', 'matplotlib'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = python("-c", code)
    assert done.returncode == 0, done.stderr


def test_the_demo_does_without_unicode_where_it_must(monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    code = (
        "import sys\n"
        "from accelerando import cli, demo\n"
        "from accelerando.demo import _crowd, _search, _train\n"
        "_crowd.MOST, _crowd.HELD_OUT, _search.MAX_ITER, _train.EPOCHS = 60, 500, 3, 2\n"
        "sys.exit(cli.main(['demo', '--seeds', '1', '--no-picture']))\n"
    )
    done = python("-c", code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "RadaDamp" in done.stdout


def commands(parser, path=()):
    """Every command below a parser, with its parser."""
    yield path, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, child in action.choices.items():
                yield from commands(child, (*path, name))


COMMANDS = dict(commands(cli.build_parser()))


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_help_shows_the_defaults(path):
    shown = " ".join(COMMANDS[path].format_help().split()).replace("- ", "-")
    defaults = [
        action.default
        for action in COMMANDS[path]._actions
        if action.default is not None and not isinstance(action.default, bool)
    ]
    for default in defaults:
        if default not in ("", argparse.SUPPRESS):
            assert f"(default: {default})" in shown
    assert shown.count("default") == shown.count("(default: ") + shown.count("defaults")


def completions(line):
    """What a shell offers after a line."""
    env = {"_ARGCOMPLETE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line))}
    env |= {"_ARGCOMPLETE_IFS": "\n", "_ARGCOMPLETE_STDOUT_FILENAME": "/dev/stdout"}
    done = subprocess.run(
        [sys.executable, "-m", "accelerando"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **env},
    )
    assert done.returncode == 0, done.stderr
    return {word.strip() for word in done.stdout.split("\n")}


def test_a_shell_completes_commands_and_options():
    assert {"demo", "doctor"} <= completions("accelerando d")
    assert "plan" not in completions("accelerando d")
    assert {"--batch-size", "--bandwidth"} <= completions("accelerando plan --ba")


def test_version(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"accelerando {__version__}\n"


def test_without_a_command_it_prints_the_help(capsys):
    assert cli.main([]) == 0
    assert "accelerando demo" in capsys.readouterr().out


def test_an_unknown_command_lists_the_known_ones(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["dance"])
    assert stop.value.code == 2
    assert "demo" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (UnsupportedError("This\n  cannot work."), 2, "accelerando: This cannot work.\n"),
        (ValueError("x must be 1."), 2, "accelerando: x must be 1.\n"),
        (PermissionError(13, "Permission denied", "a.png"), 2, "Permission denied"),
        (KeyboardInterrupt(), 130, "stopped"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_what_a_user_can_put_right_is_one_sentence(monkeypatch, capsys, error, code, says):
    def add_commands(commands):
        def run(arguments):
            raise error

        commands.add_parser("fail").set_defaults(run=run)

    monkeypatch.setattr(cli, "PARTS", [*cli.PARTS, add_commands])
    assert cli.main(["fail"]) == code
    shown = capsys.readouterr().err
    assert says in shown
    assert shown.count("\n") == 1


def test_what_is_our_own_fault_keeps_its_traceback(monkeypatch):
    def add_commands(commands):
        commands.add_parser("fail").set_defaults(run=lambda arguments: 1 / 0)

    monkeypatch.setattr(cli, "PARTS", [add_commands])
    with pytest.raises(ZeroDivisionError):
        cli.main(["fail"])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ["--seeds", "0"],
            "'--seeds' parameter of accelerando demo must be an integer of at least 1. Got 0",
        ),
        (
            ["--seed", "-1"],
            "'--seed' parameter of accelerando demo must be an integer of at least 0. Got -1",
        ),
        (["--output", "picture.txt"], "--output must end in one of .png"),
        (["--output", "nowhere/picture.png"], "no folder 'nowhere'"),
    ],
)
def test_wrong_options_of_the_demo_are_refused_before_it_trains(
    arguments, says, capsys, monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["demo", *arguments]) == 2
    assert says in capsys.readouterr().err


def test_an_error_that_names_the_text_of_others_does_nothing_to_the_terminal(monkeypatch, capsys):
    def run(_):
        raise ValueError("copies/\x1b[2Jx \u202e is not known")

    parser = cli.build_parser()
    parser.set_defaults(run=run)
    monkeypatch.setattr(cli, "build_parser", lambda: parser)
    assert cli.main([]) == 2
    assert capsys.readouterr().err == "accelerando: copies/\\x1b[2Jx \\u202e is not known\n"
