"""Figure of a plan's prediction against what a run took."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from accelerando.plot._style import COLORS, clean, headline, integer_ticks, label_ends, single_panel

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from accelerando.cost import Plan


def prediction(planned: Plan, run: Any, *, title: str | None = None, ax: Any = None) -> Figure:
    """Draw the predicted and the measured seconds of a run over epochs.

    Parameters
    ----------
    planned : Plan
        The result of :func:`accelerando.cost.plan` or :func:`accelerando.cost.replan`.
    run : fitted estimator, or its ``history_frame()``
        The run that was planned.
    title : str, optional
        The title of the figure.
    ax : Axes of matplotlib, optional
        Where to draw. Default: a new figure.

    Returns
    -------
    matplotlib.figure.Figure
        Save it with ``figure.savefig("prediction.png")``. A notebook shows it.

    Examples
    --------
    >>> import pandas as pd
    >>> from accelerando import cost, plot
    >>> planned = cost.plan(64, n_examples=640, max_epochs=2, parameters=10,
    ...                     seconds_per_example=0.001)
    >>> history = pd.DataFrame({"epoch": [1, 2], "seconds": [0.7, 1.4]})
    >>> panel = plot.prediction(planned, history).axes[0]
    >>> [text.get_text() for text in panel.texts]
    ['predicted', 'measured, 9 % more']
    """
    from accelerando.cost import Plan

    if not isinstance(planned, Plan):
        raise TypeError(
            "The 'planned' parameter of prediction must be a Plan of accelerando.cost. Got "
            f"{type(planned).__name__} instead."
        )
    frame = run.history_frame() if callable(getattr(run, "history_frame", None)) else run
    if not isinstance(frame, pd.DataFrame) or not {"epoch", "seconds"} <= set(frame):
        raise TypeError(
            "The 'run' parameter of prediction must be a fitted estimator or its history_frame(). "
            f"Got {type(run).__name__} instead."
        )
    predicted = planned.frame()
    both = predicted.merge(frame, on="epoch", suffixes=("_predicted", "_measured"))
    if both.empty:
        raise ValueError("The plan and the run have no epoch in common.")
    figure, panel = single_panel(ax, 7.0, 3.6)
    panel.plot(predicted["epoch"], predicted["seconds"], "--", color=COLORS[1], lw=1.8)
    panel.plot(frame["epoch"], frame["seconds"], color=COLORS[0], lw=2)
    clean(panel)
    integer_ticks(panel)
    panel.set(xlabel="epochs", ylabel="seconds", ylim=(0, None))
    last = both.iloc[-1]
    ratio = last["seconds_measured"] / last["seconds_predicted"] - 1
    word = "more" if ratio >= 0 else "less"
    label_ends(
        panel,
        [
            ("predicted", COLORS[1], float(predicted["seconds"].iloc[-1])),
            (
                f"measured, {100 * abs(ratio):.0f} % {word}",
                COLORS[0],
                float(last["seconds_measured"]),
            ),
        ],
    )
    headline(figure, title)
    return figure  # type: ignore[no-any-return]
