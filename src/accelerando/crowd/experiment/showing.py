"""Items as browsers show them: pictures decoded and converted, videos and sounds checked."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from accelerando.crowd.experiment.containers import flaw_of
from accelerando.crowd.experiment.decoding import decode_pictures
from accelerando.crowd.experiment.files import Files, Limits
from accelerando.crowd.experiment.items import Item
from accelerando.crowd.experiment.media import Media
from accelerando.crowd.experiment.problems import SettingsProblem

__all__ = ["Known", "Shown", "shown_items"]

log = logging.getLogger("accelerando.crowd")

_MANY = 200

# Hash of a file → key and widths of what is stored for it.
Known = Mapping[str, tuple[str, tuple[int, ...]]]


@dataclass(frozen=True)
class Shown:
    """Items and the media that they show; media that are stored already are left out."""

    items: list[Item]
    media: dict[str, Media]


def shown_items(items: Sequence[Item], files: Files, limits: Limits, known: Known) -> Shown:
    """Return the items with media that browsers show; what cannot be shown becomes one problem.

    Parameters
    ----------
    items : sequence of Item
    files : Files
        Their files; `files.problems` gets the problem.
    limits : Limits
    known : mapping
        Files that were converted and stored before, by the hash of their content.
    """
    used = {item.media for item in items if item.media}
    names = {m.key: name for name, m in files.media.items() if m.key in used}
    given = {m.key: m for m in files.media.values() if m.key in used}
    new = {key: media for key, media in given.items() if media.hash not in known}
    pictures = {
        key: (media.type, media.data) for key, media in new.items() if media.kind == "image"
    }
    if len(pictures) >= _MANY:
        log.warning("decoding %d pictures, once; this may take some minutes", len(pictures))
    decoded = decode_pictures(pictures, limits.pixels)
    flaws: dict[str, str] = {}
    made: dict[str, Media] = {}
    for key, media in new.items():
        if media.kind == "image":
            found = decoded.pop(key)
            made[key] = Media(
                media.name, found.type or media.type, found.data, media.hash, found.sizes
            )
            flaw: str | None = found.reason
        else:
            made[key] = replace(media, source=media.hash)
            flaw = flaw_of(media.data, media.type)
        if flaw:
            flaws[names[key]] = flaw
    if flaws:
        count = "1 file" if len(flaws) == 1 else f"{len(flaws)} files"
        listed = "; ".join(f"{name}: {flaw}" for name, flaw in flaws.items())
        files.problems.append(
            SettingsProblem(
                f"{count} cannot be shown: {listed}.", "Save them again, or remove them."
            )
        )
        return Shown([], {})
    shown: dict[str, tuple[str, tuple[int, ...]]] = {
        key: known[media.hash] for key, media in given.items() if media.hash in known
    }
    shown |= {key: (media.key, tuple(sorted(media.sizes))) for key, media in made.items()}
    named = [
        replace(item, media=shown[item.media][0], widths=shown[item.media][1])
        if item.media
        else item
        for item in items
    ]
    return Shown(named, {media.key: media for media in made.values()})
