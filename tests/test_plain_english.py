"""What people read follows the rules for plain English: code, pages, messages, command help."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = [
    *(ROOT / "src").rglob("*.py"),
    *(ROOT / "src").rglob("*.html"),
    *(ROOT / "src").rglob("*.js"),
    *(ROOT / "docs").rglob("*.md"),
    *(ROOT / "docs").glob("*.py"),
    *(ROOT / "benchmarks").glob("*.py"),
    *(ROOT / "examples").glob("*.py"),
    *(ROOT / "packaging").rglob("*.*"),
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
]

# A phrase that is no established term, or a riddle, and what to write.
PHRASES = {
    r"so many": "the number, or `n`",
    r"how-manieth": "position, index",
    r"[Tt]ell whether": "return whether, check whether",
    r"of (its|their) own": "its own …, a separate …",
    r"besides?": "next to, in addition to",
    r"whole numbers?": "integer",
    r"no truth value": "no Boolean",
    r"takes? up": "continue, use",
    r"told": "the verb that says how: passed, printed, sent",
    r"stands? (for|in one)": "mean, represent",
    r"(go|goes|going|went) on": "continue",
    r"[Ll]ook on": "watch",
}
BRITISH = (
    r'behaviour|colour|favour|neighbour|(?<!")centre[sd]?|labell(ed|ing)|modell(ed|ing)|catalogue'
    r"|(synchron|initial|optim|normal|recogn|organ|summar|quant|general|minim|maxim)is(e[sd]?|ing|ation)"
)


def places(pattern):
    """Where the pattern is, as file, line and text."""
    found = re.compile(rf"\b({pattern})\b")
    return [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
        for path in FILES
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if found.search(line)
    ]


def test_there_are_files_to_read():
    assert len(FILES) > 400


@pytest.mark.parametrize("pattern", PHRASES)
def test_phrases_that_the_style_guide_rewrites_are_not_used(pattern):
    assert places(pattern) == [], f"write: {PHRASES[pattern]}"


def test_the_spelling_is_american():
    assert places(BRITISH) == []


@pytest.mark.parametrize(
    ("line", "pattern"),
    [
        ("a process of its own", r"of (its|their) own"),
        ("training goes on with", r"(go|goes|going|went) on"),
        ("small beside the others", r"besides?"),
    ],
)
def test_the_patterns_find_what_they_forbid(line, pattern):
    assert pattern in PHRASES
    assert re.search(rf"\b({pattern})\b", line)


def test_docstrings_of_modules_name_their_concept_first():
    riddle = re.compile(r'"""(What|How|Where|Who|Whether|That)\b')
    modules = (ROOT / "src").rglob("*.py")
    assert [str(path) for path in modules if riddle.match(path.read_text())] == []
