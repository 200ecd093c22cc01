"""Functions in the tasks of lazy Dask collections: every worker can load them.

A lazy array is computed later, by workers that Dask chooses, and Dask drops annotations that name
workers when it optimizes the graph of an array. A worker that cannot unpickle a task, because it
lacks a package or has another version of Python, leaves the cluster. So these tasks hold source
text and bytes only. A worker that cannot load the function says so in the error of its task.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from accelerando._dask import Sent

_LOAD = "(exec(source, scope := {'__name__': 'sent'}), scope['Anywhere'](source, load, content))[1]"

# Runs in any version of Python, on the scheduler too, which pickles what it has unpickled.
_SOURCE = """
class Anywhere:
    def __init__(self, source, load, content, function=None):
        self.source, self.load, self.content, self.function = source, load, content, function

    def __reduce__(self):
        if self.content is None:
            import cloudpickle

            self.content = cloudpickle.dumps(self.function)
        return eval, (
            self.load,
            {"source": self.source, "load": self.load, "content": self.content},
        )

    def __call__(self, *arguments):
        if self.function is None:
            self.function = self.unpickled()
        return self.function(*arguments)

    def unpickled(self):
        import cloudpickle

        try:
            return cloudpickle.loads(self.content)
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
        try:
            from distributed import get_worker

            where = f"Worker {get_worker().address}"
        except Exception:
            where = "This process"
        raise RuntimeError(
            f"{where} cannot load what it has to compute ({said}). Install the same versions of "
            "Python and of all packages on all workers, or name those that have them: "
            "compute(workers=[...])."
        )
"""


def anywhere(function: Callable[..., Any]) -> Any:
    """Return a function that any process can unpickle, and that those call which can load it.

    Parameters
    ----------
    function : callable
        Pickled when the result is, by cloudpickle.

    Examples
    --------
    >>> import pickle
    >>> pickle.loads(pickle.dumps(anywhere(len)))("four")
    4
    """
    made = Sent(_SOURCE, "Anywhere")(_SOURCE, _LOAD, None, function)
    made.__name__ = getattr(function, "__name__", "compute")  # in the keys of tasks
    return made
