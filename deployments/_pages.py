"""Scripts of the documentation, to be run as they are printed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"
# What readers bring: data, and a module.
BEFORE = """
import numpy as np
from torch.nn import Linear, Sequential, Softmax

X = np.random.default_rng(0).normal(size=(512, 8)).astype("float32")
y = (X[:, 0] > 0).astype("int64")

class MyModule(Sequential):
    def __init__(self):
        super().__init__(Linear(8, 2), Softmax(dim=-1))

"""
FIT = "net.fit(X, y)"
AFTER = "\n    print(net.updates_frame()['ranks'].max(), 'ranks')"


def script_of(page: str, here: Mapping[str, str]) -> str:
    """Return the first script of a page, with what is different on the cluster of a test.

    Parameters
    ----------
    page : str
        The name of a file in docs.
    here : mapping
        What the script says about the cluster of the page, and what it is here.
    """
    text = (DOCS / page).read_text().split("```{code-block} python\n", 1)[1].split("```", 1)[0]
    for there, ours in {**here, FIT: FIT + AFTER}.items():
        if text.count(there) != 1:
            raise AssertionError(f"{page} does not say {there!r} once.")
        text = text.replace(there, ours)
    return BEFORE + text
