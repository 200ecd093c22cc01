"""Export of signals during training, to Prometheus and TensorBoard."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from sklearn.base import BaseEstimator

from accelerando._deprecation import Deprecated, deprecated_names

__all__ = ["MetricsServer", "TensorBoardSignals"]

__getattr__ = deprecated_names(
    __name__,
    {
        "metrics_text": Deprecated(
            "accelerando.monitor.export",
            "_metrics_text",
            "Use accelerando.monitor.export.MetricsServer(net), which serves this text.",
        )
    },
)


def _metrics_text(signals: Mapping[str, float]) -> str:
    """Return signals in Prometheus' text format; unknown values are left out.

    Parameters
    ----------
    signals : mapping from str to float
        The result of an estimator's ``signals()``.

    Examples
    --------
    >>> print(_metrics_text({"loss": 0.5, "noise_scale": float("nan")}), end="")
    # TYPE accelerando_loss gauge
    accelerando_loss 0.5
    """
    lines = []
    for name, value in signals.items():
        if math.isfinite(value):
            lines += [f"# TYPE accelerando_{name} gauge", f"accelerando_{name} {float(value)!r}"]
    return "\n".join(lines) + "\n"


class MetricsServer:
    """Serve the newest signals of an estimator at ``/metrics``, for Prometheus.

    The server runs inside a ``with`` block. By default it listens on this machine only: everybody
    who can reach the port can read the numbers.

    Parameters
    ----------
    net : estimator
        The estimator whose ``signals()`` are served, during training and afterwards.
    port : int
        The port to listen on; 0 takes a free port, which is then part of ``url``.
    host : str
        The address to listen on.

    Examples
    --------
    >>> from urllib.request import urlopen
    >>> from accelerando.monitor.export import MetricsServer
    >>> class Net:
    ...     def signals(self):
    ...         return {"loss": 0.25}
    >>> with MetricsServer(Net()) as server:
    ...     text = urlopen(server.url).read().decode()
    >>> text.splitlines()[1]
    'accelerando_loss 0.25'
    """

    def __init__(self, net: Any, port: int = 0, host: str = "127.0.0.1") -> None:
        self.net, self.host, self.port = net, host, port

    def __enter__(self) -> Self:
        net = self.net

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path.split("?")[0] != "/metrics":
                    self.send_error(404, "The numbers are at /metrics")
                    return
                body = _metrics_text(net.signals()).encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: Any) -> None:
                """Print nothing: a line per request would hide the output of training."""

        self._server = ThreadingHTTPServer((self.host, self.port), Handler)
        self.port = self._server.server_address[1]
        self.url = f"http://{self.host}:{self.port}/metrics"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _idle(hook: Callable[..., None]) -> Callable[..., None]:
    """Mark a hook that does nothing.

    skorch recognizes such hooks by identity with those of its base class. This class does not
    derive from it, because only the estimators import skorch. So the estimators look for the mark:
    a callback without active batch hooks may be used with ``client=`` and is not called per batch.
    """
    hook.is_idle = True  # type: ignore[attr-defined]
    return hook


class TensorBoardSignals(BaseEstimator):  # type: ignore[misc]
    """A skorch callback that writes the signals of every update to TensorBoard after each epoch.

    It works in this process and with ``client=``.

    Parameters
    ----------
    writer : torch.utils.tensorboard.SummaryWriter, or any object with its ``add_scalar``
        Receives the values. The caller closes it.
    columns : list of str or None
        The columns of ``updates_frame()`` to write. None: all columns except the counters.

    Examples
    --------
    >>> from accelerando.monitor.export import TensorBoardSignals
    >>> class Writer:
    ...     def add_scalar(self, name, value, step):
    ...         print(name, value, step)
    >>> callback = TensorBoardSignals(Writer(), columns=["loss"])
    >>> callback.columns
    ['loss']
    """

    def __init__(self, writer: Any, columns: list[str] | None = None) -> None:
        self.writer = writer
        self.columns = columns

    def initialize(self) -> Self:
        """Start with the first update."""
        self.written_ = 0
        return self

    def on_epoch_end(self, net: Any, **kwargs: Any) -> None:
        """Write the updates since the last call."""
        frame = net.updates_frame()
        counters = ("update", "epoch", "examples")
        columns = self.columns or [name for name in frame.columns if name not in counters]
        rows = frame[frame["update"] > self.written_]
        for row in rows.to_dict("records"):
            for name in columns:
                if math.isfinite(row[name]):
                    self.writer.add_scalar(name, row[name], row["update"])
        if len(rows):
            self.written_ = int(rows["update"].iloc[-1])
        if hasattr(self.writer, "flush"):
            self.writer.flush()

    @_idle
    def on_train_begin(self, net: Any, **kwargs: Any) -> None:
        """Do nothing."""

    @_idle
    def on_train_end(self, net: Any, **kwargs: Any) -> None:
        """Do nothing."""

    @_idle
    def on_epoch_begin(self, net: Any, **kwargs: Any) -> None:
        """Do nothing."""

    @_idle
    def on_batch_begin(self, net: Any, **kwargs: Any) -> None:
        """Do nothing."""

    @_idle
    def on_batch_end(self, net: Any, **kwargs: Any) -> None:
        """Do nothing."""

    @_idle
    def on_grad_computed(self, net: Any, named_parameters: Any, **kwargs: Any) -> None:
        """Do nothing."""
