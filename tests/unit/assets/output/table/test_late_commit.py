"""A publication that reaches another catalog while the next publisher looks for it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException

from dagster_leasehold.assets.errors import TableUnavailable
from dagster_leasehold.assets.table_settings import CatalogSettings
from tests.unit.assets.output.table.publishing_world import Publishing


class Scene(Publishing):
    """A publisher of a table in a separate SQL catalog that behaves like an external service."""

    def metadata_at(self) -> str:
        catalog: Any = load_catalog(self.catalog.name, **self.catalog.properties)
        return catalog.load_table("leasehold.orders").metadata_location


def lake(folder: Path) -> CatalogSettings:
    """A separate catalog, in a file."""
    properties = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": "none"}
    return CatalogSettings("lake", properties)


class Publishes(Protocol):
    """A publisher to a table in a SQL catalog."""

    def publish(self) -> object: ...


def send_unanswered(scene: Publishes, monkeypatch: pytest.MonkeyPatch) -> Callable[[], object]:
    """Publish with a request that gets no answer; return a function that lets it arrive."""
    commit, late = SqlCatalog.commit_table, list[tuple[Any, ...]]()

    def delayed(*arguments: Any) -> None:
        late.append(arguments)
        raise TimeoutError("no answer")

    with monkeypatch.context() as patched:
        patched.setattr(SqlCatalog, "commit_table", delayed)
        with pytest.raises(TableUnavailable):
            scene.publish()
    (arguments,) = late
    return lambda: commit(*arguments)


@pytest.mark.parametrize("moment", ["publication", "commit_publication", "unpublished"])
def test_a_request_that_arrives_at_any_moment_is_published_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """1. A request is in flight. 2. The next publisher looks for it. 3. It arrives."""
    scene = Scene(tmp_path, catalog=lake(tmp_path))
    scene.world.consume()
    late = [send_unanswered(scene, monkeypatch)]
    verb = getattr(scene.store, moment)

    def arriving(*arguments: Any, **options: Any) -> Any:
        if late:
            # Refused if the next publisher has sent it already.
            with suppress(CommitFailedException):
                late.pop()()
        return verb(*arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(scene.store, moment, arriving)
        scene.publish()
    assert late == []
    assert scene.published() == scene.committed()
    assert len(scene.published()) == 20
