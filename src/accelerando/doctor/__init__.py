"""``accelerando doctor``: check the installation and a Dask cluster, and report problems."""

from __future__ import annotations

import argparse
from typing import Any

from accelerando._extras import require


def add_commands(commands: Any) -> None:
    """Register ``doctor``. The command line calls it, so it imports nothing heavy."""
    parser = commands.add_parser(
        "doctor",
        help="check versions, devices and a cluster, and report problems",
        description="Print versions and devices of this machine and, with --scheduler, of a Dask "
        "cluster and its workers. Report problems and their remedies. The exit code is 2 if "
        "training cannot work.",
    )
    parser.add_argument(
        "--scheduler",
        metavar="ADDRESS",
        help="address of a Dask scheduler to check, such as tcp://node1:8786",
    )
    parser.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=float,
        default=10.0,
        help="seconds to wait for the scheduler, and for a worker",
    )
    parser.add_argument(
        "--memory",
        metavar="SIZE",
        help="what the data and the model of a rank take, such as 2GB, to be compared with the "
        "workers' memory limits",
    )
    for option, what in (
        ("--tls-ca-file", "certificate of the authority"),
        ("--tls-cert", "certificate of this client"),
        ("--tls-key", "private key of this client"),
    ):
        parser.add_argument(option, metavar="FILE", help=f"TLS: {what} (default: Dask's setting)")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    require("train", "accelerando doctor")
    from accelerando.doctor._report import run

    return run(arguments)
