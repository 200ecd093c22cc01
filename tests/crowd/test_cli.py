import csv
import sys

import numpy as np
import pytest

from accelerando.cli import build_parser


@pytest.fixture
def run(capsys):
    def call(*arguments):
        options = build_parser().parse_args(["crowd", *map(str, arguments)])
        code = options.run(options)
        return code, *capsys.readouterr()

    return call


@pytest.fixture
def answers_csv(tmp_path, eggs):
    path = tmp_path / "answers.csv"
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["head", "winner", "loser", "participant"])
        writer.writerows([*row, "anna"] for row in eggs(12, 400, seed=0).triplets.tolist())
    return path


def test_embed_writes_positions_a_picture_and_a_held_out_accuracy(run, answers_csv, tmp_path):
    output = tmp_path / "embedding.csv"
    code, out, progress = run("embed", answers_csv, "--dimensions", 2, "-o", output)
    assert code == 0
    rows = list(csv.DictReader(output.read_text().splitlines()))
    assert [row["item"] for row in rows] == [str(k) for k in range(12)]
    positions = np.array([[float(row["x1"]), float(row["x2"])] for row in rows])
    assert np.isfinite(positions).all()
    assert output.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    accuracy = float(out.split("held-out accuracy: ")[1].split()[0])
    assert accuracy > 0.75
    assert "95 % band" in out
    assert "400 answers of 1 participants about 12 items" in progress
    assert "fitting all 400 answers" in progress


def test_bad_rows_are_named_on_the_way(run, answers_csv, tmp_path):
    lines = answers_csv.read_text().splitlines()
    lines[5] = "1,1,2,anna"
    lines[9] = "9,x,2,anna"
    answers_csv.write_text("\n".join(lines))
    code, _, progress = run("embed", answers_csv, "-o", tmp_path / "e.csv", "--no-picture")
    assert code == 0
    assert "line 6: A row must have three different items" in progress
    assert "line 10: winner must be an integer" in progress
    assert "2 rows cannot be used" in progress


def test_many_bad_rows_are_all_named(run, tmp_path):
    path = tmp_path / "bad.csv"
    path.write_text("head,winner,loser\n0,1,2\n" + "0,0,0\n" * 30)
    _, _, progress = run("embed", path, "-o", tmp_path / "e.csv", "--no-picture")
    assert "and 10 more, lines 23, 24, 25, 26, 27, 28, 29, 30, 31, 32" in progress


def test_only_random_answers_are_held_out_where_the_file_knows_them(run, tmp_path, eggs):
    path = tmp_path / "answers.csv"
    rows = eggs(12, 300, seed=0).triplets.tolist()
    lines = [f"{h},{w},{x},{int(k < 100)}" for k, (h, w, x) in enumerate(rows)]
    path.write_text("head,winner,loser,at_random\n" + "\n".join(lines))
    _, out, _ = run("embed", path, "-o", tmp_path / "e.csv", "--no-picture", "--held-out", 0.5)
    assert "50 random answers" in out


@pytest.mark.parametrize("noise", ["ckl", "soe"])
def test_noise_models_and_dimensions_can_be_chosen(run, answers_csv, tmp_path, noise):
    output = tmp_path / "e.csv"
    code, _, _ = run(
        "embed", answers_csv, "--noise", noise, "--dimensions", 1, "-o", output, "--held-out", 0
    )
    assert code == 0
    assert output.read_text().splitlines()[0] == "item,x1,uncertainty"


def test_the_lapse_rate_can_be_estimated(run, answers_csv, tmp_path):
    code, _, progress = run(
        "embed", answers_csv, "--lapse", "estimate", "-o", tmp_path / "e.csv", "--no-picture"
    )
    assert code == 0
    assert "lapse rate 0.0" in progress


def test_without_matplotlib_there_is_an_embedding_and_a_hint(
    run, answers_csv, tmp_path, monkeypatch
):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, out, progress = run("embed", answers_csv, "-o", tmp_path / "e.csv")
    assert code == 0
    assert "positions:" in out
    assert "pip install 'accelerando[plot]'" in progress


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["embed", "{tmp}/nothing.csv"], "No such file"),
        (["embed", "{csv}", "--noise", "tsne"], "'noise' parameter"),
        (
            ["embed", "{csv}", "--lapse", "0.9"],
            "'lapse' parameter of OrdinalEmbedding",
        ),
        (
            ["embed", "{csv}", "--lapse", "much"],
            "'--lapse' parameter of crowd embed must be a number",
        ),
        (
            ["embed", "{csv}", "--held-out", "1.5"],
            "'--held-out' parameter of crowd embed",
        ),
        (["plan", "--items", "3"], "'items' parameter of plan must be an integer of at least 4"),
        (
            ["plan", "--items", "10", "--per-participant", "0"],
            "'--per-participant' parameter",
        ),
    ],
)
def test_what_is_wrong_is_said_in_one_line(run, answers_csv, tmp_path, arguments, says):
    filled = [text.format(tmp=tmp_path, csv=answers_csv) for text in arguments]
    extra = ["-o", str(tmp_path / "e.csv")] if filled[0] == "embed" else []
    code, _, progress = run(*filled, *extra)
    assert code == 2
    assert "error: " in progress
    assert says in progress


def test_a_file_without_usable_answers_is_an_error(run, tmp_path):
    path = tmp_path / "empty.csv"
    path.write_text("head,winner,loser\n")
    code, _, progress = run("embed", path, "-o", tmp_path / "e.csv")
    assert code == 2
    assert "no usable answer" in progress


def test_plan_answers_with_a_band(run):
    code, out, progress = run(
        "plan", "--items", 12, "--dimensions", 1, "--runs", 2, "--within", 0.05
    )
    assert code == 0
    assert "12 items, 1 dimensions" in out
    assert "Random" in out
    assert "ARR" in out
    assert " to " in out
    assert "run 2 of 2, ARR" in progress


def test_the_answers_may_choose_model_and_dimension(run, answers_csv, tmp_path):
    auto = "--noise", "auto", "--lapse", "auto", "--dimensions", "auto"
    output = tmp_path / "e.csv"
    code, _, progress = run("embed", answers_csv, "-o", output, "--no-picture", *auto)
    assert code == 0
    assert "chosen: " in progress
    assert "nats per answer" in progress
    rows = list(csv.DictReader(output.read_text().splitlines()))
    assert all(float(row["uncertainty"]) > 0 for row in rows)


def test_alpha_of_tste_can_be_set(run, answers_csv, tmp_path):
    places = []
    for more in ([], ["--alpha", "1"], ["--alpha", "9"]):
        output = tmp_path / "e.csv"
        code, _, _ = run("embed", answers_csv, "-o", output, "--no-picture", *more)
        assert code == 0
        places.append(output.read_text())
    assert places[0] == places[1] != places[2]
    code, _, says = run("embed", answers_csv, "--noise", "ste", "--alpha", "2")
    assert code != 0
    assert "'--alpha'" in says


def test_dimensions_are_a_number_or_auto(run, answers_csv):
    code, _, says = run("embed", answers_csv, "--dimensions", "many")
    assert code != 0
    assert "an integer of at least 1 or 'auto'. Got 'many'" in says
