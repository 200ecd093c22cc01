"""The errors accelerando raises on its own account.

::

    AccelerandoError
    ├── ClusterError      the cluster has no workers left, or they cannot reach each other
    ├── InputError        PyTorch's layers or losses cannot compute with the data
    ├── NotFiniteError    a loss, a gradient or a parameter stopped being a number
    ├── PayloadError      a compressed gradient that is cut, damaged or of another kind
    ├── StateError        a saved state that cannot be read or does not fit
    ├── UnknownSignalError  a policy asked for a signal that no monitor yields
    └── UnsupportedError  a combination of settings or data that cannot work

A wrong argument is a plain ``ValueError`` or ``TypeError``, as everywhere in scikit-learn.
"""


class AccelerandoError(Exception):
    """Base class of all errors below."""


class ClusterError(AccelerandoError, RuntimeError):
    """The cluster cannot continue; the estimator has the newest state that reached this process."""


class InputError(AccelerandoError, ValueError, RuntimeError):
    """A layer or loss of PyTorch's cannot compute with X or y; PyTorch raises a RuntimeError."""


class NotFiniteError(AccelerandoError, ArithmeticError):
    """Training stopped because a loss, a gradient or a parameter is not finite."""


class PayloadError(AccelerandoError, ValueError):
    """A compressed payload is cut, damaged, of another kind, or does not fit the shape."""


class StateError(AccelerandoError, ValueError):
    """A saved state is damaged, of another version, or belongs to another estimator."""


class UnknownSignalError(AccelerandoError, KeyError, AttributeError):
    """A policy asked for a signal that there is not; the message lists those there are."""

    def __str__(self) -> str:
        return str(self.args[0])  # KeyError would show it in quotes


class UnsupportedError(AccelerandoError, ValueError):
    """These settings cannot work together; raised before training starts."""
