"""A short way for the two requests that participants make all the time.

Routing, dependencies and validation of a general framework take longer than the store does. A
well-formed request for queries or with an answer goes straight to the function of its route.
Everything else, and whatever goes wrong here, takes the ordinary way: refusals are raised before
anything is written and answers are stored once, so a request may be served a second time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from pydantic import ValidationError
from sqlalchemy.exc import DBAPIError
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from accelerando.crowd.store.errors import Refused
from accelerando.crowd.web import participant_api
from accelerando.crowd.web.context import Context
from accelerando.crowd.web.schemas import AnswerIn

__all__ = ["Express"]

_PATH = re.compile(r"/api/v1/experiments/([a-z0-9][a-z0-9_-]{0,62})/(queries|answers)")
_COUNT = re.compile(rb"count=([0-5])")


class Express:
    """Serves well-formed requests for queries and with answers; the app serves the rest."""

    def __init__(self, app: ASGIApp, context: Context) -> None:
        self.app, self.context = app, context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = None
        if scope["type"] == "http":
            found = _PATH.fullmatch(scope["path"].removeprefix(scope.get("root_path", "")))
        if found is None:
            await self.app(scope, receive, send)
            return
        heard: list[Message] = []

        async def hear() -> Message:
            heard.append(await receive())
            return heard[-1]

        request = Request(scope, hear)
        try:
            response = await self._respond(request, found[1], (scope["method"], found[2]))
        except (Refused, DBAPIError, ValidationError):
            response = None  # the ordinary way says what is wrong
        if response is not None:
            await response(scope, receive, send)
        else:
            await self.app(scope, _again(heard, receive), send)

    async def _respond(self, request: Request, name: str, what: tuple[str, str]) -> Response | None:
        context = self.context
        if what == ("GET", "queries"):
            count = _COUNT.fullmatch(request.scope["query_string"])
            if count is not None:
                return await participant_api.queries(request, name, context, int(count[1]))
        # The type keeps forms of other sites out.
        is_json = request.headers.get("content-type") == "application/json"
        if what == ("POST", "answers") and is_json:
            answer = AnswerIn.model_validate_json(await request.body())
            return await participant_api.answers(request, name, answer, context)
        return None


def _again(heard: list[Message], receive: Receive) -> Receive:
    """Let the app hear what has been heard already, then the rest."""
    before: Iterator[Message] = iter(heard)

    async def hear() -> Message:
        message = next(before, None)
        return await receive() if message is None else message

    return hear
