"""Models as a few flat tensors: nothing is lost or mixed up."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from accelerando._engine.comm.flat_params import FlatParameters, square_distance

DTYPES = st.sampled_from([torch.float32, torch.float64, torch.int64])
SHAPES = st.lists(st.integers(0, 3), max_size=4).map(tuple)


@st.composite
def models(draw):
    """Return parameters, which are floats, and other tensors, which may be counters."""
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
def test_flattening_can_be_undone(model):
    tensors, n = model
    flat = FlatParameters(tensors, n)
    assert sorted(flat.numbers) == [k for k, t in enumerate(tensors) if t.is_floating_point()]
    flattened = flat.flatten(tensors)
    for number, part in zip(flat.numbers, flat.unflatten(flattened), strict=True):
        assert torch.equal(part, tensors[number])
    # Parameters come first, and can be flattened without the other tensors.
    parameters = flat.flatten(tensors[:n])
    assert len(parameters) == flat.n_parameters
    assert all(map(torch.equal, parameters, flattened))
    assert [k < n for k in flat.numbers] == sorted((k < n for k in flat.numbers), reverse=True)


def test_memory_layout_does_not_matter():
    images = torch.arange(24.0).reshape(1, 2, 3, 4)
    last = images.to(memory_format=torch.channels_last)
    assert images.stride() != last.stride()
    (one,) = FlatParameters([images], 1).flatten([images])
    (other,) = FlatParameters([last], 1).flatten([last])
    assert torch.equal(one, other)


def test_flattening_copies_and_unflattening_gives_views():
    model = [torch.zeros(2), torch.zeros(2, 2)]
    flat = FlatParameters(model, 2)
    (whole,) = flat.flatten(model)
    whole += 1
    assert model[0].tolist() == [0.0, 0.0]
    assert flat.unflatten([whole])[1].tolist() == [[1.0, 1.0], [1.0, 1.0]]
    flat.unflatten([whole])[0].fill_(5.0)
    assert whole.tolist() == [5.0, 5.0, 1.0, 1.0, 1.0, 1.0]


def test_squares_are_summed_in_double_precision():
    ones, zeros = torch.ones(20_000_000), torch.zeros(20_000_000)
    assert square_distance([ones[:10], ones], [zeros[:10], zeros]) == 20_000_010.0
