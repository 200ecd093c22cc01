"""Experiments in the database: create, find, pause, delete."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine, bindparam, delete, select, update

from accelerando.crowd._adaptive import ARR, Greedy, Uncertainty
from accelerando.crowd._assignment import QueryAssigner
from accelerando.crowd._attention import Validation
from accelerando.crowd._passive import Random, RoundRobin
from accelerando.crowd._sampler import Sampler
from accelerando.crowd.experiment import Experiment, Item, Settings
from accelerando.crowd.experiment.settings import SamplerSettings
from accelerando.crowd.store.errors import ApiError
from accelerando.crowd.store.media import add_media, widths_of
from accelerando.crowd.store.schema import answer, audit, experiment, item, served

__all__ = ["Frame", "add", "find", "items_of", "make_assigner", "names", "remove"]


@dataclass(frozen=True)
class Frame:
    """The immutable part of a stored experiment: settings, samplers, attention checks."""

    id: int
    name: str
    created: float
    n_items: int
    settings: Settings
    assigner: QueryAssigner
    check: Validation | None


@dataclass(frozen=True)
class Snapshot:
    """A stored experiment at one moment; requests look it up each time."""

    frame: Frame
    state: str
    revision: int
    queue_version: int

    @property
    def paused(self) -> bool:
        """True if participants get no new queries."""
        return self.state == "paused"


_FIND = select(
    experiment.c.id,
    experiment.c.name,
    experiment.c.created,
    experiment.c.n_items,
    experiment.c.state,
    experiment.c.revision,
    experiment.c.queue_version,
).where(experiment.c.name == bindparam("name"))
_SETTINGS = select(experiment.c.settings).where(experiment.c.id == bindparam("id"))

# Settings never change after an experiment was created. Before schema 6 SQLite gave the id of a
# deleted experiment to a new one, so the time of creation is part of the key. The engine is, too,
# because tests run two servers with different databases in one process.
_frames: dict[tuple[Engine, int, float], Frame] = {}
_MOST_FRAMES = 100
# Many requests share a transaction, and the result is the same for all of them.
_found: WeakKeyDictionary[Connection, dict[str, Snapshot]] = WeakKeyDictionary()


def find(connection: Connection, name: str) -> Snapshot:
    """Return the experiment with this name.

    Raises
    ------
    ApiError
        There is no such experiment.
    """
    found = _found.setdefault(connection, {})
    if name not in found:
        found[name] = _look_up(connection, name)
    return found[name]


def _look_up(connection: Connection, name: str) -> Snapshot:
    row = connection.execute(_FIND, {"name": name}).first()
    if row is None:
        raise ApiError(
            "unknown_experiment", f"There is no experiment {name!r} on this server.", 404
        )
    key = connection.engine, row.id, row.created
    frame = _frames.get(key)
    if frame is None:
        if len(_frames) >= _MOST_FRAMES:
            _frames.clear()
        settings = Settings.model_validate(connection.execute(_SETTINGS, {"id": row.id}).scalar())
        frame = Frame(
            row.id,
            row.name,
            row.created,
            row.n_items,
            settings,
            make_assigner(settings, row.n_items),
            _check(settings),
        )
        _frames[key] = frame
    return Snapshot(frame, row.state, row.revision, row.queue_version)


def forget(connection: Connection) -> None:
    """Clear the cache of this transaction, because it changes an experiment."""
    _found.pop(connection, None)


def names(connection: Connection) -> list[str]:
    """Return the names of all experiments, oldest first."""
    return list(connection.execute(select(experiment.c.name).order_by(experiment.c.id)).scalars())


def add(
    connection: Connection,
    made: Experiment,
    clock: float,
    name: str | None = None,
    number: int | None = None,
) -> int:
    """Store an experiment and return its id, which is `number` if that is given.

    Raises
    ------
    ApiError
        There is an experiment with this name.
    """
    chosen = name or made.settings.name
    there = connection.execute(select(experiment.c.id).where(experiment.c.name == chosen)).first()
    if there is not None:
        raise ApiError(
            "name_taken",
            f"There already is an experiment {chosen!r} on this server; choose another name.",
            409,
        )
    settings = made.settings.model_copy(update={"name": chosen})
    # Links and codes of an experiment are signed with its time of creation. An archive that is
    # restored next to its experiment must not sign what is valid there.
    taken = select(experiment.c.id).where(experiment.c.created == bindparam("created"))
    while number is None and connection.execute(taken, {"created": clock}).first() is not None:
        clock += 0.001
    number = connection.execute(
        experiment.insert()
        .values(
            name=chosen,
            settings=settings.model_dump(mode="json", by_alias=True),
            n_items=len(made.items),
            created=clock,
            **({} if number is None else {"id": number}),
        )
        .returning(experiment.c.id)
    ).scalar_one()
    connection.execute(
        item.insert(),
        [
            {"experiment_id": number, "number": k, **thing.stored()}
            for k, thing in enumerate(made.items)
        ],
    )
    add_media(connection, number, made.media)
    return int(number)


def set_state(connection: Connection, number: int, state: str) -> None:
    """Set the state of an experiment: "running" or "paused"."""
    forget(connection)
    connection.execute(update(experiment).where(experiment.c.id == number).values(state=state))


def declined(connection: Connection, number: int) -> int:
    """Return how many people refused consent."""
    found = select(experiment.c.declined).where(experiment.c.id == number)
    return int(connection.execute(found).scalar_one())


def count_declined(connection: Connection, number: int, more: int = 1) -> None:
    """Count people who refused consent."""
    connection.execute(
        update(experiment)
        .where(experiment.c.id == number)
        .values(declined=experiment.c.declined + more)
    )


def remove(connection: Connection, number: int) -> None:
    """Delete an experiment and all of its data."""
    forget(connection)
    connection.execute(delete(answer).where(answer.c.experiment_id == number))
    connection.execute(delete(served).where(served.c.experiment_id == number))
    connection.execute(delete(experiment).where(experiment.c.id == number))


def items_of(connection: Connection, number: int) -> list[Item]:
    """Return all items of an experiment, ordered by number."""
    rows = connection.execute(
        select(item.c.kind, item.c.text, item.c.html, item.c.media, item.c.alt)
        .where(item.c.experiment_id == number)
        .order_by(item.c.number)
    )
    widths = widths_of(connection, number)
    return [Item(*row, widths=widths.get(row.media, ())) for row in rows]


def note(connection: Connection, clock: float, who: str, action: str, subject: str) -> None:
    """Add an entry to the audit log."""
    connection.execute(
        audit.insert().values(at=clock, experimenter=who, action=action, subject=subject)
    )


def make_assigner(settings: Settings, n_items: int) -> QueryAssigner:
    """Return the assigner with the samplers of these settings."""
    return QueryAssigner(
        n_items,
        {name: _sampler(one) for name, one in settings.samplers.items()},
        None if settings.shares is None else dict(settings.shares),
    )


@lru_cache(maxsize=256)
def one_sampler_assigner(n_items: int, name: str, settings: SamplerKey) -> QueryAssigner:
    """Return an assigner with a single sampler."""
    return QueryAssigner(n_items, {name: _sampler(SamplerSettings.model_validate_json(settings))})


SamplerKey = str


def _sampler(settings: SamplerSettings) -> Sampler:
    options: dict[str, Any] = {}
    if settings.items is not None:
        options["items"] = tuple(settings.items)
    if settings.random_share is not None:
        options["random_share"] = settings.random_share
    if settings.pairs is not None:
        options["pairs"] = settings.pairs
    if settings.queries is not None:
        options["queries"] = [(q[0], q[1], q[2]) for q in settings.queries]
    return _CLASSES[settings.kind](**options)


_CLASSES: Mapping[str, type[Sampler]] = {
    kind.__name__: kind for kind in (ARR, Greedy, Uncertainty, Random, RoundRobin, Validation)
}


def _check(settings: Settings) -> Validation | None:
    known = settings.checks.queries
    if not known:
        return None
    return Validation(
        queries=[(query.head, query.left, query.right) for query in known],
        winners=[query.winner for query in known if query.winner is not None],
    )
