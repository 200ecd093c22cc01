"""The commands ``accelerando crowd embed`` and ``accelerando crowd plan``."""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from accelerando._validation import check_integer, check_number, parameter_error
from accelerando.crowd._embedding import OrdinalEmbedding
from accelerando.crowd._metrics import accuracy_band
from accelerando.crowd._noise import TSTE, NoiseModel
from accelerando.crowd._plan import plan
from accelerando.crowd._read import Answers, read_answers
from accelerando.crowd._uncertainty import position_uncertainty

Array = NDArray[np.float64]

_PROBLEMS_SHOWN = 20
_ENOUGH_RANDOM = 50


def run_embed(options: argparse.Namespace, draw: Callable[..., None]) -> int:
    """Read answers, print the held-out accuracy, fit all answers, write positions and figure.

    Parameters
    ----------
    options : Namespace
        Of ``accelerando crowd embed``.
    draw : callable
        Called with a path, positions and settings of :func:`accelerando.plot.embedding`; this
        package does not import figures.
    """
    try:
        lapse = _lapse(options.lapse)
        noise = _noise(options.noise, options.alpha)
        dimensions = _dimensions(options.dimensions)
        _say(f"reading {options.answers.name}")
        answers = read_answers(options.answers)
        _report(answers)
        if len(answers.triplets) == 0:
            return _fail("The file has no usable answer.")
        settings = {
            "n_components": dimensions,
            "noise": noise,
            "lapse": lapse,
            "n_items": len(answers.items),
            "random_state": options.seed,
        }
        _held_out_accuracy(answers, settings, options.held_out, options.seed)
        _say(f"fitting all {len(answers.triplets):,} answers")
        model = OrdinalEmbedding(**settings).fit(answers.triplets, fair=_fair(answers))
        if model.choice_ is not None:
            _say(f"chosen: {model.choice_.reason}")
        _say(f"loss {model.loss_:.4f} after {model.n_iter_} steps, lapse rate {model.lapse_:.3f}")
        unsure = _uncertainty(answers, model)
        _write_positions(options.output, answers, model, unsure)
        print(f"positions: {options.output}")
        if not options.no_picture:
            path = options.picture or options.output.with_suffix(".png")
            _picture(path, answers, model, unsure, draw)
    except (ValueError, TypeError, OSError) as error:
        return _fail(str(error))
    return 0


def run_plan(options: argparse.Namespace) -> int:
    """Print the number of answers needed with random and with chosen queries."""
    try:
        check_integer("crowd plan", "--per-participant", options.per_participant)
        found = plan(
            options.items,
            options.dimensions,
            within=options.within,
            runs=options.runs,
            random_state=options.seed,
            progress=_say,
        )
    except ValueError as error:
        return _fail(str(error))
    print(
        f"{options.items} items, {options.dimensions} dimensions; answers until accuracy is within "
        f"{100 * options.within:g} points of the best possible, {options.runs} simulated runs:"
    )
    for need in found:
        low, high = need.band
        people = np.ceil(need.middle / options.per_participant)
        line = (
            f"  {need.sampler:7} about {_rounded(need.middle):,} "
            f"({_rounded(low):,} to {_rounded(high):,}), "
            f"{people:,.0f} participants with {options.per_participant} answers each"
        )
        if need.reached < options.runs:
            line += f"; {options.runs - need.reached} of {options.runs} runs did not reach the goal"
        print(line)
    return 0


def _held_out_accuracy(
    answers: Answers, settings: dict[str, object], share: float, seed: int
) -> None:
    """Print the accuracy of a fit on held-out answers, with its confidence interval."""
    check_number("crowd embed", "--held-out", share, minimum=0, below=1)
    rows = answers.triplets
    fair = _fair(answers)
    pool = np.flatnonzero(fair)
    n_test = int(share * len(pool))
    if n_test < 1 or n_test >= len(rows):
        _say("There are too few answers to hold any out.")
        return
    test = np.zeros(len(rows), dtype=bool)
    test[np.random.default_rng(seed).permutation(pool)[:n_test]] = True
    _say(f"fitting {(~test).sum():,} answers, testing on {n_test:,}")
    model = OrdinalEmbedding(**settings)  # type: ignore[arg-type]
    model.fit(rows[~test], fair=fair[~test])
    accuracy = model.score(rows[test])
    low, high = accuracy_band(accuracy, n_test)
    kind = "random " if answers.at_random.sum() >= _ENOUGH_RANDOM else ""
    print(
        f"held-out accuracy: {accuracy:.3f} (95 % band {low:.3f} to {high:.3f}, "
        f"{n_test:,} {kind}answers)"
    )


def _report(answers: Answers) -> None:
    who = "" if answers.participants is None else f" of {answers.participants:,} participants"
    _say(f"{len(answers.triplets):,} answers{who} about {len(answers.items):,} items")
    if answers.left_out:
        counts = ", ".join(f"{n:,} {why}" for why, n in sorted(answers.left_out.items()))
        _say(f"left out, as the service does: {counts}")
    for problem in answers.problems[:_PROBLEMS_SHOWN]:
        print(f"line {problem.line}: {problem.reason}", file=sys.stderr)
    more = len(answers.problems) - _PROBLEMS_SHOWN
    if more > 0:
        lines = ", ".join(str(problem.line) for problem in answers.problems[_PROBLEMS_SHOWN:])
        print(f"and {more} more, lines {lines}", file=sys.stderr)
    if answers.problems:
        print(f"{len(answers.problems)} rows cannot be used (listed above)", file=sys.stderr)


def _fair(answers: Answers) -> NDArray[np.bool_]:
    """Return which answers test an embedding: chosen queries are the hard ones."""
    if answers.at_random.sum() >= _ENOUGH_RANDOM:
        return answers.at_random
    return np.ones(len(answers.triplets), dtype=bool)


def _uncertainty(answers: Answers, model: OrdinalEmbedding) -> Array:
    if not model.noise_.probabilistic:
        return np.full(len(model.embedding_), np.nan)
    return position_uncertainty(
        model.embedding_, answers.triplets, model.noise_, lapse=model.lapse_, ridge=model.ridge_
    )


def _write_positions(path: Path, answers: Answers, model: OrdinalEmbedding, unsure: Array) -> None:
    positions = model.embedding_
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream)
        axes = [f"x{k + 1}" for k in range(positions.shape[1])]
        writer.writerow(["item", *(["name"] if answers.names else []), *axes, "uncertainty"])
        for item, place, error in zip(answers.items, positions.tolist(), unsure, strict=True):
            name = [answers.names.get(item, "")] if answers.names else []
            facts = "" if np.isnan(error) else f"{error:.3g}"
            writer.writerow([item, *name, *(f"{value:.6g}" for value in place), facts])


def _picture(
    path: Path, answers: Answers, model: OrdinalEmbedding, unsure: Array, draw: Callable[..., None]
) -> None:
    title = f"{len(answers.items)} items, {len(answers.triplets):,} answers"
    labels = [answers.names.get(item) or str(item) for item in answers.items]
    try:
        draw(path, model.embedding_, labels=labels, uncertainty=unsure, title=title)
    except ImportError as error:
        _say(f"No figure was saved. {error}")
        return
    print(f"picture: {path}")


def _noise(name: str, alpha: float | None) -> str | NoiseModel:
    if alpha is None:
        return name
    if name != TSTE.name:
        allowed = "left out unless --noise is tste"
        raise parameter_error("crowd embed", "--alpha", allowed, f"--noise {name}")
    return TSTE(alpha=alpha)


def _dimensions(text: str) -> int | str:
    if text == "auto":
        return text
    try:
        return int(text)
    except ValueError:
        allowed = "an integer of at least 1 or 'auto'"
        raise parameter_error("crowd embed", "--dimensions", allowed, text) from None


def _lapse(text: str) -> float | str:
    if text in ("estimate", "auto"):
        return text
    try:
        return float(text)
    except ValueError:
        allowed = "a number of at least 0 and below 0.5, 'estimate' or 'auto'"
        raise parameter_error("crowd embed", "--lapse", allowed, text) from None


def _rounded(value: float) -> int:
    """Round to two digits: a simulation is not more precise."""
    if value <= 0:
        return 0
    unit = 10 ** max(0, int(np.floor(np.log10(value))) - 1)
    return int(round(value / unit) * unit)


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


def _fail(reason: str) -> int:
    print(f"error: {reason}", file=sys.stderr)
    return 2
