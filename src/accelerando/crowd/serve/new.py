"""The command ``accelerando crowd new``: a template of an experiment."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from accelerando._this_command import this_command

__all__ = ["TEMPLATE", "new_experiment", "run_new"]

TEMPLATE = """\
# An experiment for `accelerando crowd serve`. Lines that begin with # show defaults and examples.

name: {name}                # part of the participants' link: small letters, digits, - and _
title: Similarity judgements
# language: en              # of the page, for screen readers; translate the texts below

# The items, numbered from 0. A list of words:
items:
  - red
  - orange
  - yellow
  - green
  - turquoise
  - blue
  - violet
  - pink
# ... or every image, video and sound in a folder, ordered by name:
# items: images
# ... or a ZIP or CSV file next to this one (CSV: columns text, image, video, audio, html, alt):
# items: items.csv
# ... or one by one:
# items:
#   - image: images/cat.png
#     alt: a sleeping cat
#   - html: "H<sub>2</sub>O"

instructions: >
  You will see one item on top and two below.
  Choose the one below that is more like the one on top.

# consent:                  # shown first; participants must agree before the first query
#   text: I agree that my answers are used for research.
#   version: "1"

# practice:                 # before the first query; not counted
#   - {{head: 0, left: 1, right: 5, winner: 1}}

# checks:                   # attention checks
#   every: 10               # every 10th query is one of these
#   queries:
#     - {{head: 0, left: 1, right: 5, winner: 1}}
#   repeat_every: 20        # every 20th query is an earlier one with swapped sides
#   fail_after: 3           # failed checks that end the session with outcome "screened_out"

# breaks: {{every: 50, text: "Rest your eyes.", seconds: 0}}
# skip: false               # a button to skip a query
# keyboard: true            # arrow keys answer
# debrief: "<b>Thank you!</b>"

participants:
  answers: 50               # per participant; null: no limit
#   total_answers: 3000     # of all participants; who has begun may finish
#   total_participants: 60
#   returning: resume       # or refuse, or new: for participants who return
#   pseudonyms: false       # true: do not store names in links (PROLIFIC_PID, ...)
#   withdraw: true          # a button to withdraw all answers of the participant
#   withdrawn_days: 7       # days until withdrawn answers are deleted
#   entry: open             # link: only with a link of `accelerando crowd links`
#   id_parameters: [participant, puid, PROLIFIC_PID, workerId, id]
#   keep_parameters: [STUDY_ID, SESSION_ID, assignmentId, hitId, survey_code]

# completion:               # how a session ends; {{PROLIFIC_PID}} etc. are filled in, and
#                           # {{code}} is a code that cannot be guessed, one per participant
#   done: {{code: C1234567, redirect: "https://app.prolific.com/submissions/complete?cc=C1234567"}}
#   screened_out: {{code: C7654321}}
#   no_consent: {{redirect: "https://app.prolific.com/submissions/complete?cc=NOCONSENT"}}

# samplers:                 # how queries are chosen; ARR asks the most informative ones
#   arr: {{class: ARR, random_share: 0.35}}
#   random: {{class: Random}}
# shares: {{arr: 0.8, random: 0.2}}

# embedding: {{dimensions: auto, noise: auto}}   # or a number of dimensions
# target_accuracy: 0.85     # for the estimate of how many more answers are needed

# texts:                    # every sentence of the page can be replaced
#   question: "Which one is more like the item on top?"
#   skip: Skip
"""


def new_experiment(folder: Path) -> Path:
    """Write ``experiment.yaml`` and a folder for images; return the file.

    Raises
    ------
    ValueError
        The folder already has an ``experiment.yaml``.
    """
    file = folder / "experiment.yaml"
    if file.exists():
        raise ValueError(f"There already is an experiment.yaml in {folder}. Choose another folder.")
    (folder / "images").mkdir(parents=True, exist_ok=True)
    name = "".join(c if c.isascii() and c.isalnum() else "-" for c in folder.resolve().name.lower())
    file.write_text(TEMPLATE.format(name=name.strip("-")[:60] or "experiment"), encoding="utf-8")
    return file


def run_new(options: argparse.Namespace) -> int:
    """Write the template and print the next step."""
    file = new_experiment(options.directory)
    print(f"written: {file}")
    print(f"images:  {file.parent / 'images'}")
    folder = shlex.quote(str(file.parent.absolute()))
    print(f"next:    {this_command()} crowd serve {folder}")
    return 0
