"""The command ``accelerando``.

Each part of the library adds its subcommands with a function ``add_commands(commands)`` in a module
that imports nothing heavy; :data:`PARTS` lists these functions. ``add_commands`` sets the parser's
default ``run``: a function that takes the parsed arguments, imports what it needs, and returns the
exit code.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from accelerando import __version__, _cost_commands, _crowd_commands, demo, doctor
from accelerando._terminal import printable
from accelerando.exceptions import AccelerandoError

PARTS: list[Callable[[Any], None]] = [
    demo.add_commands,
    _cost_commands.add_commands,
    _crowd_commands.add_commands,
    doctor.add_commands,
]

DESCRIPTION = """\
Train PyTorch models with adaptive batches, search hyperparameters, embed the answers of a crowd."""

EPILOG = """\
examples:
  accelerando demo                      all three blocks in half a minute, one table, one figure
  accelerando plan --help               the time and cost of training on few and on many workers
  accelerando doctor                    check the installation and a cluster
  accelerando crowd demo                ask people on the web, with a live dashboard
  accelerando crowd plan --items 90     how many answers will my experiment need?
  accelerando crowd embed answers.csv   from answers to positions, with a figure
  accelerando demo --help               every option of a command

Completion with Tab, in bash and zsh (other shells: register-python-argcomplete --help):
  eval "$(register-python-argcomplete accelerando)"

In Python it begins with:
  from accelerando import NeuralNetClassifier
  from accelerando.batch_size import GeoDamp, RadaDamp
  from accelerando.search import HyperbandSearchCV
  from accelerando.crowd import OrdinalEmbedding
  help(NeuralNetClassifier)"""


class _Help(argparse.RawDescriptionHelpFormatter):
    """Show the default of every option that has one."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        default = action.default
        shown = default is not None and not isinstance(default, bool) and default != ""
        if not shown or default == argparse.SUPPRESS or not action.help:
            return action.help
        return f"{action.help} (default: %(default)s)"


def build_parser() -> argparse.ArgumentParser:
    """Return the parser with the subcommands of every part."""
    parser = argparse.ArgumentParser(
        prog="accelerando",
        description=DESCRIPTION,
        epilog=EPILOG,
    )
    parser.add_argument("--version", action="version", version=f"accelerando {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for add_commands in PARTS:
        add_commands(commands)
    _set_formatter(parser)
    return parser


def _set_formatter(parser: argparse.ArgumentParser) -> None:
    """Let a parser and its subcommands write their help alike."""
    parser.formatter_class = _Help
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for child in action.choices.values():
                _set_formatter(child)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Parameters
    ----------
    argv : sequence of str, optional
        The arguments after the program's name; by default those of this process.

    Returns
    -------
    int
        0 on success, 2 if the user has to change something, 130 after Ctrl-C.
    """
    parser = build_parser()
    if "_ARGCOMPLETE" in os.environ:  # a shell asks for completions
        import argcomplete

        argcomplete.autocomplete(parser)
    arguments = parser.parse_args(argv)
    if not hasattr(arguments, "run"):
        parser.print_help()
        return 0
    try:
        code: int = arguments.run(arguments)
    except (AccelerandoError, ValueError, OSError) as error:
        # Errors that a user can fix are one sentence; all others keep their traceback.
        print(f"accelerando: {printable(' '.join(str(error).split()))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("accelerando: stopped.", file=sys.stderr)
        return 130
    return code
