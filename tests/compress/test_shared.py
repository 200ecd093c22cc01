"""One byte budget for all layers: the probabilities are the best, and the bytes are kept."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from accelerando.compress import QSGD, Atomo, _payload, _shared


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def layers_of(seed=0):
    """Two layers of low rank and of different size, and one of noise that is much smaller."""
    draw = generator(seed)
    low = [
        torch.randn(a, 3, generator=draw) @ torch.randn(3, b, generator=draw)
        + 0.05 * torch.randn(a, b, generator=draw)
        for a, b in ((48, 64), (32, 200))
    ]
    return [*low, 0.01 * torch.randn(40, 40, generator=draw)]


def test_the_probabilities_of_all_layers_are_those_of_a_convex_solver():
    sorts = {"sorts": ("svd",), "exact": True}
    layers, chances = _shared.allotted(layers_of(), share=0.05, **sorts)
    weights = torch.cat([one.weights for one in layers]).numpy()
    costs = torch.cat([one.costs for one in layers]).numpy()
    found = torch.cat(chances).double().numpy()
    budget = 0.05 * 4 * sum(one.numel() for one in layers_of())
    assert float(costs @ found) == pytest.approx(budget, rel=1e-6)
    # The solver gets the atoms that matter, and the bytes that these have.
    large = np.argsort(-weights / np.sqrt(costs))[4:16]
    weights, costs, found = weights[large] / weights[large].max(), costs[large], found[large]
    shares, left = costs / costs.max(), float((costs / costs.max()) @ found)
    solution = minimize(
        lambda p: float((weights**2 / p).sum()),
        np.full(len(large), left / shares.sum()),
        jac=lambda p: -(weights**2) / p**2,
        bounds=[(1e-6, 1.0)] * len(large),
        constraints={"type": "eq", "fun": lambda p: shares @ p - left, "jac": lambda p: shares},
        method="SLSQP",
        options={"maxiter": 1000, "ftol": 1e-15},
    )
    assert 0 < (found == 1).sum() < len(found)  # both cases are there
    np.testing.assert_allclose(found, solution.x, atol=1e-4)


@pytest.mark.parametrize("share", [0.04, 0.08, 0.15])
def test_the_bytes_are_the_share_of_all_layers_together(share):
    layers, source = layers_of(), generator(1)
    whole = sum(one.nbytes for one in layers)
    sent = [Atomo(share=share).encode_all(layers, source) for _ in range(20)]
    sizes = [sum(len(payload) - _payload.HEADER_BYTES for payload in one) for one in sent]
    assert np.mean(sizes) / whole == pytest.approx(share, rel=0.1)
    assert np.ptp(sizes) <= 3 * 200  # an atom of each layer: ranks send about as much


def test_small_layers_get_few_bytes_and_the_errors_add_up_to_less():
    layers = [size * one for size, one in zip((1.0, 0.1, 1.0), layers_of(), strict=True)]
    codec = Atomo(share=0.02)
    payloads = [codec.encode_all(layers, generator(seed)) for seed in range(60)]
    noise = np.mean([len(of[2]) for of in payloads])
    assert noise < 200 < np.mean([len(of[0]) for of in payloads])
    joint = [
        sum(
            float((codec.decode(payload, one.shape) - one).square().sum())
            for payload, one in zip(of, layers, strict=True)
        )
        for of in payloads
    ]
    apart = sum(codec.expected_error(one) for one in layers)  # each with its own share
    assert np.mean(joint) < 0.7 * apart


def test_less_variance_than_quantization_with_as_many_bytes():
    layers = layers_of()
    square = sum(float(one.square().sum()) for one in layers)
    atomo = sum(Atomo(share=0.055).expected_error(one) for one in layers) / square
    one_bit = sum(QSGD(bits=1).expected_error(one) for one in layers) / square
    assert len(QSGD(bits=1).encode(layers[0])) >= 0.055 * layers[0].nbytes
    assert atomo < one_bit / 3


def test_a_layer_chooses_the_atoms_with_the_smaller_error_per_byte():
    """The open question of the dissertation: which atoms for which layer."""
    draw = generator(3)
    sparse = torch.zeros(64, 64)
    sparse.view(-1)[torch.randperm(64 * 64, generator=draw)[:40]] = torch.randn(40, generator=draw)
    low = torch.randn(64, 1, generator=draw) @ torch.randn(1, 64, generator=draw) / 8
    found, _ = _shared.allotted([sparse, low], share=0.06, sorts=("svd", "entries"), exact=None)
    assert [one.sort for one in found] == [_shared._ENTRIES, _shared._SVD]
    chosen = Atomo(share=0.06).expected_error(sparse)
    assert chosen < 0.5 * Atomo(share=0.06, atoms="svd").expected_error(sparse)


def test_the_same_draws_whatever_the_others_decode():
    layers, codec = layers_of(), Atomo(share=0.1)
    payloads = codec.encode_all(layers, generator(5))
    assert payloads == codec.encode_all(layers, generator(5))
    assert payloads != codec.encode_all(layers, generator(6))
    assert codec.encode_all([], generator()) == []
