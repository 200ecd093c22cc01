"""scikit-learn's metadata routing: which of ``fit``'s extra arguments go to the train split."""

from __future__ import annotations

from typing import Any

import sklearn
from sklearn.utils.metadata_routing import process_routing


def split_params(net: Any, method: str, fit_params: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of ``train_split``: all of them, unless routing says which."""
    if not sklearn.get_config()["enable_metadata_routing"]:
        return fit_params
    routed = process_routing(net, method, **fit_params)
    splitter = routed.get("splitter")
    return dict(splitter["split"]) if splitter else {}
