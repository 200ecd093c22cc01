"""Text of others on a terminal."""

import pytest

from accelerando._terminal import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Zoë 日本 = 1", "Zoë 日本 = 1"),
        ("a\x1b]0;title\x07b", "a\\x1b]0;title\\x07b"),
        ("a\nvalid\tb\r", "a\\nvalid\\tb\\r"),
        ("\u202eabc\u2028", "\\u202eabc\\u2028"),  # the direction of text, and another line break
        ("\x9b2J", "\\x9b2J"),  # a command of eight bits
        ("\ud800", "\\ud800"),
    ],
)
def test_nothing_in_a_text_is_a_command_or_another_line(text, shown):
    assert printable(text) == shown
    shown.encode("utf-8")
