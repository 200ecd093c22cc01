"""Texts of the participant's page."""

import re
from pathlib import Path

from accelerando.crowd.experiment.texts import TEXTS
from accelerando.crowd.web.pages import STATIC


def test_every_text_is_used_by_the_page_or_the_service():
    folder = STATIC.parent
    files = [*folder.rglob("*.js"), *folder.rglob("*.html"), *Path(folder).rglob("*.py")]
    source = "".join(file.read_text() for file in files)
    # The outcome of a session selects its text. Existing experiment files may set offline_saved.
    dynamic = {
        "offline_saved",
        "withdrawn",
        "blocked",
        "full",
        "no_consent",
        "screened_out",
        "returning",
        "no_invitation",
    }
    unused = {key for key in TEXTS if not re.search(rf"\b{key}\b", source)}
    assert unused <= dynamic


def test_placeholders_are_those_that_the_page_fills_in():
    found = {key: set(re.findall(r"\{(\w+)\}", text)) for key, text in TEXTS.items()}
    assert {key: names for key, names in found.items() if names} == {
        "progress": {"answered", "total"},
        "progress_open": {"answered"},
        "break_wait": {"seconds"},
        "participant_id": {"participant"},
    }
