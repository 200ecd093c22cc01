"""Command line of ``accelerando crowd``.

It is separate from the library, because ``accelerando --help`` must not import NumPy.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any


def add_commands(commands: Any) -> None:
    """Add the parser of ``crowd``; the commands import the library when they run."""
    crowd = commands.add_parser(
        "crowd",
        help="ask a crowd on the web, embed its answers, plan how many are needed",
        description="Ask people 'is a or b more like h?' on the web, turn answers into positions, "
        "or estimate by simulation how many answers an experiment needs.",
    )
    parts = crowd.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_new(parts)
    _add_serve(parts)
    _add_backup(parts)
    _add_restore(parts)
    _add_check(parts)
    _add_links(parts)
    _add_codes(parts)
    _add_analyze(parts)
    _add_reproduce(parts)
    _add_demo(parts)
    _add_embed(parts)
    _add_plan(parts)


def _add_new(commands: Any) -> None:
    new = commands.add_parser(
        "new",
        help="write a template of an experiment",
        description="Write a commented experiment.yaml and a folder for images.",
    )
    new.add_argument("directory", type=Path, help="the folder to create")
    new.set_defaults(run=_new)


def _add_serve(commands: Any) -> None:
    serve = commands.add_parser(
        "serve",
        help="run experiments on the web",
        description="Check the experiments, print the links, and serve participants and "
        "experimenters until Ctrl-C. All answers are stored.",
    )
    serve.add_argument(
        "experiments",
        type=Path,
        nargs="*",
        metavar="EXPERIMENT",
        help="folder, experiment.yaml, or Salmon's init.yaml (default: those in the database)",
    )
    serve.add_argument("--items", type=Path, help="ZIP file, CSV file or folder with the items")
    _add_url(serve, "crowd.sqlite next to the first experiment")
    serve.add_argument(
        "--host", default="127.0.0.1", help="address to listen on; 127.0.0.1 is this computer only"
    )
    _add_port(serve)
    serve.add_argument("--processes", type=int, default=1, help="number of web processes")
    serve.add_argument(
        "--no-worker",
        action="store_true",
        help="run web processes only; another host runs the worker",
    )
    serve.add_argument("--turn", type=float, default=0.25, help="seconds between refits")
    serve.add_argument(
        "--scheduler", metavar="ADDRESS", help="Dask scheduler for experiments with many items"
    )
    serve.add_argument(
        "--certificate", type=Path, metavar="FILE", help="TLS certificate with its chain"
    )
    serve.add_argument(
        "--key", type=Path, metavar="FILE", help="private key of the TLS certificate"
    )
    serve.add_argument("--proxy", metavar="ADDRESSES", help="proxies whose headers are trusted")
    serve.add_argument("--root-path", default="", help="URL prefix of the proxy")
    serve.add_argument(
        "--reset-password", action="store_true", help="generate and print a new password"
    )
    serve.set_defaults(run=_lazy("crowd.serve.commands.run_serve"))


def _add_demo(commands: Any) -> None:
    demo = commands.add_parser(
        "demo",
        help="try the service with simulated participants",
        description="Serve an experiment about colors on this computer, with simulated "
        "participants. Ctrl-C ends it and deletes its data.",
    )
    _add_port(demo)
    demo.add_argument("--people", type=int, default=12, help="simulated participants at a time")
    demo.add_argument("--answers", type=int, default=4000, help="number of simulated answers")
    demo.add_argument("--seed", type=int, default=0, help="seed of the simulated participants")
    demo.add_argument("--no-browser", action="store_true", help="do not open a browser")
    demo.set_defaults(run=_lazy("crowd._demo.run_demo"))


def _add_backup(commands: Any) -> None:
    backup = commands.add_parser(
        "backup",
        help="write all experiments of a server to one file",
        description="Write every experiment of a server, with its items and answers, to one ZIP. "
        "The server may be running.",
    )
    _add_database(backup)
    backup.add_argument(
        "-o",
        "--output",
        type=Path,
        help="the file to write (default: crowd-backup-DATE-TIME.zip)",
    )
    backup.add_argument(
        "--key-file",
        type=Path,
        metavar="FILE",
        help="also write the server's secret, which restoring sessions and links needs; keep it "
        "elsewhere",
    )
    backup.set_defaults(run=_lazy("crowd.serve.backup.run_backup"))


def _add_restore(commands: Any) -> None:
    restore = commands.add_parser(
        "restore",
        help="restore experiments from a backup or an archive",
        description="Restore the experiments of a backup, or the one of an archive, on a server. "
        "They are paused at first.",
    )
    restore.add_argument("file", type=Path, help="a file of `crowd backup`, or an archive.zip")
    _add_database(restore)
    restore.add_argument(
        "--key-file",
        type=Path,
        metavar="FILE",
        help="the key file of the backup; the database must be empty, and gets accounts, "
        "sessions and links, too",
    )
    restore.set_defaults(run=_lazy("crowd.serve.backup.run_restore"))


def _add_check(commands: Any) -> None:
    check = commands.add_parser(
        "check",
        help="read a whole database and say whether it is sound",
        description="Read every row of the database of a server. If it is damaged, the exit code "
        "is 2 and the message names the remedy. The server may be running.",
    )
    _add_database(check)
    check.set_defaults(run=_lazy("crowd.serve.check.run_check"))


def _add_links(commands: Any) -> None:
    links = commands.add_parser(
        "links",
        help="print links for recruiting services and personal links",
        description="Print the links of each experiment that only this server can make: for "
        "Prolific, SONA and MTurk, and with --ids one for each person.",
    )
    _add_database(links)
    links.add_argument(
        "--url", default="http://127.0.0.1:8421", help="address of the server, with its prefix"
    )
    links.add_argument("--ids", type=Path, metavar="FILE", help="text file with one ID per line")
    links.set_defaults(run=_lazy("crowd.serve.backup.run_links"))


def _add_codes(commands: Any) -> None:
    codes = commands.add_parser(
        "codes",
        help="check completion codes that people have sent",
        description="Check a list of completion codes, one per line: valid, used before, twice in "
        "the list, of a session that has not ended, or unknown.",
    )
    _add_database(codes)
    codes.add_argument(
        "--check", type=Path, metavar="FILE", required=True, help="text or CSV file with the codes"
    )
    codes.add_argument(
        "--experiment", metavar="NAME", help="of which; not needed if the server has only one"
    )
    codes.add_argument(
        "--use", action="store_true", help="use up the valid codes, because they are paid now"
    )
    codes.set_defaults(run=_lazy("crowd.serve.paid.run_codes"))


def _add_analyze(commands: Any) -> None:
    analyze = commands.add_parser(
        "analyze",
        help="fit the map of an archive and save how it was made",
        description="Fit the answers in an archive, and save the map with its exclusions, noise "
        "model, dimension, seed and software versions, so that it can be reproduced bit for bit.",
    )
    analyze.add_argument("archive", type=Path, help="archive.zip, downloaded from the dashboard")
    analyze.add_argument(
        "-o", "--output", type=Path, default=Path("analysis.json"), help="file of the analysis"
    )
    analyze.add_argument("--map", type=Path, metavar="FILE", help="also write a CSV file")
    analyze.add_argument("--exclude", nargs="+", metavar="NAME", help="participants to leave out")
    analyze.add_argument(
        "--dimensions", help="dimensions of the map (default: as the experiment says)"
    )
    analyze.add_argument("--noise", help="noise model, or 'auto' (default: as the experiment says)")
    analyze.add_argument("--alpha", type=float, help="degrees of freedom of tste")
    analyze.add_argument(
        "--lapse", help="share of careless answers (default: as the experiment says)"
    )
    analyze.add_argument(
        "--seed", type=int, help="seed of the fit (default: the seed of the experiment)"
    )
    analyze.add_argument(
        "--cold", action="store_true", help="do not start from the map of the dashboard"
    )
    analyze.set_defaults(run=_lazy("crowd.serve.analysis.run_analyze"))


def _add_reproduce(commands: Any) -> None:
    reproduce = commands.add_parser(
        "reproduce",
        help="repeat a saved analysis and compare the maps bit for bit",
        description="Repeat the fit of a file of `crowd analyze`. It is refused if the answers or "
        "the software versions differ.",
    )
    reproduce.add_argument("archive", type=Path, help="the archive.zip of the analysis")
    reproduce.add_argument("analysis", type=Path, help="the file of `crowd analyze`")
    reproduce.add_argument("--map", type=Path, metavar="FILE", help="also write a CSV file")
    reproduce.set_defaults(run=_lazy("crowd.serve.analysis.run_reproduce"))


def _add_database(parser: Any) -> None:
    parser.add_argument(
        "directory", type=Path, nargs="?", help="folder with crowd.sqlite (default: this one)"
    )
    _add_url(parser, "the folder's crowd.sqlite")


def _add_url(parser: Any, otherwise: str) -> None:
    parser.add_argument(
        "--database",
        metavar="URL",
        help="postgresql://USER:PASSWORD@HOST/NAME or sqlite:///FILE (default: the environment "
        f"variable ACCELERANDO_DATABASE, or {otherwise})",
    )


def _add_port(parser: Any) -> None:
    parser.add_argument(
        "--port", type=int, default=8421, help="port to listen on; 0 is any free port"
    )


def _add_embed(commands: Any) -> None:
    embed = commands.add_parser(
        "embed",
        help="compute positions from answers",
        description="Fit an embedding to the answers in a file: an export, Salmon's responses "
        "CSV, or a .npy/.npz array of triplets.",
    )
    embed.add_argument("answers", type=Path, help="CSV with a header, .npy or .npz")
    embed.add_argument("--dimensions", default="2", help="dimensions of the embedding, or 'auto'")
    embed.add_argument(
        "-o", "--output", type=Path, default=Path("embedding.csv"), help="file of the positions"
    )
    embed.add_argument(
        "--noise", default="tste", help="tste, ste, ckl, logistic, gnmds, soe, or 'auto'"
    )
    embed.add_argument(
        "--alpha", type=float, help="degrees of freedom of tste (default: max(1, dimensions - 1))"
    )
    embed.add_argument(
        "--lapse", default="0.05", help="share of careless answers, 'estimate' or 'auto'"
    )
    embed.add_argument("--held-out", type=float, default=0.2, help="share of answers to test on")
    embed.add_argument(
        "--picture", type=Path, help="file of the figure (default: the output with .png)"
    )
    embed.add_argument("--no-picture", action="store_true", help="do not draw a figure")
    embed.add_argument("--seed", type=int, default=0, help="seed of the random starts")
    embed.set_defaults(run=_embed)


def _add_plan(commands: Any) -> None:
    planner = commands.add_parser(
        "plan",
        help="estimate how many answers an experiment needs",
        description="Simulate the experiment with participants as careful as people who compared "
        "alien eggs, and count the answers until the accuracy is close to the best possible one.",
    )
    planner.add_argument("--items", type=int, required=True, help="number of items")
    planner.add_argument("--dimensions", type=int, default=2, help="dimensions of the embedding")
    planner.add_argument(
        "--within",
        type=float,
        default=0.03,
        help="distance from the best accuracy that is good enough",
    )
    planner.add_argument("--runs", type=int, default=5, help="number of simulated experiments")
    planner.add_argument("--per-participant", type=int, default=50, help="answers per participant")
    planner.add_argument("--seed", type=int, default=0, help="seed of the simulations")
    planner.set_defaults(run=_plan)


def _lazy(place: str) -> Callable[[argparse.Namespace], int]:
    """Return a command that imports the function at `place`, in this package, when it runs."""
    module, _, function = place.rpartition(".")

    def run(options: argparse.Namespace) -> int:
        found = importlib.import_module(f"accelerando.{module}")
        return int(getattr(found, function)(options))

    return run


def _new(options: argparse.Namespace) -> int:
    from accelerando.crowd.serve.new import run_new

    return run_new(options)


def _embed(options: argparse.Namespace) -> int:
    from accelerando.crowd._cli import run_embed

    def draw(path: Path, positions: Any, **settings: Any) -> None:
        from accelerando import plot

        plot.embedding(positions, **settings).savefig(path, dpi=150)

    return run_embed(options, draw)


def _plan(options: argparse.Namespace) -> int:
    from accelerando.crowd._cli import run_plan

    return run_plan(options)
