"""Items: texts, images, videos, sounds and HTML that participants compare."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from accelerando.crowd.experiment.html import cleaned, plain_text
from accelerando.crowd.experiment.media import Media
from accelerando.crowd.experiment.problems import SettingsProblem

__all__ = ["Item", "has_header", "items_from_csv", "items_from_files", "natural_order"]

ItemKind = Literal["text", "image", "video", "audio", "html"]

KINDS: tuple[ItemKind, ...] = ("text", "image", "video", "audio", "html")
_LABEL = 200


@dataclass(frozen=True)
class Item:
    """An item.

    Attributes
    ----------
    kind : str
        "text", "image", "video", "audio" or "html".
    text : str
        The text, or a name of the item for tables and figures.
    html : str
        Sanitized HTML; for "html" only.
    media : str
        Key of the :class:`Media`; for images, videos and sounds.
    alt : str
        Text for screen readers.
    widths : tuple of int
        Widths of the smaller copies of an image that are stored.
    removed : tuple of str
        What sanitizing removed from HTML; known only when an experiment is made.
    """

    kind: ItemKind
    text: str
    html: str = ""
    media: str = ""
    alt: str = ""
    widths: tuple[int, ...] = field(default=(), compare=False)
    removed: tuple[str, ...] = field(default=(), compare=False)

    def stored(self) -> dict[str, str]:
        """Return the fields that are stored with an experiment."""
        names = ("kind", "text", "html", "media", "alt")
        return {name: getattr(self, name) for name in names}

    @classmethod
    def of_text(cls, text: str) -> Item:
        """Return an item with this text."""
        return cls("text", text, alt=text)

    @classmethod
    def of_html(cls, html: str, alt: str = "") -> Item:
        """Return an item with this HTML, sanitized."""
        words = plain_text(html)[:_LABEL]
        clean, removed = cleaned(html)
        if clean == words:
            return cls("text", words, alt=alt or words, removed=removed)
        if not words:
            # A picture's name; for a box without words, its color.
            found = re.search(r'(?:alt|src)="([^"]+)"', clean) or re.search(
                r'data-style="(?:[^"]*; )?background(?:-color)?: ([^";]+)', clean
            )
            words = found[1].rpartition("/")[2] if found else "item"
        return cls("html", words, html=clean, alt=alt or words, removed=removed)

    @classmethod
    def of_media(cls, media: Media, alt: str = "", name: str = "") -> Item:
        """Return an item with this image, video or sound, and perhaps another name than its own."""
        stem = media.name.rpartition("/")[2]
        spoken = alt or re.sub(r"[_-]+", " ", stem.rpartition(".")[0] or stem)
        return cls(media.kind, name or stem, media=media.key, alt=spoken)


def natural_order(names: Iterable[str]) -> list[str]:
    """Sort names with numbers by value: 2.png comes before 10.png.

    Examples
    --------
    >>> natural_order(["10.png", "2.png", "cat.png"])
    ['2.png', '10.png', 'cat.png']
    """

    def key(name: str) -> list[tuple[int, int, str]]:
        parts = re.split(r"([0-9]{1,15})", name)
        return [(0, int(p), "") if p.isdigit() and p.isascii() else (1, 0, p) for p in parts if p]

    return sorted(names, key=lambda name: (key(name), name))


def items_from_files(files: Mapping[str, Media]) -> list[Item]:
    """Return one item per image, video or sound, in natural order of their names.

    Files of one name in several folders are called by their paths.
    """
    bases = Counter(name.rpartition("/")[2] for name in files)
    return [
        Item.of_media(files[name], name=name if bases[name.rpartition("/")[2]] > 1 else "")
        for name in natural_order(files)
    ]


def has_header(text: str) -> bool:
    r"""Return True if the first line of a list names columns.

    Examples
    --------
    >>> has_header("image,alt\ncat.png,a cat\n"), has_header("Pictures of cats\n")
    (True, False)
    """
    lines = text.splitlines()
    first = {cell.strip().lower() for cell in lines[0].split(",")} if lines else set()
    return first <= {*KINDS, "alt"} and bool(first & set(KINDS))


def items_from_csv(
    text: str, file: str, media: Mapping[str, Media], *, html: bool = False
) -> tuple[list[Item], list[SettingsProblem]]:
    r"""Return the items of a CSV list, and its problems.

    With a header of ``text``, ``html``, ``image``, ``video`` or ``audio`` (and ``alt``) each row is
    an item. Without a header each line is an item: a text, or HTML with ``html=True``.

    Examples
    --------
    >>> items, problems = items_from_csv("text,alt\nred,a color\n", "list.csv", {})
    >>> items[0].text, items[0].alt, problems
    ('red', 'a color', [])
    """
    problems: list[SettingsProblem] = []
    items: list[Item] = []
    header: list[str] | None = None
    # Without a header a line is one item, even if it contains commas.
    lines = text.splitlines()
    if has_header(text):
        header = [cell.strip().lower() for cell in lines[0].split(",")]
    if header is None:
        for line in lines:
            content = line.strip().strip('"') if not html else line.strip()
            if content:
                items.append(Item.of_html(content) if html else Item.of_text(content))
        return items, problems
    reader = csv.reader(io.StringIO(text))
    next(reader)
    try:
        for row in reader:
            if len(row) > len(header) == 1:
                row = [",".join(row)]  # a single column needs no quotes
            if len(row) > len(header):
                sentence = f"{len(row)} cells, and {len(header)} columns."
                remedy = "Put a text with a comma in quotes."
                problems.append(SettingsProblem(sentence, remedy, file, reader.line_num))
                continue
            cells = dict(zip(header, (cell.strip() for cell in row), strict=False))
            if not any(cells.values()):
                continue
            item = item_from_cells(cells, media)
            if isinstance(item, str):
                problems.append(SettingsProblem(item, "", file, reader.line_num))
            else:
                items.append(item)
    except csv.Error as error:
        problems.append(
            SettingsProblem(f"not a CSV list: {error}.", "Check the quotes.", file, reader.line_num)
        )
    return items, problems


def item_from_cells(cells: Mapping[str, str], media: Mapping[str, Media]) -> Item | str:
    """Return an item from ``{"image": "cat.png", "alt": "a cat"}``, or an error message."""
    unknown = sorted(set(cells) - {*KINDS, "alt"})
    if unknown:
        return f"unknown {', '.join(unknown)}; an item has one of {', '.join(KINDS)}, and alt."
    named = [kind for kind in KINDS if cells.get(kind)]
    if len(named) != 1:
        return f"an item needs exactly one of {', '.join(KINDS)}; got {', '.join(named) or 'none'}."
    kind, alt = named[0], cells.get("alt", "")
    value = cells[kind]
    if kind == "text":
        return Item("text", value, alt=alt or value)
    if kind == "html":
        return Item.of_html(value, alt)
    found = _named(value, media)
    if isinstance(found, str):
        return found
    if found.kind != kind:
        return f"{value!r} is {found.type} by its content, not {kind}."
    return Item.of_media(found, alt)


def _named(value: str, media: Mapping[str, Media]) -> Media | str:
    """Return the file with this name in any folder, or an error message."""
    if value in media:
        return media[value]
    base = value.rpartition("/")[2]
    same = [name for name in media if name.rpartition("/")[2] == base]
    if len(same) == 1:
        return media[same[0]]
    if same:
        return f"several files are called {base!r}: {', '.join(same)}; give the folder, too."
    alike = [name for name in media if name.rpartition("/")[2].lower() == base.lower()]
    hint = f" There is {', '.join(map(repr, alike))}: capital letters count." if alike else ""
    return f"there is no file {value!r} with this experiment.{hint}"
