"""The tool that plants bugs: which ones, and whether a test that catches one counts."""

import textwrap

import pytest

from tests import mutants

CODE = '''
    """A module."""

    LIMIT = 3  # runs at import: not a mutant

    def decide(x, y: int = 7):
        """Return 1 + 1."""
        if x < LIMIT and not y:
            log.info("%s", x + 1)
            raise ValueError(f"{x + 2}")
        self.kept = max(x, 1)
        flush(x)
        return x - y
'''


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project with one module and a test of it."""
    source = tmp_path / "src" / "accelerando"
    source.mkdir(parents=True)
    (tmp_path / "tests").mkdir()
    monkeypatch.setattr(mutants, "ROOT", tmp_path)
    monkeypatch.setattr(mutants, "SOURCE", source)
    return source


def test_the_mutants_of_a_file(project):
    (project / "it.py").write_text(textwrap.dedent(CODE))
    found = [(one.old, one.new) for one in mutants.mutants_of("p", project / "it.py")]
    assert sorted(found) == [
        ("-", "+"),
        ("1", "2"),
        ("<", "<="),
        ("and", "or"),
        ("flush(x)", "pass"),
        ("max", "min"),
        ("not ", ""),
        ("self.kept = max(x, 1)", "pass"),
        ("x < LIMIT and not y", "(not (x < LIMIT and not y))"),
    ]


@pytest.mark.parametrize(
    ("test", "verdict"),
    [("assert add(2, 3) == 5", "killed"), ("assert add(2, 0) == 2", "survived")],
)
def test_a_mutant_is_killed_by_a_test_that_notices(project, test, verdict):
    (project / "__init__.py").touch()
    (project / "it.py").write_text("def add(a, b):\n    return a + b\n")
    file = project.parents[1] / "tests" / "test_it.py"
    file.write_text(f"from accelerando.it import add\n\ndef test_add():\n    {test}\n")
    (mutant,) = mutants.mutants_of("p", project / "it.py")
    files = mutants.tests_of(mutant, mutants.imports_of_tests())
    assert files == ["tests/test_it.py"]
    row = mutants.judge(mutant, files, 60)
    assert (row["verdict"], row["name"]) == (verdict, "it.py: `return a + b` + -> -")
    assert "+" in (project / "it.py").read_text(), "the source itself is never changed"


def test_the_same_seed_draws_the_same_bugs():
    some = mutants.sample(40, 3, ["policies/", "_files.py"])
    assert some == mutants.sample(40, 3, ["policies/", "_files.py"])
    assert {one.package for one in some} == {"policies and monitors", "engine"}
    assert some != mutants.sample(40, 4, ["policies/", "_files.py"])
