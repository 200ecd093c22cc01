"""Settings of Sphinx.

Links to other projects need their inventories: a file ``docs/_inventories/NAME.inv``, or else the
project's own server. Without either, the pages are built without these links and without a warning.
"""

import urllib.request
from pathlib import Path

from accelerando import __version__

project = "accelerando"
copyright = "the accelerando developers"
version = release = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.intersphinx",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
]
templates_path = ["_templates"]
myst_enable_extensions = ["dollarmath", "deflist"]
myst_heading_anchors = 3
exclude_patterns = ["_build", "gallery/*.ipynb"]

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # numpydoc sections say the types in words
napoleon_google_docstring = False
napoleon_use_rtype = False

# The page of a module summarizes its own names, by their full names.
suppress_warnings = ["autosummary.import_cycle"]

html_theme = "furo"
html_title = "accelerando"

# The reference has one page per object; autosummary writes them into docs/api/. The pages of these
# classes show members.
autosummary_context = {
    "shown_members": {
        "accelerando.NeuralNetClassifier": ["fit"],
        "accelerando.NeuralNetBinaryClassifier": ["fit"],
        "accelerando.NeuralNetRegressor": ["fit"],
        "accelerando.cost.Plan": ["frame", "on"],
        "accelerando.cost.Network": ["seconds"],
        "accelerando.monitor.Monitor": ["start", "observe", "undefined"],
        "accelerando.policies.Policy": [
            "needs",
            "scheduled",
            "occasional",
            "start",
            "decide",
            "monitors",
        ],
        "accelerando.compress.ErrorFeedback": ["encode", "encode_with", "decode"],
        "accelerando.compress.Adaptive": ["at"],
        "accelerando.compress.Codec": ["encode", "decode", "expected_error", "with_settings"],
        "accelerando.sync.Averaging": [
            "needs",
            "start",
            "next_period",
            "observe",
            "rule",
            "begins_anew",
            "ranks_wanted",
        ],
        "accelerando.search.HyperbandSearchCV": ["fit", "stop"],
    },
    "inherited_methods": {
        "accelerando.NeuralNet": [
            "partial_fit",
            "set_params",
            "history_frame",
            "updates_frame",
            "signals",
            "save_state",
            "load_state",
        ],
    },
}

PROJECTS = {
    "python": "https://docs.python.org/3/",
    "numpy": "https://numpy.org/doc/stable/",
    "pandas": "https://pandas.pydata.org/docs/",
    "sklearn": "https://scikit-learn.org/stable/",
    "skorch": "https://skorch.readthedocs.io/en/stable/",
    "torch": "https://docs.pytorch.org/docs/stable/",
    "dask": "https://docs.dask.org/en/stable/",
    "distributed": "https://distributed.dask.org/en/stable/",
}
INVENTORIES = Path(__file__).parent / "_inventories"


def reachable(url: str) -> bool:
    """Return True if a server answers; Sphinx would warn about one that does not."""
    try:
        with urllib.request.urlopen(url, timeout=3) as answer:  # noqa: S310 (addresses from above)
            return answer.status == 200
    except OSError:
        return False


def mapping() -> dict[str, tuple[str, str | None]]:
    """Return the projects to link to: those with a local inventory, or a server that answers."""
    found: dict[str, tuple[str, str | None]] = {}
    online = True
    for name, url in PROJECTS.items():
        local = INVENTORIES / f"{name}.inv"
        if local.exists():
            found[name] = (url, str(local))
        elif online and (online := reachable(f"{url}objects.inv")):  # one that fails is enough
            found[name] = (url, None)
    return found


intersphinx_mapping = mapping()
intersphinx_timeout = 10
