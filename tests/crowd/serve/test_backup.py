"""Backups of a server."""

from accelerando.crowd.serve.backup import backup, restore
from accelerando.crowd.store import Store, experiments, export


def test_a_backup_of_the_server_can_be_restored_elsewhere(answered, tmp_path):
    file = tmp_path / "backup.zip"
    assert backup(answered.store, file) == ["eggs"]
    other = Store(f"sqlite:///{tmp_path}/other.sqlite")
    assert restore(other, file) == ["eggs"]
    with other.read() as there, answered.store.read() as here:
        assert list(export.rows(there, experiments.find(there, "eggs"))) == list(
            export.rows(here, answered.find())
        )
    other.close()
