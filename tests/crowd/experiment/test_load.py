"""Settings, items and files: what is read, and everything that is wrong at once."""

import pytest

from accelerando.crowd.experiment import (
    Files,
    SettingsError,
    load_experiment,
    make_experiment,
    read_yaml,
)
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


def test_a_text_among_pictures_is_named_and_not_used(tmp_path):
    (tmp_path / "images").mkdir()
    for k in range(6):
        (tmp_path / "images" / f"{k}.png").write_bytes(png(k))
    (tmp_path / "images" / "README.txt").write_text("Faces\nof the\nlab\n2026\n")
    write(tmp_path, "items: images")
    made = load_experiment(tmp_path)
    assert [item.kind for item in made.items] == ["image"] * 6
    assert [n for n in made.notices if "README.txt" in n] == made.notices != []


def test_broken_files_and_broken_pictures_are_named_together(tmp_path):
    (tmp_path / "images").mkdir()
    pictures = {
        "a.png": png(1),
        "b.png": png(2)[:-20],
        "c.png": png(3),
        "d.png": b"",
        "e.png": b"?",
    }
    for name, data in pictures.items():
        (tmp_path / "images" / name).write_bytes(data)
    with pytest.raises(SettingsError) as refused:
        load_experiment(write(tmp_path, "items: images"))
    said = " ".join(str(problem) for problem in refused.value.problems)
    assert "d.png: the file is empty" in said
    assert "e.png: this is neither a picture" in said
    assert "b.png: it is truncated or corrupt" in said


def test_pictures_are_not_decoded_for_settings_with_a_mistake(tmp_path, monkeypatch):
    (tmp_path / "images").mkdir()
    for k in range(3):
        (tmp_path / "images" / f"{k}.png").write_bytes(png(k))
    monkeypatch.setattr("accelerando.crowd.experiment.load.shown_items", None)
    with pytest.raises(SettingsError, match="titel"):
        load_experiment(write(tmp_path, "items: images\ntitel: Faces"))


def test_pictures_that_a_list_does_not_name_are_told(tmp_path):
    names = ["a.png", "b.png", "c.png", "dog.png"]
    pictures = {name: png(k) for k, name in enumerate(names)}
    packed = zipped({**pictures, "list.csv": b"image\na.png\nb.png\nc.png\n"})
    (tmp_path / "p.zip").write_bytes(packed)
    made = load_experiment(write(tmp_path, "items: p.zip"))
    assert [item.text for item in made.items] == names[:3]
    assert made.notices == ["not used: dog.png: no item names it."]


def test_two_lists_are_refused():
    files = Files(lists={"a.csv": "x\ny\nz", "b.txt": "1\n2\n3"})
    assert "several lists" in str(problems("items: some", files)[0])


def test_several_zips_are_not_guessed_about(tmp_path):
    write(tmp_path, "samplers: {ARR: {}}\nsampling: {common: {d: 2}}\n", "init.yaml")
    for name in ("a.zip", "b.zip"):
        (tmp_path / name).write_bytes(zipped({f"{k}.png": png(k) for k in range(3)}))
    with pytest.raises(SettingsError, match=r"several ZIP files .* a\.zip, b\.zip"):
        load_experiment(tmp_path)
    write(tmp_path, "targets: [a, b, c]\n", "init.yaml")
    assert [n.split(": ")[1] for n in load_experiment(tmp_path).notices] == ["a.zip", "b.zip"]
    write(tmp_path, "items: a.zip\n")
    made = load_experiment(tmp_path / "experiment.yaml", items=tmp_path / "b.zip")
    assert made.notices == ["not used: a.zip: --items b.zip takes its place."]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("cat.png", "several files are called 'cat.png': x/cat.png, y/cat.png"),
        ("Dog.png", "There is 'y/dog.png': capital letters count"),
        ("cow.png", "there is no file 'cow.png' with this experiment."),
    ],
)
def test_a_list_names_files_in_any_folder(tmp_path, line, says):
    files = {"x/cat.png": png(1), "y/cat.png": png(2), "y/dog.png": png(3)}
    lines = f"image\nx/cat.png\ny/cat.png\n{line}\n"
    (tmp_path / "p.zip").write_bytes(zipped({**files, "list.csv": lines.encode()}))
    write(tmp_path, "items: p.zip")
    with pytest.raises(SettingsError, match=says):
        load_experiment(tmp_path)
    lines = "image\nx/cat.png\ny/cat.png\ndog.png\n"
    (tmp_path / "p.zip").write_bytes(zipped({**files, "list.csv": lines.encode()}))
    assert len(load_experiment(tmp_path).items) == 3


def test_files_of_one_name_are_told_apart_and_copies_are_named(tmp_path):
    files = {"x/cat.png": png(1), "y/cat.png": png(2), "dog.png": png(3), "hound.png": png(3)}
    (tmp_path / "p.zip").write_bytes(zipped(files))
    made = load_experiment(write(tmp_path, "items: p.zip"))
    assert [item.text for item in made.items] == ["dog.png", "hound.png", "x/cat.png", "y/cat.png"]
    assert made.notices == ["the same file under several names: dog.png, hound.png."]


def test_items_that_are_listed_twice_are_named(tmp_path):
    """People would be asked which of two equal things is more like a third."""
    made = load_experiment(write(tmp_path, "items: [tea, milk, tea, water]"))
    assert len(made.items) == 4
    assert made.notices == ["the same item 2 times: tea (items 0, 2)."]
    assert load_experiment(write(tmp_path, "items: [a, b, A]")).notices == []
    boxes = [f"<div style='background: {color}'></div>" for color in ("red", "blue", "red")]
    made = load_experiment(write(tmp_path, f"targets: {boxes}"))
    assert made.notices == ["the same item 2 times: red (items 0, 2)."]
    lines = "image,alt\ncat.png,a cat\ndog.png,a dog\ncat.png,my cat\n"
    files = {"cat.png": png(1), "dog.png": png(2), "list.csv": lines.encode()}
    (tmp_path / "p.zip").write_bytes(zipped(files))
    made = load_experiment(write(tmp_path, "items: p.zip"))
    assert made.notices == ["the same item 2 times: cat.png (items 0, 2)."]
