"""``python -m accelerando`` is the command ``accelerando``."""

import sys

from accelerando.cli import main

if __name__ == "__main__":
    sys.exit(main())
