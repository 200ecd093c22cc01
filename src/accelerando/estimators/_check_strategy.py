"""Checks of combinations: averaging, compression and gathered outputs.

Used by fits with ``sync``, ``virtual_ranks``, ``compression`` or ``couples_rows="gather"``.
"""

from __future__ import annotations

import warnings
from typing import Any

from accelerando._engine.comm.communicator import all_reduce_bytes
from accelerando._engine.loop import Fit
from accelerando._engine.micro_batch import check_sparse
from accelerando._engine.step import needs_closure
from accelerando.compress import Adaptive, ErrorFeedback, PowerSGD
from accelerando.compress._codec import Compressor
from accelerando.estimators._skorch import module_of
from accelerando.exceptions import UnsupportedError
from accelerando.sync import Averaging
from accelerando.sync._strategy import Strategy

WORTH_COMPRESSING = 500_000  # bytes of a model; below, headers count, and nothing is saved
GATHERS = 'couples_rows="gather" computes the loss of a whole batch on every rank'


def check_gather(net: Any, strategy: Strategy) -> None:
    """Refuse what ``couples_rows="gather"`` cannot be combined with."""
    if isinstance(strategy, Averaging):
        raise UnsupportedError(
            f"{GATHERS}, and with sync={strategy!r} each rank has its own batch, whose rows "
            "are not divided. Leave couples_rows out."
        )
    if isinstance(net.micro_batch_size, int):
        raise UnsupportedError(
            f"{GATHERS}, and micro_batch_size={net.micro_batch_size} divides it. Leave "
            'micro_batch_size at "auto", which then does not divide.'
        )


def check_measures(fit: Fit) -> None:
    """Refuse what looks at single rows or at the rows of a rank."""
    for policy in fit.control.policies:
        if policy.measures(0) is not None:
            raise UnsupportedError(
                f"{GATHERS}, and {type(policy).__name__} measures on the training set part by "
                "part. Use RadaDamp, which needs no extra pass."
            )
    for monitor in fit.control.monitors:
        if monitor.looks_at_parts:
            raise UnsupportedError(
                f"{GATHERS}, and {type(monitor).__name__} compares the gradients of parts of a "
                "batch. Leave the monitor or the policy that needs it out."
            )


def check_averaging(net: Any, strategy: Averaging, *, custom: bool) -> None:
    """Refuse training steps and optimizers that cannot be averaged."""
    name = type(strategy).__name__
    if custom:
        raise UnsupportedError(
            f"{type(net).__name__} has its own train_step, in which the rows of ranks could not be "
            f"weighed as {name} requires. Override get_loss or infer instead."
        )
    if searching := _with_closures(net):
        raise UnsupportedError(
            f"{searching[0]} searches along a line by the loss of its batch, from which {name} "
            "would move it away. Use SGD, Adam or another optimizer that steps by the gradient "
            "alone."
        )


def check_compressor(net: Any, compressor: Compressor, strategy: Strategy) -> None:
    """Refuse a compressor that does not fit the strategy, the optimizer or a single process."""
    inner = compressor.codec if isinstance(compressor, Adaptive) else compressor
    if isinstance(strategy, Averaging):
        if isinstance(inner, PowerSGD):
            raise UnsupportedError(
                f"compression={compressor!r} adds gradients up with its own all-reduces, and "
                f"with sync={type(strategy).__name__} ranks exchange differences of parameters. "
                "Pass a codec, such as QSGD(bits=4) or ErrorFeedback(TopK(0.02))."
            )
        return
    check_sparse(module_of(net), [getattr(net, name + "_") for name in net._optimizers])
    if isinstance(inner, PowerSGD) and net.client is None:
        raise UnsupportedError(
            f"compression={compressor!r} is a way to add gradients up over ranks, and without a "
            "client there is only this process. Pass a client, or a codec such as Atomo or QSGD, "
            "which this process applies to its own gradient."
        )
    if not isinstance(inner, ErrorFeedback | PowerSGD):
        return
    # L-BFGS uses differences of the gradients it has evaluated: what error feedback would add to
    # the next one belongs to no step.
    if searching := _with_closures(net):
        raise UnsupportedError(
            f"{searching[0]} evaluates gradients several times in one update, and "
            f"compression={compressor!r} adds to each what those before it left out: the "
            "differences that the optimizer looks at would not be those of the loss. Use a codec "
            "without memory, such as Atomo or QSGD, or another optimizer."
        )


def look_at_bytes(fit: Fit) -> None:
    """Warn after the first epoch if encoded messages were longer than what they encode.

    What they encode is the gradient, or the parameters if ranks average.
    """
    state, table = fit.state, fit.state.records.updates
    if state.position.epoch != 1:
        return
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.tensor().tolist()]
    encoded = [row for row in rows if row["encode_seconds"] > 0 and row["ranks"] > 1]
    n_bytes = sum(p.nbytes for _, p in state.components.named_parameters() if p.requires_grad)
    if not encoded or n_bytes < WORTH_COMPRESSING:
        return
    share = min(row["bytes"] / all_reduce_bytes(n_bytes, int(row["ranks"])) for row in encoded)
    if share > 1.0:
        warnings.warn(
            f"compression={fit.spec.compressor!r} does not pay: an exchange took {share:.1f} times "
            f"the bytes that {int(encoded[-1]['ranks'])} ranks send without it. Choose a codec or "
            "settings with fewer bits, or leave compression out.",
            stacklevel=3,
        )


def _with_closures(net: Any) -> list[str]:
    """Return the names of the optimizers that evaluate the loss themselves."""
    optimizers = [getattr(net, name + "_") for name in net._optimizers]
    return [type(one).__name__ for one in optimizers if needs_closure(one)]
