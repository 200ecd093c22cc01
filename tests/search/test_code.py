"""Code in fingerprints: functions and classes with other code, or other globals, are others."""

import sys
import types

import pytest
from sklearn.linear_model import SGDClassifier

from accelerando.search import WarmStart
from accelerando.search._code import is_users_class
from accelerando.search._identity import fingerprint

SOURCE = """
import functools
LIMIT, LABELS, FACTORS = 0.5, ["a", "b"], {"up": 2}

def above(x):
    return x > LIMIT

def scorer(model, X, y):
    inner = [above(x) for x in X]
    return LABELS, FACTORS, inner

class Base:
    width = 3
    def fit(self, X):
        return above(X)

class Scorer(Base):
    def __call__(self, model, X, y):
        return 1.0
    @property
    def name(self):
        return "one"

class Slots:
    __slots__ = ("a",)
    def __init__(self):
        self.a = 1
"""


def fingerprints(before="", after=""):
    """Return the fingerprints of what SOURCE defines, after an edit."""
    assert before in SOURCE
    module = types.ModuleType("accelerando_user_code")
    module.__file__ = "code.py"
    sys.modules[module.__name__] = module
    try:
        exec(compile(SOURCE.replace(before, after), "code.py", "exec"), vars(module))
        made = {
            "function": module.scorer, "class": module.Scorer, "object": module.Scorer(),
            "slots": module.Slots(),
        }  # fmt: skip
        return {kind: fingerprint(value) for kind, value in made.items()}
    finally:
        del sys.modules[module.__name__]


@pytest.mark.parametrize(
    ("before", "after", "changed"),
    [
        ("x > LIMIT", "x >= LIMIT", {"function", "class", "object"}),
        ("0.5", "0.6", {"function", "class", "object"}),
        ('["a", "b"]', '["b", "a"]', {"function"}),
        ('"up": 2', '"up": 3', {"function"}),
        ("for x in X", "for x in X[1:]", {"function"}),
        ("1.0", "2.0", {"class", "object"}),
        ("width = 3", "width = 4", {"class", "object"}),
        ('"one"', '"two"', {"class", "object"}),
        ("self.a = 1", "self.a = 2", {"slots"}),
        ("\nclass Base", "\n\n\nclass Base", set()),  # a line that moves is no other code
    ],
)
def test_an_edit_changes_what_it_affects(before, after, changed):
    edited, original = fingerprints(before, after), fingerprints()
    assert {kind for kind in edited if edited[kind] != original[kind]} == changed


def test_the_code_of_libraries_does_not_count():
    assert not any(map(is_users_class, (int, SGDClassifier, WarmStart)))
    assert is_users_class(type("Own", (), {"__module__": "__main__"}))
