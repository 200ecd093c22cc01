"""Draw docs/images/search.png: python docs/search-picture.py

Runs the code of docs/search-tutorial.md and saves the figure that it draws.
"""

import os
import re
import tempfile
from pathlib import Path

from PIL import Image

DOCS = Path(__file__).parent
COLORS = 128  # enough for lines on white, and a third of the bytes


def main() -> None:
    page = (DOCS / "search-tutorial.md").read_text()
    names: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for block in re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE):
            exec(block, names)  # noqa: S102  our own page
        picture = Image.open("search.png").convert("RGB")
        picture.quantize(COLORS).save(DOCS / "images" / "search.png", optimize=True)
        os.chdir(DOCS)


if __name__ == "__main__":
    main()
