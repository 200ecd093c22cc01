"""The parameters of all estimators: how they are stored, set, cloned and pickled."""

from __future__ import annotations

import difflib
import inspect
import os
from typing import Any, ClassVar, Self

import skorch
from sklearn.callback import CallbackSupportMixin

PIECES = ("batch_size", "compression", "sync")  # parameters with parameters, such as sync__period


class ConfiguredNet(CallbackSupportMixin, skorch.NeuralNet):  # type: ignore[misc]
    """A skorch net with the parameters of accelerando."""

    prefixes_: ClassVar[list[str]] = [*skorch.NeuralNet.prefixes_, *PIECES]

    def __init__(
        self,
        module: Any,
        *args: Any,
        batch_size: Any = 128,
        max_batch_size: int | None = None,
        micro_batch_size: int | str | None = "auto",
        channels_last: bool | str = "auto",
        random_state: Any = None,
        client: Any = None,
        examples_per_worker: int = 128,
        min_workers: int = 1,
        max_workers: int | str | None = None,
        data: str = "replicate",
        compression: Any = None,
        sync: Any = None,
        virtual_ranks: int = 1,
        rank_timeout: float = 10.0,
        worker_timeout: float = 300.0,
        checkpoint: str | os.PathLike[str] | None = None,
        checkpoint_every: int = 100,
        monitors: Any = (),
        policies: Any = (),
        **kwargs: Any,
    ) -> None:
        super().__init__(module, *args, batch_size=batch_size, **kwargs)
        self.max_batch_size = max_batch_size
        self.micro_batch_size = micro_batch_size
        self.channels_last = channels_last
        self.random_state = random_state
        self.client = client
        self.examples_per_worker = examples_per_worker
        self.min_workers = min_workers
        self.max_workers = max_workers
        self.data = data
        self.compression = compression
        self.sync = sync
        self.virtual_ranks = virtual_ranks
        self.rank_timeout = rank_timeout
        self.worker_timeout = worker_timeout
        self.checkpoint = checkpoint
        self.checkpoint_every = checkpoint_every
        self.monitors = monitors
        self.policies = policies

    # -- parameters -------------------------------------------------------------------------------

    def set_params(self, **kwargs: Any) -> Self:
        """Set parameters, including ``batch_size__x``, ``compression__x`` and ``sync__x``."""
        ours = {key: value for key, value in kwargs.items() if key.split("__")[0] in PIECES}
        for piece in PIECES:
            if piece in ours and ours[piece] is not getattr(self, piece):
                # Another policy or codec does not inherit the settings of the one before.
                for key in [key for key in vars(self) if key.startswith(piece + "__")]:
                    del self.__dict__[key]
                    self._params_to_validate.discard(key)
        for key, value in ours.items():
            setattr(self, key, value)
            if key not in PIECES:
                self._params_to_validate.add(key)
        super().set_params(**{key: value for key, value in kwargs.items() if key not in ours})
        return self

    def _suggestions(self) -> str:
        """Return a sentence for each misspelled parameter."""
        known = [name for name in inspect.signature(type(self)).parameters if name != "kwargs"]
        wrong = sorted(name for name in self._params_to_validate if name not in known)
        found = [(name, difflib.get_close_matches(name, known, n=1)) for name in wrong]
        return "".join(
            f" Did you mean {near[0]!r} instead of {name!r}?" for name, near in found if near
        )

    def __sklearn_clone__(self) -> Self:
        """Clone everything but the client: a connection is shared, not copied."""
        client, self.client = self.client, None
        try:
            twin: Self = super().__sklearn_clone__()
        finally:
            self.client = client
        twin.client = client
        return twin

    def __getstate__(self) -> dict[str, Any]:
        """Leave the connection to the cluster out: another process has its own."""
        return {**super().__getstate__(), "client": None, "_trainer_": None}

    def _get_param_names(self) -> list[str]:
        # scikit-learn's callbacks live in private attributes that clone() copies by itself.
        private = ("_skl_callbacks", "_callback_fit_ctx", "_parent_callback_ctx")
        return [name for name in super()._get_param_names() if not name.startswith(private)]
