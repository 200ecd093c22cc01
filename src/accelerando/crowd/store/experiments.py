"""Experiments in the store: make, find, pause, delete."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine, bindparam, delete, func, select, update

from accelerando.crowd._adaptive import ARR, Greedy, Uncertainty
from accelerando.crowd._assignment import Desk
from accelerando.crowd._attention import Validation
from accelerando.crowd._passive import Random, RoundRobin
from accelerando.crowd._sampler import Sampler
from accelerando.crowd.experiment import Experiment, Item, Media, Settings
from accelerando.crowd.experiment.settings import SamplerSettings
from accelerando.crowd.store.errors import Refused
from accelerando.crowd.store.schema import answer, audit, experiment, item, media, served

__all__ = ["Frame", "add", "find", "items_of", "make_desk", "media_of", "names", "remove"]


@dataclass(frozen=True)
class Frame:
    """What never changes about a stored experiment, ready for use."""

    id: int
    name: str
    created: float
    n_items: int
    settings: Settings
    desk: Desk
    check: Validation | None


@dataclass(frozen=True)
class Now:
    """What does change: looked up with every request."""

    frame: Frame
    state: str
    revision: int
    queue_version: int

    @property
    def paused(self) -> bool:
        """Whether no new queries are handed out."""
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

# Settings never change after an experiment was made. SQLite may give the number of a deleted
# experiment to a new one, so the time belongs to the key; and two servers of one process, in tests,
# have different databases.
_frames: dict[tuple[Engine, int, float], Frame] = {}
_MOST_FRAMES = 100
# Many requests share a transaction, and the answer is the same for all of them.
_found: WeakKeyDictionary[Connection, dict[str, Now]] = WeakKeyDictionary()


def find(connection: Connection, name: str) -> Now:
    """The experiment of this name.

    Raises
    ------
    Refused
        There is none.
    """
    found = _found.setdefault(connection, {})
    if name not in found:
        found[name] = _look_up(connection, name)
    return found[name]


def _look_up(connection: Connection, name: str) -> Now:
    row = connection.execute(_FIND, {"name": name}).first()
    if row is None:
        raise Refused("unknown_experiment", f"There is no experiment {name!r} on this server.", 404)
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
            make_desk(settings, row.n_items),
            _check(settings),
        )
        _frames[key] = frame
    return Now(frame, row.state, row.revision, row.queue_version)


def forget(connection: Connection) -> None:
    """Look experiments up again: this transaction is changing one."""
    _found.pop(connection, None)


def names(connection: Connection) -> list[str]:
    """Of all experiments, oldest first."""
    return list(connection.execute(select(experiment.c.name).order_by(experiment.c.id)).scalars())


def add(connection: Connection, made: Experiment, now: float, name: str | None = None) -> int:
    """Store an experiment; its number.

    Raises
    ------
    Refused
        There is one of that name.
    """
    chosen = name or made.settings.name
    taken = connection.execute(select(experiment.c.id).where(experiment.c.name == chosen)).first()
    if taken is not None:
        raise Refused(
            "name_taken",
            f"There is an experiment {chosen!r} on this server already; choose another name.",
            409,
        )
    settings = made.settings.model_copy(update={"name": chosen})
    number = connection.execute(
        experiment.insert()
        .values(
            name=chosen,
            settings=settings.model_dump(mode="json", by_alias=True),
            n_items=len(made.items),
            created=now,
        )
        .returning(experiment.c.id)
    ).scalar_one()
    connection.execute(
        item.insert(),
        [
            {"experiment_id": number, "number": k, **asdict(thing)}
            for k, thing in enumerate(made.items)
        ],
    )
    for key, file in made.media.items():
        connection.execute(
            media.insert().values(
                experiment_id=number, key=key, name=file.name, type=file.type, data=file.data
            )
        )
    return int(number)


def set_state(connection: Connection, number: int, state: str) -> None:
    """Pause or resume."""
    forget(connection)
    connection.execute(update(experiment).where(experiment.c.id == number).values(state=state))


def remove(connection: Connection, number: int) -> None:
    """Delete an experiment with everything that belongs to it."""
    forget(connection)
    connection.execute(delete(answer).where(answer.c.experiment_id == number))
    connection.execute(delete(served).where(served.c.experiment_id == number))
    connection.execute(delete(experiment).where(experiment.c.id == number))


def items_of(connection: Connection, number: int) -> list[Item]:
    """All items of an experiment, by their numbers."""
    rows = connection.execute(
        select(item.c.kind, item.c.text, item.c.html, item.c.media, item.c.alt)
        .where(item.c.experiment_id == number)
        .order_by(item.c.number)
    )
    return [Item(*row) for row in rows]


def media_of(connection: Connection, number: int, key: str) -> Media | None:
    """One picture, film or sound."""
    row = connection.execute(
        select(media.c.name, media.c.type, media.c.data).where(
            media.c.experiment_id == number, media.c.key == key
        )
    ).first()
    return None if row is None else Media(row.name, row.type, bytes(row.data))


def all_media(connection: Connection, number: int) -> dict[str, Media]:
    """Every picture, film and sound of an experiment."""
    rows = connection.execute(select(media).where(media.c.experiment_id == number))
    return {row.key: Media(row.name, row.type, bytes(row.data)) for row in rows}


def count(connection: Connection) -> int:
    """How many experiments there are."""
    return int(connection.execute(select(func.count()).select_from(experiment)).scalar_one())


def note(connection: Connection, now: float, who: str, action: str, subject: str) -> None:
    """Write down what an experimenter did."""
    connection.execute(
        audit.insert().values(at=now, experimenter=who, action=action, subject=subject)
    )


def make_desk(settings: Settings, n_items: int) -> Desk:
    """The samplers of these settings."""
    return Desk(
        n_items,
        {name: _sampler(one) for name, one in settings.samplers.items()},
        None if settings.shares is None else dict(settings.shares),
    )


@lru_cache(maxsize=256)
def one_sampler_desk(n_items: int, name: str, settings: SamplerKey) -> Desk:
    """A desk with a single sampler, for queries that are to come from it."""
    return Desk(n_items, {name: _sampler(SamplerSettings.model_validate_json(settings))})


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
