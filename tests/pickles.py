"""What a pickle refers to."""

import io
import pickle


def imported_by(sent):
    """Return the modules and names that are imported where a pickle is loaded."""
    found = set()

    class Noting(pickle.Unpickler):
        def find_class(self, module, name):
            found.add((module, name))
            return super().find_class(module, name)

    Noting(io.BytesIO(sent)).load()
    return found
