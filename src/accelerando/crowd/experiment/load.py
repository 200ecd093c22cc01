"""Loading of experiments from files, with all problems at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from accelerando.crowd.experiment.files import Files, Limits, read_folder, read_upload
from accelerando.crowd.experiment.items import (
    Item,
    has_header,
    item_from_cells,
    items_from_csv,
    items_from_files,
)
from accelerando.crowd.experiment.media import Media
from accelerando.crowd.experiment.problems import SettingsError, SettingsProblem
from accelerando.crowd.experiment.removed import removed_notices
from accelerando.crowd.experiment.salmon import is_salmon, translate
from accelerando.crowd.experiment.settings import Settings
from accelerando.crowd.experiment.showing import Known, shown_items
from accelerando.crowd.experiment.yaml_lines import Document, read_yaml

__all__ = ["Experiment", "load_experiment", "make_experiment"]

_MAX_ITEMS = 100_000
_SETTINGS_NAMES = ("experiment.yaml", "experiment.yml", "init.yaml", "init.yml")
# Free text: a number, a date or "yes" in YAML is a string here.
_WORDS = {"title", "instructions", "debrief", "texts", "css", "name", "language", "slots"}


@dataclass(frozen=True)
class Experiment:
    """Settings and items of an experiment.

    Attributes
    ----------
    settings : Settings
    items : list of Item
    media : dict of key to Media
    notices : list of str
        Differences from the files, for example keys of Salmon that have no counterpart.
    """

    settings: Settings
    items: list[Item]
    media: dict[str, Media] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)


def load_experiment(
    path: str | Path,
    items: str | Path | None = None,
    limits: Limits = Limits(),  # noqa: B008 (frozen)
    known: Callable[[str], Known] | None = None,
) -> Experiment:
    """Load a folder with ``experiment.yaml``, such a file, or Salmon's ``init.yaml``.

    Parameters
    ----------
    path : str or Path
        The folder or the YAML file.
    items : str or Path, optional
        A ZIP file, CSV file or folder with the items.
    limits : Limits
        Limits of files and pictures.
    known : callable, optional
        Returns the pictures that are stored for the experiment with a name: the hash of each file,
        and the key and MIME type of what is shown. They are not decoded again.

    Raises
    ------
    SettingsError
        With all problems at once.
    """
    place = Path(path)
    file = _settings_file(place)
    files = Files()
    if items is not None:
        source = Path(items)
        if source.is_dir():
            files.merge(read_folder(source, limits))
        else:
            files.merge(read_upload(source.name, source.read_bytes(), limits))
    document = read_yaml(file.read_bytes(), file.name)
    wanted = _wants(document)
    if wanted is not None and items is None:
        files.merge(_beside(file.parent, wanted, document, limits))
    elif isinstance(document.value, dict) and isinstance(document.value.get("items"), str):
        files.skip(str(document.value["items"]), f"--items {Path(str(items)).name} takes its place")
    zips = sorted(place.name for place in file.parent.glob("*.zip"))
    if items is None and wanted is None and _is_bare(document):
        if len(zips) > 1:
            document.problem(
                ("items",),
                f"several ZIP files could hold the items: {', '.join(zips)}.",
                "Leave one of them there, or name it with `items:` or --items.",
            )
        for name in zips[:1]:
            files.merge(read_upload(name, (file.parent / name).read_bytes(), limits))
    elif items is None:
        for name in zips:
            if name != wanted:
                files.skip(name, "the items come from the settings file")
    return make_experiment(document, files, limits, known)


def make_experiment(
    document: Document,
    files: Files,
    limits: Limits = Limits(),  # noqa: B008 (frozen)
    known: Callable[[str], Known] | None = None,
) -> Experiment:
    """Return an experiment from a parsed settings file and files with items."""
    notices: list[str] = []
    value = document.value
    if not isinstance(value, dict):
        if not document.problems:
            document.problem(
                (),
                "the file must hold keys and values.",
                "`accelerando crowd new DIR` writes one to begin with.",
            )
        raise SettingsError([*document.problems, *files.problems])
    salmon = is_salmon(value)
    if salmon:
        value, notices = translate(value, document)
    else:
        value = _words(value, document, ())
    described = value.pop("items", None)
    items = _items(described, document, files, html=salmon)
    settings: Settings | None = None
    try:
        settings = Settings.model_validate(value)
    except ValidationError as error:
        for found in error.errors(include_url=False):
            path = tuple(_yaml_path(found["loc"]))
            message, remedy = _say(found)
            document.problem(path, message, remedy)
    if settings is not None:
        for place, message, remedy in (*settings.problems(len(items)), *settings.open_redirects()):
            document.problem(place, message, remedy)
    # Pictures are decoded only for settings without mistakes: a thousand of them take minutes.
    if settings is None or document.problems:
        _refuse(document, files)
    assert settings is not None
    shown = shown_items(items, files, limits, {} if known is None else known(settings.name))
    _refuse(document, files)
    used = {item.media for item in items}
    notices += [*_unused(described, files, used), *files.notices, *_equal(items, files)]
    notices += removed_notices(settings, items)
    return Experiment(settings, shown.items, shown.media, notices)


def _refuse(document: Document, files: Files) -> None:
    """Raise SettingsError if there are problems."""
    problems = [*document.problems, *files.problems]
    if problems:
        raise SettingsError(sorted(problems, key=lambda p: (p.file != document.file, p.line or 0)))


def _sources(files: Files) -> dict[str, str]:
    """Return the lists that hold items: among pictures, only those with a header."""
    if not files.media:
        return files.lists
    return {name: text for name, text in files.lists.items() if has_header(text)}


def _unused(described: Any, files: Files, used: set[str]) -> list[str]:
    """Return a notice for each file that was given and is no item, and for pictures twice."""
    by_name = described is None or isinstance(described, str)
    sources = _sources(files) if by_name else {}
    reason = "the items are listed in the settings file."
    if by_name:
        reason = (
            "the pictures, films and sounds are the items. Its lines are items if its first line "
            "is a header, such as `text` or `image,alt`."
        )
    notices = [f"not used: {name}: {reason}" for name in files.lists if name not in sources]
    notices += [f"not used: {name}: it is a settings file." for name in files.settings]
    twice: dict[str, list[str]] = {}
    for name, media in files.media.items():
        if media.key not in used:
            notices.append(f"not used: {name}: no item names it.")
        twice.setdefault(media.key, []).append(name)
    return notices + [
        f"the same file under several names: {', '.join(names)}."
        for key, names in twice.items()
        if len(names) > 1 and key in used
    ]


def _equal(items: list[Item], files: Files) -> list[str]:
    """Return a notice for items that people cannot tell apart; files under two names have one."""
    names = Counter(media.key for media in files.media.values())
    places: dict[tuple[str, str], list[int]] = {}
    for number, item in enumerate(items):
        if names[item.media] < 2:
            places.setdefault((item.kind, item.media or item.html or item.text), []).append(number)
    return [
        f"the same item {len(numbers)} times: {items[numbers[0]].text[:40]} (items "
        f"{', '.join(map(str, numbers[:5]))}{' and more' if len(numbers) > 5 else ''})."
        for numbers in places.values()
        if len(numbers) > 1
    ]


def _settings_file(place: Path) -> Path:
    if place.is_dir():
        for name in _SETTINGS_NAMES:
            if (place / name).is_file():
                return place / name
        raise SettingsError(
            [
                SettingsProblem(
                    f"there is no {' or '.join(_SETTINGS_NAMES[::2])} in {place.name or place}.",
                    "`accelerando crowd new DIR` writes one.",
                )
            ]
        )
    if not place.is_file():
        raise SettingsError(
            [
                SettingsProblem(
                    f"there is no file {place.name}.", "`accelerando crowd new DIR` writes one."
                )
            ]
        )
    return place


def _wants(document: Document) -> str | None:
    """Return the file or folder that contains the items, if the settings name one."""
    value = document.value
    if not isinstance(value, dict):
        return None
    items = value.get("items")
    if isinstance(items, str):
        return items
    if isinstance(items, list) and any(isinstance(item, dict) for item in items):
        return "."
    return None


def _is_bare(document: Document) -> bool:
    value = document.value
    return isinstance(value, dict) and not ({"items", "targets"} & set(value))


def _beside(folder: Path, wanted: str, document: Document, limits: Limits) -> Files:
    place = (folder / wanted).resolve()
    if not place.is_relative_to(folder.resolve()):
        document.problem(
            ("items",), f"{wanted!r} lies outside the experiment's folder.", "Move it inside."
        )
        return Files()
    if place.is_dir():
        found = read_folder(place, limits)
        if wanted == ".":
            # The folder also contains other files: the settings, the database, notes.
            found.problems.clear()
            found.notices.clear()
            found.settings.clear()
        return found
    if place.is_file():
        return read_upload(place.name, place.read_bytes(), limits)
    document.problem(
        ("items",),
        f"there is no file or folder {wanted!r} next to {document.file}.",
        "Put the items there, or list them here.",
    )
    return Files()


def _items(described: Any, document: Document, files: Files, *, html: bool) -> list[Item]:
    items: list[Item] = []
    if isinstance(described, bool) or (described is not None and not described):
        document.problem(
            ("items",), "no items.", "Give a list, a number, or the name of a folder, ZIP or CSV."
        )
    elif isinstance(described, int):
        if not 3 <= described <= _MAX_ITEMS:
            document.problem(
                ("items",), f"{described} items.", f"There must be 3 to {_MAX_ITEMS:,}."
            )
            return []
        items = [Item.of_text(str(number)) for number in range(described)]
    elif isinstance(described, list):
        items = _listed(described, document, files.media, html=html)
    elif isinstance(described, str) or described is None:
        sources = _sources(files)
        if len(sources) > 1:
            document.problem(
                ("items",),
                f"several lists could hold the items: {', '.join(sources)}.",
                "Leave one of them there, or name it here.",
            )
            return []
        for name, text in sources.items():
            found, problems = items_from_csv(text, name, files.media, html=html)
            items += found
            files.problems += problems
        if not sources:
            items = items_from_files(files.media)
        if not items and not files.problems and not document.problems:
            document.problem(
                ("items",), "no items.", "List them here, or name a folder, ZIP or CSV file."
            )
            return []
    else:
        document.problem(("items",), "items must be a list, a number or the name of a file.")
        return []
    key = "targets" if html and described is not None else "items"
    broken = bool(document.problems or files.problems)
    if len(items) < 3 and not broken:
        document.problem((key,), f"{len(items)} items.", "A query needs at least 3.")
    if len(items) > _MAX_ITEMS:
        document.problem((key,), f"{len(items):,} items.", f"There may be {_MAX_ITEMS:,}.")
    return items


def _listed(
    described: list[Any], document: Document, media: Mapping[str, Media], *, html: bool
) -> list[Item]:
    key = "targets" if html else "items"
    items: list[Item] = []
    for number, entry in enumerate(described):
        if isinstance(entry, dict):
            cells = {
                str(name): document.raw.get((key, number, str(name)), str(value))
                for name, value in entry.items()
            }
            made = item_from_cells(cells, media)
            if isinstance(made, str):
                document.problem((key, number), made)
            else:
                items.append(made)
        elif isinstance(entry, list):
            document.problem((key, number), "an item must be a text.", "Remove the brackets.")
        else:
            text = document.raw.get((key, number), str(entry))
            if not text.strip():
                document.problem((key, number), "an empty item.", "Remove it or write something.")
            items.append(Item.of_html(text) if html else Item.of_text(text))
    return items


def _words(value: Any, document: Document, path: tuple[str | int, ...]) -> Any:
    """Replace values by the original characters where the settings expect text."""
    if isinstance(value, dict):
        return {key: _words(child, document, (*path, key)) for key, child in value.items()}
    if path and path[0] in _WORDS and isinstance(value, bool | int | float):
        return document.raw.get(path, value)
    if len(path) > 1 and path[-1] in ("code", "version", "text") and not isinstance(value, list):
        return value if value is None else document.raw.get(path, value)
    return value


def _yaml_path(location: tuple[int | str, ...]) -> list[str | int]:
    """Return Pydantic's location without names of union members and function wrappers."""
    kept: list[str | int] = []
    for part in location:
        if isinstance(part, str) and (part in ("[key]",) or "[" in part or part in _UNION_NAMES):
            continue
        kept.append(part)
    return kept


_UNION_NAMES = {"int", "float", "str", "constrained-int", "constrained-str"}


def _say(found: Any) -> tuple[str, str]:
    kind = found["type"]
    if kind == "extra_forbidden":
        return "this key is unknown.", "Check its spelling, or remove it."
    if kind == "value_error":
        return f"{found['ctx']['error']}.", ""
    message = found["msg"]
    message = message[0].lower() + message[1:]
    given = found.get("input")
    shown = repr(given) if isinstance(given, str | int | float | bool | None) else "something else"
    return f"{message}; got {shown[:80]}.", "`accelerando crowd new DIR` shows every key."
