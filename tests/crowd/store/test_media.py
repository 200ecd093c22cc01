"""Files of an experiment in the database, with smaller copies."""

from dataclasses import replace

from accelerando.crowd.experiment import Media, make_experiment, read_upload, read_yaml
from accelerando.crowd.store import experiments, media
from accelerando.crowd.store.archive import read_archive, restore, write_archive
from tests.crowd.web.conftest import png, zipped


def shown():
    """An experiment with pictures, one of which has smaller copies."""
    files = read_upload("p.zip", zipped({f"{k}.png": png(k) for k in range(3)}))
    made = make_experiment(read_yaml("name: eggs\n"), files)
    key = made.items[0].media
    made.media[key] = replace(
        made.media[key], sizes={960: ("image/png", png(8)), 480: ("image/png", png(9))}
    )
    return made, key


def test_copies_and_sources_are_stored_and_go_with_the_experiment(store):
    made, key = shown()
    with store.write() as connection:
        number = experiments.add(connection, made, 1.0)
        items = experiments.items_of(connection, number)
        assert [item.widths for item in items] == [(480, 960), (), ()]
        assert media.copy_of(connection, number, key, 480) == ("image/png", png(9))
        assert media.copy_of(connection, number, key, 481) is None
        found = media.sources_of(connection, number)
        assert found[made.media[key].source] == (key, (480, 960))
        assert len(found) == 3
        experiments.remove(connection, number)
        assert media.widths_of(connection, number) == {}


def test_sources_are_added_to_what_a_former_version_stored(store):
    made, key = shown()
    old = {k: Media(m.name, m.type, m.data) for k, m in made.media.items()}
    with store.write() as connection:
        number = experiments.add(connection, replace(made, media=old), 1.0)
        assert media.sources_of(connection, number) == {}
        media.note_sources(connection, number, made.media)
        assert media.sources_of(connection, number)[made.media[key].source] == (key, ())


def test_an_archive_keeps_them(store, tmp_path):
    made, key = shown()
    with store.write() as connection:
        number = experiments.add(connection, made, 1.0)
        before = media.all_media(connection, number)
    with store.read() as connection, (tmp_path / "a.zip").open("wb") as stream:
        write_archive(connection, experiments.find(connection, "eggs"), stream)
    with store.write() as connection:
        restore(connection, read_archive((tmp_path / "a.zip").read_bytes()), "again", 2.0)
        again = experiments.find(connection, "again").frame.id
        assert media.all_media(connection, again) == before
        assert before[key].sizes == made.media[key].sizes
        assert media.sources_of(connection, again) == media.sources_of(connection, number)
