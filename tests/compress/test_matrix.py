"""Matrix atoms: their sum is the matrix, and the heaviest are singular vectors."""

import pytest
import torch

from accelerando.compress import _matrix


@pytest.mark.parametrize("shape", [(40, 30), (30, 40), (100, 90), (7, 3), (1, 5), (5, 1)])
@pytest.mark.parametrize("exact", [True, False])
def test_atoms_add_up_to_the_matrix_and_have_unit_norm(shape, exact):
    matrix = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    atoms = _matrix.decompose(matrix, 2, exact=exact)
    torch.testing.assert_close(atoms.left @ atoms.right.T, matrix)
    norms = torch.linalg.vector_norm(atoms.right, dim=0)[atoms.weights > 1e-9]
    torch.testing.assert_close(norms, torch.ones_like(norms))


@pytest.mark.parametrize("shape", [(40, 30), (30, 40), (200, 90)])
@pytest.mark.parametrize("exact", [True, False])
def test_atoms_are_orthogonal_so_that_their_errors_add_up(shape, exact):
    matrix = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    left, right = _matrix.decompose(matrix, 5, exact=exact)
    products = (left.T @ left) * (right.T @ right)  # of every two atoms
    torch.testing.assert_close(products, torch.diag(products.diagonal()), atol=1e-9, rtol=0)


def test_the_exact_atoms_are_singular_vectors_and_the_leading_ones_nearly():
    draw = torch.Generator().manual_seed(0)
    basis, _ = torch.linalg.qr(torch.randn(200, 100, dtype=torch.float64, generator=draw))
    other, _ = torch.linalg.qr(torch.randn(100, 100, dtype=torch.float64, generator=draw))
    values = 0.7 ** torch.arange(100, dtype=torch.float64)
    matrix = basis * values @ other
    exact = _matrix.decompose(matrix, 14, exact=True).weights.sort(descending=True).values
    torch.testing.assert_close(exact[:20], values[:20])
    leading = _matrix.decompose(matrix, 14, exact=False).weights.sort(descending=True).values
    torch.testing.assert_close(leading[:6], values[:6], rtol=1e-3, atol=0)


@pytest.mark.parametrize(
    ("shape", "matrix"),
    [((6, 5, 3, 3), (15, 18)), ((5, 5, 3, 3), (25, 9)), ((7,), (1, 7)), ((), (1, 1))],
)
def test_a_gradient_of_any_shape_becomes_a_matrix(shape, matrix):
    assert _matrix.matrix_shape(shape) == matrix
