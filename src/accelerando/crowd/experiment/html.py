"""Sanitization of HTML that experimenters write."""

from __future__ import annotations

import html
import re

import nh3

__all__ = ["clean_html", "plain_text"]

_TAGS = {
    *("a", "abbr", "b", "blockquote", "br", "code", "dd", "del", "div", "dl", "dt", "em"),
    *("figcaption", "figure", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "i", "img", "ins", "kbd"),
    *("li", "mark", "ol", "p", "pre", "q", "rp", "rt", "ruby", "s", "samp", "small", "span"),
    *("strong", "sub", "sup", "table", "tbody", "td", "tfoot", "th", "thead", "tr", "tt", "u"),
    *("ul", "var", "wbr", "font", "center", "video", "audio", "source"),
}
_ATTRIBUTES = {
    "*": {"class", "dir", "lang", "title"},
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
    """Return HTML with text formatting and media only: no scripts, styles, forms or handlers.

    Examples
    --------
    >>> clean_html('<b onclick="x()">red</b><script>alert(1)</script>')
    '<b>red</b>'
    """
    return nh3.clean(
        text,
        tags=_TAGS,
        attributes=_ATTRIBUTES,
        url_schemes={"http", "https", "mailto"},
        link_rel="noopener noreferrer nofollow",
    )


def plain_text(text: str) -> str:
    """Return the text of HTML, for labels and tables.

    Examples
    --------
    >>> plain_text("<p>a <b>red</b> &amp; round one</p>")
    'a red & round one'
    """
    words = html.unescape(nh3.clean(text, tags=set()))
    return re.sub(r"\s+", " ", words).strip()
