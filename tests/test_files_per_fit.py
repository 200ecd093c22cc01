"""A fit is readable: the functions that it calls are in few files of ours."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import accelerando
from accelerando.batch_size import RadaDamp
from tests.nets import classifier

ROOT = str(Path(accelerando.__file__).parent)
IN_THIS_PROCESS = 15


@contextmanager
def files_called() -> Iterator[set[str]]:
    """Collect the files of accelerando of which a function is called inside.

    What an import executes does not count: it is read only by those who follow the import.
    """
    found: set[str] = set()

    def look(frame, event, arg):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(ROOT) and code.co_name != "<module>":
            found.add(code.co_filename[len(ROOT) + 1 :])

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        yield found
    finally:
        sys.setprofile(before)


def test_a_fit_in_this_process_calls_functions_of_few_files(digits):
    X, y = digits[0][:200], digits[1][:200]
    net = classifier(batch_size=RadaDamp(initial=32), max_epochs=2)
    with files_called() as files:
        net.fit(X, y)
    assert "_engine/loop.py" in files
    assert "_engine/step.py" in files
    assert len(files) <= IN_THIS_PROCESS, sorted(files)
