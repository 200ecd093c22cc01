"""Deprecated names answer once more, with a warning that names the replacement."""

import pytest

from accelerando._deprecation import Deprecated, deprecated_names, warn_deprecated

NAMES = {"old": Deprecated("math", "tau", "Use new.")}


def test_a_deprecated_name_is_found_and_warns_with_the_advice():
    import math

    with pytest.warns(FutureWarning, match=r"^package\.old is deprecated.* Use new\.$"):
        assert deprecated_names("package", NAMES)("old") is math.tau


def test_other_names_are_attribute_errors_as_in_any_module():
    with pytest.raises(AttributeError, match="module 'package' has no attribute 'nothing'"):
        deprecated_names("package", NAMES)("nothing")


def test_the_warning_points_at_the_line_that_uses_the_name():
    def outdated():
        warn_deprecated("outdated", "Leave it out.")

    with pytest.warns(FutureWarning) as caught:
        outdated()
    assert caught[0].filename == __file__
