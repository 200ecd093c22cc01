"""The gallery shows every example, and its pages and notebooks are those of the scripts."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
spec = importlib.util.spec_from_file_location("gallery", ROOT / "docs" / "gallery.py")
gallery = importlib.util.module_from_spec(spec)
sys.modules["gallery"] = gallery  # dataclasses look their module up
spec.loader.exec_module(gallery)

NOTEBOOKS = [example.name for example in gallery.GALLERY if example.notebook]
# What the gallery is there to show, and the examples that show it.
SUBJECTS = {
    "tables": "tables",
    "images from disk": "images_from_disk",
    "padded text": "padded_text",
    "fine-tuning with frozen layers": "fine_tuning",
    "multi-output": "multi_output",
    "streaming": "streaming",
    "cluster": "cluster",
    "search": "search",
    "crowd": "images_to_map",
    "plan": "plan",
    "own policy": "own_policy",
    "resume": "resume",
}


def test_a_script_is_cut_into_cells_and_shows_its_figure():
    script = '"""Title.\n\nRun it with x."""\n\n# %% First\nimport sys\n\nprint(1)\n'
    script += "# %% Then\nif len(sys.argv) > 1:\n    figure.savefig(sys.argv[1])\n"
    assert gallery.cells(script) == [
        *[("markdown", "# Title."), ("markdown", "## First"), ("code", "print(1)")],
        *[("markdown", "## Then"), ("code", "figure")],
    ]


def test_the_gallery_has_all_examples():
    shown = {example.name for example in gallery.GALLERY}
    assert shown == {path.stem for path in gallery.EXAMPLES.glob("*.py")}
    assert set(SUBJECTS.values()) <= shown
    assert len(NOTEBOOKS) == 5


def test_the_index_is_the_present_one():
    assert gallery.INDEX.read_text() == gallery.index(), "run `python docs/gallery.py`"


@pytest.mark.parametrize("example", gallery.GALLERY, ids=lambda example: example.name)
def test_a_page_is_the_present_one(example):
    written = (gallery.PAGES / f"{example.name}.md").read_text()
    assert written == gallery.page(example, gallery.shown_output(example.name))
    assert gallery.shown_output(example.name)


def test_no_page_is_left_of_an_example_that_has_gone():
    pages = {path.stem for path in gallery.PAGES.glob("*.md")}
    assert pages == {example.name for example in gallery.GALLERY}
    assert {path.stem for path in gallery.PAGES.glob("*.ipynb")} == set(NOTEBOOKS)


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_has_the_cells_of_its_script_and_their_output(name):
    written = json.loads((gallery.PAGES / f"{name}.ipynb").read_text())
    found = [(cell["cell_type"], "".join(cell["source"])) for cell in written["cells"]]
    assert found == gallery.cells((gallery.EXAMPLES / f"{name}.py").read_text())
    outputs = [out for cell in written["cells"] for out in cell.get("outputs", [])]
    printed = "".join(out.get("text", "") for out in outputs if out.get("name") == "stdout")
    assert printed.split() == gallery.shown_output(name).split()
    assert not [out for out in outputs if out["output_type"] == "error"]
    assert written["nbformat"] == 4


def test_notebooks_show_figures():
    written = json.loads((gallery.PAGES / "plan.ipynb").read_text())
    shown = [data for cell in written["cells"] for data in cell.get("outputs", [])]
    assert any("image/png" in output.get("data", {}) for output in shown)
