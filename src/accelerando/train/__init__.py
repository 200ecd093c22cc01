"""The package in which version 0.1 had its estimators: an unpickled one is refused with advice."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

from accelerando.exceptions import StateError


class _Refusal:
    """An import hook: unpickling imports the modules of this package that no longer exist."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.startswith(__name__ + "."):
            raise StateError(
                "This estimator was pickled by accelerando 0.1, whose objects do not exist any "
                "more; load its save_state file with load_state, or train again."
            )
        return None


sys.meta_path.insert(0, _Refusal)
