"""Bit packing, Elias' codes, the probabilities of Algorithm 2, matrices, wrong settings."""

import math
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from accelerando.batch_size import Signals
from accelerando.compress import (
    QSGD,
    Adaptive,
    Atomo,
    ErrorFeedback,
    LqQuantize,
    PowerSGD,
    RandomK,
    TernGrad,
    TopK,
    _bits,
    _elias,
    _matrix,
    _payload,
    _probabilities,
    as_compressor,
    atom_probabilities,
)
from accelerando.compress._atomo import fourier, inverse_fourier
from accelerando.exceptions import PayloadError

MANY = settings(max_examples=50, deadline=None)


@given(bits=st.integers(1, 8), data=st.data())
@MANY
def test_packed_numbers_come_back_in_the_least_bytes(bits, data):
    numbers = data.draw(st.lists(st.integers(0, 2**bits - 1), max_size=50))
    packed = _bits.pack(np.array(numbers, np.uint8), bits)
    assert len(packed) == _bits.packed_bytes(len(numbers), bits)
    assert len(packed) < len(numbers) * bits / 8 + len(_bits.widths(bits))
    reader = _payload.Reader(memoryview(packed))
    assert _bits.unpack(reader, len(numbers), bits).tolist() == numbers
    reader.end()


@given(st.lists(st.integers(0, 2), max_size=50))
@MANY
def test_five_trits_to_a_byte(numbers):
    packed = _bits.pack_trits(np.array(numbers, np.uint8))
    assert len(packed) == math.ceil(len(numbers) / 5)
    reader = _payload.Reader(memoryview(packed))
    assert _bits.unpack_trits(reader, len(numbers)).tolist() == numbers


@given(n=st.integers(1, 5000), data=st.data())
@MANY
def test_positions_come_back(n, data):
    positions = sorted(data.draw(st.sets(st.integers(0, n - 1), max_size=60)))
    written = _elias.encode_positions(np.array(positions, np.int64), n)
    if positions:
        bits = len(positions) * (2 + math.log2(n / len(positions)))
        assert len(written) <= bits / 8 + 4
    reader = _payload.Reader(memoryview(written))
    assert _elias.decode_positions(reader, len(positions), n).tolist() == positions
    reader.end()


@given(st.lists(st.integers(1, 2**40), max_size=60))
@MANY
def test_numbers_in_gamma_code_come_back(numbers):
    written = _elias.encode_numbers(np.array(numbers, np.int64))
    bits = sum(2 * number.bit_length() - 1 for number in numbers)
    assert len(written) <= 16 + bits / 8 + 2
    reader = _payload.Reader(memoryview(written))
    assert _elias.decode_numbers(reader, len(numbers)).tolist() == numbers
    reader.end()


# -- probabilities --------------------------------------------------------------------------------


def algorithm_2(weights, budget):
    """The dissertation's listing, line by line."""
    order = sorted(range(len(weights)), key=lambda i: -abs(weights[i]))
    sizes = [abs(weights[i]) for i in order]
    chances, s, i, n = [0.0] * len(weights), budget, 0, len(weights)
    while i < n:
        rest = math.fsum(sizes[i:])
        if rest == 0:
            break
        if sizes[i] * s <= rest:
            for k in range(i, n):
                chances[order[k]] = sizes[k] * s / rest
            break
        chances[order[i]] = 1.0
        s, i = s - 1, i + 1
    return chances


@pytest.mark.parametrize("rounds", [0, 1, 16])
@given(
    weights=st.lists(
        st.one_of(st.just(0.0), st.floats(-1e3, 1e3).filter(lambda x: abs(x) > 1e-6)),
        min_size=1,
        max_size=40,
    ),
    share=st.floats(0.01, 1.5),
)
@MANY
def test_probabilities_are_those_of_algorithm_2(rounds, weights, share):
    budget = max(0.01, share * len(weights))
    tensor = torch.tensor(weights, dtype=torch.float64)
    usual = _probabilities._ROUNDS
    _probabilities._ROUNDS = rounds
    try:
        found = atom_probabilities(tensor, budget)
    finally:
        _probabilities._ROUNDS = usual
    there = sum(weight != 0 for weight in weights)
    if budget < there:
        assert found.tolist() == pytest.approx(algorithm_2(weights, budget), abs=1e-9)
    assert float(found.sum()) == pytest.approx(min(budget, there))
    assert ((found > 0) == (tensor != 0)).all()
    assert float(found.max()) <= 1


def test_no_other_probabilities_with_the_same_sum_have_less_variance():
    draw = torch.Generator().manual_seed(0)
    weights = torch.randn(30, generator=draw, dtype=torch.float64) ** 3
    best = atom_probabilities(weights, 6.0)
    least = float((weights**2 / best).sum())
    for _ in range(200):
        move = torch.randn(30, generator=draw, dtype=torch.float64) * 0.01 * best
        other = (best + move - move.sum() * best / best.sum()).clamp(1e-9, 1.0)
        if float(other.sum()) <= 6.0 + 1e-12:
            assert float((weights**2 / other).sum()) >= least * (1 - 1e-9)


def test_a_budget_of_nothing_is_refused():
    with pytest.raises(ValueError, match="budget"):
        atom_probabilities(torch.ones(3), 0)


# -- matrices and transforms ----------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(40, 30), (30, 40), (100, 90), (7, 3), (1, 5), (5, 1)])
@pytest.mark.parametrize("exact", [True, False])
def test_atoms_add_up_to_the_matrix_and_have_unit_length(shape, exact):
    matrix = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    atoms = _matrix.decompose(matrix, 2, exact=exact)
    torch.testing.assert_close(atoms.left @ atoms.right.T, matrix)
    lengths = torch.linalg.vector_norm(atoms.right, dim=0)[atoms.weights > 1e-9]
    torch.testing.assert_close(lengths, torch.ones_like(lengths))


def test_the_exact_atoms_are_singular_vectors_and_the_leading_ones_nearly():
    draw = torch.Generator().manual_seed(0)
    basis, _ = torch.linalg.qr(torch.randn(200, 100, dtype=torch.float64, generator=draw))
    other, _ = torch.linalg.qr(torch.randn(100, 100, dtype=torch.float64, generator=draw))
    values = 0.7 ** torch.arange(100, dtype=torch.float64)
    matrix = basis * values @ other
    exact = _matrix.decompose(matrix, 3, exact=True).weights.sort(descending=True).values
    torch.testing.assert_close(exact[:20], values[:20])
    leading = _matrix.decompose(matrix, 3, exact=False).weights.sort(descending=True).values
    torch.testing.assert_close(leading[:6], values[:6], rtol=1e-3, atol=0)


@given(st.integers(1, 40))
@settings(max_examples=40, deadline=None)
def test_the_fourier_basis_is_real_and_orthonormal(n):
    eye = torch.eye(n, dtype=torch.float64)
    basis = torch.stack([fourier(row) for row in eye])
    torch.testing.assert_close(basis @ basis.T, eye)
    back = torch.stack([inverse_fourier(row) for row in basis])
    torch.testing.assert_close(back, eye)


@pytest.mark.parametrize(
    ("transform", "inverse", "message"),
    [
        (lambda x: 2 * x, lambda x: x / 2, "orthonormal"),
        (lambda x: x.flip(0), lambda x: x, "inverse"),
        (lambda x: x[:-1], lambda x: x, "length"),
    ],
)
def test_a_transform_that_is_not_orthonormal_is_refused(transform, inverse, message):
    with pytest.raises(ValueError, match=message):
        Atomo(budget=2, atoms=(transform, inverse)).encode(torch.arange(9.0))


def test_a_payload_of_an_own_transform_needs_it():
    from accelerando.compress import decode

    codec = Atomo(budget=2, atoms=(lambda x: x.flip(0), lambda x: x.flip(0)))
    with pytest.raises(PayloadError, match="transform of your own"):
        decode(codec.encode(torch.arange(9.0)), (9,))


# -- settings -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: QSGD(bits=0), "bits"),
        (lambda: QSGD(bits=9), "bits"),
        (lambda: QSGD(bits=True), "bits"),
        (lambda: QSGD(bucket=0), "bucket"),
        (lambda: QSGD(norm=0.5), "norm"),
        (lambda: QSGD(coding="huffman"), "coding"),
        (lambda: TernGrad(bucket=1.5), "bucket"),
        (lambda: LqQuantize(q=0), "q of"),
        (lambda: TopK(fraction=0), "fraction"),
        (lambda: RandomK(fraction=1.1), "fraction"),
        (lambda: Atomo(budget=0), "budget"),
        (lambda: Atomo(budget=math.inf), "budget"),
        (lambda: Atomo(atoms="wavelets"), "atoms"),
        (lambda: Atomo(method="fast"), "method"),
        (lambda: Atomo(atoms="entries", method="exact"), "method"),
        (lambda: PowerSGD(rank=0), "rank"),
        (lambda: PowerSGD(start=1), "start"),
        (lambda: QSGD().with_settings(levels=3), "levels"),
        (lambda: as_compressor(QSGD, {"levels": 3}), "levels"),
        (lambda: as_compressor(None, {"bits": 3}), "compression__bits"),
    ],
)
def test_wrong_settings_are_named(make, named):
    with pytest.raises(ValueError, match=named):
        make()


@pytest.mark.parametrize(
    "make",
    [
        lambda: ErrorFeedback("topk"),
        lambda: ErrorFeedback(PowerSGD()),
        lambda: Adaptive(PowerSGD(), dict),
        lambda: Adaptive(QSGD(), 4),
        lambda: as_compressor("qsgd"),
    ],
)
def test_wrong_types_are_refused(make):
    with pytest.raises(TypeError, match="must be"):
        make()


def test_a_compressor_is_made_from_a_class_an_instance_or_nothing():
    assert as_compressor(None) is None
    assert as_compressor(TernGrad) == TernGrad()
    assert as_compressor(QSGD(bits=2), {"bits": 3}) == QSGD(bits=3)
    assert as_compressor(ErrorFeedback(TopK(0.1)), {"fraction": 0.5}) == ErrorFeedback(TopK(0.5))


def test_compressors_travel():
    for codec in (QSGD(bits=3), ErrorFeedback(TopK(0.1)), PowerSGD(4), Atomo(2)):
        assert pickle.loads(pickle.dumps(codec)) == codec


def test_a_rule_changes_settings_for_an_update():
    signals = Signals(update=5, epoch=2, examples=0, batch_size=0, n_examples=None)
    adaptive = Adaptive(Atomo(budget=1), lambda s: {"budget": 1 + s.epoch} if s.epoch else None)
    assert adaptive.at(signals) == Atomo(budget=3)
    assert adaptive.at(signals._replace(epoch=0)) == Atomo(budget=1)
    assert Adaptive(QSGD(), lambda s: TernGrad()).at(signals) == TernGrad()
    feedback = Adaptive(ErrorFeedback(TopK(0.1)), lambda s: {"fraction": 0.5})
    assert feedback.at(signals) == ErrorFeedback(TopK(0.5))
    with pytest.raises(TypeError, match="dictionary"):
        Adaptive(QSGD(), lambda s: 4).at(signals)


def test_a_memory_survives_a_gradient_that_is_not_finite():
    feedback = ErrorFeedback(TopK(0.5))
    _, memory = feedback.encode_with(torch.tensor([2.0, 1.0]), None)
    payload, after = feedback.encode_with(torch.tensor([math.nan, 1.0]), memory)
    assert torch.equal(after, memory)
    assert feedback.decode(payload, (2,)).isnan().any()
