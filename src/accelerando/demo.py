"""``accelerando demo``: what growing batches do, on real data, in a few seconds."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console
    from rich.table import Table

    from accelerando.batch_size import BatchSizePolicy

PICTURE = "accelerando-demo.png"
FORMATS = (".png", ".pdf", ".svg")
EPOCHS = 30
INITIAL = 16  # rows of the first batch, in all three runs
LR, MOMENTUM = 0.05, 0.9
HIDDEN = 128
TEST_SHARE = 0.25

NEXT = """\
What to try next:
  accelerando demo --epochs 60 --seed 1    longer, with other random numbers
  python examples/growing_batches.py       the code of one run, to copy
  python examples/own_policy.py            your own policy, in ten lines"""


def add_commands(commands: Any) -> None:
    """Register ``demo``; called by the command line, which loads nothing heavy before it runs."""
    parser = commands.add_parser(
        "demo",
        help="train on real data with a constant and with growing batches, in a few seconds",
        description="Train one small network three times on scikit-learn's handwritten digits: "
        "with a constant batch size, with GeoDamp and with RadaDamp. Everything else is equal. "
        "Prints one table and saves one picture.",
    )
    parser.add_argument(
        "--output",
        metavar="PNG",
        default=PICTURE,
        help="where to save the picture (default: %(default)s; .pdf and .svg work, too)",
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
        help="seed of parameters and shuffles, the same in all runs (default: %(default)s)",
    )
    parser.add_argument("--no-picture", action="store_true", help="print the table only")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Carry out ``accelerando demo``."""
    from rich.console import Console

    console = Console(highlight=False)
    output = None if arguments.no_picture else check_output(arguments.output)
    _check_number("--epochs", arguments.epochs, least=1)
    _check_number("--seed", arguments.seed, least=0)
    with console.status("Loading PyTorch") as status:
        frames = train(
            arguments.epochs,
            arguments.seed,
            tell=lambda label: status.update(f"Training with {label}"),
        )
    console.print(table(frames, arguments.seed))
    if output is not None:
        draw(frames, output, console)
    console.print(NEXT, markup=False)
    return 0


def check_output(output: str) -> Path:
    """Return the picture's path; what cannot be written is said before training, not after."""
    path = Path(output)
    if path.suffix.lower() not in FORMATS:
        allowed = ", ".join(FORMATS)
        raise ValueError(f"--output must end in one of {allowed}. Got {output!r} instead.")
    if not path.absolute().parent.is_dir():
        raise ValueError(
            f"--output: there is no folder {str(path.parent)!r}. Create it, or choose another one."
        )
    return path


def _check_number(name: str, value: int, *, least: int) -> None:
    if value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}. Got {value} instead.")


def policies(epochs: int) -> dict[str, BatchSizePolicy]:
    """Return the three ways to choose the batch size, all starting with the same one.

    GeoDamp doubles it four times, at equal distances, however long the demo runs.
    """
    from accelerando.batch_size import Constant, GeoDamp, RadaDamp

    return {
        "Constant": Constant(INITIAL),
        "GeoDamp": GeoDamp(initial=INITIAL, delay=epochs / 5, factor=2),
        "RadaDamp": RadaDamp(initial=INITIAL),
    }


def train(
    epochs: int, seed: int, *, tell: Callable[[str], None] = lambda label: None
) -> dict[str, pd.DataFrame]:
    """Train once with each policy and return their ``history_frame()``.

    ``valid_acc`` and ``valid_loss`` in them are those of a held-out test set that no run trains on
    or takes a decision from.
    """
    import torch
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split
    from skorch.dataset import Dataset
    from skorch.helper import predefined_split

    from accelerando import NeuralNetClassifier

    X, y = load_digits(return_X_y=True)
    X = (X / 16).astype("float32")
    X, X_test, y, y_test = train_test_split(X, y, test_size=TEST_SHARE, stratify=y, random_state=0)

    def network() -> torch.nn.Module:
        nn = torch.nn
        return nn.Sequential(nn.Linear(64, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 10))

    def fit(batch_size: BatchSizePolicy, max_epochs: int) -> pd.DataFrame:
        net = NeuralNetClassifier(
            network,
            criterion=torch.nn.CrossEntropyLoss,
            optimizer=torch.optim.SGD,
            optimizer__momentum=MOMENTUM,
            optimizer__nesterov=True,
            lr=LR,
            max_epochs=max_epochs,
            batch_size=batch_size,
            train_split=predefined_split(Dataset(X_test, y_test)),
            random_state=seed,
            verbose=0,
        )
        frame = net.fit(X, y).history_frame()
        if len(frame) < max_epochs:  # fit ends quietly after Ctrl-C; here it means the whole demo
            raise KeyboardInterrupt
        return frame

    chosen = policies(epochs)
    frames = {}
    with one_thread():
        # PyTorch's first updates in a process are slow; nobody's seconds should contain them.
        fit(chosen["Constant"], 1)
        for label, policy in chosen.items():
            tell(label)
            frames[label] = fit(policy, epochs)
    return frames


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one core inside.

    So small a network gains nothing from a second one, and threads that wait for each other on a
    busy machine make it tens of times slower.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def table(frames: dict[str, pd.DataFrame], seed: int) -> Table:
    """Return the demo's one table."""
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
    """Save the picture, or say what is missing for it."""
    from accelerando import plot

    try:
        figure = plot.training(
            frames, held_out="test", title="Growing batches on handwritten digits"
        )
    except ImportError as error:
        console.print(f"No picture this time. {error}", markup=False, soft_wrap=True)
        return
    figure.savefig(output, dpi=110)
    console.print(f"The picture of it: {output}", markup=False, soft_wrap=True)
