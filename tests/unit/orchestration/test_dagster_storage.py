from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event

from dagster_leasehold.orchestration.dagster_storage import (
    CONNECT_LIMIT_S,
    STATEMENT_LIMIT_S,
    with_limits,
)

URL = "mysql+mysqlconnector://u:p@db:3306/dagster"


class Reached(Exception):
    """Raised where a connection would be made."""


def options_of(url: str) -> dict[str, Any]:
    """Return the options that the driver would receive."""
    seen: dict[str, Any] = {}
    engine = sa.create_engine(url)

    def look(_dialect: object, _record: object, _words: object, options: dict[str, Any]) -> None:
        seen.update(options)
        raise Reached

    event.listen(engine, "do_connect", look)
    with pytest.raises(Reached):
        engine.connect()
    return seen


def test_the_driver_receives_only_the_limits_as_numbers():
    plain, limited = options_of(URL), options_of(with_limits(URL, STATEMENT_LIMIT_S))
    assert "read_timeout" not in plain
    assert limited == plain | {
        "connection_timeout": CONNECT_LIMIT_S,
        "read_timeout": STATEMENT_LIMIT_S,
        "write_timeout": STATEMENT_LIMIT_S,
    }


def test_a_password_with_url_characters_is_unchanged():
    url = sa.make_url(URL).set(password="a@b/c?d=e&f").render_as_string(hide_password=False)
    assert options_of(with_limits(url, 5))["password"] == "a@b/c?d=e&f"
