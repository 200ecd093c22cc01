"""Settings of an experiment: the keys of ``experiment.yaml`` and their defaults."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    field_validator,
    model_validator,
)

from accelerando.crowd.experiment.texts import TEXTS

__all__ = ["Outcome", "Settings", "not_boolean"]

Outcome = Literal["done", "screened_out", "no_consent", "full", "withdrawn"]
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")]


def not_boolean(value: Any) -> Any:
    """Refuse true and false, which Pydantic would take for 1 and 0."""
    if isinstance(value, bool):
        raise ValueError(f"must be a number; got {str(value).lower()}")
    return value


Whole = Annotated[int, BeforeValidator(not_boolean)]
Real = Annotated[float, BeforeValidator(not_boolean), Field(allow_inf_nan=False)]
ItemNumber = Annotated[Whole, Field(ge=0)]
Text = Annotated[str, Field(max_length=100_000)]


class _Part(BaseModel):
    """Base class: unknown keys are errors, and settings are immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class SamplerSettings(_Part):
    """A sampler: its class in :mod:`accelerando.crowd` and its parameters."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    kind: Literal["ARR", "Random", "RoundRobin", "Validation", "Greedy", "Uncertainty"] = Field(
        alias="class"
    )
    random_share: Real | None = Field(default=None, ge=0, le=1)
    pairs: Annotated[Whole, Field(ge=1)] | Literal["auto", "all"] | None = None
    items: list[ItemNumber] | None = None
    queries: list[Annotated[list[ItemNumber], Field(min_length=3, max_length=3)]] | None = None

    @model_validator(mode="after")
    def _fits_the_class(self) -> Self:
        adaptive = self.kind in ("ARR", "Greedy", "Uncertainty")
        for name in ("random_share", "pairs"):
            if getattr(self, name) is not None and not adaptive:
                raise ValueError(f"{name} is a parameter of ARR, Greedy and Uncertainty only")
        if (self.kind == "Validation") != (self.queries is not None):
            raise ValueError("queries belongs to Validation, and Validation needs it")
        return self


_WITHOUT_LIKELIHOOD = ("gnmds", "soe")


class EmbeddingSettings(_Part):
    """The embedding that is fitted while answers arrive."""

    dimensions: Annotated[Whole, Field(ge=1, le=20)] | Literal["auto"] = 2
    noise: Literal["auto", "tste", "ste", "ckl", "logistic", "gnmds", "soe"] = "auto"
    alpha: Real | None = Field(default=None, gt=0)
    lapse: Annotated[Real, Field(ge=0, lt=0.5)] | Literal["estimate", "auto"] | None = None
    reliability: bool = True
    warmup: Whole | None = Field(default=None, ge=1)
    temper: Real = Field(default=0.3, gt=0, le=1)

    @model_validator(mode="after")
    def _fits_the_noise(self) -> Self:
        if self.alpha is not None and self.noise != "tste":
            raise ValueError("alpha is a parameter of noise: tste only")
        if self.noise in _WITHOUT_LIKELIHOOD:
            if self.dimensions == "auto":
                raise ValueError(f"dimensions must be a number with noise: {self.noise}")
            if self.lapse in ("auto", "estimate"):
                raise ValueError(f"lapse must be a number with noise: {self.noise}")
        return self


class ParticipantSettings(_Part):
    """Participants: entry, number of answers, returning."""

    answers: Whole | None = Field(default=50, ge=1)
    total_answers: Whole | None = Field(default=None, ge=1)
    total_participants: Whole | None = Field(default=None, ge=1)
    dropout_minutes: Real = Field(default=60.0, gt=0, le=525_600)
    returning: Literal["resume", "refuse", "new"] = "resume"
    entry: Literal["open", "link"] = "open"
    id_parameters: list[str] = ["participant", "puid", "PROLIFIC_PID", "workerId", "id"]
    keep_parameters: list[str] = [
        *("STUDY_ID", "SESSION_ID", "assignmentId", "hitId", "survey_code"),
    ]
    pseudonyms: bool = False
    withdraw: bool = True
    withdrawn_days: Real = Field(default=7.0, ge=0, le=3650)
    one_sampler: bool = False

    @field_validator("id_parameters", "keep_parameters")
    @classmethod
    def _not_our_own(cls, names: list[str]) -> list[str]:
        for name in ("proof", "invitation"):
            if name in names:
                raise ValueError(f"{name} is a parameter of the service itself and not stored")
        return names


class Consent(_Part):
    """Consent text, which participants must agree to before the first query."""

    text: Text
    version: str = "1"


class KnownQuery(_Part):
    """A query with its known answer."""

    head: ItemNumber
    left: ItemNumber
    right: ItemNumber
    winner: ItemNumber | None = None

    @model_validator(mode="after")
    def _three_items(self) -> Self:
        if len({self.head, self.left, self.right}) < 3:
            raise ValueError("head, left and right must be three different items")
        if self.winner not in (None, self.left, self.right):
            raise ValueError(f"winner must be left or right, {self.left} or {self.right}")
        return self


class Checks(_Part):
    """Attention checks."""

    queries: list[KnownQuery] = []
    every: Whole = Field(default=10, ge=2)
    repeat_every: Whole | None = Field(default=None, ge=5)
    fail_after: Whole | None = Field(default=None, ge=1)

    @field_validator("queries")
    @classmethod
    def _answers_are_known(cls, queries: list[KnownQuery]) -> list[KnownQuery]:
        if any(query.winner is None for query in queries):
            raise ValueError("each attention check needs its winner")
        return queries


class Breaks(_Part):
    """A break after a number of answers."""

    every: Whole | None = Field(default=None, ge=1)
    text: Text = ""
    seconds: Whole = Field(default=0, ge=0)


class Completion(_Part):
    """The end of a session: a completion code, and a page to redirect to."""

    code: str | None = None
    redirect: str | None = None

    @field_validator("redirect")
    @classmethod
    def _a_web_address(cls, address: str | None) -> str | None:
        if address is not None and not address.startswith(("https://", "http://")):
            raise ValueError("must begin with https:// or http://")
        return address


class FixedQuery(_Part):
    """A fixed query at one position of every session: of a sampler, or a given one."""

    sampler: str | None = None
    query: Annotated[list[ItemNumber], Field(min_length=3, max_length=3)] | None = None


class Slots(_Part):
    """HTML around the query, as in Salmon."""

    top: Text = ""
    middle: Text = ""
    bottom: Text = ""


class Settings(_Part):
    """All settings of an experiment.

    Examples
    --------
    >>> Settings(name="eggs").participants.answers
    50
    """

    name: Name = "experiment"
    title: str = Field(default="Similarity judgements", min_length=1, max_length=200)
    language: str = Field(default="en", pattern=r"^[A-Za-z]{2,3}(-[A-Za-z0-9]{1,8})*$")
    instructions: Text = (
        "You will see one item on top and two below. Choose the one below that is more like the "
        "one on top."
    )
    consent: Consent | None = None
    practice: list[KnownQuery] = []
    checks: Checks = Checks()
    breaks: Breaks = Breaks()
    skip: bool = False
    keyboard: bool = True
    debrief: Text = "<b>Thank you!</b>"
    completion: dict[Outcome, Completion] = {}
    texts: dict[str, Annotated[str, Field(max_length=2000)]] = {}
    slots: Slots = Slots()
    css: Text = ""
    media_hosts: list[Annotated[str, Field(pattern=r"^https?://[A-Za-z0-9.-]+(:[0-9]+)?$")]] = []
    pause_between: Whole = Field(default=150, ge=0, le=10_000)
    samplers: dict[Name, SamplerSettings] = Field(
        default={"arr": SamplerSettings.model_validate({"class": "ARR"})}, min_length=1
    )
    shares: dict[str, Annotated[Real, Field(ge=0)]] | None = None
    fixed: dict[Annotated[Whole, Field(ge=1)], FixedQuery] = {}
    embedding: EmbeddingSettings = EmbeddingSettings()
    target_accuracy: Real | None = Field(default=None, gt=0.5, lt=1)
    participants: ParticipantSettings = ParticipantSettings()
    salmon_routes: bool = False
    seed: Whole = Field(default=0, ge=0, lt=2**31)

    @field_validator("texts")
    @classmethod
    def _known_texts(cls, texts: dict[str, str]) -> dict[str, str]:
        unknown = sorted(set(texts) - set(TEXTS))
        if unknown:
            raise ValueError(f"unknown {', '.join(unknown)}; there are {', '.join(TEXTS)}")
        return texts

    @model_validator(mode="after")
    def _shares_fit_the_samplers(self) -> Self:
        if self.shares is not None:
            if set(self.shares) != set(self.samplers):
                raise ValueError(
                    f"shares must name the samplers {', '.join(self.samplers)}, each once"
                )
            if sum(self.shares.values()) <= 0:
                raise ValueError("shares must not all be 0")
            if math.isinf(sum(self.shares.values())):
                raise ValueError("the sum of shares must be finite")
        for place, fixed in self.fixed.items():
            if fixed.sampler is not None and fixed.sampler not in self.samplers:
                raise ValueError(f"fixed {place}: there is no sampler {fixed.sampler!r}")
        return self

    def numbers_used(self) -> list[tuple[tuple[str | int, ...], int]]:
        """Return every item number in these settings with its path."""
        used: list[tuple[tuple[str | int, ...], int]] = []
        for k, known in enumerate(self.practice):
            used += [(("practice", k), n) for n in (known.head, known.left, known.right)]
        for k, known in enumerate(self.checks.queries):
            used += [(("checks", "queries", k), n) for n in (known.head, known.left, known.right)]
        for name, sampler in self.samplers.items():
            used += [(("samplers", name, "items"), n) for n in sampler.items or []]
            for query in sampler.queries or []:
                used += [(("samplers", name, "queries"), n) for n in query]
        for place, fixed in self.fixed.items():
            used += [(("fixed", str(place), "query"), n) for n in fixed.query or []]
        return used

    def problems(self, n_items: int) -> list[tuple[tuple[str | int, ...], str, str]]:
        """Return what contradicts itself or the items: path, message and remedy of each.

        They are no validation errors, because a stored experiment of an earlier version must open.
        """
        found: list[tuple[tuple[str | int, ...], str, str]] = []
        for path, number in dict.fromkeys(self.numbers_used()):
            if number >= n_items > 0:
                remedy = f"Items are counted from 0 to {n_items - 1}."
                found.append((path, f"there is no item {number}.", remedy))
        for name, sampler in self.samplers.items():
            place = ("samplers", name)
            if sampler.items is not None and len(set(sampler.items)) < 3:
                sentence = "a sampler needs at least three different items."
                found.append(((*place, "items"), sentence, "Name more, or leave out the key."))
            if sampler.queries is not None and not sampler.queries:
                found.append(((*place, "queries"), "no queries.", "Give at least one."))
            for query in sampler.queries or []:
                if len(set(query)) < 3:
                    found.append(((*place, "queries"), _SAME.format(query), _DIFFERENT))
                elif sampler.items is not None and not set(query) <= set(sampler.items):
                    sentence = f"the query {query} has an item that is not among the items."
                    found.append(((*place, "queries"), sentence, "Add it to items."))
        for number, fixed in self.fixed.items():
            at = ("fixed", str(number))
            if fixed.sampler is None and fixed.query is None:
                found.append((at, "neither a sampler nor a query.", "Give one of them."))
            if fixed.query is not None and len(set(fixed.query)) < 3:
                found.append(((*at, "query"), _SAME.format(fixed.query), _DIFFERENT))
        if self.consent is not None and len(self.consent.version) > _VERSION_LETTERS:
            sentence = f"{len(self.consent.version)} characters."
            remedy = f"A version has at most {_VERSION_LETTERS}."
            found.append((("consent", "version"), sentence, remedy))
        return found

    def open_redirects(self) -> list[tuple[tuple[str | int, ...], str, str]]:
        """Return the redirects whose host comes from a participant's link, as in :meth:`problems`.

        Archives of running studies may have them, so they are refused for new experiments only.
        """
        found: list[tuple[tuple[str | int, ...], str, str]] = []
        for outcome, made in self.completion.items():
            host = re.split(r"[/?#\\]", (made.redirect or "").partition("://")[2])[0]
            if "{" in host and not _FIXED_END.search(host):
                sentence = "a link could name the host of this address, and lead people anywhere."
                remedy = "Write the host out, and use {NAME} after it."
                found.append((("completion", outcome, "redirect"), sentence, remedy))
        return found


# A host that ends like this, as {NAME}.example.org, belongs to example.org whatever NAME is.
_FIXED_END = re.compile(r"\}\.[A-Za-z0-9.-]+\.[A-Za-z0-9-]+(:[0-9]+)?$")
_SAME = "the query {} has the same item twice."
_DIFFERENT = "Name three different items."
_VERSION_LETTERS = 64  # of the column in the database
