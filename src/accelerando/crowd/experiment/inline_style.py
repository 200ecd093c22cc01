"""Inline style of HTML: the properties and values that are allowed.

The pages' policy forbids style attributes, so the allowed declarations travel in ``data-style``,
and the page's script sets them one by one. Each value has to match a pattern: there is no way to
load anything, to cover other parts of the page, or to refer to variables.
"""

from __future__ import annotations

import re

__all__ = ["safe_style"]

_NUMBER = r"(?:\d{1,4}(?:\.\d{1,4})?|\.\d{1,4})"
_SIZE = rf"(?:0|{_NUMBER}(?:px|em|rem|ex|ch|pt|pc|mm|cm|in|%|vw|vh))"
_COLOR = (
    r"(?:#(?:[0-9a-f]{8}|[0-9a-f]{6}|[0-9a-f]{3,4})"
    rf"|(?:rgb|hsl)a?\(\s*{_NUMBER}(?:%|deg)?(?:[\s,/]+{_NUMBER}%?){{2,3}}\s*\)"
    # The names of colors; a word that is none of them has no effect in browsers.
    r"|[a-z]{3,24})"
)
_LINE = r"(?:none|solid|dashed|dotted|double|groove|ridge|inset|outset)"
_WIDTH = rf"(?:thin|medium|thick|{_SIZE})"
_FAMILY = r"(?:\"[a-z0-9 _-]{1,60}\"|'[a-z0-9 _-]{1,60}'|[a-z][a-z0-9 _-]{0,60})"


def _up_to_four(one: str) -> str:
    return rf"{one}(?:\s+{one}){{0,3}}"


_BORDER = rf"(?:{_WIDTH}|{_LINE}|{_COLOR})(?:\s+(?:{_WIDTH}|{_LINE}|{_COLOR})){{0,2}}"
_LONGEST = 400  # characters of a value
_SIDES = ("top", "right", "bottom", "left")

_VALUES: dict[str, str] = {
    "color": _COLOR,
    "background-color": _COLOR,
    "background": _COLOR,
    **dict.fromkeys(("width", "height"), rf"(?:auto|{_SIZE})"),
    **dict.fromkeys(("min-width", "min-height"), _SIZE),
    **dict.fromkeys(("max-width", "max-height"), rf"(?:none|{_SIZE})"),
    "font-size": rf"(?:{_SIZE}|(?:xx?-)?small|medium|(?:xx?-)?large|smaller|larger)",
    "font-family": rf"{_FAMILY}(?:\s*,\s*{_FAMILY}){{0,9}}",
    "font-weight": r"(?:normal|bold|bolder|lighter|[1-9]00)",
    "font-style": r"(?:normal|italic|oblique)",
    "font-variant": r"(?:normal|small-caps)",
    "text-align": r"(?:left|right|center|justify|start|end)",
    "text-decoration": r"(?:none|underline|overline|line-through)",
    "text-transform": r"(?:none|capitalize|uppercase|lowercase)",
    "line-height": rf"(?:normal|{_NUMBER}|{_SIZE})",
    "letter-spacing": rf"(?:normal|{_SIZE})",
    "vertical-align": r"(?:baseline|sub|super|top|middle|bottom)",
    "white-space": r"(?:normal|nowrap|pre|pre-wrap|pre-line)",
    "display": r"(?:block|inline|inline-block)",
    "opacity": r"(?:0?\.\d{1,4}|1(?:\.0{1,4})?)",
    "padding": _up_to_four(_SIZE),
    "margin": _up_to_four(rf"(?:auto|{_SIZE})"),
    **{f"padding-{side}": _SIZE for side in _SIDES},
    **{f"margin-{side}": rf"(?:auto|{_SIZE})" for side in _SIDES},
    "border": _BORDER,
    **{f"border-{side}": _BORDER for side in _SIDES},
    "border-color": _up_to_four(_COLOR),
    "border-style": _up_to_four(_LINE),
    "border-width": _up_to_four(_WIDTH),
    "border-radius": _up_to_four(_SIZE),
}
_PATTERNS = {name: re.compile(value, re.ASCII | re.IGNORECASE) for name, value in _VALUES.items()}


def safe_style(text: str) -> tuple[str, list[str]]:
    """Return the allowed declarations of a style attribute, and those that were removed.

    Examples
    --------
    >>> safe_style("color: red; position: fixed; background: url(//x.test)")
    ('color: red', ['position: fixed', 'background: url(//x.test)'])
    """
    kept, removed = [], []
    for declaration in text.split(";"):
        if not declaration.strip():
            continue
        name, _, value = (part.strip() for part in declaration.partition(":"))
        pattern = _PATTERNS.get(name.lower())
        if pattern is not None and len(value) <= _LONGEST and pattern.fullmatch(value):
            kept.append(f"{name.lower()}: {value}")
        else:
            removed.append(" ".join(declaration.split())[:80])
    return "; ".join(kept), removed
