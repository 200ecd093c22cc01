"""The real, orthonormal Fourier transform of a flat tensor."""

from __future__ import annotations

import math

import torch


def fourier(flat: torch.Tensor) -> torch.Tensor:
    """Return the coefficients in the real, orthonormal Fourier basis.

    The real parts come first, then the imaginary parts. Each frequency except 0 and n/2 represents
    two conjugate ones, hence the factor √2.
    """
    found = torch.fft.rfft(flat, norm="ortho") * math.sqrt(2)
    found[0] /= math.sqrt(2)
    n = flat.numel()
    if n % 2 == 0:
        found[-1] /= math.sqrt(2)
    return torch.cat([found.real, found.imag[1 : (n + 1) // 2]])


def inverse_fourier(coefficients: torch.Tensor) -> torch.Tensor:
    """Return the flat tensor with these coefficients; the inverse of :func:`fourier`."""
    n = coefficients.numel()
    half = n // 2 + 1
    imaginary = torch.zeros(half, dtype=coefficients.dtype)
    imaginary[1 : (n + 1) // 2] = coefficients[half:]
    found = torch.complex(coefficients[:half].clone(), imaginary) / math.sqrt(2)
    found[0] *= math.sqrt(2)
    if n % 2 == 0:
        found[-1] *= math.sqrt(2)
    flat: torch.Tensor = torch.fft.irfft(found, n=n, norm="ortho")
    return flat
