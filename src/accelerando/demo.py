"""``accelerando demo``: train with growing batches on real data, in a few seconds."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accelerando._files import check_output
from accelerando._validation import check_integer

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console
    from rich.table import Table

FIGURE = "accelerando-demo.png"
EPOCHS = 30
INITIAL = 16  # rows of the first batch, in all three runs
LR, MOMENTUM = 0.05, 0.9
HIDDEN = 128
TEST_SHARE = 0.25

NEXT = """\
What to try next:
  accelerando demo --epochs 60 --seed 1    longer, with another seed
  python examples/growing_batches.py       the code of one run
  python examples/own_policy.py            your own policy, in ten lines"""


def add_commands(commands: Any) -> None:
    """Register ``demo``. The command line calls it, so it imports nothing heavy."""
    parser = commands.add_parser(
        "demo",
        help="train on real data with a constant and with growing batches, in a few seconds",
        description="Train one small network three times on scikit-learn's handwritten digits: "
        "with a constant batch size, with GeoDamp and with RadaDamp. Everything else is equal. "
        "Prints one table and saves one figure.",
    )
    parser.add_argument(
        "--output",
        metavar="PNG",
        default=FIGURE,
        help="where to save the figure (default: %(default)s; .pdf and .svg work, too)",
    )
    parser.add_argument(
        "--epochs",
        metavar="N",
        type=int,
        default=EPOCHS,
        help="passes over the training data (default: %(default)s)",
    )
    parser.add_argument(
        "--seed",
        metavar="N",
        type=int,
        default=0,
        help="seed of parameters and shuffles, equal in all runs (default: %(default)s)",
    )
    parser.add_argument("--no-picture", action="store_true", help="print the table only")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run ``accelerando demo`` and return the exit code."""
    from rich.console import Console

    console = Console(highlight=False)
    output = None if arguments.no_picture else check_output(arguments.output)
    check_integer("accelerando demo", "--epochs", arguments.epochs)
    check_integer("accelerando demo", "--seed", arguments.seed, minimum=0)
    with console.status("Loading PyTorch") as status:
        frames = train(
            arguments.epochs,
            arguments.seed,
            report=lambda label: status.update(f"Training with {label}"),
        )
    console.print(table(frames, arguments.seed))
    if output is not None:
        draw(frames, output, console)
    console.print(NEXT, markup=False)
    return 0


def policies(epochs: int) -> dict[str, Any]:
    """Return the three batch-size policies, which all start with the same size.

    GeoDamp doubles the size four times, at equal distances, for any number of epochs.
    """
    from accelerando.batch_size import Constant, GeoDamp, RadaDamp

    return {
        "Constant": Constant(INITIAL),
        "GeoDamp": GeoDamp(initial=INITIAL, delay=epochs / 5, factor=2),
        "RadaDamp": RadaDamp(initial=INITIAL),
    }


def train(
    epochs: int, seed: int, *, report: Callable[[str], None] = lambda label: None
) -> dict[str, pd.DataFrame]:
    """Train once with each policy and return their ``history_frame()``.

    Their columns ``valid_acc`` and ``valid_loss`` are those of a held-out test set, which no run
    uses for training or for a decision.
    """
    import torch
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    from accelerando import NeuralNetClassifier

    X, y = load_digits(return_X_y=True)
    X = (X / 16).astype("float32")
    X, X_test, y, y_test = train_test_split(X, y, test_size=TEST_SHARE, stratify=y, random_state=0)

    def held_out(dataset: Any, y: Any = None, **fit_params: Any) -> tuple[Any, Any]:
        return dataset, type(dataset)(X_test, y_test)

    def network() -> torch.nn.Module:
        nn = torch.nn
        return nn.Sequential(nn.Linear(64, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 10))

    def fit(batch_size: Any, max_epochs: int) -> pd.DataFrame:
        net = NeuralNetClassifier(
            network,
            criterion=torch.nn.CrossEntropyLoss,
            optimizer=torch.optim.SGD,
            optimizer__momentum=MOMENTUM,
            optimizer__nesterov=True,
            lr=LR,
            max_epochs=max_epochs,
            batch_size=batch_size,
            train_split=held_out,
            random_state=seed,
            verbose=0,
        )
        frame = net.fit(X, y).history_frame()
        if len(frame) < max_epochs:  # fit returns after Ctrl-C; here it must end the demo
            raise KeyboardInterrupt
        return frame

    chosen = policies(epochs)
    frames = {}
    with one_thread():
        # PyTorch's first updates in a process are slow; exclude them from all measurements.
        fit(chosen["Constant"], 1)
        for label, policy in chosen.items():
            report(label)
            frames[label] = fit(policy, epochs)
    return frames


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one CPU core inside the block.

    A network this small gains nothing from a second core, and threads that wait for each other on
    a busy machine make it tens of times slower.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def table(frames: dict[str, pd.DataFrame], seed: int) -> Table:
    """Return the table of the results."""
    from rich.table import Table

    result = Table(
        title="Handwritten digits: one network, three ways to choose the batch size",
        caption=f"Equal for all: first batch {INITIAL}, lr {LR}, momentum {MOMENTUM}, seed {seed}.",
        title_style="bold",
        title_justify="left",
        caption_justify="left",
    )
    result.add_column("policy")
    for name in ("batch size", "test accuracy", "epochs", "model updates", "seconds"):
        result.add_column(name, justify="right", no_wrap=True)
    for label, frame in frames.items():
        last = frame.iloc[-1]
        result.add_row(
            label,
            f"{INITIAL} to {int(last['batch_size']):,}",
            f"{last['valid_acc']:.1%}".replace("%", " %"),
            f"{int(last['epoch'])}",
            f"{int(last['updates']):,}",
            f"{last['seconds']:.2f}",
        )
    return result


def draw(frames: dict[str, pd.DataFrame], output: Path, console: Console) -> None:
    """Save the figure, or print what is missing for it."""
    from accelerando import plot

    try:
        figure = plot.training(
            frames, held_out="test", title="Growing batches on handwritten digits"
        )
    except ImportError as error:
        console.print(f"No figure was saved. {error}", markup=False, soft_wrap=True)
        return
    figure.savefig(output, dpi=110)
    console.print(f"Figure saved: {output}", markup=False, soft_wrap=True)
