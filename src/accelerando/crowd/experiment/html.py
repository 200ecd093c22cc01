"""Sanitization of HTML that experimenters write."""

from __future__ import annotations

import html
import re
import secrets
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache

import nh3

from accelerando.crowd.experiment.inline_style import safe_style

__all__ = ["clean_html", "cleaned", "plain_text"]

_TAGS = {
    *("a", "abbr", "b", "blockquote", "br", "code", "dd", "del", "div", "dl", "dt", "em"),
    *("figcaption", "figure", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "i", "img", "ins", "kbd"),
    *("li", "mark", "ol", "p", "pre", "q", "rp", "rt", "ruby", "s", "samp", "small", "span"),
    *("strong", "sub", "sup", "table", "tbody", "td", "tfoot", "th", "thead", "tr", "tt", "u"),
    *("ul", "var", "wbr", "font", "center", "video", "audio", "source"),
}
_ATTRIBUTES = {
    "*": {"class", "dir", "lang", "title", "style", "data-style"},
    "a": {"href"},
    "img": {"src", "alt", "width", "height"},
    "video": {"src", "controls", "autoplay", "loop", "muted", "width", "height", "poster"},
    "audio": {"src", "controls", "autoplay", "loop", "muted"},
    "source": {"src", "type"},
    "td": {"colspan", "rowspan"},
    "th": {"colspan", "rowspan"},
    "font": {"color", "size"},
}


def clean_html(text: str) -> str:
    """Return HTML with text formatting and media only: no scripts, forms or handlers.

    Examples
    --------
    >>> clean_html('<b onclick="x()">red</b><script>alert(1)</script>')
    '<b>red</b>'
    >>> clean_html('<p style="color: red; position: fixed">x</p>')
    '<p data-style="color: red">x</p>'
    """
    return cleaned(text)[0]


@lru_cache(maxsize=1024)
def cleaned(text: str) -> tuple[str, tuple[str, ...]]:
    """Return sanitized HTML, and what was removed from it.

    Examples
    --------
    >>> cleaned('<b onclick="x()" style="float: left">red</b>')
    ('<b>red</b>', ('the style "float: left"', 'the attribute onclick of <b>'))
    """
    removed: list[str] = []
    # Marks the style attributes of the result, which then get the name that the page looks for.
    mark = secrets.token_hex(16)

    def filtered(tag: str, attribute: str, value: str) -> str | None:
        if attribute not in ("style", "data-style"):
            return value
        kept, others = safe_style(value)
        removed.extend(f'the style "{other}"' for other in others)
        if not kept:
            return None
        return f"{mark}{kept}" if attribute == "style" else kept

    made = text
    # A second time if an element could have both attributes, of which parsers keep the first.
    for _ in range(2 if "data-style" in text else 1):
        made = nh3.clean(
            made,
            tags=_TAGS,
            attributes=_ATTRIBUTES,
            attribute_filter=filtered,
            url_schemes={"http", "https", "mailto"},
            link_rel="noopener noreferrer nofollow",
        ).replace(f' style="{mark}', ' data-style="')
    if made == text:
        return made, ()
    before, after = _parts(text), _parts(made)
    return made, tuple(dict.fromkeys([*removed, *(part for part in before - after)]))


# Python's HTMLParser takes minutes for "<a " repeated often and raises on "<![". What this finds is
# only named in a notice, nothing is let through by it. Nothing is matched twice (`*+`).
_TAG = re.compile(r"""<([A-Za-z][^\s/<>]*+)((?:[^"'<>]++|"[^"]*+"|'[^']*+')*+)""")
_ATTRIBUTE = re.compile(
    r"""([^\s"'<>/=]++)(?:\s*+=\s*+(?:"[^"]*+"|'[^']*+'|[^\s"'<>]++))?+""", re.ASCII
)
_RAW = {tag: re.compile(f"</{tag}", re.IGNORECASE) for tag in ("script", "style")}


def _parts(text: str) -> Counter[str]:
    """Return the tags and attributes of HTML as words, except style."""
    found: Counter[str] = Counter()
    for tag, attributes in _tags(text):
        found[f"the tag <{tag}>"] += 1
        names = {name.lower() for name in _ATTRIBUTE.findall(attributes)}
        for name in sorted(names - {"style", "data-style", "rel"}):
            found[f"the attribute {name} of <{tag}>"] += 1
    for tag in [part[9:-1] for part in found if part.startswith("the tag <")]:
        if tag not in _TAGS:  # a tag that goes takes its attributes along
            for part in [part for part in found if part.endswith(f" of <{tag}>")]:
                del found[part]
    return found


def _tags(text: str) -> Iterator[tuple[str, str]]:
    """Yield the name and the attributes of each start tag outside of comments and scripts."""
    place = text.find("<")
    while place >= 0:
        if text.startswith("<!--", place):
            end = text.find("-->", place + 4)
        else:
            tag, end = _TAG.match(text, place), place + 1
            if tag is not None:
                name, end = tag[1].lower(), tag.end()
                yield name, tag[2]
                if name in _RAW:
                    close = _RAW[name].search(text, end)
                    end = -1 if close is None else close.start() + 1
        place = -1 if end < 0 else text.find("<", end)


def plain_text(text: str) -> str:
    """Return the text of HTML, for labels and tables.

    Examples
    --------
    >>> plain_text("<p>a <b>red</b> &amp; round one</p>")
    'a red & round one'
    """
    words = html.unescape(nh3.clean(text, tags=set()))
    return re.sub(r"\s+", " ", words).strip()
