"""Parameters that all searches share, with their documentation.

A search class lists its positional parameters in Dask-ML's order as annotated fields, and inherits
the others from :class:`SharedParameters`. The decorator :func:`search_class` writes ``__init__``
from the fields, so that ``inspect.signature``, scikit-learn and type checkers see the full list.
It also completes the docstring of the class with the shared entries.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import re
from dataclasses import KW_ONLY
from typing import Any, TypeVar, dataclass_transform

__all__ = ["SharedParameters", "search_class"]

T = TypeVar("T")

SECTIONS = ("", "Parameters", "Attributes", "Notes", "References", "Examples")


@dataclass_transform(eq_default=False)
def search_class(cls: type[T]) -> type[T]:
    """Give a search class its ``__init__`` and its complete docstring.

    ``__init__`` stores the parameters and does nothing else, as scikit-learn demands. Equality and
    ``repr`` remain those of scikit-learn. Defaults are removed from the class, because a parameter
    is an attribute of the instances only.
    """
    documented = cls.__doc__ is not None  # python -OO removes docstrings
    made: type[T] = dataclasses.dataclass(eq=False, repr=False, match_args=False)(cls)
    for field in dataclasses.fields(made):  # type: ignore[arg-type]
        if field.name in vars(made):
            delattr(made, field.name)
    if not documented:
        made.__doc__ = None  # dataclass writes a docstring if there is none
    elif made.__bases__ != (object,):
        made.__doc__ = complete_docstring(made)
    return made


@search_class
class SharedParameters:
    """Parameters and attributes of every search.

    Parameters
    ----------
    estimator : estimator
        Has ``partial_fit``, ``get_params`` and ``set_params``. An estimator that holds a Dask
        client in a parameter trains on the cluster itself: its calls are made in this process.
    parameters : dict or list of dicts
        A list of values or a distribution (with ``rvs``) for each parameter name. Each model draws
        from one of the dicts. If there are only lists, no combination is drawn twice before all
        have been drawn.
    patience : bool or int, default=False
        Stop a model whose score has not improved by more than ``tol`` in the last ``patience``
        calls. True is a third of the calls of the longest-trained models.
    tol : float or None, default=0.001
        The smallest improvement that counts for ``patience``. None and nan never stop a model.
    test_size : float or int, optional
        Validation rows, the same for all models. The default is a fifth of the rows, or the size
        of one block for a Dask array with more than five blocks.
    random_state : int, RandomState or None
        An int makes the search repeatable on any number of workers. It also seeds every
        ``random_state`` of the models that is None.
    scoring : str, callable, list or dict, optional
        As in scikit-learn. The default is the estimator's ``score``.
    verbose : bool or number from 0 to 1, default=False
        Show brackets and leaders, unless it is False or 0: live in a terminal, as HTML in a
        notebook, and as a line every 30 seconds in a log.
    prefix : str
        Name of the search in the progress table.
    predict_meta, predict_proba_meta, transform_meta : array, optional
        An empty array like the result, for Dask arrays. By default the type is found by
        predicting one row of zeros.
    refit : str or True
        Name of the metric that decides, if ``scoring`` has several or returns a dict.
    client : "default", None or dask.distributed.Client
        "default" uses the current client, or this process if there is none. None uses this
        process.
    priority : {"score", "fifo"}
        Train models with high scores first, or in the order of the plan. The result is the same,
        but with "score" good models are found sooner.
    slice_seconds : float, default=1.5
        Target duration of a task. A task is scored at its end, so that a model that turns out to
        be good need not wait until another one finishes a long rung.
    chunk_size : int, optional
        Rows per call if the data is in memory; all rows by default. The blocks of a Dask array
        are its chunks.
    sampler : {"random", "tpe"}
        "random" draws independently. "tpe" draws each bracket from a density that is estimated
        from the scores of the brackets before it. It needs several brackets, which only
        :class:`HyperbandSearchCV` has.
    error_score : float or "raise", default=nan
        The score of a model that raises. NaN never wins.
    max_seconds, max_calls : optional
        End the search after this time, or this number of calls, with the best model so far.
    max_time : float, str or timedelta, optional
        Like ``max_seconds``, also in words such as "10 min". Only one of both can be passed.
    target_score : float, optional
        End the search when a model reaches this score.
    n_jobs : int, optional
        Train in this many processes of this machine, which live as long as ``fit``; -1 is one per
        core. It takes the place of ``client``.
    refit_all : bool, default=False
        Train the best model once more on all rows, the validation rows included, for as many calls
        as it had. ``best_score_`` remains the score without these rows. With ``cv`` this is always
        done.
    validation_data : tuple (X, y), optional
        Rows for all scores. Nothing is held out of the rows passed to ``fit`` then.
    cv : int, splitter or iterable, optional
        Cross-validation in place of held-out rows: each model is trained once per fold, and the
        mean of the folds' scores decides. As in scikit-learn an integer is the number of folds
        (stratified for classifiers), and splitters such as ``PredefinedSplit`` and ``GroupKFold``
        or an iterable of (train, test) are accepted. Calls are counted per fold. The data must be
        in memory.
    max_call_seconds : float, optional
        A model whose ``partial_fit`` takes longer fails with a TimeoutError. The worker in which
        the call still runs is restarted if it has a nanny.
    checkpoint : path, optional
        A directory for the history and the states of models. A search that is started again with
        the same directory continues. The files are pickles: use only directories that you trust.

    Attributes
    ----------
    best_estimator_, best_params_, best_score_, best_index_
        The best model. The index refers to ``cv_results_``.
    cv_results_ : dict of arrays
        One entry per model.
    history_ : list of dict
        One entry per score, ordered by time. ``model_history_`` groups the entries by model.
    metadata, metadata_ : dict
        The plan, and the work that was done. They are equal unless the search ended early.
    best_so_far_ : dict or None
        The best model at this moment. It can be read from another thread while ``fit`` runs.
    stop_reason_ : str
        "finished", "stopped" (by :meth:`stop` or Ctrl-C), "interrupted" (by a second Ctrl-C during
        a call), "max_seconds", "max_calls", "target_score" or "checkpoint" (it could no longer be
        written; ``fit`` raises the error).
    n_iter_ : int
        Calls of the best model.
    n_live_models_ : int
        The largest number of models in memory at a time, without the best of the dropped models,
        which is also kept. It is at most ``metadata["n_models"]``.
    scorer_, n_splits_, multimetric_
        As in scikit-learn.
    """

    estimator: Any
    parameters: Any
    _: KW_ONLY
    refit: str | bool = True
    client: Any = "default"
    priority: str = "score"
    slice_seconds: float = 1.5
    chunk_size: int | None = None
    sampler: str = "random"
    error_score: float | str = math.nan
    max_seconds: float | None = None
    max_calls: int | None = None
    checkpoint: Any = None
    max_call_seconds: float | None = None
    max_time: Any = None
    target_score: float | None = None
    n_jobs: int | None = None
    refit_all: bool = False
    validation_data: Any = None
    cv: Any = None


def complete_docstring(cls: type) -> str:
    """Return the docstring of a search with the shared parameters and attributes added.

    Parameters follow the order of the signature. If the class describes a shared parameter
    itself, its description is used.
    """
    sections = split_sections(cls.__doc__)
    shared = split_sections(SharedParameters.__doc__)
    order = list(inspect.signature(cls).parameters)
    for title in ("Parameters", "Attributes"):
        described = entries(shared[title]) | entries(sections.get(title, ""))
        if title == "Parameters":
            names = [name for name in described if name.split(",")[0] in order]
            names.sort(key=lambda name: order.index(name.split(",")[0]))
            described = {name: described[name] for name in names}
        sections[title] = "\n".join(described.values())
    return "\n\n".join(
        f"{title}\n{'-' * len(title)}\n{sections[title]}" if title else sections[title]
        for title in SECTIONS
        if title in sections
    )


def split_sections(docstring: str | None) -> dict[str, str]:
    """Return the sections of a numpydoc docstring by title; the text before them has title ""."""
    first, *rest = re.split(r"^(\w+)\n-+\n", inspect.cleandoc(docstring or ""), flags=re.M)
    texts = dict(zip(rest[::2], rest[1::2], strict=True))
    return {"": first.strip()} | {title: text.strip() for title, text in texts.items()}


def entries(section: str) -> dict[str, str]:
    """Return the entries of a section by name: an entry starts with a line without indentation."""
    listed = re.split(r"\n(?=\S)", section) if section else []
    return {entry.split("\n")[0].split(" : ")[0]: entry for entry in listed}
