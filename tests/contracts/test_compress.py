"""What every codec keeps: a new one adds a row to the table and inherits all of it.

Statistical tests draw from fixed seeds, so that they pass or fail for good. Were the seeds changed,
a right codec would fail with these probabilities, by the normal approximation to a mean of 800
draws: bias, 4e-8 (the squared length of the mean error is at most 30 times what is expected, and
P(χ²₁ > 30) = 4e-8 is the worst case); variance and number of atoms, 2e-9 (six standard errors).
"""

import contextlib
import dataclasses
import math
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from accelerando.compress import (
    QSGD,
    Atomo,
    Codec,
    ErrorFeedback,
    HalfPrecision,
    LqQuantize,
    TernGrad,
    TopK,
    _payload,
    decode,
)
from accelerando.exceptions import PayloadError

DRAWS = 800


def one_entry(shape=(6, 8), value=-3.0):
    tensor = torch.zeros(shape)
    tensor.view(-1)[5] = value
    return tensor


def signs(shape=(6, 8), size=2.5):
    return size * torch.tensor([1.0, -1.0]).repeat(math.prod(shape) // 2).reshape(shape)


def rank_one(shape=(12, 16)):
    return torch.outer(torch.arange(shape[0]) - 4.0, torch.arange(shape[1]) % 5 - 2.0)


class Row(NamedTuple):
    codec: Codec
    exact: torch.Tensor  # an input that it can write without loss
    rounding: float = 0.0  # of decoding it, relative to its largest entry


CODECS = {
    "qsgd 1": Row(QSGD(bits=1, bucket=16), one_entry()),
    "qsgd 2": Row(QSGD(bits=2, bucket=16), one_entry()),
    "qsgd 3, largest": Row(QSGD(bits=3, bucket=7, norm=math.inf), signs()),
    "qsgd 4": Row(QSGD(bits=4, bucket=None), one_entry()),
    "qsgd 8": Row(QSGD(bits=8), one_entry()),
    "terngrad": Row(TernGrad(), signs()),
    "terngrad, buckets": Row(TernGrad(bucket=8), signs()),
    "l2": Row(LqQuantize(q=2), one_entry()),
    "l3": Row(LqQuantize(q=3), one_entry()),
    "l∞": Row(LqQuantize(q=math.inf, bucket=10), signs()),
    "bfloat16": Row(HalfPrecision(), signs()),
    "float16": Row(HalfPrecision("float16"), signs()),
    "top-k": Row(TopK(fraction=0.1), one_entry()),
    "top-k, 2 bits": Row(TopK(fraction=1.0, bits=2), signs()),
    "top-k, all": Row(TopK(fraction=1.0), rank_one()),
    "atomo svd": Row(Atomo(budget=2), rank_one(), 1e-5),
    "atomo svd, randomized": Row(Atomo(budget=1.5, method="randomized"), rank_one(), 1e-5),
    "atomo entries": Row(Atomo(budget=5, atoms="entries"), one_entry()),
    "atomo entries, share": Row(Atomo(budget=0.2, atoms="entries"), one_entry()),
    "atomo, bytes": Row(Atomo(share=0.4), torch.zeros(6, 8)),
    "atomo, bytes, vectors": Row(Atomo(share=0.3, atoms="svd"), torch.zeros(6, 8)),
    "atomo, bytes, randomized": Row(
        Atomo(share=0.2, atoms="svd", method="randomized"), torch.zeros(6, 8)
    ),
    "atomo, bytes, entries": Row(Atomo(share=0.2, atoms="entries"), torch.zeros(6, 8)),
    "atomo fourier": Row(Atomo(budget=6, atoms="fourier"), torch.ones(6, 8), 1e-6),
}
EVERY = pytest.mark.parametrize("name", CODECS)
UNBIASED = [name for name, row in CODECS.items() if row.codec.unbiased]
FEW = settings(max_examples=8, deadline=None)


def gradient(shape=(16, 12), dtype=torch.float32, seed=0):
    """Numbers of very different size, as in a gradient."""
    draw = torch.Generator().manual_seed(seed)
    left, right = torch.randn(shape, generator=draw), torch.randn(shape, generator=draw)
    return (left * right.exp()).to(dtype)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def through(codec, tensor, seed=0):
    return codec.decode(codec.encode(tensor, generator(seed)), tuple(tensor.shape))


# -- what is decoded ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", UNBIASED)
def test_unbiased_codecs_are_unbiased_and_have_the_variance_of_the_theory(name):
    codec, tensor, source = CODECS[name].codec, gradient(), generator(1)
    errors = torch.stack(
        [codec.decode(codec.encode(tensor, source), tensor.shape) - tensor for _ in range(DRAWS)]
    ).double()
    variance = codec.expected_error(tensor)
    rounding = 1e-10 * float(tensor.square().sum())
    bias = float(errors.mean(0).square().sum())
    assert bias <= 30 * variance / DRAWS + rounding
    squares = errors.square().sum((1, 2))
    assert abs(squares.mean() - variance) <= 6 * squares.std() / math.sqrt(DRAWS) + rounding


@pytest.mark.parametrize("name", [name for name in CODECS if name not in UNBIASED])
def test_codecs_that_are_not_have_the_error_they_say(name):
    codec, tensor = CODECS[name].codec, gradient()
    error = (through(codec, tensor) - tensor).double().square().sum()
    assert float(error) == pytest.approx(codec.expected_error(tensor), rel=1e-4)


@EVERY
def test_representable_inputs_come_back(name):
    codec, exact, rounding = CODECS[name]
    for seed in range(20):
        found = through(codec, exact, seed)
        torch.testing.assert_close(
            found, exact, rtol=0, atol=rounding * max(1.0, float(exact.abs().max()))
        )


@EVERY
@given(
    tensor=arrays.arrays(
        np.float32,
        arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=9),
        elements=st.floats(width=32),
    ),
    dtype=st.sampled_from(_payload.DTYPES),
    seed=st.integers(0, 2**40),
)
@FEW
def test_any_tensor_keeps_its_shape_type_and_finiteness(name, tensor, dtype, seed):
    codec = CODECS[name].codec
    tensor = torch.from_numpy(tensor.copy()).to(dtype)
    payload = codec.encode(tensor, generator(seed))
    found = codec.decode(payload, tensor.shape)
    assert found.shape == tensor.shape
    assert found.dtype == tensor.dtype
    if tensor.isfinite().all():
        assert found.isfinite().all()
    else:  # written as it is
        assert _payload.tensor_bytes(found) == _payload.tensor_bytes(tensor)
    # One generator, one payload; and whoever decodes it gets the same bits.
    assert codec.encode(tensor, generator(seed)) == payload
    again = codec.decode(memoryview(bytearray(payload)), list(tensor.shape))
    assert _payload.tensor_bytes(again) == _payload.tensor_bytes(found)
    anyhow = decode(payload, tensor.shape)
    assert _payload.tensor_bytes(anyhow) == _payload.tensor_bytes(found)


@EVERY
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_is_single_precision_rounded(name, dtype):
    codec, tensor = CODECS[name].codec, gradient(dtype=dtype)
    assert torch.equal(through(codec, tensor), through(codec, tensor.float()).to(dtype))


@EVERY
@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (3, 0), (0,)], ids=str)
def test_nothing_and_one_number(name, shape):
    codec = CODECS[name].codec
    for value in (0.0, -2.5, 3e38, 1e-42):
        tensor = torch.full(shape, value)
        found = torch.stack([through(codec, tensor, seed) for seed in range(3)])
        torch.testing.assert_close(found, tensor.expand_as(found), rtol=1e-5, atol=0)


@EVERY
def test_zeros_are_zeros(name):
    assert torch.equal(through(CODECS[name].codec, torch.zeros(40, 30)), torch.zeros(40, 30))


@EVERY
@pytest.mark.parametrize("size", [1e-44, 1e-30, 1e30, 1e38])
def test_very_large_and_very_small_numbers(name, size):
    codec = CODECS[name].codec
    tensor = gradient((30, 20)).clamp(-3, 3) * size
    found = through(codec, tensor)
    assert found.isfinite().all()
    scaled = float((found.double() - tensor.double()).square().sum()) / size**2
    assert scaled <= 40 * codec.expected_error(tensor / size) + 1e-3 * tensor.numel()


@EVERY
@pytest.mark.parametrize("size", [1e-28, 1e-15, 1e15, 1e28])
def test_the_expected_error_grows_with_the_square_of_the_tensor(name, size):
    codec, tensor = CODECS[name].codec, gradient()
    scaled = codec.expected_error(tensor.mul(size)) / size**2
    assert scaled == pytest.approx(codec.expected_error(tensor), rel=1e-3, abs=1e-9)


@EVERY
def test_settings_may_be_numbers_of_numpy(name):
    """As a search draws them."""
    codec, tensor = CODECS[name].codec, gradient()
    settings = {
        field.name: np.asarray(getattr(codec, field.name))[()]
        for field in dataclasses.fields(codec)
        if isinstance(getattr(codec, field.name), int | float)
    }
    assert settings == {} or all(isinstance(value, np.generic) for value in settings.values())
    drawn = codec.with_settings(**settings)
    assert drawn == codec
    assert repr(drawn) == repr(codec)
    assert drawn.encode(tensor, generator()) == codec.encode(tensor, generator())


@EVERY
def test_a_million_and_three_numbers(name):
    codec = CODECS[name].codec
    if name == "atomo svd, randomized":
        codec = Atomo(budget=2, method="randomized")
    tensor = gradient((1009, 992))
    payload = codec.encode(tensor, generator())
    error = float((codec.decode(payload, tensor.shape) - tensor).double().square().sum())
    assert error <= 3 * codec.expected_error(tensor) + 1e-9
    if name != "top-k, all":
        assert len(payload) < tensor.nbytes / (1.9 if isinstance(codec, HalfPrecision) else 3)


# -- payloads that are wrong ----------------------------------------------------------------------


@EVERY
@given(data=st.data())
@FEW
def test_damaged_payloads_raise(name, data):
    codec, tensor = CODECS[name].codec, gradient((6, 8))
    payload = codec.encode(tensor, generator())
    cut = data.draw(st.integers(0, len(payload) - 1))
    place = data.draw(st.integers(0, len(payload) - 1))
    flip = data.draw(st.integers(1, 255))
    damaged = bytearray(payload)
    damaged[place] ^= flip
    for wrong in (payload[:cut], bytes(damaged), payload + b"\0"):
        with pytest.raises(PayloadError):
            codec.decode(wrong, tensor.shape)


@EVERY
@given(body=st.binary(max_size=80), n=st.integers(1, 40), raw=st.booleans())
@FEW
def test_forged_bodies_raise_or_decode_to_the_right_shape(name, body, n, raw):
    codec = CODECS[name].codec
    forged = _payload.seal(codec.kind, torch.float32, n, body, raw=raw)
    with contextlib.suppress(PayloadError):
        assert codec.decode(forged, (n,)).shape == (n,)


@EVERY
def test_another_shape_or_another_kind_raises(name):
    codec = CODECS[name].codec
    payload = codec.encode(gradient((6, 8)), generator())
    with pytest.raises(PayloadError, match="48 numbers"):
        codec.decode(payload, (7, 8))
    other = TernGrad() if codec.kind != TernGrad.kind else TopK()
    with pytest.raises(PayloadError, match="kind"):
        other.decode(payload, (6, 8))


@EVERY
@pytest.mark.parametrize("wrong", [torch.ones(3, dtype=torch.int64), [1.0], None])
def test_only_floats_are_encoded(name, wrong):
    with pytest.raises(TypeError, match="float32"):
        CODECS[name].codec.encode(wrong)


# -- error feedback -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["top-k", "top-k, all"])
def test_error_feedback_loses_nothing(name):
    feedback, memory = ErrorFeedback(CODECS[name].codec), None
    sent = wanted = torch.zeros(16, 12)
    for step in range(10):
        tensor = gradient(seed=step)
        payload, memory = feedback.encode_with(tensor, memory, generator(step))
        sent, wanted = sent + feedback.decode(payload, tensor.shape), wanted + tensor
    torch.testing.assert_close(sent + memory, wanted, rtol=1e-4, atol=1e-4)


def memory_after(feedback, steps):
    """Return the norm of what is left out after so many steps with one gradient."""
    tensor, memory = gradient((30, 20)), None
    for step in range(steps):
        _, memory = feedback.encode_with(tensor, memory, generator(step))
    return float(memory.norm() / tensor.norm())


@pytest.mark.parametrize("name", UNBIASED)
def test_the_memory_of_error_feedback_is_bounded(name):
    """What an unbiased codec decodes can be many times the tensor: without damping it explodes."""
    codec, tensor = CODECS[name].codec, gradient((30, 20))
    variance = codec.expected_error(tensor) / float(tensor.square().sum())
    # The contraction 1 − 1/(1 + ω) bounds the memory by 2 (1 + ω) in the mean.
    assert memory_after(ErrorFeedback(codec), 60) <= 4 * (1 + variance)


# -- theorems -------------------------------------------------------------------------------------


@given(
    tensor=arrays.arrays(np.float64, st.integers(2, 60), elements=st.floats(-100, 100)),
    q=st.sampled_from([1.0, 1.5, 2.0, 3.0, 10.0, math.inf]),
)
@settings(max_examples=50, deadline=None)
def test_atomo_has_no_more_variance_than_quantization_with_as_many_atoms(tensor, q):
    """Theorems 10 and 23: at s = ‖g‖₁/‖g‖_q atoms the two are the same."""
    g = torch.from_numpy(tensor)
    if float(g.abs().max()) < 1e-3:
        return
    norm = float(torch.linalg.vector_norm(g, ord=q))
    quantized = LqQuantize(q=q).expected_error(g)
    one = float(g.abs().sum())
    square = float(g.square().sum())
    assert quantized == pytest.approx(one * norm - square, rel=1e-6, abs=1e-6 * square)
    # A budget of at least one atom: below, it would be a share of the entries.
    atoms = max(1.0, one / norm)
    atomo = Atomo(budget=atoms, atoms="entries").expected_error(g)
    assert atomo <= quantized + 1e-6 * square


def test_one_bit_qsgd_and_terngrad_are_lq_quantization():
    tensor = gradient()
    two = LqQuantize(q=2).encode(tensor, generator(3))
    assert QSGD(bits=1, bucket=None, norm=2.0).encode(tensor, generator(3)) == two
    largest = LqQuantize(q=math.inf).encode(tensor, generator(3))
    assert TernGrad().encode(tensor, generator(3)) == largest


@pytest.mark.parametrize("budget", [0.5, 1, 2.5, 6])
@pytest.mark.parametrize("method", ["exact", "randomized"])
def test_the_expected_number_of_atoms_is_the_budget(budget, method):
    tensor = gradient((40, 30))
    codec, source = Atomo(budget=budget, method=method), generator(2)
    before = _payload.HEADER_BYTES + 8
    counts = torch.tensor(
        [(len(codec.encode(tensor, source)) - before) / (4 * 70) for _ in range(400)]
    )
    assert abs(counts.mean() - budget) <= 6 * counts.std() / 20 + 1e-9


def test_the_expected_number_of_entries_is_the_budget():
    tensor, source = gradient(), generator(2)
    for codec, wanted in (
        (Atomo(budget=9, atoms="entries"), 9),
        (Atomo(budget=0.25, atoms="entries"), 48),
    ):
        counts = torch.tensor(
            [
                float((codec.decode(codec.encode(tensor, source), tensor.shape) != 0).sum())
                for _ in range(DRAWS)
            ]
        )
        assert abs(counts.mean() - wanted) <= 6 * counts.std() / math.sqrt(DRAWS)


def test_lemma_19():
    """E‖ĝ‖² = Σ λᵢ²/pᵢ for orthonormal atoms, here the singular vectors."""
    tensor, budget = gradient((40, 30)).double(), 4.0
    values = torch.linalg.svdvals(tensor)
    chances = torch.minimum(values * budget / values.sum(), torch.ones(()))
    assert float(chances.max()) < 1  # balanced, so that this is the solution
    square = float((values**2 / chances).sum())
    assert square == pytest.approx(float(values.sum()) ** 2 / budget)
    codec = Atomo(budget=budget, method="exact")
    assert codec.expected_error(tensor) + float(tensor.square().sum()) == pytest.approx(square)


def test_singular_vectors_need_less_than_entries_for_a_matrix_of_low_rank():
    tensor = gradient((60, 3)) @ gradient((3, 50), seed=1)
    spectral = Atomo(budget=2).expected_error(tensor)
    numbers = 2 * (60 + 50)
    assert spectral < Atomo(budget=numbers, atoms="entries").expected_error(tensor)
