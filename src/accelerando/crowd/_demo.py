"""``accelerando crowd demo``: a ready experiment about colours, with simulated participants."""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import webbrowser
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from accelerando.crowd._demo_colors import colour_disc, png
from accelerando.crowd._demo_participants import Crowd
from accelerando.crowd._respond import AlienEggs
from accelerando.crowd.experiment import load_experiment
from accelerando.crowd.serve.commands import ACCOUNT, database_url, listen, prepare
from accelerando.crowd.serve.processes import Serving, supervise
from accelerando.crowd.store import Store

__all__ = ["run_demo", "write_demo"]

NAME = "colours"
_SETTINGS = {
    "name": NAME,
    "title": "Which colours look alike?",
    "items": "images",
    "instructions": "<p>You will see one colour on top and two below. Choose the one below that is "
    "<b>more like</b> the one on top.</p><p>There are no wrong answers: trust your first "
    "impression.</p>",
    "practice": [{"head": 8, "left": 9, "right": 16, "winner": 9}],
    "checks": {
        # Neighbours on the strong ring against its far side: nobody who looks gets these wrong.
        "queries": [
            {"head": 8, "left": 9, "right": 16, "winner": 9},
            {"head": 12, "left": 20, "right": 13, "winner": 13},
            {"head": 18, "left": 17, "right": 10, "winner": 17},
        ],
        "every": 12,
        "repeat_every": 15,
    },
    "participants": {"answers": 40},
    "breaks": {"every": 20, "text": "<p>Half-way. Look out of the window for a moment.</p>"},
    "debrief": "<p>You have helped to draw a map of colours. Have a look at the dashboard!</p>",
    "completion": {"done": {"code": "COLOURS-{participant}"}},
    "skip": True,
}


def run_demo(options: argparse.Namespace) -> int:
    """Serve the experiment until Ctrl-C, with people who are not there."""
    for name, value in (("--people", options.people), ("--answers", options.answers)):
        if value < 0:
            raise ValueError(f"{name} must be at least 0; got {value}.")
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
            print(f"sign in as:    {ACCOUNT}  password: {password or 'the one you have chosen'}")
            print(f"take part:     {base}/e/{NAME}/")
            print(f"{options.people} simulated participants are answering, too.")
            print("stop:          Ctrl-C (nothing is kept)", flush=True)
            if options.people:
                stack.enter_context(crowd(base, options.people, options.answers, options.seed))
            if not options.no_browser:
                # A browser that does not return must not hold up the server.
                page = f"{base}/experiments/{NAME}"
                threading.Thread(target=webbrowser.open, args=(page,), daemon=True).start()

        supervise(Serving(database=url), listener, ready)
    print("stopped; the demo's answers are gone.")
    return 0


def write_demo(folder: Path) -> Path:
    """Write the experiment's file and pictures; the file.

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
    for number, colour in enumerate(colour_disc()):
        (images / f"{number:02d}-{colour.name}.png").write_bytes(png(colour.rgb))
    file = folder / "experiment.yaml"
    file.write_text(json.dumps(_SETTINGS, indent=2), encoding="utf-8")
    return file


def crowd(base: str, people: int, answers: int, seed: int) -> Crowd:
    """People who see colours as CIELAB says, and are surer of them than others of alien eggs."""
    places = np.array([colour.place for colour in colour_disc()])
    answer = AlienEggs(places, floor=0.04, rate=30.0)
    return Crowd(base, NAME, answer, people=people, answers=answers, seed=seed)
