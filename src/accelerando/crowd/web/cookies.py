"""Cookies: with the prefix ``__Host-`` under TLS, so that no other host can plant them.

A server with a URL prefix shares its host with others; its cookies have that path and the prefix
``__Secure-``.
"""

from __future__ import annotations

from fastapi.responses import Response
from starlette.requests import Request

__all__ = ["cookie_of", "drop_cookie", "set_cookie"]

_PREFIX, _PREFIX_OF_PATH = "__Host-", "__Secure-"


def cookie_of(request: Request, name: str) -> str | None:
    """Return the value of a cookie that this server has set.

    Under TLS only the name with the prefix counts, which other hosts of the same domain and pages
    without TLS cannot set.
    """
    return request.cookies.get(_place(request)[0] + name)


def set_cookie(
    request: Request,
    response: Response,
    name: str,
    value: str,
    *,
    seconds: float | None = None,
    samesite: str = "lax",
) -> None:
    """Set a cookie that scripts cannot read."""
    prefix, path = _place(request)
    response.set_cookie(
        prefix + name,
        value,
        max_age=None if seconds is None else int(seconds),
        httponly=True,
        samesite=samesite,  # type: ignore[arg-type]
        secure=_is_secure(request),
        path=path,
    )


def drop_cookie(request: Request, response: Response, name: str) -> None:
    """Delete a cookie."""
    prefix, path = _place(request)
    secure = _is_secure(request)
    response.delete_cookie(prefix + name, path=path, secure=secure, httponly=True)


def _is_secure(request: Request) -> bool:
    return bool(request.scope.get("scheme") == "https")


def _place(request: Request) -> tuple[str, str]:
    """Return prefix and path of cookies. Both prefixes demand TLS, the first the path ``/``."""
    root = request.scope.get("root_path", "")
    if not _is_secure(request):
        return "", f"{root}/"
    return (_PREFIX_OF_PATH if root else _PREFIX), f"{root}/"
