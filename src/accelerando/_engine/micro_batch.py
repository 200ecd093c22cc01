"""Micro-batches: the parts of a batch, their size, their mass and their share of the loss.

A batch passes through the model in micro-batches. Their gradients add up to the gradient of the
batch, so their size decides speed and memory, not the result. On a CPU it is fast to keep the
tensors of the backward pass small enough for the caches and for malloc to reuse: a convolutional
net runs up to twice as fast in micro-batches of a hundred rows; a small dense net is fastest in
one piece.

The loss of a batch is Σ mᵢ Lᵢ / Σ mᵢ over its micro-batches (and, on a cluster, ranks), where Lᵢ
is the value of the criterion for part i and mᵢ is the *mass* of that part: its number of rows, or,
for a classification loss with class weights or ignored targets, the divisor of that loss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from accelerando._engine._torch import batch_norm_class, hooks_of
from accelerando.exceptions import UnsupportedError

KEPT_BYTES = 32 * 2**20  # limit of what one micro-batch keeps for its backward pass
MIN_ROWS = 32
PROBE_ROWS = 64
TRIALS = 2  # updates per candidate; the faster one counts
WORTH = 0.95  # a candidate must take at most this share of the default's time

# Looked up at import: whether rows are coupled is asked in every fit.
_BATCH_COUPLED = (batch_norm_class(),)
_BY_TARGET = (nn.CrossEntropyLoss, nn.NLLLoss)
_BY_ROW = (
    nn.MSELoss,
    nn.L1Loss,
    nn.SmoothL1Loss,
    nn.HuberLoss,
    nn.BCELoss,
    nn.BCEWithLogitsLoss,
    nn.PoissonNLLLoss,
    nn.GaussianNLLLoss,
    nn.SoftMarginLoss,
    nn.MultiLabelSoftMarginLoss,
    nn.MultiMarginLoss,
    nn.MultiLabelMarginLoss,
)


def couples_rows(*parts: Any) -> bool:
    """Return True if what a module computes for a row depends on other rows, as with BatchNorm.

    Parameters
    ----------
    *parts : module or other object
        Modules and criteria; a function has no layers.

    Examples
    --------
    >>> couples_rows(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))), couples_rows(nn.ReLU())
    (True, False)
    """
    modules = [part for part in parts if isinstance(part, nn.Module)]
    return any(isinstance(one, _BATCH_COUPLED) for module in modules for one in module.modules())


def net_couples_rows(components: Any) -> bool:
    """Return True if a module or a criterion of a net does."""
    return couples_rows(*components.modules.values(), *components.criteria.values())


def is_plain_batch_norm(layer: nn.Module) -> bool:
    """Return True for BatchNorm with PyTorch's own forward pass, which ranks synchronize."""
    kind = batch_norm_class()
    return isinstance(layer, kind) and type(layer).forward is kind.forward


def rows_for(bytes_per_row: float) -> int:
    """Return the largest power of two of rows that keeps within :data:`KEPT_BYTES`.

    Examples
    --------
    >>> rows_for(140_000)
    128
    """
    rows = max(MIN_ROWS, int(KEPT_BYTES / max(bytes_per_row, 1.0)))
    return 1 << (rows.bit_length() - 1)


@contextmanager
def kept_bytes(module: nn.Module) -> Iterator[list[int]]:
    """Count the bytes of the tensors that autograd saves inside the context."""
    seen = {parameter.data_ptr() for parameter in module.parameters()}
    total = [0]

    def count(tensor: torch.Tensor) -> torch.Tensor:
        # By tensor, not by storage: a micro-batch is a view into the storage of the batch.
        if tensor.layout == torch.strided and tensor.data_ptr() not in seen:
            seen.add(tensor.data_ptr())
            total[0] += tensor.nbytes
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        yield total


@dataclass
class MicroBatch:
    """The number of rows per micro-batch, chosen during the first updates.

    The first micro-batch of the first update shows how many bytes a row keeps for the backward
    pass, which gives a default size. With ``timed`` the sizes around it then compete over the next
    updates. A seeded run is not timed: the cut decides rounding errors, and a clock must not.

    Attributes
    ----------
    fixed : int or None
        The size that the user passed.
    whole : bool
        Never divide a batch.
    timed : bool
        Let the neighboring sizes compete.
    rows : int or None
        The chosen size; None before the first update.
    seconds : dict
        Seconds per row of each candidate; empty when the choice is made.
    """

    fixed: int | None = None
    whole: bool = False
    timed: bool = False
    rows: int | None = None
    seconds: dict[int, list[float]] = field(default_factory=dict)
    used: int = 0
    verified: bool = False  # that parts of a batch add up to it

    @classmethod
    def of(cls, setting: int | str | None, *, timed: bool) -> MicroBatch:
        """Return what ``micro_batch_size`` describes: a size, "auto", or None for never."""
        if setting is None:
            return cls(whole=True)
        return cls(timed=timed) if setting == "auto" else cls(fixed=int(setting))

    def size(self, batch_rows: int) -> int:
        """Return the number of rows of the next micro-batch of a batch."""
        if self.whole:
            return batch_rows
        if self.fixed is not None:
            return self.fixed
        if self.rows is None:
            return PROBE_ROWS
        self.used = self._candidate(batch_rows)
        return self.used

    @property
    def probing(self) -> bool:
        """Whether the next micro-batch is the one whose saved tensors are counted."""
        return not self.whole and self.fixed is None and self.rows is None

    @contextmanager
    def weighing(self, module: nn.Module, rows: int) -> Iterator[None]:
        """Count what the forward pass inside keeps, unless the size is already known."""
        if not self.probing:
            yield
            return
        with kept_bytes(module) as kept:
            yield
        self.weigh(kept[0], rows)

    def weigh(self, kept: int, rows: int) -> None:
        """Choose the default size from the bytes that a probe of `rows` rows kept."""
        self.rows = rows_for(kept / rows)
        if self.timed:
            around = (self.rows // 2, self.rows, self.rows * 2, self.rows * 4)
            self.seconds = {size: [] for size in around}

    def observe(self, batch_rows: int, seconds: float) -> None:
        """Record the duration of an update; choose when every candidate has had its trials."""
        if self.used not in self.seconds or batch_rows <= self.used:
            return
        self.seconds[self.used].append(seconds / batch_rows)
        if all(len(times) >= TRIALS for times in self.seconds.values()):
            assert self.rows is not None
            best = {size: min(times) for size, times in self.seconds.items()}
            fastest = min(best, key=lambda size: best[size])
            if best[fastest] < WORTH * best[self.rows]:
                self.rows = fastest
            self.seconds = {}

    def _candidate(self, batch_rows: int) -> int:
        assert self.rows is not None
        if not self.seconds:
            return self.rows
        untried = (size for size, times in self.seconds.items() if len(times) < TRIALS)
        return next((size for size in untried if size < batch_rows), self.rows)

    def to_json(self) -> dict[str, Any]:
        """Return what a resumed run needs in order to cut its batches the same way."""
        return {"rows": self.rows, "seconds": {str(k): v for k, v in self.seconds.items()}}

    def from_json(self, saved: dict[str, Any]) -> None:
        """Restore what :meth:`to_json` returned."""
        self.rows = saved["rows"]
        self.seconds = {int(size): list(times) for size, times in saved["seconds"].items()}


def is_mean_over_rows(criterion: Any) -> bool:
    """Return True if the loss of a batch is known to be a (weighted) mean or sum over its rows.

    Examples
    --------
    >>> is_mean_over_rows(nn.MSELoss()), is_mean_over_rows(nn.CosineEmbeddingLoss())
    (True, False)
    """
    kind = next((one for one in _BY_TARGET + _BY_ROW if isinstance(criterion, one)), None)
    if kind is None or type(criterion).forward is not kind.forward or is_altered(criterion):
        return False  # no loss of torch.nn, or a subclass that computes something else
    return getattr(criterion, "reduction", None) in ("mean", "sum")


def may_broadcast(criterion: Any) -> bool:
    """Return True for losses that combine all rows with all others if shapes do not match."""
    return not isinstance(criterion, (*_BY_TARGET, nn.BCELoss, nn.BCEWithLogitsLoss))


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def is_altered(module: nn.Module) -> bool:
    """Return True if hooks, or a replaced ``forward``, make a layer do more than its class does.

    Examples
    --------
    >>> layer = nn.Linear(2, 2)
    >>> handle = layer.register_forward_hook(lambda layer, args, output: output - output.mean(0))
    >>> is_altered(layer), is_altered(nn.Linear(2, 2))
    (True, False)
    """
    own = vars(module)
    if "forward" in own or any(own.get(name) for name in _HOOKS):
        return True
    return any(p is not None and hooks_of(p) for p in own["_parameters"].values())


def mass(criterion: Any, y: Any, rows: int) -> float:
    """Return the mass of one part of a batch.

    Examples
    --------
    >>> mass(nn.CrossEntropyLoss(weight=torch.tensor([1.0, 3.0])), torch.tensor([0, 1, 1]), 3)
    7.0
    """
    if not isinstance(criterion, _BY_TARGET) or criterion.reduction != "mean":
        return float(rows)
    if not isinstance(y, torch.Tensor) or y.is_floating_point():
        return float(rows)  # class probabilities as targets: PyTorch divides by the rows
    counted = y != criterion.ignore_index
    weight = criterion.weight
    if weight is None:
        return float(counted.sum())
    target = torch.where(counted, y, 0).to(weight.device)
    return float((weight[target] * counted.to(weight.device)).sum())


def facts_of(model: Any) -> dict[str, Any]:
    """Return what a fit must know of its model, which callbacks may change between two epochs."""
    return {
        # BatchNorm cannot train on the single row that an adaptive batch size may leave over.
        "min_rows": 2 if net_couples_rows(model.components) else 1,
        "sums": getattr(model.criterion, "reduction", "mean") == "sum",
    }


def every_row_counts(criterion: Any, y: Any) -> bool:
    """Return True if the mass of any part of a data set with targets `y` is its number of rows."""
    if getattr(criterion, "reduction", "mean") == "sum":
        return False
    if not isinstance(criterion, _BY_TARGET):
        return True
    if not isinstance(y, torch.Tensor) or criterion.weight is not None:
        return False
    return y.is_floating_point() or not bool((y == criterion.ignore_index).any())


def share_of(criterion: Any, y: Any, rows: int, whole: float) -> float:
    """Return the factor of one part's loss in the loss of a batch with mass `whole`."""
    if getattr(criterion, "reduction", "mean") == "sum":
        return 1.0
    return mass(criterion, y, rows) / whole if whole else 1.0


def check_weightable(criterion: Any) -> None:
    """Raise if the criterion cannot return the losses of single examples."""
    if getattr(criterion, "reduction", None) not in ("mean", "sum"):
        raise UnsupportedError(
            f"sample_weight and class_weight need the loss of each example, and "
            f"{type(criterion).__name__} has no 'reduction' parameter to ask for it. Use a loss of "
            "torch.nn with reduction='mean', or weigh the examples in your own criterion."
        )


def check_sparse(module: nn.Module, optimizers: Iterable[torch.optim.Optimizer]) -> None:
    """Refuse sparse gradients: ranks and codecs exchange dense ones."""
    sparse = [n for n, part in module.named_modules() if getattr(part, "sparse", False) is True]
    needing = [one for one in optimizers if isinstance(one, torch.optim.SparseAdam)]
    if sparse or needing:
        what = f"The layer {sparse[0]!r} has sparse=True" if sparse else "SparseAdam is sparse"
        raise UnsupportedError(
            f"{what}, and what ranks or codecs exchange is dense. Pass sparse=False to the "
            "embedding and use Adam, or train in this process (client=None) without compression."
        )


@contextmanager
def _without_reduction(criterion: Any) -> Iterator[None]:
    reduction = criterion.reduction
    criterion.reduction = "none"
    try:
        yield
    finally:
        criterion.reduction = reduction


def weighted_loss(
    criterion: Any,
    losses: Callable[[], torch.Tensor],
    y: Any,
    weights: torch.Tensor,
    rows: int,
) -> torch.Tensor:
    """Return Σ wᵢ ℓᵢ / mass for weights whose mean over the training set is one.

    Parameters
    ----------
    criterion : torch.nn.Module
        The loss function, with a ``reduction``.
    losses : callable
        Evaluates the criterion. It is called while the reduction is ``"none"``.
    y : object
        Targets of this part of the batch.
    weights : torch.Tensor
        One weight per row.
    rows : int
        Number of rows of this part.
    """
    total = 1.0 if criterion.reduction == "sum" else mass(criterion, y, rows) or 1.0
    with _without_reduction(criterion):
        per_row = losses()
    if per_row.dim() == 0 or per_row.shape[0] != rows:
        raise UnsupportedError(
            f"sample_weight needs one loss per example: {type(criterion).__name__} returned a "
            f"tensor of shape {tuple(per_row.shape)} for {rows} examples."
        )
    if per_row.dim() > 1:
        flat = per_row.flatten(1)
        per_row = flat.sum(1) if criterion.reduction == "sum" or total != rows else flat.mean(1)
    return (per_row * weights.to(per_row)).sum() / total
