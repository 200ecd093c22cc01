"""Checks of an embedding's settings before a fit."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from accelerando._validation import check_choice, check_integer, check_number, parameter_error
from accelerando.crowd._noise import noise_model
from accelerando.crowd._triplets import Triplets

Array = NDArray[np.float64]

_MOST_ITEMS = 10_000_000


def check_settings(
    model: Any, triplets: Triplets, weights: Array, n_starts: int, n_warm: int = 0
) -> None:
    """Raise an error if an :class:`OrdinalEmbedding` cannot be fitted with its settings."""
    check_integer(model, "n_components", model.n_components, also={"auto": "'auto'"})
    check_integer(model, "n_init", model.n_init, minimum=0)
    check_integer(model, "max_iter", model.max_iter)
    check_integer(model, "n_items", model.n_items, minimum=3, also={None: "None"})
    if model.n_items is not None and model.n_items > _MOST_ITEMS:
        allowed = f"an integer of at most {_MOST_ITEMS:,} or None"
        raise parameter_error(model, "n_items", allowed, f"{model.n_items:,}")
    _check_gaps(model, triplets, n_warm)
    if n_starts == 0:
        allowed = "an integer of at least 1 unless there is a warm start"
        raise parameter_error(model, "n_init", allowed, model.n_init)
    words = {"estimate": "'estimate'", "auto": "'auto'"}
    check_number(model, "lapse", model.lapse, minimum=0, below=0.5, also=words)
    check_choice(model, "solver", model.solver, ("auto", "lbfgs", "minibatch"))
    noise = None if model.noise == "auto" else noise_model(model.noise)
    if model.n_components == "auto" and noise is not None and not noise.probabilistic:
        allowed = f"an integer, because the loss of noise={model.noise!r} has no probability"
        raise parameter_error(model, "n_components", allowed, model.n_components)
    if model.lapse in words:
        if noise is not None and not noise.probabilistic:
            allowed = f"a number, because the loss of noise={model.noise!r} has no probability"
            raise parameter_error(model, "lapse", allowed, model.lapse)
        if model.lapse == "estimate" and model.solver == "minibatch":
            # A mini-batch is too small to distinguish lapses from small distances.
            allowed = "a number with solver='minibatch'"
            raise parameter_error(model, "lapse", allowed, model.lapse)
    check_number(model, "tol", model.tol, above=0)
    check_number(model, "ridge", model.ridge, minimum=0, also={None: "None"})
    if len(triplets) == 0:
        raise ValueError("triplets must contain at least one answer. Got none.")
    if not weights.any():
        raise ValueError("sample_weight must contain a weight above 0. All weights are 0.")


def _check_gaps(model: Any, triplets: Triplets, n_warm: int) -> None:
    """Raise ValueError if item numbers are far above the number of answers, as ids of a shop are.

    Every number below the highest one gets a position: the memory of a fit follows from it.
    """
    if model.n_items is not None or len(triplets) == 0:
        return
    highest = int(triplets.max())
    if highest >= max(n_warm, 1000 + 10 * len(triplets)):
        raise ValueError(
            f"triplets has the item number {highest:,} in {len(triplets):,} answers; every number "
            "from 0 to the highest one gets a position. Number the items without gaps (for "
            "example with np.unique(triplets, return_inverse=True)), or pass n_items if there "
            "are as many items as that."
        )
