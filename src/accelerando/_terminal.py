"""Text on a terminal: escape sequences and line breaks in the text of others are shown, not run."""

from __future__ import annotations

__all__ = ["printable"]


def printable(text: str) -> str:
    r"""Return a text with its control characters escaped, so that a terminal shows them.

    A name may contain the commands of a terminal, which change its title, move the cursor or hide
    lines, and line breaks and tabs, which look like further rows.

    Examples
    --------
    >>> printable("grün\x1b[2J\tvalid")
    'grün\\x1b[2J\\tvalid'
    """
    return "".join(
        sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text
    )
