"""Sanitization of HTML; attacks are in tests/crowd/web/test_attacks.py."""

import pytest

from accelerando.crowd.experiment.html import clean_html, cleaned, plain_text


@pytest.mark.parametrize(
    "text",
    [
        "<b>bold</b> and <i>italic</i>",
        "H<sub>2</sub>O",
        '<img src="https://img.test/x.png" alt="a cat">',
        "<table><tbody><tr><td>1</td></tr></tbody></table>",
    ],
)
def test_formatting_and_media_are_kept(text):
    assert clean_html(text) == text


def test_links_get_a_safe_rel_and_no_scripts():
    link = clean_html('<a href="https://lab.test" target="_top">lab</a>')
    assert 'href="https://lab.test"' in link
    assert "noopener" in link
    assert "target" not in link
    assert "href" not in clean_html('<a href="javascript:alert(1)">x</a>')


@pytest.mark.parametrize(
    ("html", "text"),
    [
        ("<p>a <b>red</b>\n &amp; round one</p>", "a red & round one"),
        ("<script>alert(1)</script>x", "x"),
        ("", ""),
    ],
)
def test_the_text_of_html_has_no_tags_and_single_spaces(html, text):
    assert plain_text(html) == text


def test_safe_style_travels_in_another_attribute_and_the_rest_is_named():
    text = '<p style="color: red; float: left" onclick="x()">a</p><form>b</form>'
    made, removed = cleaned(text)
    assert made == '<p data-style="color: red">a</p>b'
    assert removed == (
        'the style "float: left"',
        "the attribute onclick of <p>",
        "the tag <form>",
    )
    assert cleaned(made) == (made, ())


@pytest.mark.parametrize(
    "text",
    [
        '<p style="color: red" data-style="position: fixed; color: blue">x</p>',
        "<p data-style='position: fixed'>x</p>",
        "<p data-style='color: red\" onclick=\"alert(1)'>x</p>",
    ],
)
def test_nobody_writes_unchecked_style_into_that_attribute(text):
    made = clean_html(text)
    assert "position" not in made
    assert "onclick" not in made
    assert clean_html(made) == made
