"""A catalog's service that takes a request and never answers it."""

from __future__ import annotations

import socket
from typing import Any, cast

import pytest

from dagster_leasehold.assets.errors import TableUnavailable
from dagster_leasehold.assets.output.table import other_catalog
from dagster_leasehold.assets.output.table.other_catalog import open_catalog

NOTHING = cast("Any", None)


@pytest.mark.parametrize("secrets", [{}, {"credential": "id:hush"}])
@pytest.mark.filterwarnings("ignore:Deprecated:DeprecationWarning")
@pytest.mark.timeout(20)
def test_a_rest_service_that_never_answers_is_given_up(
    secrets: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody else could publish meanwhile, and after the service's end nobody would tell us."""
    monkeypatch.setattr(other_catalog, "ANSWER_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        properties = {"uri": f"http://127.0.0.1:{silent.getsockname()[1]}", **secrets}
        with pytest.raises(TableUnavailable, match=r"Catalog lake cannot be opened .*timed out"):
            open_catalog("lake", properties, NOTHING, NOTHING, lambda: "")
