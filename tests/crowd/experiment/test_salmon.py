"""Salmon's init.yaml."""

import pytest

from accelerando.crowd.experiment import (
    Files,
    SettingsError,
    load_experiment,
    make_experiment,
    read_yaml,
)
from accelerando.crowd.store.experiments import make_assigner
from tests.crowd.web.conftest import png, zipped


def write(folder, text, name="experiment.yaml"):
    (folder / name).write_text(text)
    return folder


def problems(text, files=None):
    with pytest.raises(SettingsError) as refused:
        make_experiment(read_yaml(text), files or Files())
    return refused.value.problems


SALMON = """\
targets: [<b>one</b>, two, three, four, "<img src='https://img.test/x.png' onerror=alert(1)>"]
samplers:
  ARR: {module: CKL, d: 3, R: 2, n_top: 5}
  Random: {class: Random, targets: [0, 1, 2]}
  Validation: {class: Validation, n_queries: 4}
sampling:
  probs: {ARR: 80, Random: 10, Validation: 10}
  samplers_per_user: 1
  details: {1: {sampler: Random, query: [0, 1, 2]}}
html:
  title: Foo
  instructions: Select the <i>best</i>
  max_queries: 25
  skip_button: true
  arrow_keys: false
  css: "body {color: red}"
  js: alert(1)
  element_top: "<p>Top</p>"
  mine: 1
"""


def test_salmons_init_yaml_unchanged(tmp_path):
    made = load_experiment(write(tmp_path, SALMON, "init.yaml"))
    found = made.settings
    assert [item.kind for item in made.items] == ["html", "text", "text", "text", "html"]
    assert "onerror" not in made.items[4].html
    assert found.media_hosts == ["https://img.test"]
    assert (found.title, found.participants.answers) == ("Foo", 25)
    assert (found.skip, found.keyboard) == (True, False)
    assert found.shares == {"arr": 80, "random": 10, "validation": 10}
    assert (found.embedding.noise, found.embedding.dimensions) == ("ckl", 3)
    assert found.embedding.warmup == 10
    assert found.participants.one_sampler
    assert found.fixed[1].query == [0, 1, 2]
    assert found.slots.top == "<p>Top</p>"
    assert found.completion["done"].code == "{participant}"
    notices = " ".join(made.notices)
    for word in ("html.js", "n_top", "html.mine", "img.test"):
        assert word in notices
    make_assigner(found, len(made.items))


def test_salmons_zip_of_images_beside_its_init_yaml(tmp_path):
    write(tmp_path, "samplers: {ARR: {}}\nsampling: {common: {d: 2}}\n", "init.yaml")
    (tmp_path / "targets.zip").write_bytes(zipped({f"{k}.png": png(k) for k in range(3)}))
    assert len(load_experiment(tmp_path / "init.yaml").items) == 3
    other = tmp_path / "list.zip"
    other.write_bytes(zipped({"targets.csv": "<b>a</b>, b\nc\nd\n"}))
    made = load_experiment(tmp_path / "init.yaml", items=other)
    assert [item.text for item in made.items] == ["a, b", "c", "d"]


def test_wrong_things_in_salmons_file_have_lines_too():
    found = problems(
        "targets: 5\n"
        "instructions: old\n"
        "samplers: {x: {class: RandomSampling}}\n"
        "sampling: {probs: {x: 50}, samplers_per_user: 3}\n"
    )
    assert {p.line for p in found} >= {2, 3, 4}
    assert "under `html:`" in " ".join(p.remedy for p in found)
