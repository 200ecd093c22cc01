"""Every line of the ASVS checklist names a test that exists."""

import re
from pathlib import Path

HERE = Path(__file__).parent
PAGE = HERE.parents[2] / "docs" / "crowd-asvs.md"


def test_the_tests_of_the_checklist_exist():
    rows = [line for line in PAGE.read_text().splitlines() if re.match(r"\| \d", line)]
    assert len(rows) > 20
    for row in rows:
        found = re.search(r"`(test_\w+\.py)::(test_\w+)` \|$", row)
        assert found, row
        assert f"def {found[2]}(" in (HERE / found[1]).read_text(), row
