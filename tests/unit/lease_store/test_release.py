"""Releases that may share a database, by the two revisions that it carries."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from dagster_leasehold.lease_store import migrations
from dagster_leasehold.lease_store.errors import SchemaTooNew, SchemaTooOld
from dagster_leasehold.lease_store.release import HEAD, OLDEST, REVISIONS, StoredSchema

NEXT = f"{int(HEAD) + 1:04}"
FORMER = "0023"
ADDING = {"add_column", "create_table", "create_index"}
FOLDER = Path(migrations.__path__[0]) / "versions"


@pytest.mark.parametrize(
    "schema",
    [StoredSchema(HEAD, OLDEST), StoredSchema(NEXT, OLDEST), StoredSchema(NEXT, HEAD)],
    ids=["of this release", "that a newer one added to", "for releases from this one on"],
)
def test_a_schema_for_this_release_is_used(schema: StoredSchema) -> None:
    schema.check("the place")


@pytest.mark.parametrize(
    ("schema", "error", "words"),
    [
        (
            StoredSchema(NEXT, NEXT),
            SchemaTooNew,
            f"{NEXT} or later; this release has schema {HEAD}",
        ),
        (StoredSchema(HEAD, NEXT), SchemaTooNew, f"releases with schema {NEXT}"),
        (StoredSchema(NEXT), SchemaTooNew, "install the newer release"),
        (StoredSchema(FORMER, "0020"), SchemaTooOld, "cannot be upgraded: use a new database"),
        (StoredSchema(None), SchemaTooOld, "has no lease tables yet"),
    ],
    ids=["changed by a newer one", "being changed", "of unknown rule", "older", "none"],
)
def test_any_other_schema_is_refused(
    schema: StoredSchema, error: type[Exception], words: str
) -> None:
    with pytest.raises(error) as refused:
        schema.check("the place")
    assert words in str(refused.value)


def changes(script: str) -> set[str]:
    """Return Alembic's functions through which a revision changes the schema."""
    return {
        node.attr
        for node in ast.walk(ast.parse(script))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "op"
    }


def test_every_revision_since_the_oldest_one_only_adds() -> None:
    """A revision that drops or changes something, or rewrites rows, is named in OLDEST."""
    assert OLDEST in REVISIONS
    for script in sorted(FOLDER.glob("[0-9]*.py")):
        if script.name[:4] > OLDEST:
            assert changes(script.read_text("utf-8")) <= ADDING, script.name


def test_the_check_finds_a_revision_that_drops_a_column() -> None:
    assert changes("def upgrade(): op.drop_column('t', 'c')") == {"drop_column"}


def test_only_the_newest_revision_may_import_the_tables() -> None:
    """A later change of `tables` must not change the result of an earlier revision."""
    for script in sorted(FOLDER.glob("[0-9]*.py"))[:-1]:
        assert "lease_store.tables" not in script.read_text("utf-8"), script.name
