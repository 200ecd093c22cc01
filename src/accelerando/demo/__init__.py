"""``accelerando demo``: all three blocks on one screen and in one figure, in half a minute."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from accelerando._extras import require
from accelerando._files import check_output
from accelerando._this_command import this_command
from accelerando._validation import check_integer

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from accelerando.demo._picture import Results

FIGURE = "accelerando-demo.png"
SEEDS = 3

# Every hint works from any folder, with nothing but what `make demo` has installed.
HINTS = (
    ("demo --seed 10", "the same with other seeds"),
    (
        'plan --batch-size "RadaDamp(initial=64)" --examples 50000 --epochs 20 '
        "--parameters 1000000 --seconds-per-example 1ms",
        "what a run takes, before it is rented",
    ),
    ("crowd plan --items 30", "how many answers an experiment needs"),
    ("--help", "all commands"),
)


def add_commands(commands: Any) -> None:
    """Register ``demo``. The command line calls it, so it imports nothing heavy."""
    parser = commands.add_parser(
        "demo",
        help="training, search and questions against what people use today, in half a minute",
        description="Train a network with a constant and with growing batches, search its "
        "hyperparameters with Hyperband and at random, and ask a simulated crowd chosen and random "
        "questions. Everything is computed on this machine. Prints one table and saves one figure.",
    )
    parser.add_argument(
        "--output",
        metavar="PNG",
        default=FIGURE,
        help="where to save the figure; .pdf and .svg work, too",
    )
    parser.add_argument(
        "--seed", metavar="N", type=int, default=0, help="seed of the first repetition"
    )
    parser.add_argument(
        "--seeds", metavar="N", type=int, default=SEEDS, help="number of repetitions"
    )
    parser.add_argument("--no-picture", action="store_true", help="print the table only")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run ``accelerando demo`` and return the exit code."""
    require("train", "accelerando demo")
    from rich.console import Console

    from accelerando.demo._screen import table

    console = Console(highlight=False)
    output = None if arguments.no_picture else check_output(arguments.output)
    check_integer("accelerando demo", "--seed", arguments.seed, minimum=0)
    check_integer("accelerando demo", "--seeds", arguments.seeds)
    results = compute(range(arguments.seed, arguments.seed + arguments.seeds), console)
    console.print(table(results))
    if output is not None:
        save(results, output, console)
    console.print("What to try next:")
    for command, purpose in HINTS:
        console.print(f"  # {purpose}\n  {this_command()} {command}", markup=False, soft_wrap=True)
    return 0


def compute(seeds: range, console: Console) -> Results:
    """Run all three blocks with these seeds."""
    with console.status("Loading PyTorch") as status:
        from accelerando.demo import _crowd, _search, _train
        from accelerando.demo._picture import Results

        def report(text: str) -> None:
            status.update(text)

        with _train.one_thread():
            training = _train.train(seeds, report)
            searches = _search.search(seeds, report)
            crowds = _crowd.ask(seeds, report)
    return Results(training, searches, crowds)


def save(results: Results, output: Path, console: Console) -> None:
    """Save the figure, or print what is missing for it."""
    from accelerando.demo._picture import draw

    try:
        figure = draw(results)
    except ImportError as error:
        console.print(f"No figure was saved. {error}", markup=False, soft_wrap=True)
        return
    figure.savefig(output, dpi=110)
    console.print(f"Figure saved: {output.absolute()}", markup=False, soft_wrap=True)
