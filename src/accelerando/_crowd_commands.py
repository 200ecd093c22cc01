"""The words of ``accelerando crowd``: its options, apart from the library they belong to.

``accelerando --help`` reads this file and must not wait for NumPy.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def add_commands(commands: Any) -> None:
    """Register ``crowd``; called by the command line, which loads nothing heavy before it runs."""
    crowd = commands.add_parser(
        "crowd",
        help="ask a crowd on the web, embed its answers, plan how many are needed",
        description="Ask people 'is a or b more like h?' on the web, turn answers into positions, "
        "or find out by simulation how many answers an experiment needs.",
    )
    parts = crowd.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_new(parts)
    _add_serve(parts)
    _add_backup(parts)
    _add_restore(parts)
    _add_demo(parts)
    _add_embed(parts)
    _add_plan(parts)


def _add_new(commands: Any) -> None:
    new = commands.add_parser(
        "new",
        help="write an experiment to begin with",
        description="Write a commented experiment.yaml and a folder for images.",
    )
    new.add_argument("directory", type=Path, help="the folder to make")
    new.set_defaults(run=_new)


def _add_serve(commands: Any) -> None:
    serve = commands.add_parser(
        "serve",
        help="run experiments on the web",
        description="Check the experiments, print the links, and serve: participants answer, the "
        "embedding improves, the experimenter watches. Ctrl-C stops it; nothing is lost.",
    )
    serve.add_argument(
        "experiments",
        type=Path,
        nargs="*",
        metavar="EXPERIMENT",
        help="folder, experiment.yaml, or Salmon's init.yaml; none: those in the database",
    )
    serve.add_argument("--items", type=Path, help="ZIP, CSV or folder, as beside an init.yaml")
    serve.add_argument(
        "--database",
        metavar="URL",
        help="postgresql://USER:PASSWORD@HOST/NAME or sqlite:///FILE; default: crowd.sqlite beside "
        "the first experiment. The variable ACCELERANDO_DATABASE keeps it off the command line",
    )
    serve.add_argument("--host", default="127.0.0.1", help="default: this computer only")
    serve.add_argument("--port", type=int, default=8421, help="0: any free one")
    serve.add_argument("--processes", type=int, default=1, help="web processes")
    serve.add_argument("--no-worker", action="store_true", help="another host has the worker")
    serve.add_argument("--turn", type=float, default=0.25, help="seconds between refits")
    serve.add_argument("--scheduler", metavar="ADDRESS", help="Dask, for searches of many items")
    serve.add_argument("--certificate", type=Path, metavar="FILE", help="TLS, with its chain")
    serve.add_argument("--key", type=Path, metavar="FILE", help="TLS, private")
    serve.add_argument("--proxy", metavar="ADDRESSES", help="proxies whose headers are believed")
    serve.add_argument("--root-path", default="", help="prefix under which the proxy serves us")
    serve.add_argument("--reset-password", action="store_true", help="make a new one, print it")
    serve.set_defaults(run=_serve)


def _add_demo(commands: Any) -> None:
    demo = commands.add_parser(
        "demo",
        help="see a dashboard move, with simulated participants",
        description="Serve a ready experiment about colours on this computer, with simulated "
        "participants. Ctrl-C ends it, and nothing is kept.",
    )
    demo.add_argument("--port", type=int, default=8421, help="0: any free one")
    demo.add_argument("--people", type=int, default=12, help="at the same time; default 12")
    demo.add_argument("--answers", type=int, default=4000, help="then they leave; default 4000")
    demo.add_argument("--seed", type=int, default=0, help="of the simulated participants")
    demo.add_argument("--no-browser", action="store_true", help="print the links only")
    demo.set_defaults(run=_demo)


def _add_backup(commands: Any) -> None:
    backup = commands.add_parser(
        "backup",
        help="a whole server in one file, while it runs",
        description="Write every experiment of a server, with its items and answers, into one ZIP.",
    )
    _add_database(backup)
    backup.add_argument("-o", "--output", type=Path, help="default: crowd-backup-DATE-TIME.zip")
    backup.set_defaults(run=_backup)


def _add_restore(commands: Any) -> None:
    restore = commands.add_parser(
        "restore",
        help="experiments from a backup or an archive",
        description="Store the experiments of a backup, or the one of an archive, on a server. "
        "They are paused until they are resumed.",
    )
    restore.add_argument("file", type=Path, help="from `crowd backup`, or an archive.zip")
    _add_database(restore)
    restore.set_defaults(run=_restore)


def _add_database(parser: Any) -> None:
    parser.add_argument(
        "directory", type=Path, nargs="?", help="folder with crowd.sqlite; default: this one"
    )
    parser.add_argument("--database", metavar="URL", help="or the variable ACCELERANDO_DATABASE")


def _add_embed(commands: Any) -> None:
    embed = commands.add_parser(
        "embed",
        help="answers in, positions out",
        description="Fit an embedding to the answers in a file: our export, Salmon's responses "
        "CSV, or a .npy/.npz array of triplets.",
    )
    embed.add_argument("answers", type=Path, help="CSV with a header, .npy or .npz")
    embed.add_argument("--dimensions", type=int, default=2, help="of the embedding")
    embed.add_argument(
        "-o", "--output", type=Path, default=Path("embedding.csv"), help="where the positions go"
    )
    embed.add_argument("--noise", default="tste", help="tste, ste, ckl, logistic, gnmds or soe")
    embed.add_argument("--lapse", default="0.05", help="careless share, or 'estimate'")
    embed.add_argument("--held-out", type=float, default=0.2, help="share of answers to test on")
    embed.add_argument("--picture", type=Path, help="default: the output with .png")
    embed.add_argument("--no-picture", action="store_true", help="positions only")
    embed.add_argument("--seed", type=int, default=0, help="of the first positions")
    embed.set_defaults(run=_embed)


def _add_plan(commands: Any) -> None:
    planner = commands.add_parser(
        "plan",
        help="how many answers will I need?",
        description="Simulate the experiment with a crowd as careful as people comparing alien "
        "eggs, and count the answers until the embedding is nearly as good as it can be.",
    )
    planner.add_argument("--items", type=int, required=True, help="how many there are")
    planner.add_argument("--dimensions", type=int, default=2, help="of the embedding")
    planner.add_argument("--within", type=float, default=0.03, help="of the best accuracy")
    planner.add_argument("--runs", type=int, default=5, help="simulated experiments")
    planner.add_argument("--per-participant", type=int, default=50, help="answers each")
    planner.add_argument("--seed", type=int, default=0, help="of the simulated crowd")
    planner.set_defaults(run=_plan)


@contextmanager
def _extra() -> Iterator[None]:
    """Say what to install if the parts of the web service are not there."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ValueError(
            f"the web service needs {error.name}, which is not installed: "
            "pip install 'accelerando[crowd]'"
        ) from error


def _new(options: argparse.Namespace) -> int:
    from accelerando.crowd.serve.new import run_new

    return run_new(options)


def _serve(options: argparse.Namespace) -> int:
    with _extra():
        from accelerando.crowd.serve.commands import run_serve

    return run_serve(options)


def _demo(options: argparse.Namespace) -> int:
    with _extra():
        from accelerando.crowd._demo import run_demo

    return run_demo(options)


def _backup(options: argparse.Namespace) -> int:
    with _extra():
        from accelerando.crowd.serve.backup import run_backup

    return run_backup(options)


def _restore(options: argparse.Namespace) -> int:
    with _extra():
        from accelerando.crowd.serve.backup import run_restore

    return run_restore(options)


def _embed(options: argparse.Namespace) -> int:
    from accelerando.crowd._cli import run_embed

    return run_embed(options)


def _plan(options: argparse.Namespace) -> int:
    from accelerando.crowd._cli import run_plan

    return run_plan(options)
