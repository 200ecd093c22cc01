"""Models as a few long tensors: nothing is lost or mixed up on the way."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from accelerando.train.joint import Joint, square_of

DTYPES = st.sampled_from([torch.float32, torch.float64, torch.int64])
SHAPES = st.lists(st.integers(0, 3), max_size=4).map(tuple)


@st.composite
def models(draw):
    """Parameters, which are floats, and other tensors, which may be counters."""
    kinds = draw(st.lists(st.tuples(SHAPES, DTYPES, st.booleans()), max_size=8))
    n = draw(st.integers(0, len(kinds)))
    tensors = []
    for number, (shape, dtype, last) in enumerate(kinds):
        dtype = torch.float32 if number < n and dtype == torch.int64 else dtype
        tensor = torch.arange(100 * number, 100 * number + torch.Size(shape).numel())
        tensor = tensor.reshape(shape).to(dtype)
        if last and len(shape) == 4:
            tensor = tensor.to(memory_format=torch.channels_last)
        tensors.append(tensor)
    return tensors, n


@given(models())
def test_joined_and_taken_apart_all_is_as_before(model):
    tensors, n = model
    joint = Joint(tensors, n)
    assert sorted(joint.numbers) == [k for k, t in enumerate(tensors) if t.is_floating_point()]
    joined = joint.joined(tensors)
    parts = joint.parts(joined)
    for number, part in zip(joint.numbers, parts, strict=True):
        assert torch.equal(part, tensors[number])
    # Parameters come first, and can be joined by themselves.
    parameters = joint.joined(tensors[:n])
    assert len(parameters) == joint.n_parameters
    assert all(map(torch.equal, parameters, joined))
    assert [k < n for k in joint.numbers] == sorted((k < n for k in joint.numbers), reverse=True)


def test_the_layout_in_memory_does_not_matter():
    images = torch.arange(24.0).reshape(1, 2, 3, 4)
    last = images.to(memory_format=torch.channels_last)
    assert images.stride() != last.stride()
    (one,), (other,) = Joint([images], 1).joined([images]), Joint([last], 1).joined([last])
    assert torch.equal(one, other)


def test_parts_are_views_and_what_is_joined_is_a_copy():
    model = [torch.zeros(2), torch.zeros(2, 2)]
    joint = Joint(model, 2)
    (whole,) = joint.joined(model)
    whole += 1
    assert model[0].tolist() == [0.0, 0.0]
    assert joint.parts([whole])[1].tolist() == [[1.0, 1.0], [1.0, 1.0]]
    joint.parts([whole])[0].fill_(5.0)
    assert whole.tolist() == [5.0, 5.0, 1.0, 1.0, 1.0, 1.0]


def test_squares_are_added_up_in_double_precision():
    ones, zeros = torch.ones(20_000_000), torch.zeros(20_000_000)
    assert square_of([ones[:10], ones], [zeros[:10], zeros]) == 20_000_010.0
