"""The database schema. Times are Unix times; items and queries are numbered per experiment."""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    false,
    text,
)

__all__ = ["SCHEMA_VERSION", "tables"]

# Increase it with every change below, and add a step to migrate.py.
SCHEMA_VERSION = 6

tables = MetaData()

# SQLite auto-increments INTEGER primary keys only. Without sqlite_autoincrement it gives the id of
# a deleted row to the next one; tokens, links, logs and caches refer to the ids of some tables.
_Counter = BigInteger().with_variant(Integer, "sqlite")


def _experiment(primary_key: bool = False) -> Column[int]:
    return Column(
        "experiment_id",
        Integer,
        ForeignKey("experiment.id", ondelete="CASCADE"),
        primary_key=primary_key,
        nullable=False,
    )


meta = Table(
    "meta",
    tables,
    Column("key", String(64), primary_key=True),
    Column("value", Text, nullable=False),
)

experimenter = Table(
    "experimenter",
    tables,
    Column("id", Integer, primary_key=True),
    Column("name", String(100), unique=True, nullable=False),
    Column("password_hash", Text, nullable=False),
    Column("created", Float, nullable=False),
    # May see and do everything, and makes accounts; others have roles in experiments.
    Column("admin", Boolean, nullable=False, server_default=false()),
    # The password was generated, or chosen by somebody else: it has to be changed first.
    Column("must_change", Boolean, nullable=False, server_default=false()),
    # The key of one-time passwords, and the step of the newest one that was used.
    Column("totp", String(64)),
    Column("totp_step", BigInteger, nullable=False, server_default="0"),
    sqlite_autoincrement=True,
)

session = Table(
    "session",
    tables,
    Column("token_hash", String(64), primary_key=True),
    Column(
        "experimenter_id",
        Integer,
        ForeignKey("experimenter.id", ondelete="CASCADE"),
        nullable=False,
    ),
    Column("csrf", String(64), nullable=False),
    Column("expires", Float, nullable=False),
    Column("created", Float, nullable=False, server_default="0"),
    # Last use, to the minute; 0 for sessions of a former version, which have ended.
    Column("seen", Float, nullable=False, server_default="0"),
)

sign_in_failure = Table(
    "sign_in_failure",
    tables,
    Column("id", Integer, primary_key=True),
    Column("key", String(64), nullable=False, index=True),
    Column("at", Float, nullable=False),
)

experiment = Table(
    "experiment",
    tables,
    Column("id", Integer, primary_key=True),
    Column("name", String(64), unique=True, nullable=False),
    Column("settings", JSON, nullable=False),
    Column("n_items", Integer, nullable=False),
    Column("state", String(16), nullable=False, server_default="running"),
    Column("created", Float, nullable=False),
    # Increases when answers are deleted or a participant is blocked: the worker then refits.
    Column("revision", Integer, nullable=False, server_default="0"),
    # Version of the queue in use; the worker increases it when a new queue is complete.
    Column("queue_version", Integer, nullable=False, server_default="0"),
    Column("worker_state", JSON),
    # Number of people who refused consent; nothing else is kept of them.
    Column("declined", Integer, nullable=False, server_default="0"),
    sqlite_autoincrement=True,
)

role = Table(
    "role",
    tables,
    _experiment(primary_key=True),
    Column(
        "experimenter_id",
        Integer,
        ForeignKey("experimenter.id", ondelete="CASCADE"),
        primary_key=True,
    ),
    Column("role", String(16), nullable=False),
)

api_token = Table(
    "api_token",
    tables,
    Column("id", Integer, primary_key=True),
    Column("token_hash", String(64), unique=True, nullable=False),
    Column(
        "experimenter_id",
        Integer,
        ForeignKey("experimenter.id", ondelete="CASCADE"),
        nullable=False,
    ),
    Column("name", String(100), nullable=False),
    # "read" or "write"; for one experiment, or for all of the account.
    Column("scope", String(16), nullable=False),
    Column("experiment_id", Integer, ForeignKey("experiment.id", ondelete="CASCADE")),
    Column("created", Float, nullable=False),
    Column("expires", Float, nullable=False),
    sqlite_autoincrement=True,
)

item = Table(
    "item",
    tables,
    _experiment(primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("kind", String(16), nullable=False),
    Column("text", Text, nullable=False),
    Column("html", Text, nullable=False),
    Column("media", String(100), nullable=False),
    Column("alt", Text, nullable=False),
)

media = Table(
    "media",
    tables,
    _experiment(primary_key=True),
    Column("key", String(100), primary_key=True),
    Column("name", Text, nullable=False),
    Column("type", String(50), nullable=False),
    Column("data", LargeBinary, nullable=False),
    # Hash of the file that it was made from; "" if a former version stored the file unseen.
    Column("source", String(64), nullable=False, server_default=""),
)

# Smaller copies of pictures, for small screens.
media_copy = Table(
    "media_copy",
    tables,
    Column("experiment_id", Integer, primary_key=True, nullable=False),
    Column("key", String(100), primary_key=True),
    Column("width", Integer, primary_key=True, autoincrement=False),
    Column("type", String(50), nullable=False),
    Column("data", LargeBinary, nullable=False),
    ForeignKeyConstraint(
        ["experiment_id", "key"],
        ["media.experiment_id", "media.key"],
        ondelete="CASCADE",
        name="copy_of_a_picture",
    ),
)

participant = Table(
    "participant",
    tables,
    Column("id", _Counter, primary_key=True),
    _experiment(),
    # The participant's id in the link, or a keyed hash of it; NULL without one.
    Column("external", String(200)),
    Column("name", String(200), nullable=False),
    Column("state", String(16), nullable=False, server_default="active"),
    Column("outcome", String(16)),
    Column("created", Float, nullable=False),
    Column("last", Float, nullable=False),
    Column("consented", Float),
    Column("consent_version", String(64)),
    Column("device", String(16), nullable=False, server_default=""),
    Column("parameters", JSON, nullable=False),
    # States of personal samplers.
    Column("personal", JSON, nullable=False),
    Column("practised", Integer, nullable=False, server_default="0"),
    Column("asked", Integer, nullable=False, server_default="0"),
    # Without practice, checks, repeats and skips.
    Column("answered", Integer, nullable=False, server_default="0"),
    Column("skipped", Integer, nullable=False, server_default="0"),
    Column("failed", Integer, nullable=False, server_default="0"),
    # Time of withdrawal. The answers count nowhere from then on, and are deleted some days later.
    Column("withdrawn", Float),
    # True if a personal link brought this participant, and not just somebody who knew the id.
    Column("proven", Boolean, nullable=False, server_default=false()),
    # Hash of a random number that the participant's browser keeps.
    Column("browser", String(64), nullable=False, server_default=""),
    # Random: the token, the completion code and everything drawn for this person follow from it.
    # Empty for participants of a former version.
    Column("secret", String(32), nullable=False, server_default=""),
    # Attention checks and repeats that were answered; they are not part of `answered`.
    Column("extra", Integer, nullable=False, server_default="0"),
    # Answers reserved when the session began; NULL without an end.
    Column("quota", Integer),
    # When an experimenter used up the completion code.
    Column("code_used", Float),
    UniqueConstraint("experiment_id", "external", name="participant_external"),
    sqlite_autoincrement=True,
)

served = Table(
    "served",
    tables,
    _experiment(primary_key=True),
    # Random, so that an archive can be restored next to the experiment it came from.
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column(
        "participant_id",
        _Counter,
        ForeignKey("participant.id", ondelete="CASCADE"),
        nullable=False,
    ),
    Column("number", Integer, nullable=False),
    Column("kind", String(16), nullable=False),
    Column("head", Integer, nullable=False),
    Column("left", Integer, nullable=False),
    Column("right", Integer, nullable=False),
    # The feet in ascending order, for lookups that ignore sides.
    Column("low", Integer, nullable=False),
    Column("high", Integer, nullable=False),
    Column("winner", Integer),  # the known answer to a practice query or an attention check
    Column("sampler", String(64), nullable=False),
    Column("score", Float),
    Column("fallback", Boolean, nullable=False),
    Column("version", Integer, nullable=False),
    Column("at", Float, nullable=False),
    Column("open", Boolean, nullable=False),
    Index("served_seen", "participant_id", "head", "low", "high"),
    Index(
        "served_open",
        "participant_id",
        "number",
        sqlite_where=text("open"),
        postgresql_where=text("open"),
    ),
)

answer = Table(
    "answer",
    tables,
    Column("seq", _Counter, primary_key=True),
    _experiment(),
    Column("query_id", BigInteger, nullable=False),
    # NULL: skipped.
    Column("winner", Integer),
    Column("response_time", Float),
    Column("network_latency", Float),
    Column("received", Float, nullable=False),
    # The guarantee of the service: at most one answer per query.
    UniqueConstraint("experiment_id", "query_id", name="one_answer_per_query"),
    ForeignKeyConstraint(
        ["experiment_id", "query_id"],
        ["served.experiment_id", "served.id"],
        ondelete="CASCADE",
        name="answer_to_a_served_query",
    ),
    # Dashboard, exports and worker read the answers after a certain one.
    Index("answer_order", "experiment_id", "seq"),
    sqlite_autoincrement=True,
)

model = Table(
    "model",
    tables,
    _experiment(primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("n_answers", Integer, nullable=False),
    Column("at", Float, nullable=False),
    Column("seconds", Float, nullable=False),
    Column("loss", Float),
    Column("lapse", Float),
    # On random answers that arrived after the previous embedding.
    Column("accuracy", Float),
    Column("tested", Integer, nullable=False),
    # NULL for all but the newest embedding.
    Column("positions", JSON),
)

queue = Table(
    "queue",
    tables,
    Column("id", _Counter, primary_key=True),
    _experiment(),
    Column("version", Integer, nullable=False),
    Column("sampler", String(64), nullable=False),
    Column("place", Integer, nullable=False),
    Column("head", Integer, nullable=False),
    Column("left", Integer, nullable=False),
    Column("right", Integer, nullable=False),
    Column("score", Float),
    Index("queue_order", "experiment_id", "version", "sampler", "place"),
)

worker = Table(
    "worker",
    tables,
    Column("id", Integer, primary_key=True),
    Column("owner", String(64), nullable=False),
    Column("seen", Float, nullable=False),
    # Increases with every renewal: others see that the owner lives without comparing clocks.
    Column("beat", BigInteger, nullable=False, server_default="0"),
    Column("turns", Integer, nullable=False, server_default="0"),
    Column("turn_seconds", Float),
    Column("error", Text),
)

audit = Table(
    "audit",
    tables,
    Column("id", Integer, primary_key=True),
    Column("at", Float, nullable=False),
    Column("experimenter", String(100), nullable=False),
    Column("action", String(64), nullable=False),
    Column("subject", Text, nullable=False),
)
