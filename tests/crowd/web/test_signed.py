"""The experimenter of a request."""

import time

import pytest
from sqlalchemy import delete, select

from accelerando.crowd.store.errors import ApiError
from accelerando.crowd.store.schema import api_token, experimenter
from accelerando.crowd.store.schema import session as session_table
from accelerando.crowd.web import accounts, roles
from accelerando.crowd.web.signed import require_still


@pytest.mark.parametrize("way", ["session", "token"])
def test_who_has_signed_in_is_so_until_session_token_or_account_ends(site, way):
    clock = time.time()
    with site.store.write() as connection:
        number, hashed = accounts.stored_hash(connection, "experimenter")
        opened = accounts.sign_in(connection, number, hashed, "caller", "experimenter", clock)
        signed = accounts.check_session(connection, opened, clock)
        table = session_table
        if way == "token":
            made = roles.make_token(
                connection, signed, name="robot", scope="write", only=None, days=1, clock=clock
            )
            signed, table = roles.check_token(connection, made, clock), api_token
        require_still(connection, signed)
        assert signed.key == connection.execute(select(table.c.token_hash)).scalar_one()
        for gone in (table, experimenter):
            nested = connection.begin_nested()
            connection.execute(delete(gone))
            with pytest.raises(ApiError, match="sign in"):
                require_still(connection, signed)
            nested.rollback()
        require_still(connection, signed)
