"""From a folder of images to a map on which similar ones lie close together.

Run it with ``python examples/images_to_map.py [folder [map.png]]``. Without a folder it paints one.
The people are simulated and look at colors only; ``accelerando crowd serve`` asks real ones.
"""

import colorsys
import sys
import tempfile
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.image import imread, imsave

from accelerando.crowd import ARR, FromEmbedding, OrdinalEmbedding, simulate


def paint(folder: Path, count: int = 14) -> None:
    """Fill a folder with squares of all hues."""
    for i in range(count):
        color = np.array(colorsys.hsv_to_rgb(i / count, 0.7, 0.9))
        imsave(folder / f"hue-{360 * i // count:03d}.png", np.ones((32, 32, 3)) * color)


def main(folder: Path, picture: str | None) -> None:
    files = sorted(path for path in folder.iterdir() if path.suffix in {".png", ".jpg"})
    images = [np.asarray(imread(path), dtype=float)[..., :3] for path in files]
    colors = np.array([image.mean(axis=(0, 1)) / max(1.0, image.max()) for image in images])

    # People answer "is a or b more like h?" with errors; ARR asks what teaches most.
    crowd = FromEmbedding(4 * colors, lapse=0.05)
    asked = simulate(len(files), ARR(), crowd, n_answers=30 * len(files), random_state=0)

    held_out, known = asked.triplets[::5], np.delete(asked.triplets, np.s_[::5], axis=0)
    model = OrdinalEmbedding(n_components=2, n_items=len(files), random_state=0).fit(known)
    print(f"{len(files)} images, {len(asked.triplets)} answers")
    print(f"accuracy on answers that were kept back: {model.score(held_out):.2f}")
    for path, (x, y) in zip(files, model.embedding_, strict=True):
        print(f"{path.name:16} {x:7.2f} {y:7.2f}")

    if picture is not None:
        figure = Figure(figsize=(5, 5), layout="constrained")
        panel = figure.subplots()
        for image, (x, y) in zip(images, model.embedding_, strict=True):
            size = 0.06 * np.ptp(model.embedding_, axis=0).max()
            panel.imshow(
                image / max(1.0, image.max()), extent=(x - size, x + size, y - size, y + size)
            )
        panel.autoscale()
        figure.savefig(picture)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as painted:
        if len(sys.argv) < 2:
            paint(Path(painted))
        main(Path(sys.argv[1] if len(sys.argv) > 1 else painted), *(sys.argv[2:3] or [None]))
