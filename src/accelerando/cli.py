"""The command ``accelerando``.

Each part of the library adds its own sub-commands: a function ``add_commands(commands)`` in a
module that imports nothing heavy, listed in :data:`PARTS`. It gives its parser a default ``run``, a
function from the parsed arguments to an exit code, and imports what it needs in there.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any

from accelerando import __version__, _cost_commands, _crowd_commands, demo, doctor
from accelerando.exceptions import AccelerandoError

PARTS: list[Callable[[Any], None]] = [
    demo.add_commands,
    _cost_commands.add_commands,
    _crowd_commands.add_commands,
    doctor.add_commands,
]

DESCRIPTION = """\
Train PyTorch models with adaptive batches, search hyper-parameters, embed what a crowd says."""

EPILOG = """\
examples:
  accelerando demo                      three ways to choose the batch size, one table, one picture
  accelerando demo --output digits.svg  the picture somewhere else
  accelerando plan --help               what training will take on few and on many workers
  accelerando doctor                    what is installed and reachable, and what is wrong with it
  accelerando crowd demo                ask people on the web: a dashboard that moves
  accelerando crowd plan --items 90     how many answers will my experiment need?
  accelerando crowd embed answers.csv   from answers to positions, with a picture
  accelerando demo --help               every option of a command

In Python it begins with:
  from accelerando import NeuralNetClassifier
  from accelerando.batch_size import GeoDamp, RadaDamp
  from accelerando.search import HyperbandSearchCV
  from accelerando.crowd import OrdinalEmbedding
  help(NeuralNetClassifier)"""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser with the sub-commands of every part."""
    parser = argparse.ArgumentParser(
        prog="accelerando",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"accelerando {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for add_commands in PARTS:
        add_commands(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Parameters
    ----------
    argv : sequence of str, optional
        The arguments after the program's name; those of this process if not given.

    Returns
    -------
    int
        0 if all went well, 2 if the user has to change something, 130 after Ctrl-C.
    """
    parser = build_parser()
    arguments = parser.parse_args(argv)
    if not hasattr(arguments, "run"):
        parser.print_help()
        return 0
    try:
        code: int = arguments.run(arguments)
    except (AccelerandoError, ValueError, OSError) as error:
        # What a user can put right is one sentence; everything else keeps its traceback.
        print(f"accelerando: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("accelerando: stopped.", file=sys.stderr)
        return 130
    return code
