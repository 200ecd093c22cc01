"""What a state file says is checked before anything of it is used."""

import json

import pytest
import torch

from accelerando._engine.state_check import check_state
from accelerando.exceptions import StateError
from tests._engine.comm.ranks import model_of, state_of


@pytest.fixture
def content():
    state = state_of(model_of())
    state.host.plain = {"estimator": "Net", "history": [], "classes": None, "callbacks": {}}
    state.made_with = {"policy": "64", "control": [], "sync": "AllReduce()"}
    return state.state_dict()


def test_what_saving_writes_is_accepted(content):
    assert check_state(content, "The file") is None


DAMAGES = {
    "seed": 1.5,
    "seeded": 1,
    "position": {"epoch": -1},
    "last": [0.0],
    "batch_size": "64",
    "settings": {"color": 1},
    "memories": {"policies": {}},
    "averaging": {"since": 1},
    "micro_batch": {"rows": 2**63, "seconds": {}},
    "made_with": {"policy": 1},
    "stream": [],
    "frozen": [["weight"]],
    "columns": "update",
    "host": {"estimator": "Net"},
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_plain_value_of_another_kind_is_named(content, name):
    plain = json.loads(content["json"])
    content["json"] = json.dumps({**plain, name: DAMAGES[name]})
    with pytest.raises(StateError, match=rf"The file is damaged .*: {name} cannot be what save_"):
        check_state(content, "The file")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("modules", {"module": 1}),
        ("optimizers", []),
        ("replicas", []),
        ("updates", torch.zeros(2, 3)),
        ("updates", [1.0]),
        ("epochs", torch.zeros(1, 1)),
        ("rng", {}),
        ("host", []),
    ],
)
def test_a_tensor_of_another_form_is_named(content, name, value):
    content["tensors"][name] = value
    named = "callbacks" if name == "host" else name
    with pytest.raises(StateError, match=rf"The file is damaged .*: {named} cannot be"):
        check_state(content, "The file")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"parts": 1e99}', "[" * 100_000])
def test_what_cannot_be_read_at_all_is_damaged(content, text):
    with pytest.raises(StateError, match="The file is damaged or was tampered with"):
        check_state({**content, "json": text}, "The file")
