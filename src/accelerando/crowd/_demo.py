"""``accelerando crowd demo``: an experiment about colors, with simulated participants."""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import webbrowser
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from accelerando._validation import check_integer
from accelerando.crowd._demo_colors import color_disc, png
from accelerando.crowd._demo_participants import SimulatedParticipants
from accelerando.crowd._respond import AlienEggs
from accelerando.crowd.experiment import load_experiment
from accelerando.crowd.serve.commands import ACCOUNT, database_url, listen, prepare
from accelerando.crowd.serve.processes import Serving, supervise
from accelerando.crowd.store import Store

__all__ = ["run_demo", "write_demo"]

NAME = "colors"
_SETTINGS = {
    "name": NAME,
    "title": "Which colors look alike?",
    "items": "images",
    "instructions": "<p>You will see one color on top and two below. Choose the one below that is "
    "<b>more like</b> the one on top.</p><p>There are no wrong answers: trust your first "
    "impression.</p>",
    "practice": [{"head": 8, "left": 9, "right": 16, "winner": 9}],
    "checks": {
        # A neighbor on the outer ring against the opposite side: easy for attentive participants.
        "queries": [
            {"head": 8, "left": 9, "right": 16, "winner": 9},
            {"head": 12, "left": 20, "right": 13, "winner": 13},
            {"head": 18, "left": 17, "right": 10, "winner": 17},
        ],
        "every": 12,
        "repeat_every": 15,
    },
    "participants": {"answers": 40},
    "breaks": {"every": 20, "text": "<p>You are halfway. Rest your eyes for a moment.</p>"},
    "debrief": "<p>You have helped to draw a map of colors. Look at it on the dashboard!</p>",
    "completion": {"done": {"code": "COLORS-{code}"}},
    "skip": True,
}


def run_demo(options: argparse.Namespace) -> int:
    """Serve the experiment with simulated participants until Ctrl-C."""
    check_integer("crowd demo", "--people", options.people, minimum=0)
    check_integer("crowd demo", "--answers", options.answers, minimum=0)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="accelerando-demo-")))
        write_demo(folder)
        url = database_url(None, [folder])
        store = Store(url)
        password = prepare(store, [load_experiment(folder)])
        store.close()
        listener = stack.enter_context(listen("127.0.0.1", options.port))
        base = f"http://127.0.0.1:{listener.getsockname()[1]}"

        def ready() -> None:
            print(f"dashboard:     {base}/experiments/{NAME}")
            print(f"sign in as:    {ACCOUNT}  password: {password or 'ACCELERANDO_PASSWORD'}")
            print(f"take part:     {base}/e/{NAME}/")
            print(f"{options.people} simulated participants answer, too.")
            print("stop:          Ctrl-C (nothing is kept)", flush=True)
            if options.people:
                stack.enter_context(
                    participants(base, options.people, options.answers, options.seed)
                )
            if not options.no_browser:
                # In a thread, because a browser may block.
                page = f"{base}/experiments/{NAME}"
                threading.Thread(target=webbrowser.open, args=(page,), daemon=True).start()

        supervise(Serving(database=url), listener, ready)
    print("Stopped. The answers of the demo are deleted.")
    return 0


def write_demo(folder: Path) -> Path:
    """Write the experiment's settings and images to a folder; return the settings file.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = write_demo(Path(folder))
    ...     len(load_experiment(file).items)
    24
    """
    images = folder / "images"
    images.mkdir(parents=True)
    for number, color in enumerate(color_disc()):
        (images / f"{number:02d}-{color.name}.png").write_bytes(png(color.rgb))
    file = folder / "experiment.yaml"
    file.write_text(json.dumps(_SETTINGS, indent=2), encoding="utf-8")
    return file


def participants(base: str, people: int, answers: int, seed: int) -> SimulatedParticipants:
    """Return simulated participants whose perception of the colors follows CIELAB."""
    positions = np.array([color.position for color in color_disc()])
    answer = AlienEggs(positions, floor=0.04, rate=30.0)
    return SimulatedParticipants(base, NAME, answer, people=people, answers=answers, seed=seed)
