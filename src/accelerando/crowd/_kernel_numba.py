"""Scores of a block of pairs, in numba: :mod:`_kernel_numpy` with fused element-wise passes.

Logarithm and exponential are short polynomials without branches, so that the compiler vectorizes
the loops. Their error (below 2e-6) is far below that of sums in single precision.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.polynomial import chebyshev
from numpy.typing import NDArray

Single = NDArray[np.float32]


def _power_series(function: Any, low: float, high: float, degree: int) -> tuple[np.float32, ...]:
    """Return the coefficients, highest power first, of the Chebyshev interpolant."""
    fitted = chebyshev.Chebyshev.interpolate(function, degree, domain=[low, high])
    powers = fitted.convert(kind=np.polynomial.Polynomial, domain=[-1, 1], window=[-1, 1]).coef
    return tuple(np.float32(c) for c in powers[::-1])


# log(1 + f) = f · q(f) for f in [−1/3, 1/3]; exp(r) for |r| ≤ log(2)/2.
_L8, _L7, _L6, _L5, _L4, _L3, _L2, _L1, _L0 = _power_series(
    lambda f: np.log1p(f + 1e-12) / (f + 1e-12), -1 / 3, 1 / 3, 8
)
_E5, _E4, _E3, _E2, _E1, _E0 = _power_series(np.exp, -0.35, 0.35, 5)
# log(1 + g) = g · q(g) for g in [0, 1].
_G9, _G8, _G7, _G6, _G5, _G4, _G3, _G2, _G1, _G0 = _power_series(
    lambda g: np.log1p(g + 1e-9) / (g + 1e-9), 0.0, 1.0, 9
)
_LOG2 = np.float32(np.log(2.0))
_INVERSE_LOG2 = np.float32(1.0 / np.log(2.0))
_ONE = np.float32(1.0)
_ZERO = np.float32(0.0)
_SMALLEST = np.float32(1e-12)
_LARGEST = np.float32(80.0)
# Bits of 2/3: subtracting them before the shift puts the mantissa into [2/3, 4/3).
_TWO_THIRDS = np.int32(np.float32(2.0 / 3.0).view(np.int32))
_MANTISSA = np.int32(23)
_BIAS = np.int32(127)


@njit(inline="always")
def _log(x: np.float32) -> Any:
    bits = np.float32(x).view(np.int32)
    exponent = (bits - _TWO_THIRDS) >> _MANTISSA
    f = np.int32(bits - (exponent << _MANTISSA)).view(np.float32) - _ONE
    q = (((((((_L8 * f + _L7) * f + _L6) * f + _L5) * f + _L4) * f + _L3) * f + _L2) * f) + _L1
    return np.float32(exponent) * _LOG2 + f * (q * f + _L0)


@njit(inline="always")
def _exp(x: np.float32) -> Any:
    turns = np.floor(x * _INVERSE_LOG2 + np.float32(0.5))
    r = x - turns * _LOG2
    value = ((((_E5 * r + _E4) * r + _E3) * r + _E2) * r + _E1) * r + _E0
    return value * np.int32((np.int32(turns) + _BIAS) << _MANTISSA).view(np.float32)


@njit(inline="always")
def _entropy(p: np.float32) -> Any:
    p = max(p, _SMALLEST)
    q = max(_ONE - p, _SMALLEST)
    return -p * _log(p) - q * _log(q)


@njit(nogil=True, fastmath=True, error_model="numpy", cache=True)
def _choose_attentive(log_odds: Single, entropy: Single) -> None:
    """:func:`_choose` without lapses, where one logarithm of a number in [1, 2] is enough.

    With ``g = exp(−|z|)`` the less likely answer has ``q = g / (1 + g)``, and the entropy is
    ``log(1 + g) + |z| q``.
    """
    flat, out = log_odds.ravel(), entropy.ravel()
    for k in range(flat.size):
        z = flat[k]
        size = min(abs(z), _LARGEST)
        g = _exp(-size)
        less = g / (_ONE + g)
        upper = ((((_G9 * g + _G8) * g + _G7) * g + _G6) * g + _G5) * g + _G4
        log = ((((upper * g + _G3) * g + _G2) * g + _G1) * g + _G0) * g
        out[k] = log + size * less
        flat[k] = less if z < _ZERO else _ONE - less


@njit(nogil=True, fastmath=True, error_model="numpy", cache=True)
def _choose(log_odds: Single, floor: np.float32, slope: np.float32, entropy: Single) -> None:
    """Replace log-odds by probabilities in place, and write their entropies to ``entropy``."""
    flat, out = log_odds.ravel(), entropy.ravel()
    # One loop would need more registers than there are and run half as fast. The first loop is
    # vectorized only with an error model that does not check for division by zero.
    for k in range(flat.size):
        z = min(max(flat[k], -_LARGEST), _LARGEST)
        flat[k] = floor + slope / (_ONE + _exp(-z))
    for k in range(flat.size):
        out[k] = _entropy(flat[k])


@njit(nogil=True, fastmath=True, error_model="numpy", cache=True)
def _gain(mixed: Single, known: Single) -> None:
    """Write ``h₂(mixed) − known`` to ``mixed``."""
    flat, minus = mixed.ravel(), known.ravel()
    for k in range(flat.size):
        flat[k] = _entropy(flat[k]) - minus[k]


def score_block(log_odds: Single, lapse: float, weights: Single) -> Single:
    """Return the information gain of every head (row) and pair (column).

    See :func:`accelerando.crowd._kernel_numpy.score_block`.
    """
    entropy = np.empty_like(log_odds)
    if lapse:
        _choose(log_odds, np.float32(lapse), np.float32(1.0 - 2.0 * lapse), entropy)
    else:
        _choose_attentive(log_odds, entropy)
    mixed = weights @ log_odds.T
    _gain(mixed, weights @ entropy.T)
    return mixed
