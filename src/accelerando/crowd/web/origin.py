"""The origin of a request and its path: writes must come from pages of this server."""

from __future__ import annotations

from starlette.requests import Request

from accelerando.crowd.store.errors import ApiError

__all__ = ["path_of", "require_same_origin"]


def path_of(request: Request) -> str:
    """Return the path of a request without the URL prefix, as it was routed.

    ``request.url`` is put together with the ``Host`` header and parsed again. In some versions of
    Starlette a ``Host`` such as ``x/api/v1/session?`` replaces the path, and with it the rules.
    """
    path: str = request.scope["path"]
    return path.removeprefix(request.scope.get("root_path", ""))


def require_same_origin(request: Request, *, form: bool = False) -> None:
    """Raise ApiError if the headers name another site as the origin.

    Pages cannot set these headers; programs that are not browsers do not send them.

    Parameters
    ----------
    request : Request
    form : bool, default=False
        Whether a form may have sent the request. The policy ``no-referrer`` makes browsers send
        ``Origin: null`` with forms, which have their own token.
    """
    site = request.headers.get("sec-fetch-site")
    if site == "same-origin":
        return  # the browser has compared host and port, which a proxy may have changed
    origin = request.headers.get("origin")
    host = (origin or "").partition("://")[2]
    foreign = site not in (None, "none")
    if origin == "null":
        foreign = foreign or not form
    elif origin is not None:
        foreign = foreign or host.lower() != request.headers.get("host", "").lower()
    if foreign:
        raise ApiError("csrf", "This request came from another site.", 403)
