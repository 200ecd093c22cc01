"""The Fourier basis is real and orthonormal."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from accelerando.compress._fourier import fourier, inverse_fourier


@given(st.integers(1, 40))
@settings(max_examples=40, deadline=None)
def test_the_fourier_basis_is_real_and_orthonormal(n):
    eye = torch.eye(n, dtype=torch.float64)
    basis = torch.stack([fourier(row) for row in eye])
    torch.testing.assert_close(basis @ basis.T, eye)
    back = torch.stack([inverse_fourier(row) for row in basis])
    torch.testing.assert_close(back, eye)
