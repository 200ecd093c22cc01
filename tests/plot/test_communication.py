"""The figure of communication: means per update, and parts that add up to the whole."""

import pandas as pd
import pytest

from accelerando import plot


def run(sent, wait, encode, decode, seconds):
    rows = len(sent)
    return pd.DataFrame(
        {
            "bytes": sent,
            "wait_seconds": [wait] * rows,
            "encode_seconds": [encode] * rows,
            "decode_seconds": [decode] * rows,
            "seconds": [seconds * (i + 1) for i in range(rows)],
        }
    )


def test_bytes_are_means_and_seconds_are_parts_of_an_update():
    runs = {
        "float32": run([3e6, 5e6], 0.3, 0.0, 0.0, 0.4),
        "QSGD": run([1e6, 1e6], 0.1, 0.02, 0.01, 0.2),
    }
    sent, spent = plot.communication(runs).axes
    assert sent.get_xlabel() == "MB per update"
    assert [bar.get_width() for bar in sent.patches] == [4.0, 1.0]
    assert [label.get_text() for label in sent.get_yticklabels()] == ["float32", "QSGD"]
    parts = {c.get_label(): [bar.get_width() for bar in c] for c in spent.containers}
    assert list(parts) == ["compute", "wait and send", "encode", "decode"]
    assert parts["wait and send"] == pytest.approx([300, 100])
    assert parts["compute"] == pytest.approx([100, 70])
    ends = [bar.get_x() + bar.get_width() for bar in spent.containers[-1]]
    assert ends == pytest.approx([400, 200])


def test_wrong_arguments_are_named():
    with pytest.raises(TypeError, match=r"'runs' parameter .* must be a dictionary"):
        plot.communication(run([1], 0, 0, 0, 1))
    with pytest.raises(TypeError, match=r"runs\['a'\] .* fitted with client="):
        plot.communication({"a": pd.DataFrame({"seconds": [1.0]})})
