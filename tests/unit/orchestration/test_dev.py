"""Where `leasehold dev` keeps leases."""

from __future__ import annotations

from pathlib import Path

from pydantic import SecretStr

from dagster_leasehold.orchestration.commands.dev import storage_sentence
from dagster_leasehold.orchestration.settings import Settings

URL = SecretStr("mysql+pymysql://leasehold:secret@db/leases")


def test_the_first_line_says_where_everything_is_without_a_secret(tmp_path: Path) -> None:
    given = Settings(home=tmp_path, database_url=URL)
    assert storage_sentence(Settings(home=tmp_path), dagster_elsewhere=False) == (
        "Leases and Dagster's storage are in SQLite."
    )
    assert storage_sentence(given, dagster_elsewhere=False) == (
        "Leases are in the database of LEASEHOLD_DATABASE_URL, and Dagster's storage is in SQLite."
    )
    assert storage_sentence(given, dagster_elsewhere=True) == (
        "Leases are in the database of LEASEHOLD_DATABASE_URL, and Dagster's storage is in the "
        "database of DAGSTER_MYSQL_HOSTNAME."
    )
