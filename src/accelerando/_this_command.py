"""The command ``accelerando`` as this user can type it, for hints that commands print."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path


def this_command() -> str:
    """Return ``accelerando`` if a shell would find this installation, else its full path.

    ``make demo`` installs into a virtual environment that it does not activate.
    """
    found = shutil.which("accelerando")
    here = Path(sys.executable).parent
    if found is not None and Path(found).absolute().parent == here.absolute():
        return "accelerando"
    script = here / ("accelerando.exe" if os.name == "nt" else "accelerando")
    words = [str(script)] if script.exists() else [sys.executable, "-m", "accelerando"]
    return shlex.join(words)
