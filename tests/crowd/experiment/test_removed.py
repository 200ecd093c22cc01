"""Notices about what was removed."""

from accelerando.crowd.experiment import Files, Settings, make_experiment, read_yaml
from accelerando.crowd.experiment.items import Item
from accelerando.crowd.experiment.removed import removed_notices


def test_each_thing_is_named_once_with_its_items():
    boxes = [Item.of_html(f"<p style='float: left; color: red'>{k}</p>") for k in range(7)]
    plain = Item.of_html("<b>fine</b>")
    form = Item.of_html("<form><b>x</b></form>")
    assert removed_notices(Settings(), [plain, form, *boxes]) == [
        "removed from item 1 (x): the tag <form>.",
        "removed from 7 items: 2 (0), 3 (1), 4 (2), 5 (3), 6 (4) and 2 more: "
        'the style "float: left".',
    ]


def test_texts_of_the_page_are_looked_at_too():
    text = (
        "items: [a, b, c]\n"
        "instructions: \"<p style='position: fixed'>x</p>\"\n"
        "consent: {text: '<iframe></iframe>y'}\n"
        "breaks: {every: 5, text: '<p onclick=1>z</p>'}\n"
        "slots: {top: '<script>1</script>'}\n"
    )
    assert make_experiment(read_yaml(text), Files()).notices == [
        'removed from instructions: the style "position: fixed".',
        "removed from consent.text: the tag <iframe>.",
        "removed from breaks.text: the attribute onclick of <p>.",
        "removed from slots.top: the tag <script>.",
    ]
