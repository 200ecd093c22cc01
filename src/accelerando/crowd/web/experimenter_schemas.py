"""Schemas: JSON of the HTTP interface of experimenters."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

__all__ = ["Confirm", "Created", "SessionInfo", "SignIn", "Summary"]


class SignIn(BaseModel):
    """Name and password."""

    name: str = Field(max_length=100)
    password: str = Field(max_length=1000)
    code: str = Field(default="", max_length=20, description="of an app, if the account has one")


class SessionInfo(BaseModel):
    """The name of the experimenter, and the CSRF token that writes need."""

    experimenter: str
    csrf: str
    must_change_password: bool = False


class Summary(BaseModel):
    """Summary of an experiment."""

    name: str
    title: str
    state: Literal["running", "paused"]
    created: float
    items: int
    dimensions: int | Literal["auto"]
    samplers: list[str]
    answers: int
    skips: int
    participants: int
    declined: int
    participant_url: str
    dashboard_url: str
    api: str


class Created(Summary):
    """Summary of a new experiment, and what differs from its files."""

    notices: list[str] = Field(
        description="Files that are not used, and HTML that was removed, each with the reason"
    )


class Confirm(BaseModel):
    """The experiment's name, repeated."""

    confirm: str = Field(max_length=200)
