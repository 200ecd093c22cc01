"""Every field of a state survives saving, and every part is only that part."""

from __future__ import annotations

import dataclasses
import json
import pickle

import numpy as np
import pytest
import torch

from accelerando._decisions import Memories, Settings
from accelerando._engine import checkpoint
from accelerando._engine.comm.replicas import ReplicaSet
from accelerando._engine.ema import WeightAverage
from accelerando._engine.position import (
    UPDATE_COLUMNS,
    AveragingState,
    HostState,
    LastUpdate,
    Part,
    Position,
)
from accelerando._engine.runtime.process import get_rng
from accelerando._engine.state import Records, TrainState
from accelerando.sync import PeriodicAveraging
from tests._engine.fits import data, plain_fit, plain_model, train


def full_state():
    """Return a state of which no field has its default."""
    model = plain_model(momentum=0.9)
    state = TrainState(
        seed=3,
        seeded=True,
        position=Position(1, 2, 3, 4, 5, 6, epoch_open=True),
        last=LastUpdate(7, 8.5, 9.5),
        batch_size=10,
        lr_scale=0.25,
        settings=Settings(batch_size=3.0, scales=(0.5, 1.0), betas=(0.8, 0.9), period=4),
        memories=Memories([{"a": 1}], [{"b": 2.0}], {"signal": 3.0}, {"period": 4}),
        averaging=AveragingState(2, 7),
        stream={"rows": 2, "digest": 5},
        components=model.components,
        records=Records(("signal",)),
        seconds=1.25,
        rng=get_rng(),
        made_with={"policy": "P", "control": [], "sync": "S"},
        host=HostState({"history": [1]}, {"best": torch.ones(2)}),
        ema=WeightAverage(0.5, 3, {"module.weight": torch.ones(2)}),
    )
    state.micro_batch.rows = 77
    state.replicas = ReplicaSet(model.components, here=2)
    for update in (1, 2, 3):
        state.records.updates.add(update, *range(len(UPDATE_COLUMNS)))
    state.records.epochs.add(*range(6))
    return state


def empty_state():
    return TrainState(components=plain_model(seed=1).components, records=Records(("signal",)))


def comparable(value):
    """Return JSON values and lists for everything in a state."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, ReplicaSet | WeightAverage):
        return comparable(value.state_dict())
    if dataclasses.is_dataclass(value) and hasattr(value, "state_dict"):
        return comparable(value.state_dict())  # Components
    if isinstance(value, Records):
        return comparable([value.updates.tensor(), value.epochs.tensor(), value.updates.columns])
    if dataclasses.is_dataclass(value):
        return comparable(vars(value))
    if isinstance(value, dict):
        return {key: comparable(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [comparable(one) for one in value]
    return value


FIELDS = [field.name for field in dataclasses.fields(TrainState)]


@pytest.mark.parametrize("through", ["a dictionary", "a file", "bytes"])
def test_every_field_survives_saving(tmp_path, through):
    state, loaded = full_state(), empty_state()
    content = state.state_dict()
    if through == "a file":
        checkpoint.write(tmp_path / "state", content)
        content = checkpoint.read(tmp_path / "state")
    elif through == "bytes":
        content = checkpoint.unpack(checkpoint.pack(content))
    before = {name: comparable(getattr(loaded, name)) for name in FIELDS}
    assert loaded.load_state_dict(content) == Part.ALL
    for name in FIELDS:
        got = comparable(getattr(loaded, name))
        assert got == comparable(getattr(state, name)), name
        assert got != before[name], f"{name} has its default: this test shows nothing"


IN_PART = {
    Part.MODEL: {"components"},
    Part.REPLICAS: {"replicas"},
    Part.RECORDS: {"records"},
    Part.RNG: {"rng"},
    Part.HOST: {"host"},
}
IN_PART[Part.POSITION] = set(FIELDS).difference(*IN_PART.values())


@pytest.mark.parametrize("side", ["saved", "loaded"])
@pytest.mark.parametrize("part", IN_PART, ids=lambda part: part.name)
def test_a_part_is_only_that(part, side):
    state, loaded = full_state(), empty_state()
    before = {name: comparable(getattr(loaded, name)) for name in FIELDS}
    saved = part if side == "saved" else Part.ALL
    assert loaded.load_state_dict(state.state_dict(saved), parts=part) == part
    changed = {name for name in FIELDS if comparable(getattr(loaded, name)) != before[name]}
    assert changed == IN_PART[part]


def test_only_new_records_are_sent():
    content = full_state().state_dict(Part.RECORDS, records_after=1)
    assert content["tensors"]["updates"][:, 0].tolist() == [2.0, 3.0]


def test_a_state_without_replicas_removes_them():
    state = full_state()
    state.load_state_dict(empty_state().state_dict())
    assert state.replicas is None
    assert state.rng is None


def test_a_pickled_state_leaves_the_model_to_the_estimator():
    state = full_state()
    loaded = pickle.loads(pickle.dumps(state))
    assert loaded.components.modules == {}
    for name in set(FIELDS) - {"components"}:
        assert comparable(getattr(loaded, name)) == comparable(getattr(state, name)), name
    assert loaded.records.updates.columns == (*UPDATE_COLUMNS, "signal")


def test_numbers_of_numpy_and_pytorch_are_numbers_in_json():
    state = TrainState(host=HostState({"a": np.float32(0.5), "b": torch.ones(2), "c": np.int64(3)}))
    plain = json.loads(state.state_dict(Part.HOST)["json"])
    assert plain["host"] == {"a": 0.5, "b": [1.0, 1.0], "c": 3}


def test_what_json_does_not_know_is_an_error():
    state = TrainState(host=HostState({"history": [object()]}))
    with pytest.raises(TypeError, match="object in the history cannot be saved as JSON"):
        state.state_dict(Part.HOST)


@pytest.mark.parametrize("strategy", [None, PeriodicAveraging(period=3)], ids=["all-reduce", "avg"])
def test_a_saved_run_continues_to_the_same_parameters(strategy):
    def make():
        options = {"virtual_ranks": 2} if strategy else {}
        model = plain_model(optimizer=torch.optim.Adam, lr=0.05)
        return plain_fit(model, data(48), batch_size=4, strategy=strategy, until=4, **options)

    whole = train(make())
    first = make()
    first.state.position.until = 2
    train(first)
    second = make()
    second.state.load_state_dict(checkpoint.unpack(checkpoint.pack(first.state.state_dict())))
    second.state.position.until = 4
    train(second)
    for mine, other in zip(whole.model.parameters, second.model.parameters, strict=True):
        assert torch.equal(mine, other)
    assert second.state.averaging == whole.state.averaging
    columns = [n for n, c in enumerate(whole.state.records.updates.columns) if "seconds" not in c]
    rows = [fit.state.records.updates.tensor()[:, columns] for fit in (whole, second)]
    assert torch.equal(*(torch.nan_to_num(table) for table in rows))
