"""Notices about HTML that was removed from an experiment's items and texts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from accelerando.crowd.experiment.html import cleaned
from accelerando.crowd.experiment.items import Item
from accelerando.crowd.experiment.settings import Settings

__all__ = ["removed_notices"]

_NAMED = 5


def removed_notices(settings: Settings, items: Sequence[Item]) -> list[str]:
    """Return a notice for everything that sanitizing removed, with the items or the setting.

    Examples
    --------
    >>> item = Item.of_html("<i style='position: fixed'>a</i>")
    >>> removed_notices(Settings(), [item])
    ['removed from item 0 (a): the style "position: fixed".']
    """
    where: dict[str, list[str]] = {}
    for number, item in enumerate(items):
        for what in item.removed:
            where.setdefault(what, []).append(f"{number} ({item.text[:40]})")
    notices = [f"removed from {_names(places)}: {what}." for what, places in where.items()]
    for key, text in _texts(settings):
        notices += [f"removed from {key}: {what}." for what in cleaned(text)[1]]
    return notices


def _names(places: list[str]) -> str:
    if len(places) == 1:
        return f"item {places[0]}"
    more = f" and {len(places) - _NAMED} more" if len(places) > _NAMED else ""
    return f"{len(places)} items: {', '.join(places[:_NAMED])}{more}"


def _texts(settings: Settings) -> Iterable[tuple[str, str]]:
    """Yield key and value of every setting that participants see as HTML."""
    yield "instructions", settings.instructions
    if settings.consent is not None:
        yield "consent.text", settings.consent.text
    yield "breaks.text", settings.breaks.text
    yield "debrief", settings.debrief
    for place, text in settings.slots.model_dump().items():
        yield f"slots.{place}", text
