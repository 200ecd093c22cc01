"""Lists of items."""

import csv
import io

from hypothesis import given
from hypothesis import strategies as st

from accelerando.crowd.experiment.items import Item, items_from_csv, natural_order


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


def test_a_box_without_words_is_called_by_its_color():
    item = Item.of_html("<div style='width: 5px; background-color: #4dc7e8'></div>")
    assert (item.kind, item.text, item.alt) == ("html", "#4dc7e8", "#4dc7e8")
