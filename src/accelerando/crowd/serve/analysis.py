"""Analyses: a map fitted to an archive, saved with everything that is needed to repeat it.

The fit starts from the map of the dashboard, because cold starts on answers to chosen queries find
bad minima, and runs in a process with one thread: with several, sums are rounded differently.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import multiprocessing
import os
import platform
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy
import sklearn
from numpy.typing import NDArray
from pydantic import ValidationError

from accelerando import __version__
from accelerando.crowd._choice import Candidate
from accelerando.crowd._embedding import OrdinalEmbedding
from accelerando.crowd._read import why_left_out
from accelerando.crowd.experiment import Limits
from accelerando.crowd.experiment.settings import EmbeddingSettings
from accelerando.crowd.serve.learner import aligned, model_settings
from accelerando.crowd.store.archive import Archive, read_archive
from accelerando.crowd.store.errors import ApiError
from accelerando.crowd.store.export import safe_cell

__all__ = ["analyze", "environment", "reproduce", "run_analyze", "run_reproduce"]

FORMAT = 1
_LIMITS = Limits(total_bytes=2**40, file_bytes=2**40, ratio=1e6)
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")


@dataclass(frozen=True)
class Data:
    """The answers of an archive that count, as arrays."""

    n_items: int
    triplets: NDArray[np.intp]
    people: NDArray[np.intp]  # numbered in the order of their first answers
    left: NDArray[np.bool_]
    fair: NDArray[np.bool_]
    left_out: dict[str, int]
    start: NDArray[np.float64] | None

    def fingerprint(self) -> str:
        """Return the SHA-256 of everything that the fit reads."""
        digest = hashlib.sha256(str(self.n_items).encode())
        for array in (self.triplets, self.people):
            digest.update(array.astype("<i8").tobytes())
        for flags in (self.left, self.fair):
            digest.update(flags.tobytes())
        if self.start is not None:
            digest.update(self.start.astype("<f8").tobytes())
        return digest.hexdigest()


def environment() -> dict[str, str]:
    """Return the versions and the processor's instructions, on which the last bits depend."""
    config: dict[str, Any] = np.show_config("dicts")  # type: ignore[assignment]
    blas = config.get("Build Dependencies", {}).get("blas", {})
    simd = config.get("SIMD Extensions", {})
    found = [*simd.get("baseline", []), *simd.get("found", [])]
    return {
        "accelerando": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "scikit-learn": sklearn.__version__,
        "blas": f"{blas.get('name', '?')} {blas.get('version', '?')}",
        "system": " ".join([platform.system(), *platform.libc_ver()]).strip(),
        "processor": " ".join([platform.machine(), *found]),
    }


def analyze(
    archive: Archive,
    *,
    exclude: Sequence[str] = (),
    changes: dict[str, Any] | None = None,
    seed: int | None = None,
    cold: bool = False,
) -> dict[str, Any]:
    """Fit the map of an archive; return it with everything that is needed to repeat it.

    Parameters
    ----------
    archive : Archive
    exclude : sequence of str
        Names of participants to leave out, in addition to those who are blocked.
    changes : dict, optional
        Settings of the embedding in place of those of the experiment.
    seed : int, optional
        By default that of the experiment.
    cold : bool
        Whether not to start from the map of the dashboard.

    Raises
    ------
    ValueError
        A name is unknown, a setting is not allowed, or there are no answers.
    """
    settings = archive.made.settings
    asked = _changed(settings.embedding, changes or {})
    data = _data(archive, exclude, cold=cold)
    chosen = settings.seed if seed is None else seed
    fitted = _fit(data, asked, chosen)
    return {
        "format": FORMAT,
        "experiment": settings.name,
        "answers": {
            "used": len(data.triplets),
            "left_out": data.left_out,
            "participants": len(set(data.people.tolist())),
            "sha256": data.fingerprint(),
        },
        "exclude": sorted(set(exclude)),
        "embedding": asked.model_dump(mode="json"),
        "seed": chosen,
        "starts_from_the_dashboard": data.start is not None,
        "cold": cold,
        **fitted,
        "never_asked": _never_asked(data),
        "versions": environment(),
    }


def reproduce(archive: Archive, saved: dict[str, Any]) -> dict[str, Any]:
    """Repeat a saved analysis; return it if the map has the same bits.

    Raises
    ------
    ValueError
        The answers, the software versions, or the bits differ.
    """
    if saved.get("format") != FORMAT:
        raise ValueError(f"The analysis must have format {FORMAT}. It is not one, or a newer one.")
    differ = [
        f"{name} {saved['versions'].get(name)!r}, here {here!r}"
        for name, here in environment().items()
        if saved["versions"].get(name) != here
    ]
    if differ:
        raise ValueError(
            f"The analysis was made with {'; '.join(differ)}. The last bits depend on these; "
            "repeat it in the same environment."
        )
    data = _data(archive, saved["exclude"], cold=saved["cold"])
    there = saved["answers"]
    if data.fingerprint() != there["sha256"]:
        raise ValueError(
            "The archive does not have the answers of the analysis: "
            f"{there['used']:,} answers counted then, {len(data.triplets):,} in the archive, or "
            "others among them or another map of the dashboard. Use the archive from which the "
            "analysis was made."
        )
    fitted = _fit(data, EmbeddingSettings.model_validate(saved["embedding"]), saved["seed"])
    if fitted["map"] != saved["map"]:
        furthest = np.abs(np.array(fitted["map"]) - np.array(saved["map"])).max()
        raise ValueError(
            f"The map differs, by up to {furthest:.3g} per coordinate, although answers and "
            "versions are the same. The file of the analysis was edited, or the computer is not "
            "the same in something that the file does not record."
        )
    return saved | fitted


def run_analyze(options: argparse.Namespace) -> int:
    """Fit the map of an archive and save it with how it was made."""
    changes = {
        name: _number(value)
        for name in ("dimensions", "noise", "alpha", "lapse")
        if (value := getattr(options, name)) is not None
    }
    archive = _read(options.archive)
    made = analyze(
        archive,
        exclude=options.exclude or (),
        changes=changes,
        seed=options.seed,
        cold=options.cold,
    )
    options.output.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    answers = made["answers"]
    left_out = ", ".join(f"{n:,} {why}" for why, n in sorted(answers["left_out"].items()))
    print(f"{answers['used']:,} answers of {answers['participants']:,} participants")
    if left_out:
        print(f"left out: {left_out}")
    print(f"model: {made['model']}; {made['reason']}")
    print(f"analysis: {options.output} (map {made['sha256'][:16]})")
    _write_map(options.map, archive, made)
    return 0


def run_reproduce(options: argparse.Namespace) -> int:
    """Repeat a saved analysis and compare the maps bit for bit."""
    try:
        saved = json.loads(options.analysis.read_text(encoding="utf-8"))
        known = isinstance(saved, dict)
    except (ValueError, RecursionError):
        known = False
    if not known:
        raise ValueError(f"{options.analysis} is not a file of `crowd analyze`.")
    archive = _read(options.archive)
    try:
        made = reproduce(archive, saved)
    except KeyError as missing:
        raise ValueError(f"{options.analysis} has no entry {missing}.") from None
    except (TypeError, AttributeError, OverflowError, ValidationError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"{options.analysis} was edited: {reason}.") from None
    print(f"The map is the same, bit for bit (map {made['sha256'][:16]}).")
    _write_map(options.map, archive, made)
    return 0


def _read(file: Path) -> Archive:
    try:
        return read_archive(file.read_bytes(), _LIMITS)
    except ApiError as error:
        raise ValueError(str(error)) from None


def _number(value: Any) -> Any:
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value


def _changed(settings: EmbeddingSettings, changes: dict[str, Any]) -> EmbeddingSettings:
    kept = settings.model_dump()
    if "noise" in changes:  # parameters of another noise model
        kept |= {"alpha": None, "lapse": None}
    try:
        return EmbeddingSettings.model_validate(kept | changes)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"][:1])
        raise ValueError(f"crowd analyze: {where and where + ': '}{first['msg']}.") from None


def _data(archive: Archive, exclude: Sequence[str], *, cold: bool) -> Data:
    people = {row["id"]: row for row in archive.rows["participants"]}
    unknown = sorted(set(exclude) - {row["name"] for row in people.values()})
    if unknown:
        raise ValueError(f"The archive has no participant {', '.join(map(repr, unknown))}.")
    queries = {row["id"]: row for row in archive.rows["queries"]}
    left_out: Counter[str] = Counter()
    rows, who, left, fair = [], [], [], []
    numbers: dict[int, int] = {}
    for one in archive.rows["answers"]:
        query, winner = queries[one["query_id"]], one["winner"]
        person = people[query["participant_id"]]
        if winner is None or query["kind"] == "practice":
            continue  # no answer, and no question of the study
        reason = why_left_out(query["kind"], blocked=person["state"] == "blocked")
        if person["withdrawn"] is not None:
            reason = "withdrawn"
        elif reason is None and person["name"] in exclude:
            reason = "excluded"
        if reason is not None:
            left_out[reason] += 1
            continue
        loser = query["right"] if winner == query["left"] else query["left"]
        rows.append((query["head"], winner, loser))
        who.append(numbers.setdefault(person["id"], len(numbers)))
        left.append(winner == query["left"])
        fair.append(query["score"] is None)
    if not rows:
        raise ValueError("The archive has no answers that count.")
    newest = [row for row in archive.rows["models"] if row["positions"] is not None]
    start = None
    if newest and not cold:
        start = np.array(max(newest, key=lambda row: row["version"])["positions"], dtype=float)
    return Data(
        len(archive.made.items),
        np.array(rows, dtype=np.intp),
        np.array(who, dtype=np.intp),
        np.array(left, dtype=bool),
        np.array(fair, dtype=bool),
        dict(sorted(left_out.items())),
        start,
    )


def _never_asked(data: Data) -> list[int]:
    return sorted(set(range(data.n_items)) - set(data.triplets.ravel().tolist()))


def _fit(data: Data, settings: EmbeddingSettings, seed: int) -> dict[str, Any]:
    """Fit in a new process with one thread."""
    with _one_thread(), ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(fit, data, settings, seed).result()


@contextmanager
def _one_thread() -> Iterator[None]:
    before = {name: os.environ.get(name) for name in _THREADS}
    os.environ.update(dict.fromkeys(_THREADS, "1"))  # the new process reads them
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def fit(data: Data, settings: EmbeddingSettings, seed: int) -> dict[str, Any]:
    """Return the map and the model, fitted in this process."""
    model = OrdinalEmbedding(**model_settings(settings), n_items=data.n_items, random_state=seed)
    start = data.start
    if start is not None and settings.dimensions not in ("auto", start.shape[1]):
        start = None  # the dashboard's map has other dimensions
    each = settings.reliability and settings.noise not in ("gnmds", "soe")
    model.fit(
        data.triplets,
        init=start,
        fair=data.fair,
        participants=data.people if each else None,
        left=data.left if each else None,
    )
    positions = model.embedding_
    if start is not None and start.shape == positions.shape:
        positions = aligned(positions, start)
    used = Candidate(model.noise_, model.lapse_, model.n_components_, model.ridge_)
    return {
        "model": str(used),
        "noise": model.noise_.name,
        "dimensions": int(model.n_components_),
        "lapse": float(model.lapse_),
        "ridge": float(model.ridge_),
        "reason": "as the settings say" if model.choice_ is None else model.choice_.reason,
        "loss": float(model.loss_),
        "map": positions.tolist(),
        "sha256": hashlib.sha256(positions.astype("<f8").tobytes()).hexdigest(),
    }


def _write_map(file: Path | None, archive: Archive, made: dict[str, Any]) -> None:
    """Write the map as CSV; items that nobody was asked about have no position."""
    if file is None:
        return
    never = set(made["never_asked"])
    with file.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["item", "name", *(f"x{k + 1}" for k in range(made["dimensions"]))])
        for k, (item, place) in enumerate(zip(archive.made.items, made["map"], strict=True)):
            shown = ["" for _ in place] if k in never else [repr(value) for value in place]
            writer.writerow([k, safe_cell(item.text), *shown])
    print(f"map: {file}")
