"""``accelerando doctor``: what is installed, what is reachable, and the usual mistakes."""

from __future__ import annotations

import argparse
from typing import Any


def add_commands(commands: Any) -> None:
    """Register ``doctor``; called by the command line, which loads nothing heavy before it runs."""
    parser = commands.add_parser(
        "doctor",
        help="versions, devices, whether a cluster is fit for training, and the usual mistakes",
        description="Print versions and devices of this machine and, with --scheduler, of a Dask "
        "cluster and its workers; say what is wrong and what to do. Exit code 2 if training "
        "cannot work.",
    )
    parser.add_argument(
        "--scheduler",
        metavar="ADDRESS",
        help="a Dask scheduler to look at, such as tcp://node1:8786",
    )
    parser.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=float,
        default=10.0,
        help="how long to wait for the scheduler (default: %(default)s)",
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from accelerando.doctor._report import run

    return run(arguments)
