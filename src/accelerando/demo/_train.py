"""First block of the demo: the same network with a constant batch and with growing batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import pandas as pd

EPOCHS = 30
INITIAL = 16  # rows of the first batch, in all runs
LR, MOMENTUM = 0.05, 0.9
HIDDEN = 128
TEST_SHARE = 0.25
TARGET = 0.98  # test accuracy; chosen before any run, and equal for all


class Reached(NamedTuple):
    """Updates and seconds to the target for one policy, as means over the runs that reached it.

    Attributes
    ----------
    updates, seconds : float
        NaN if no run reached the target.
    runs, of : int
        How many of how many runs reached it.
    """

    updates: float
    seconds: float
    runs: int
    of: int


Training = dict[str, list["pd.DataFrame"]]  # one frame per seed, by the name of the policy


def policies() -> dict[str, Any]:
    """Return the batch-size policies, which all start with the same size.

    GeoDamp doubles the size four times, at equal distances, for any number of epochs.
    """
    from accelerando.batch_size import Constant, GeoDamp, RadaDamp

    return {
        "constant": Constant(INITIAL),
        "GeoDamp": GeoDamp(initial=INITIAL, delay=EPOCHS / 5, factor=2),
        "RadaDamp": RadaDamp(initial=INITIAL),
    }


def train(seeds: Iterable[int], report: Callable[[str], None] = lambda text: None) -> Training:
    """Train once with each policy and seed; return each run's ``history_frame()``.

    The column ``valid_acc`` is the accuracy on a held-out test set, which no run uses for training
    or for a decision.
    """
    fit = _trainer()
    chosen = policies()
    # PyTorch's first updates in a process are slow; exclude them from all measurements.
    fit(chosen["constant"], 0, max_epochs=1)
    frames: Training = {label: [] for label in chosen}
    for seed in seeds:
        for label, policy in chosen.items():
            report(f"Training with {label} batches, seed {seed}")
            frames[label].append(fit(policy, seed))
    return frames


def reached(frames: list[pd.DataFrame]) -> Reached:
    """Return the means of updates and seconds until the runs' first epoch at the target."""
    import pandas as pd

    rows = [frame[frame["valid_acc"] >= TARGET].head(1) for frame in frames]
    found = pd.concat(rows)
    return Reached(
        float(found["updates"].mean()), float(found["seconds"].mean()), len(found), len(frames)
    )


def _trainer() -> Callable[..., pd.DataFrame]:
    """Load the data; return a function that trains on it with a policy and a seed."""
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

    def fit(batch_size: Any, seed: int, max_epochs: int = EPOCHS) -> pd.DataFrame:
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

    return fit


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one CPU core inside the block.

    Models this small gain nothing from a second core, and threads that wait for each other on a
    busy machine make them tens of times slower.
    """
    import torch
    from threadpoolctl import threadpool_limits

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(before)
