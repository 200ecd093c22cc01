"""The table of all parameters, from which signatures and their documentation are generated.

Estimators spell them out for editors. ``python -m accelerando.estimators._signatures`` writes them.
"""

from __future__ import annotations

from typing import NamedTuple


class Parameter(NamedTuple):
    """One parameter of the estimators.

    Attributes
    ----------
    name, type, default : str
        As they stand in the signature; an empty default means that it must be given.
    kind : str
        Its type in the documentation.
    text : str
        What it does.
    """

    name: str
    type: str
    default: str
    kind: str
    text: str


SKORCH = [
    Parameter(
        "module",
        "torch.nn.Module | Callable[..., torch.nn.Module]",
        "",
        "torch.nn.Module class, function or instance",
        "The model; ``module__x`` parameters go to its constructor, or to the function that makes "
        "it. Each ``fit`` makes a new one. An instance is used as it is, as in skorch: it begins "
        "with the parameters it has, and a second ``fit`` continues with it.",
    ),
    Parameter(
        "criterion",
        "Callable[..., Any]",
        "",
        "class",
        "The loss; ``criterion__x`` go to its constructor.",
    ),
    Parameter(
        "optimizer",
        "Callable[..., torch.optim.Optimizer]",
        "torch.optim.SGD",
        "class, default=torch.optim.SGD",
        "``optimizer__x`` parameters go to its constructor.",
    ),
    Parameter(
        "lr",
        'float | Literal["auto"] | None',
        '"auto"',
        'float, "auto" or None, default="auto"',
        'The learning rate. ``"auto"`` is 0.01 as in skorch, or the default of the optimizer if '
        "that is larger (1.0 for Adadelta and L-BFGS, which learn next to nothing with 0.01). None "
        "is the default of the optimizer.",
    ),
    Parameter(
        "max_epochs", "int", "10", "int, default=10", "Epochs of one ``fit`` or ``partial_fit``."
    ),
    Parameter(
        "batch_size",
        "int | Policy | type[Policy] | Callable[[Signals], float | None]",
        "128",
        "int, policy of :mod:`accelerando.batch_size`, or function, default=128",
        "Rows per update. A policy may be given as a class, with ``batch_size__x`` parameters, or "
        "as an instance; ``-1`` is the whole training set.",
    ),
    Parameter(
        "iterator_train",
        "type[DataLoader[Any]]",
        "DataLoader",
        "class, default=torch.utils.data.DataLoader",
        "How data that are not arrays are read; ``iterator_train__x`` parameters go to it.",
    ),
    Parameter(
        "iterator_valid",
        "type[DataLoader[Any]]",
        "DataLoader",
        "class, default=torch.utils.data.DataLoader",
        "The same for validation and prediction.",
    ),
    Parameter(
        "dataset",
        "Any",
        "Dataset",
        "class, default=skorch.dataset.Dataset",
        "What `X` and `y` are wrapped in, unless they are a Dataset already.",
    ),
    Parameter(
        "train_split",
        "Callable[..., Any] | Literal[False] | None",
        "ValidSplit(5)",
        "callable or None, default=ValidSplit(5)",
        "Divides the rows; by default a fifth is held out for validation. None trains on all rows.",
    ),
    Parameter(
        "callbacks",
        'Sequence[Any] | Literal["disable"] | None',
        "None",
        'list of callbacks, None or "disable", default=None',
        "skorch's callbacks, in addition to its default ones.",
    ),
    Parameter(
        "predict_nonlinearity",
        'Callable[..., Any] | Literal["auto"] | None',
        '"auto"',
        'callable, None or "auto", default="auto"',
        "What ``predict_proba`` applies to the outputs of the module.",
    ),
    Parameter(
        "warm_start",
        "bool",
        "False",
        "bool, default=False",
        "Whether ``fit`` continues with the parameters of the last one.",
    ),
    Parameter("verbose", "int", "1", "int, default=1", "0 prints nothing and shows no progress."),
    Parameter(
        "device",
        "str | torch.device | None",
        '"cpu"',
        'str, torch.device or None, default="cpu"',
        "Where the model is trained; None leaves it where it is.",
    ),
    Parameter(
        "compile",
        "bool",
        "False",
        "bool, default=False",
        "Whether ``torch.compile`` compiles the modules; ``compile__x`` parameters go to it.",
    ),
    Parameter(
        "use_caching",
        'bool | Literal["auto"]',
        '"auto"',
        'bool or "auto", default="auto"',
        "Whether skorch's scoring callbacks may reuse predictions of the validation.",
    ),
    Parameter(
        "torch_load_kwargs",
        "dict[str, Any] | None",
        "None",
        "dict or None, default=None",
        "Arguments of ``torch.load`` in ``load_params``.",
    ),
]
OURS = [
    Parameter(
        "max_batch_size",
        "int | None",
        "None",
        "int or None, default=None",
        "The largest batch. Where a policy wants more, the learning rate falls by the same factor.",
    ),
    Parameter(
        "micro_batch_size",
        'int | Literal["auto"] | None',
        '"auto"',
        'int, "auto" or None, default="auto"',
        "Rows that go through the model at once; gradients of a larger batch are accumulated, "
        'with the same result. ``"auto"`` measures in the first update what a row keeps in memory '
        "and, if `random_state` is None, compares the speed of similar sizes in the next updates; "
        "it never divides a batch where that would change the result. None never divides.",
    ),
    Parameter(
        "couples_rows",
        'Literal["gather", False] | None',
        "None",
        '"gather", False or None, default=None',
        'If rows depend on each other: ``"gather"`` lets ranks compute the loss of all rows; None '
        "finds out and refuses to divide a batch; False does not look.",
    ),
    Parameter(
        "channels_last",
        'bool | Literal["auto"]',
        '"auto"',
        'bool or "auto", default="auto"',
        'Memory format of convolutions; ``"auto"`` uses the faster one on CPUs if that works.',
    ),
    Parameter(
        "ema",
        "float | None",
        "None",
        "float between 0 and 1, or None, default=None",
        "Decay of an exponential moving average of the weights, such as 0.999: after each update "
        "the average is ``ema * average + (1 - ema) * weights``, corrected for its start. "
        "Predictions, scores and validation use the average, ``save_params`` writes it; training, "
        "callbacks and ``module_`` have the weights themselves (see ``averaged_weights``).",
    ),
    Parameter(
        "random_state",
        "int | np.random.Generator | np.random.RandomState | None",
        "None",
        "int, NumPy generator or None, default=None",
        "Seed of the module's initial parameters, of the shuffles and of dropout. Two runs with "
        "one seed are bit-equal on a CPU with the same number of threads. None follows "
        "``torch.manual_seed``.",
    ),
    Parameter(
        "client",
        "Any",
        "None",
        "distributed.Client or None, default=None",
        "Train on the workers of this Dask cluster; None trains in this process. Clones share the "
        "client; unpickled estimators have none.",
    ),
    Parameter(
        "examples_per_worker",
        "int",
        "128",
        "int, default=128",
        "Rows of a batch that are worth a rank: training uses clip(⌈batch size / "
        "examples_per_worker⌉, min_workers, max_workers) ranks.",
    ),
    Parameter(
        "min_workers",
        "int",
        "1",
        "int, default=1",
        "The fewest ranks, as far as there are workers.",
    ),
    Parameter(
        "max_workers",
        'int | Literal["auto"] | None',
        "None",
        'int, "auto" or None, default=None',
        "The most ranks. With a number, a cluster that can be scaled is asked for that many "
        'workers; None uses the workers that are there; ``"auto"`` measures and stops where more '
        "do not pay.",
    ),
    Parameter(
        "data",
        'Literal["replicate", "shard"]',
        '"replicate"',
        '"replicate" or "shard", default="replicate"',
        "Whether all workers get all rows, or ranks train on the chunks of Dask arrays they hold.",
    ),
    Parameter(
        "compression",
        "Any",
        "None",
        "compressor of :mod:`accelerando.compress` or None, default=None",
        "How gradients, or with `sync` differences of parameters, are encoded between ranks; a "
        "class with ``compression__x`` parameters, or an instance. One process steps with what "
        "would be decoded.",
    ),
    Parameter(
        "sync",
        "Any",
        "None",
        "strategy of :mod:`accelerando.sync` or None, default=None",
        "How ranks agree; a class with ``sync__x`` parameters, or an instance. None is "
        "``AllReduce``: gradients are averaged in every update. The others average parameters now "
        "and then; each rank then has its own batches of `batch_size` rows, its own parameters "
        "and optimizer, and the estimator holds their average.",
    ),
    Parameter(
        "virtual_ranks",
        "int",
        "1",
        "int, default=1",
        "Ranks that this process simulates, each with batches of `batch_size` rows: an update has "
        "``virtual_ranks * batch_size`` rows. To try on one machine what many would learn.",
    ),
    Parameter(
        "rank_timeout",
        "float",
        "10.0",
        "float, default=10.0",
        "Seconds, in addition to the time of twenty usual updates, after which a silent rank "
        "counts as lost.",
    ),
    Parameter(
        "worker_timeout",
        "float",
        "300.0",
        "float, default=300.0",
        "Seconds to wait for a cluster that has no workers.",
    ),
    Parameter(
        "checkpoint",
        "str | os.PathLike[str] | None",
        "None",
        "path or None, default=None",
        "A directory in which the run is saved, or a URL that fsspec knows (``s3://...``); ``fit`` "
        "in a new process continues from there if the run was not finished. Checkpoints are "
        "written in the background.",
    ),
    Parameter(
        "checkpoint_every",
        "int",
        "100",
        "int, default=100",
        "Updates between two checkpoints; one is written at the end of every epoch as well.",
    ),
    Parameter(
        "checkpoint_keep",
        "int",
        "3",
        "int, default=3",
        "The number of newest checkpoints that are kept. If the newest one is damaged, the run "
        "continues from the one before.",
    ),
    Parameter(
        "checkpoint_best",
        "str | None",
        '"valid_loss"',
        'str or None, default="valid_loss"',
        "A score in the history; the checkpoint of the epoch where it was best is kept, too, and "
        "``load_state(path, best=True)`` loads it. A callback such as skorch's EpochScoring says "
        "which epoch that is. None keeps only the newest ones.",
    ),
    Parameter(
        "monitors",
        "Sequence[Monitor]",
        "()",
        "list of monitors, default=()",
        "What to measure during training, from :mod:`accelerando.monitor`; the signals are columns "
        "of ``updates_frame()``.",
    ),
    Parameter(
        "policies",
        "Sequence[Policy | Callable[[Signals], Decision | None]]",
        "()",
        "list of policies or functions, default=()",
        "What decides about batch size, learning rate, momentum and workers before every update, "
        "from :mod:`accelerando.policies` or ``signals -> Decision | None``. The monitors that "
        "policies need are added.",
    ),
]
CLASSES = Parameter(
    "classes",
    "Any",
    "None",
    "list or None, default=None",
    "The classes, in the order of the module's outputs, if they cannot be seen from `y`.",
)
THRESHOLD = Parameter(
    "threshold",
    "float",
    "0.5",
    "float, default=0.5",
    "``predict`` returns the second class where its probability is above this number.",
)
EXTRA = {"NeuralNetClassifier": [CLASSES], "NeuralNetBinaryClassifier": [THRESHOLD]}
REST = (
    "**kwargs\n    Parameters of the components: ``module__x``, ``optimizer__x``, "
    "``batch_size__x``, ..."
)
CRITERIA = {
    "NeuralNet": ("", "class", ""),
    "NeuralNetClassifier": (
        '"auto"',
        'class or "auto", default="auto"',
        " With NLLLoss the module's outputs are probabilities, with CrossEntropyLoss they are "
        'logits. ``"auto"`` looks at the outputs for the first rows: NLLLoss if they are '
        "probabilities (not negative, with a sum of 1), CrossEntropyLoss otherwise.",
    ),
    "NeuralNetBinaryClassifier": (
        "torch.nn.BCEWithLogitsLoss",
        "class, default=torch.nn.BCEWithLogitsLoss",
        " The module has one output, the logit of the second class.",
    ),
    "NeuralNetRegressor": ("torch.nn.MSELoss", "class, default=torch.nn.MSELoss", ""),
}


def parameters_of(name: str) -> list[Parameter]:
    """Return the parameters of a class, in the order of its signature."""
    default, kind, more = CRITERIA[name]
    table = {parameter.name: parameter for parameter in SKORCH}
    criterion = table["criterion"]
    auto = ' | Literal["auto"]' if default == '"auto"' else ""
    table["criterion"] = criterion._replace(
        type=criterion.type + auto, default=default, kind=kind, text=criterion.text + more
    )
    if name in EXTRA:
        split = table["train_split"]
        table["train_split"] = split._replace(
            default="ValidSplit(5, stratified=True)",
            kind="callable or None, default=ValidSplit(5, stratified=True)",
            text="Divides the rows into those for training and those for validation: by default a "
            "fifth is held out, with the same share of every class. None trains on all rows.",
        )
    return [*table.values(), *EXTRA.get(name, []), *OURS]
