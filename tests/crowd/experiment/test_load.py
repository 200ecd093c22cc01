"""Settings, items and files: what is read, and everything that is wrong at once."""

import csv
import io
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accelerando.crowd.experiment import (
    Experiment,
    Files,
    SettingsError,
    load_experiment,
    make_experiment,
    read_upload,
    read_yaml,
)
from accelerando.crowd.experiment.items import items_from_csv, natural_order
from accelerando.crowd.experiment.media import Media, recognise
from accelerando.crowd.experiment.settings import Settings
from accelerando.crowd.serve.new import new_experiment
from accelerando.crowd.store.experiments import make_desk
from tests.crowd.web.conftest import png, zipped


def write(folder, text, name="experiment.yaml"):
    (folder / name).write_text(text)
    return folder


def problems(text, files=None):
    with pytest.raises(SettingsError) as refused:
        make_experiment(read_yaml(text), files or Files())
    return refused.value.problems


def outcome(document):
    """The experiment, or the problems with it."""
    try:
        return make_experiment(document, Files())
    except SettingsError as error:
        return error.problems


def test_a_new_experiment_is_ready_to_be_served(tmp_path):
    file = new_experiment(tmp_path / "Mein Versuch!")
    made = load_experiment(file)
    assert made.settings.name == "mein-versuch"
    assert len(made.items) == 8
    with pytest.raises(ValueError, match="already"):
        new_experiment(tmp_path / "Mein Versuch!")


def test_every_commented_line_of_it_is_right(tmp_path):
    """What the template shows in comments must work when it is uncommented."""
    text = new_experiment(tmp_path / "x").read_text()
    head, _, rest = text.partition("instructions:")
    lines = [
        line.removeprefix("# ") if line.startswith("# ") else line for line in rest.split("\n")
    ]
    lines = [line.removeprefix("#") if line.startswith("#   ") else line for line in lines]
    made = make_experiment(read_yaml(head + "instructions:" + "\n".join(lines)), Files())
    assert made.settings.checks.fail_after == 3
    assert made.settings.participants.total_answers == 3000
    assert set(made.settings.samplers) == {"arr", "random"}


def test_all_problems_at_once_each_with_line_and_key():
    found = problems(
        "name: Eggs\n"  # 1
        "items: [a, b, c]\n"
        "participants:\n"
        "  answer: 3\n"  # 4
        "  answers: -1\n"  # 5
        "samplers:\n"
        "  x: {class: Rando}\n"  # 7
        "texts: {foo: bar}\n"  # 8
        "title: a\n"
        "title: b\n"  # 10
    )
    assert {(p.line, p.key) for p in found} >= {
        (1, "name"),
        (4, "participants.answer"),
        (5, "participants.answers"),
        (7, "samplers.x.class"),
        (8, "texts"),
        (10, "title"),
    }
    assert all(p.file == "experiment.yaml" and p.message for p in found)


def test_items_that_do_not_exist_are_found_wherever_they_are_named():
    found = problems(
        "items: [a, b, c]\n"
        "practice: [{head: 0, left: 1, right: 7, winner: 1}]\n"
        "checks:\n  queries:\n    - {head: 9, left: 1, right: 2, winner: 1}\n"
        "samplers: {s: {class: ARR, items: [0, 1, 5]}}\n"
        "fixed: {1: {query: [0, 1, 8]}}\n"
    )
    assert [p.line for p in found] == [2, 5, 6, 7]
    assert "0 to 2" in found[0].remedy


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "keys and values"),
        ("- a\n- b", "keys and values"),
        ("items: []", "no items"),
        ("items: 2", "2 items"),
        ("items: true", "no items"),
        ("items: {a: 1}", "list, a number"),
        ("items: [a, [b], c]", "must be a text"),
        ("items: [a, '', c]", "empty item"),
        ("items: [{image: a.png}, b, c]", "no file 'a.png'"),
        ("items: [{picture: a.png}, b, c]", "unknown picture"),
        ("items: [{text: a, html: b}, b, c]", "exactly one"),
        ("items: 5\nsamplers: {v: {class: Validation}}", "needs it"),
        ("items: 5\nsamplers: {r: {class: Random, pairs: 3}}", "parameter of ARR"),
        ("items: 5\nsamplers: {a: {class: ARR}}\nshares: {b: 1}", "must name the samplers"),
        ("items: 5\nchecks: {queries: [{head: 0, left: 1, right: 2}]}", "needs its winner"),
        ("items: 5\npractice: [{head: 0, left: 0, right: 2}]", "three different"),
        ("items: 5\nconsent: {}", "text"),
        ("items: 5\nlanguage: deutsch!", "pattern"),
    ],
)
def test_what_is_wrong_is_said(text, says):
    assert says in " ".join(str(problem) for problem in problems(text))


def test_words_stay_words():
    made = make_experiment(read_yaml("items: [no, 1.0, 2020-01-01, null]\ntitle: 42\n"), Files())
    assert [item.text for item in made.items] == ["no", "1.0", "2020-01-01", "null"]
    assert made.settings.title == "42"


@given(st.text(max_size=300))
def test_any_text_is_read_or_refused(text):
    assert outcome(read_yaml(text))


@given(st.binary(max_size=300))
def test_any_upload_is_read_or_refused(data):
    files = read_upload("x.zip", data)
    assert files.problems or files.media or files.lists or files.settings


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 99) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=10,
)


keys = st.sampled_from([*Settings.model_fields, "items", "targets", "html", "sampling"])


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(keys, json_values))
def test_any_values_under_our_keys_are_read_or_refused(values):
    found = outcome(read_yaml(json.dumps(values)))
    assert found
    if isinstance(found, Experiment):
        make_desk(found.settings, len(found.items))


@pytest.mark.parametrize("how", ["folder", "zip", "listed", "csv"])
def test_pictures_in_natural_order(tmp_path, how):
    names = ["10.png", "9.png", "cat.png"]
    pictures = {name: png(k) for k, name in enumerate(names)}
    if how == "zip":
        (tmp_path / "p.zip").write_bytes(zipped(pictures))
        write(tmp_path, "items: p.zip")
    else:
        (tmp_path / "images").mkdir()
        for name, data in pictures.items():
            (tmp_path / "images" / name).write_bytes(data)
        if how == "folder":
            write(tmp_path, "items: images")
        elif how == "csv":
            (tmp_path / "images" / "list.csv").write_text(
                "image,alt\n9.png,nine\n10.png,ten\ncat.png,\n"
            )
            write(tmp_path, "items: images")
        else:
            write(
                tmp_path,
                "items: [{image: images/9.png, alt: nine}, {image: images/10.png}, "
                "{image: images/cat.png}]",
            )
    made = load_experiment(tmp_path)
    assert [item.text for item in made.items] == ["9.png", "10.png", "cat.png"]
    assert all(item.media in made.media for item in made.items)
    assert made.items[2].alt == "cat"
    if how in ("csv", "listed"):
        assert made.items[0].alt == "nine"


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (png(), "image/png"),
        (b"GIF89a", "image/gif"),
        (b"\xff\xd8\xff\xe0", "image/jpeg"),
        (b"RIFF0000WEBP", "image/webp"),
        (b"RIFF0000WAVE", "audio/wav"),
        (b"0000ftypisom", "video/mp4"),
        (b"0000ftypqt  ", "video/quicktime"),
        (b"0000ftypM4A ", "audio/mp4"),
        (b"0000ftypavif", "image/avif"),
        (b"\x1aE\xdf\xa3", "video/webm"),
        (b"OggS....vorbis", "audio/ogg"),
        (b"ID3\x03", "audio/mpeg"),
        (b"\xff\xfb\x90\x00", "audio/mpeg"),
        (b"<?xml version='1.0'?><!-- x --><svg xmlns='y'/>", "image/svg+xml"),
        (b"<svgx>", None),
        (b"", None),
    ],
)
def test_types_come_from_the_content(data, kind):
    assert recognise(data) == kind
    if kind is not None:
        assert "." in Media("x", kind, data).key


def test_lists_with_problems_name_their_lines():
    items, found = items_from_csv("text,image\na,\n,x.png\nb,\n", "list.csv", {})
    assert [item.text for item in items] == ["a", "b"]
    assert [(p.file, p.line) for p in found] == [("list.csv", 3)]
    items, found = items_from_csv("text\na pear, ripe\n", "list.csv", {})
    assert [item.text for item in items] == ["a pear, ripe"]
    items, found = items_from_csv("text,alt\na pear, ripe,x\nb,y\n", "list.csv", {})
    assert [p.line for p in found] == [2]
    lines, _ = items_from_csv("red, or so\nblue\n", "list.txt", {})
    assert [item.text for item in lines] == ["red, or so", "blue"]


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\r\n\0"), max_size=20)))
def test_any_csv_list_keeps_its_texts(texts):
    stream = io.StringIO()
    writer = csv.writer(stream)
    writer.writerow(["text"])
    writer.writerows([text] for text in texts)
    items, found = items_from_csv(stream.getvalue(), "x.csv", {})
    wanted = [text.strip() for text in texts if text.strip()]
    assert not found or any('"' in text or text >= "\x1c" for text in texts)
    if not found:
        assert [item.text for item in items] == wanted


@given(st.lists(st.text(max_size=10)))
def test_natural_order_is_an_order(names):
    assert natural_order(reversed(natural_order(names))) == natural_order(names)


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
    make_desk(found, len(made.items))


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
