"""Run the examples and write the gallery: a page and perhaps a notebook for each, and the index.

``python docs/gallery.py`` runs all of them, ``python docs/gallery.py plan resume`` only these. The
pages show what the scripts print; ``tests/test_examples.py`` runs them again and compares.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
PAGES = ROOT / "docs" / "gallery"
IMAGES = ROOT / "docs" / "images"
INDEX = ROOT / "docs" / "gallery.md"


@dataclass(frozen=True)
class Example:
    """A script in ``examples/``, and what the gallery says about it."""

    name: str
    title: str
    says: str
    picture: bool = False
    notebook: bool = False


GALLERY = [
    Example("growing_batches", "Batches that grow", "The first program, with a figure.", True),
    Example("tables", "Tables", "Numbers with gaps and words, in a Pipeline.", notebook=True),
    Example("images_from_disk", "Images from disk", "A folder, augmented, read by two processes."),
    Example("padded_text", "Padded text", "Each batch is as long as its longest text."),
    Example("fine_tuning", "Fine-tuning", "Frozen layers and a new head.", notebook=True),
    Example("multi_output", "Several inputs and outputs", "Two inputs by name, two targets."),
    Example("streaming", "Streams", "A data set without length, and partial_fit."),
    Example("cluster", "A cluster", "A worker is killed; the parameters are the same."),
    Example("search", "Search", "Hyperband in this process.", True, notebook=True),
    Example("search_on_a_cluster", "Search on a cluster", "Search, train the best, plan more."),
    Example("images_to_map", "Ask people", "From images to a map of what is similar.", True),
    Example("plan", "Plan", "Time, traffic and price before renting.", True, notebook=True),
    Example("own_policy", "A policy of your own", "A function, and a class with a memory."),
    Example("resume", "Resume", "Stop in an epoch, continue to the same bits.", notebook=True),
]


def run(example: Example) -> str:
    """Run the script, save its picture if it draws one, and return what it prints."""
    arguments = [str(IMAGES / f"gallery-{example.name}.png")] if example.picture else []
    with tempfile.TemporaryDirectory() as folder:
        if example.name == "images_to_map":  # its first argument is the folder
            arguments = [_painted(folder), *arguments]
        done = subprocess.run(  # noqa: S603 (our own scripts)
            [sys.executable, str(EXAMPLES / f"{example.name}.py"), *arguments],
            capture_output=True,
            text=True,
            check=True,
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
    return done.stdout.rstrip()


def _painted(folder: str) -> str:
    images = Path(folder, "images")
    images.mkdir()
    sys.path.insert(0, str(EXAMPLES))
    from images_to_map import paint

    paint(images)
    return str(images)


def page(example: Example, output: str) -> str:
    """Return the page of an example."""
    parts = [f"# {example.title}", example.says]
    if example.picture:
        parts.append(
            f"```{{image}} ../images/gallery-{example.name}.png\n"
            f":alt: The figure that examples/{example.name}.py draws\n:width: 100%\n```"
        )
    if example.notebook:
        parts.append(f"As a {{download}}`notebook <{example.name}.ipynb>`, with its output.")
    parts += [
        f"```{{literalinclude}} ../../examples/{example.name}.py\n:language: python\n```",
        f"It prints:\n\n```text\n{output}\n```",
    ]
    return "\n\n".join(parts) + "\n"


def shown_output(name: str) -> str:
    """Return the output that the page of an example shows."""
    text = (PAGES / f"{name}.md").read_text()
    found = re.search(r"It prints:\n\n```text\n(.*?)\n```", text, re.DOTALL)
    assert found is not None
    return found[1]


def index() -> str:
    """Return the index of the gallery."""
    rows = "\n".join(
        f"| [{e.title}](gallery/{e.name}.md) | {e.says} | {'yes' if e.notebook else ''} |"
        for e in GALLERY
    )
    pictures = "\n".join(
        f"[![{e.title}](images/gallery-{e.name}.png)](gallery/{e.name}.md)\n"
        for e in GALLERY
        if e.picture
    )
    listed = "\n".join(f"gallery/{e.name}" for e in GALLERY)
    return f"""# Examples

Each runs in seconds with `python examples/NAME.py`, without data to download. The pages show
what they print. `python docs/gallery.py` writes them.

| example | shows | notebook |
| --- | --- | --- |
{rows}

{pictures}
```{{toctree}}
:hidden:

{listed}
```
"""


def cells(source: str) -> list[tuple[str, str]]:
    """Return the cells of a script whose parts begin with ``# %%``: kind and text."""
    docstring, rest = re.match(r'"""(.*?)"""\n(.*)', source, re.DOTALL).groups()
    lead = docstring.split("\n\nRun it with")[0]
    found = [("markdown", f"# {lead}")]
    for part in re.split(r"^# %% ", rest, flags=re.MULTILINE)[1:]:
        title, _, code = part.partition("\n")
        # A notebook shows its figures; a script saves them where its argument says.
        code = re.sub(r"if len\(sys\.argv\) > 1:\n    (.+)\.savefig\(.*\)\n", r"\1\n", code)
        code = re.sub(r"^import sys\n\n", "", code)
        found += [("markdown", f"## {title}"), ("code", code.strip())]
    return found


def notebook(name: str) -> dict[str, Any]:
    """Return the notebook of a script, with the outputs of a run."""
    from jupyter_client.manager import start_new_kernel

    written: list[dict[str, Any]] = []
    os.environ["OMP_NUM_THREADS"] = "1"
    manager, client = start_new_kernel(kernel_name="python3")
    try:
        for number, (kind, text) in enumerate(cells((EXAMPLES / f"{name}.py").read_text())):
            cell: dict[str, Any] = {"cell_type": kind, "id": f"cell-{number}", "metadata": {}}
            cell["source"] = text.splitlines(keepends=True)
            if kind == "code":
                cell |= {"execution_count": None, "outputs": _outputs(client, text)}
            written.append(cell)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {
        "cells": written,
        "metadata": {"kernelspec": kernel},
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def _outputs(client: Any, code: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []

    def take(message: dict[str, Any]) -> None:
        kind, content = message["msg_type"], message["content"]
        if kind == "error":
            raise RuntimeError("\n".join(content["traceback"]))
        if kind == "stream":
            found.append({"output_type": kind, "name": content["name"], "text": content["text"]})
        elif kind in ("display_data", "execute_result"):
            data = {"output_type": kind, "data": content["data"], "metadata": {}}
            found.append(data | ({"execution_count": None} if kind == "execute_result" else {}))

    client.execute_interactive(code, output_hook=take, timeout=120)
    return found


def write(names: list[str]) -> None:
    """Write the pages, pictures and notebooks of these examples, or of all, and the index."""
    PAGES.mkdir(exist_ok=True)
    for example in GALLERY:
        if names and example.name not in names:
            continue
        print(example.name, flush=True)
        (PAGES / f"{example.name}.md").write_text(page(example, run(example)))
        if example.notebook:
            text = json.dumps(notebook(example.name), indent=1, ensure_ascii=False)
            (PAGES / f"{example.name}.ipynb").write_text(text + "\n")
    INDEX.write_text(index())


if __name__ == "__main__":
    write(sys.argv[1:])
