"""Division: what follows if rows are coupled, for ranks and for micro-batches.

:mod:`accelerando._engine.coupling` finds out whether they are. Ranks refuse to divide such a batch;
micro-batches are as large as the batch, unless the user asked for a division.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from accelerando._engine.coupling import (
    cut_rows,
    find_coupling,
    is_known_to_be_by_row,
    rows_to_compare,
)
from accelerando._engine.data.feed import leaves, only_tensors, slice_rows
from accelerando._engine.micro_batch import may_broadcast, net_couples_rows
from accelerando.exceptions import UnsupportedError

if TYPE_CHECKING:
    from accelerando._engine.loop import Fit
    from accelerando._engine.trial import Where

_WHAT = {
    "loss": "the loss of a row depends on the other rows of its batch, as that of a contrastive "
    "loss or of Dice does",
    "module": "the module's output for a row depends on the other rows of its batch, as with "
    "statistics over the batch, attention over its first axis, or numbers that are drawn for the "
    "rows from a generator of the module's own",
    "buffers": "the module or the criterion remembers something about the rows it has seen in a "
    "forward pass (a buffer, a tensor, a running number), and computes with it",
    "padding": "what the module or the loss makes of a row depends on how far iterator_train__"
    "collate_fn pads it, which depends on the other rows of its batch",
    "hook": "a hook looks at gradients after they are accumulated (register_post_accumulate_grad_"
    "hook), which are those of a part of the batch",
}
_ALONE = "train in one process (client=None) or on one rank (max_workers=1)"
_REMEDY = {
    "loss": 'Pass couples_rows="gather", which computes the loss of the whole batch on every rank; '
    f"or {_ALONE}",
    "module": "Use nn.BatchNorm, whose statistics ranks share, or a norm over single rows "
    f"(GroupNorm, LayerNorm), and check which axis is the batch; or {_ALONE}. "
    'couples_rows="gather" gathers outputs and cannot help inside the module',
    "buffers": f"Keep no memory of rows in the module; or {_ALONE}",
    "padding": "Mask the padding in the module and in the loss, or pad to a fixed length; or "
    f"{_ALONE}",
    "hook": "Use a callback with on_grad_computed, which sees the gradient of the whole batch; or "
    f"{_ALONE}",
}


def refuse_on_ranks(where: Where, *, gathers: bool) -> None:
    """Raise if coupled rows would be divided among ranks; gathering outputs helps a loss only."""
    if gathers and where == "loss":
        return
    raise UnsupportedError(
        f"Ranks divide a batch, and {_WHAT[where]}: the result would depend on the number of "
        f"ranks. {_REMEDY[where]}. If you know better, couples_rows=False trains without this "
        "check."
    )


def settle_division(fit: Fit, X: Any, y: Any, rows: int, size: int) -> int:
    """Return the size of micro-batches: all rows if these turn out to be coupled.

    Raises
    ------
    UnsupportedError
        If the user asked for a division that would change the result.
    """
    micro, spec, model = fit.state.micro_batch, fit.spec, fit.model
    micro.verified = True
    if spec.couples_rows is False or (net_couples_rows(model.components) and not spec.probes):
        return size
    if (
        spec.divisible
        and all(map(is_known_to_be_by_row, model.components.modules.values()))
        and not may_broadcast(model.criterion)
    ):
        return size
    some = slice_rows([X, y], 0, rows_to_compare(model)) if only_tensors([X, y]) else [X, y]
    usual = min(rows, size if fit.comm.alone else rows)
    look = partial(find_coupling, model, *some, sums=spec.sums, repeated=not spec.probes)
    where = look(batch_size=usual)
    if where is None and only_tensors(some) and size < len(leaves(some)[0]):
        where = look(parts=cut_rows(some, [0, size, len(leaves(some)[0])]))  # by their number
    if where is None:
        return size
    if spec.probes:
        refuse_on_ranks(where, gathers=spec.couples_rows == "gather")
    if micro.fixed is not None:
        raise UnsupportedError(
            f"micro_batch_size={micro.fixed} divides a batch, and {_WHAT[where]}: the result would "
            'depend on the size of micro-batches. Leave micro_batch_size at "auto", which then '
            "does not divide. If you know better, couples_rows=False trains without this check."
        )
    if fit.control.looks_at_parts and fit.comm.alone:
        raise UnsupportedError(
            f"A monitor compares the gradients of parts of a batch, and {_WHAT[where]}. Leave the "
            "monitor or the policy that needs it out."
        )
    micro.whole = True
    return rows
