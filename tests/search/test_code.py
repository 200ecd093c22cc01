"""Code in fingerprints: functions and classes with other code, or other globals, are others."""

import importlib
import shutil
import sys
import types

import pytest
from sklearn.linear_model import SGDClassifier

from accelerando.search import WarmStart
from accelerando.search._code import is_users_class
from accelerando.search._fingerprint import fingerprint

SOURCE = """
import functools
import types
from sklearn.metrics import fbeta_score, make_scorer
from sklearn.preprocessing import StandardScaler
LIMIT, LABELS, FACTORS = 0.5, ["a", "b"], {"up": 2}
SETTINGS, SCORER = types.SimpleNamespace(beta=7), make_scorer(fbeta_score, beta=8)

def settled(model, X, y):
    return SETTINGS.beta

def by_scorer(model, X, y):
    return SCORER(model, X, y)

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
    @name.setter
    def name(self, value):
        self.named = "two"
    @functools.cached_property
    def cached(self):
        return "three"
    scaler = StandardScaler(copy=True)

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
            "slots": module.Slots(), "settled": module.settled, "scorer": module.by_scorer,
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
        ('"one"', '"1"', {"class", "object"}),
        ('"two"', '"2"', {"class", "object"}),
        ('"three"', '"3"', {"class", "object"}),
        ("copy=True", "copy=False", {"class", "object"}),
        ("beta=7", "beta=6", {"settled"}),
        ("beta=8", "beta=6", {"scorer"}),
        ("self.a = 1", "self.a = 2", {"slots"}),
        ("\nclass Base", "\n\n\nclass Base", set()),  # a line that moves is no other code
    ],
)
def test_an_edit_changes_what_it_affects(before, after, changed):
    edited, original = fingerprints(before, after), fingerprints()
    assert {kind for kind in edited if edited[kind] != original[kind]} == changed


def use_module(form):
    """Return a function that uses another module of the user."""
    forms = {
        "global": "import accelerando_helpers as m\ndef use(x): return m.helper(x)",
        "package": "import accelerando_helpers\ndef use(x): return accelerando_helpers.m.helper(x)",
        "inside": "def use(x):\n import accelerando_helpers\n return accelerando_helpers.helper(x)",
        "from": "def use(x):\n from accelerando_helpers import helper\n return helper(x)",
        "closure": "def make():\n import accelerando_helpers as m\n return lambda x: m.helper(x)\n"
        "use = make()",
    }
    namespace = {"__name__": "__main__"}
    exec(compile(forms[form], "code.py", "exec"), namespace)
    return namespace["use"]


@pytest.mark.parametrize("form", ["global", "package", "inside", "from", "closure"])
@pytest.mark.parametrize("changed", ["x * FACTOR", "FACTOR = 2", "unused"])
def test_the_users_other_modules_count_as_far_as_they_are_used(
    tmp_path, monkeypatch, form, changed
):
    source = "import sys\nm = sys.modules[__name__]\nFACTOR = 2\n"
    source += "def helper(x): return x * FACTOR\ndef other(): return 'unused'\n"
    monkeypatch.syspath_prepend(tmp_path)
    found = []
    for text in (
        source,
        source.replace(changed, changed.replace("2", "3").replace("*", "+") + " "),
    ):
        (tmp_path / "accelerando_helpers.py").write_text(text)
        sys.modules.pop("accelerando_helpers", None)
        shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)
        importlib.invalidate_caches()
        found.append(fingerprint(use_module(form)))
    sys.modules.pop("accelerando_helpers")
    assert (found[0] != found[1]) == (changed != "unused")


def test_the_code_of_libraries_does_not_count():
    assert not any(map(is_users_class, (int, SGDClassifier, WarmStart)))
    assert is_users_class(type("Own", (), {"__module__": "__main__"}))
