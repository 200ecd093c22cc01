"""Draw docs/images/training.png: python docs/training-picture.py

The runs of ``accelerando demo``, three seeds each, as ``plot.training`` draws them.
"""

from pathlib import Path

from accelerando import plot
from accelerando.demo import _train

PICTURE = Path(__file__).parent / "images" / "training.png"


def main() -> None:
    with _train.one_thread():
        runs = _train.train(range(3))
    plot.training(runs, held_out="test").savefig(PICTURE, dpi=80)


if __name__ == "__main__":
    main()
